"""Queues with one planted defect each: the check finds it, and accuses them of nothing else.

What a passing check is worth is shown here. Each file of strategies/broken/ begins with the
guarantee that it breaks, and is a sound queue but for a few words. One of each guarantee, which
has one family, is searched anew; the recorded story of every other happens again. `-m thorough`
searches all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof import Queue
from queueproof.examine.replay import replay
from queueproof.explain import defects
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.pytest_plugin import Examiner
from queueproof.report.card import Card

from .matrix import Recorded, Replays

BROKEN = Path(__file__).resolve().parent.parent / "strategies" / "broken"


def guarantee_of(path: Path) -> str:
    """The guarantee that a file names in its first line as the one that it breaks."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    match = re.fullmatch(r"-- breaks: ([\w-]+)", first)
    assert match, f"{path} does not begin with `-- breaks: ID`"
    return match[1]


# What takes a pooler, a server to kill, a filled table, or all that others do under conditions
# that change nothing: `make results` asks these too.
SLOW = {"crash-safe", "isolation", "old-snapshot", "pooler-safe", "server-clock", "steady-cost"}
# Whose examples are not found at a glance.
CLOSER = {"no-starvation"}
DEFECTS = {path.stem: guarantee_of(path) for path in sorted(BROKEN.glob("*.sql"))}
# What `queueproof explain` shows of each guarantee, but for those that take longest to be found.
ONE_EACH = {
    one.id: one.example or Path(defects(one.id)[0].name).stem for one in CATALOGUE.values()
} | {
    "backoff": "backoff_none",
    "concurrency-limit": "concurrency_limit_count_then_claim",
    "live-lease": "live_lease_heartbeat_ignored",
    "no-deadlock": "no_deadlock_counters",
    "no-starvation": "no_starvation_null",
    "pooler-safe": "pooler_safe_currval",
}
SEARCHED = sorted(ONE_EACH.values())
REPLAYED = sorted(DEFECTS.keys() - ONE_EACH.values())


def collected(request: pytest.FixtureRequest, *tests: Callable[..., None]) -> list[str]:
    """The files that the collected cases of tests are about."""
    named = {test.__name__ for test in tests}
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    found = [str(item.callspec.params["name"]) for item in items if item.originalname in named]
    return list(dict.fromkeys(found))


def assert_found(card: Card) -> None:
    """The one guarantee that a card is about is broken, and a story shows how."""
    (judgement,) = card.guarantees
    assert judgement.verdict == "broken", judgement.reason
    assert judgement.story
    assert judgement.replay


@pytest.fixture(scope="session")
def by_their_guarantee(
    request: pytest.FixtureRequest, strategy: Callable[[str], Queue], examiner: Examiner
) -> dict[str, Callable[[], Card]]:
    """The card of each file, of the guarantee that it names, until that breaks."""
    names = collected(request, test_a_defect_is_found, test_every_defect_is_found)
    cards = {
        name: examiner.submit(
            strategy(f"broken/{name}"),
            [DEFECTS[name]],
            None if examiner.thorough or DEFECTS[name] in CLOSER else "glance",
            fail_fast=True,
        )
        for name in names
    }
    examiner.begin()  # what follows these
    return cards


@pytest.fixture(scope="session")
def by_the_others(
    request: pytest.FixtureRequest, strategy: Callable[[str], Queue], examiner: Examiner
) -> dict[str, Callable[[], Card]]:
    """The card of each file, of the others but those that are slow, at a glance."""
    names = collected(request, test_nothing_else_is_broken)
    asked = [name for name in CATALOGUE if name not in SLOW]
    return {
        name: examiner.submit(
            strategy(f"broken/{name}"), [one for one in asked if one != DEFECTS[name]], "glance"
        )
        for name in names
    }


@pytest.mark.parametrize("name", SEARCHED)
def test_a_defect_is_found(name: str, by_their_guarantee: dict[str, Callable[[], Card]]) -> None:
    """The guarantee that the file names is broken, and a story shows how; one of each guarantee."""
    assert_found(by_their_guarantee[name]())


@pytest.mark.thorough
@pytest.mark.parametrize("name", DEFECTS)
def test_every_defect_is_found(
    name: str, by_their_guarantee: dict[str, Callable[[], Card]]
) -> None:
    """The same of all."""
    assert_found(by_their_guarantee[name]())


@pytest.mark.parametrize("name", REPLAYED)
def test_a_recorded_story_happens_again(
    name: str, strategy: Callable[[str], Queue], examiner: Examiner, replays: Replays
) -> None:
    """What a search once found of the file breaks its guarantee in a run of today."""
    tokens = replays.get(f"broken/{name}", {})
    assert DEFECTS[name] in tokens, "no story is recorded of it yet: `make results` does that"
    with examiner.lab(strategy(f"broken/{name}")) as lab:
        again = replay(lab, tokens[DEFECTS[name]])
    assert again is not None, "the recorded story does not happen any more: `make results` looks"
    assert again.guarantee == DEFECTS[name]


@pytest.mark.parametrize("name", DEFECTS)
def test_one_defect_breaks_one_guarantee(name: str, recorded: Recorded) -> None:
    """The rule of blame: what is recorded as broken is what the file names, and nothing else."""
    known = recorded.get(f"broken/{name}")
    assert known is not None, "nothing is recorded of it yet: `make results` does that"
    assert {guarantee for guarantee in known if known[guarantee] == "broken"} == {DEFECTS[name]}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ONE_EACH.values())
def test_nothing_else_is_broken(name: str, by_the_others: dict[str, Callable[[], Card]]) -> None:
    """The other guarantees are not, when they are asked again."""
    judgements = by_the_others[name]().guarantees
    assert not {found.id for found in judgements if found.verdict == "broken"}
