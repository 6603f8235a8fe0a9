"""A replay token is read by one schema: what it is not is refused by the field's name, at once."""

import base64
import copy
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueproof.errors import Exit, QueueproofError
from queueproof.examine.replay import told_by
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.probes.buffers import KINDS
from queueproof.probes.plans import DEEP
from queueproof.schedule.conditions import PLANNERS, Conditions
from queueproof.schedule.programs import JobSpec, Program
from queueproof.schedule.reading import read
from queueproof.search.tokens import encode_token
from tests.fix_commands import Command
from tests.fix_places import REFERENCE
from tests.fix_plays import play

JOBS = [JobSpec(), JobSpec(3, 2.5, 4, "other", "large")]
PROGRAM = play("w1 claims, completes | clock advances 31.7", JOBS, reserve=1)
STORY: dict[str, Any] = {
    "program": PROGRAM.to_data(),
    "schedule": [1, 0],
    "under": {"gate": "row", "planner": "no index"},
    "broken": "fencing",
}
NONE = "not a replay token"


def packed(content: object) -> str:
    """A token of anything."""
    text = content if isinstance(content, str) else json.dumps(content)
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode().rstrip("=")


def story(**other: object) -> str:
    """A token that is right but for what is given."""
    return encode_token("0123456789ab", "fencing", 7, **{**STORY, **other})


def probe(guarantee: str, data: object) -> str:
    """A token of what a probe saw."""
    return encode_token("0123456789ab", guarantee, 7, probe=data)


def does(*do: object) -> str:
    """A token in which somebody does something."""
    return story(program=[[], [[["w1", [list(do)]]]], []])


def test_tokens_that_were_written_are_read() -> None:
    """A program, what each probe writes, and conditions: the type itself is the schema."""
    digest, guarantee, seed, data = told_by(story())
    assert (digest, guarantee, seed, data) == ("0123456789ab", "fencing", 7, STORY)
    assert Program.from_data(data["program"]) == PROGRAM
    for filling in DEEP:
        told_by(probe("claim-limit", [list(filling), next(iter(PLANNERS)), 3]))
    told_by(probe("claim-limit", [list(DEEP[0]), "no index", 1, "complete_and_claim"]))
    told_by(probe("backoff", data=True))
    told_by(probe("pooler-safe", PROGRAM.to_data()))
    for kind in KINDS:
        told_by(probe("steady-cost", [kind, 1_000_000]))
    told_by(probe("order", ["late", 11_000]))
    varied = {**STORY, "broken": "error 40001", "under": {"isolation": "serializable"}}
    told_by(encode_token("0123456789ab", "isolation", 7, **varied))
    given = {"clocks": True, "styles": False, "pooled": "first idle", "pooler": "x 1.2"}
    known = Conditions(clocks=True, styles=False, pooled="first idle", pooler="x 1.2")
    assert read(Conditions, given, "it") == known


WRONG = {
    "nothing": ("", "is empty: is a variable unset?"),
    "a word": ("nonsense", "unknown guarantee"),
    "a letter": ("A", NONE),
    "another letter": ("é", NONE),
    "an end too early": ("eJwBAAD__wAAAAE", NONE),
    "an older version": (encode_token("0", "fencing", 7, program=[], schedule=[]), "older queuep"),
    "null": (packed("null"), NONE),
    "a number": (packed("5"), NONE),
    "too few": (packed([1, 2]), NONE),
    "numbers for lists": (packed(["0", "fencing", 7, 5]), NONE),
    "deep": (packed("[" * 400_000), NONE),
    "not whole": (story()[:-20], NONE),
    "a bomb": (packed(" " * 200_000_000), NONE),
    "long": ("A" * 2_000_000, NONE),
    "NaN": (packed('["0","fencing",7,{"program":NaN}]'), NONE),
    "no digest": (packed([5, "fencing", 7, STORY]), "queue is 5, and not a string"),
    "no seed": (packed(["0", "fencing", None, STORY]), "seed is null, and not a whole number"),
    "unknown guarantee": (packed(["0", "fenzing", 7, STORY]), 'guarantee is "fenzing"'),
    "no guarantee": (packed(["0", ["fencing"], 7, STORY]), 'guarantee is ["fencing"]'),
    "unknown probe": (probe("fencing", data=True), 'guarantee is "fencing", and not one that is'),
    "another guarantee": (packed(["0", "order", 7, STORY]), 'broken is "fencing", and not order'),
    "what else": (story(more=1), 'story is ["more"]'),
    "no program": (story(program=None), "program is null, and not a list of 2 to 3"),
    "a number of jobs": (story(program=[5, [], []]), "program.jobs is 5"),
    "a million jobs": (story(program=[[[]] * 100_000, [], []]), "program.jobs is ["),
    "a text as priority": (story(program=[[["x"]], [], []]), 'program.jobs[0].priority is "x"'),
    "an endless delay": (story(program=[[[0, 1e300]], [], []]), "program.jobs[0].delay is 1e+300"),
    "a huge priority": (story(program=[[[10**30]], [], []]), "program.jobs[0].priority is 1000"),
    "a flag as number": (story(program=[[[True]], [], []]), "program.jobs[0].priority is true"),
    "a payload": (story(program=[[[0, 0, 0, "q", "no"]], [], []]), 'jobs[0].payload is "no"'),
    "a long name": (story(program=[[[0, 0, 0, "q" * 2000]], [], []]), "jobs[0].queue is"),
    "stages": (story(program=[[], [[["w1"]]], []]), "program.stages[0][0] is"),
    "what nobody does": (does("juggle"), '[1][0].kind is "juggle"'),
    "before the first": (does("claim", -1), "limit of w1's claim is -1"),
    "a schedule": (story(schedule={}), "schedule is {}"),
    "a step": (story(schedule=[None]), "schedule[0] is null"),
    "conditions": (story(under=[]), "under is []"),
    "a condition": (story(under={"colour": "red"}), 'under is {"colour": "red"}'),
    "a planner": (story(under={"planner": "none"}), 'under.planner is "none"'),
    "a level": (story(under={"isolation": "'; DROP"}), "under.isolation is"),
    "a cell": (probe("claim-limit", 5), "probe is 5, and not a list of 3 to 4"),
    "a filling": (probe("claim-limit", [[0, 1, 2, 3], "no index", 1]), "probe.filling.analyze"),
    "a setting": (probe("claim-limit", [list(DEEP[0]), "fast", 1]), 'probe.setting is "fast"'),
    "waits": (probe("backoff", None), "probe is null"),
    "a content": (probe("steady-cost", ["finished", 10**9]), "probe.jobs is 1000000000"),
    "a kind": (probe("steady-cost", ["lost", 5]), 'probe.kind is "lost"'),
    "a crowd": (probe("order", ["late", -5]), "probe.jobs is -5"),
    "a pooled program": (probe("pooler-safe", [[], 5, []]), "program.stages is 5"),
}


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(("token", "told"), WRONG.values(), ids=WRONG)
def test_a_malformed_token_is_refused_by_its_field(token: str, told: str, command: Command) -> None:
    """Exit 4 before a server is started, with --export or without."""
    for export in ([], ["--export", "story.py"]):
        ran = command("replay", REFERENCE, *export, "--", token)
        assert (ran.code, told in ran.err) == (Exit.UNUSABLE, True)
        assert len(ran.err) < 500


@given(st.data())
def test_whatever_stands_in_a_token_is_read_or_refused(data: st.DataObject) -> None:
    """One place of a token that is right has any JSON in it: nothing but an error for people."""
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
    content: Any = copy.deepcopy(["0123456789ab", "fencing", 7, STORY])
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], list | dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(junk)
    try:
        told_by(packed(json.dumps(content)))
    except QueueproofError as error:
        assert str(error)  # noqa: PT017 - either is right


def test_every_probe_says_what_it_reads() -> None:
    """A guarantee that is measured has a shape of its own for its token."""
    for name, one in CATALOGUE.items():
        if one.probe:
            with pytest.raises(QueueproofError, match=r"probe|program"):
                told_by(probe(name, "nonsense"))
