"""From a queue to a card: verdicts, replay tokens, what makes a queue unusable; must_hold."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from queueproof import testing
from queueproof.errors import QueueError, QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.examine.plan import Examination
from queueproof.examine.replay import replay
from queueproof.examine.work import Exploration, Work
from queueproof.guarantees.catalogue import select
from queueproof.judge.checker import check, declare
from queueproof.probes.probe import Seen
from queueproof.probes.probes import PROBES
from queueproof.report.card import Card
from queueproof.run.lab import Lab
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import JobSpec
from queueproof.search.shrink import find
from queueproof.search.tokens import decode_token, encode_token
from queueproof.space.suites import MEETINGS, Suite
from queueproof.testing import must_hold
from tests.fix_labs import LabOf, happens_again, judged, offered
from tests.fix_places import REFERENCE, SKIP_LOCKED, STRATEGIES, reference
from tests.fix_plays import play
from tests.fix_queues import CLAIM, RACES, queue_file

SOUND = queue_file(header='order = "none"')
BROKEN = SOUND.replace(CLAIM, RACES)
RACE = play("w1 claims | w2 claims")
LESSON = queue_file(header='[breaks]\nsingle-claim = "a lesson"')
GUARD = re.compile(r"\n  AND locked_by = :worker\n(?:  --.*\n)?  AND attempts = :attempt;")
WAIT = re.compile(
    r"run_at     = now\(\)\n .*?10\)\),|run_at     = now\(\) \+ .*?10\)\),", re.DOTALL
)
RAISES = """
DO $$ BEGIN RAISE EXCEPTION 'no slots' USING ERRCODE = '53300', HINT = 'wait'; END $$;
UPDATE jobs SET status = 'completed'"""
RECOVERS = """-- ///
-- name: recover
UPDATE jobs SET status = 'queued' WHERE status = 'running' RETURNING id;
"""
AGAIN = SOUND.replace("status = 'queued' ORDER", "status <> 'running' ORDER")
REFUSED = SOUND.replace("SKIP LOCKED", "NOWAIT").replace("-- ///\n\n", RECOVERS, 1)


def glance(lab: Lab, *asked: str) -> Card:
    """A check of some guarantees, by default single-claim, that takes no more than a look."""
    return check_queue(lab, select(asked or ["single-claim"]), profile="glance")


@pytest.mark.parametrize("waits", [True, False])
def test_each_operation_that_breaks_a_guarantee_is_told_once(lab_of: LabOf, *, waits: bool) -> None:
    """A late complete, fail and heartbeat have a story each, in which another worker is hurt."""
    text = GUARD.sub(";", SKIP_LOCKED)
    text = re.sub(r"\((id), worker, attempt", r"(\1", text)
    if not waits:  # then a worker may meet its own late operation in the shortest program
        text = WAIT.sub("run_at     = now(),", text).replace('-- backoff = "5 seconds"\n', "")
    lab = lab_of(text)
    # The second keeps the search from ending where the first is broken.
    judgement, _ = check_queue(lab, select(("fencing", "routing")), profile="quick").guarantees
    late = re.compile(
        r"w1's (\w+) was accepted, although its claim had ended and w2 has the job now"
    )
    found = [late.fullmatch(one.reason) for one in judgement.stories]
    assert sorted(match[1] for match in found if match) == ["complete", "fail", "heartbeat"]
    assert (judgement.reason, judgement.story) == astuple(judgement.stories[0])[:2]
    for one in judgement.stories:
        happens_again(lab, one)


def test_what_breaks_anyway_is_no_new_break(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe has met by chance what breaks without a pooler too: that is no second break."""
    lab, probe = lab_of(BROKEN), PROBES["pooler-safe"]
    race = find(Runner(lab), declare(offered(lab)), RACE, "single-claim", budget=100)
    assert race is not None
    seen = Seen({"transactions": 1}, broken="two have it (pgbouncer)", found=race, data=[])
    monkeypatch.setattr(type(probe), "look", lambda *_: seen)
    found = judged(lab, "single-claim", "pooler-safe")
    assert found["single-claim"].verdict == "broken"
    assert found["pooler-safe"].verdict == "inconclusive"
    assert "single-claim breaks without that as well" in found["pooler-safe"].reason


def test_what_is_lacking_is_named_as_where_it_is_there(lab_of: LabOf) -> None:
    """The reference has all of it, but for a cap that it does not declare."""
    wanted = {one.id: one.lacking for one in select(None) if one.lacking}
    card = glance(lab_of(REFERENCE), *wanted)
    there = {one.id for one in card.guarantees if one.evidence.get(wanted[one.id], 0) > 0}
    assert there == wanted.keys() - {"concurrency-limit"}


def test_without_a_test_there_is_no_pass(lab_of: LabOf) -> None:
    """Where recovery ends every job as failed, none is ever claimed again, and that is told."""
    text = queue_file(
        header='lease = "30 seconds"',
        more="ALTER TABLE jobs ADD since timestamptz;",
        claim=CLAIM.replace("'running'", "'running', since = now()"),
        recover="""
UPDATE jobs SET status = 'failed'
WHERE status = 'running' AND since < now() - interval '30 seconds' RETURNING id;""",
    )
    (judgement,) = glance(lab_of(text), "stale-recovery").guarantees
    lacking = "no run put it to the test: no jobs of crashed workers claimed again"
    assert (judgement.verdict, judgement.reason) == ("inconclusive", lacking)


@pytest.mark.parametrize(("fail", "retries"), [("queued", True), ("failed", False)])
def test_that_a_failed_job_comes_back_is_seen(lab_of: LabOf, fail: str, *, retries: bool) -> None:
    """A fail that ends jobs below the bound breaks retry-given: no job is lost, no crash is why."""
    fails = f"(id)!\nUPDATE jobs SET status = '{fail}' WHERE id = :id AND status = 'running';"
    lab = lab_of(queue_file(header="max_attempts = 3", fail=fails))
    assert calibrate(lab).retries is retries
    found = glance(lab, "no-lost-job", "crash-safe").guarantees
    assert {one.verdict for one in found} == {"holds"}


@pytest.mark.parametrize(
    ("claim", "verdict", "reason"),
    [(RACES, "accepted", "a lesson"), (CLAIM, "holds", "not seen to break")],
    ids=["it is seen", "it is not seen"],
)
def test_a_declared_break_is_accepted(lab_of: LabOf, claim: str, verdict: str, reason: str) -> None:
    """With the declared reason; else it holds, with that as its reason."""
    card = glance(lab_of(LESSON.replace(CLAIM, claim)))
    (judgement,) = card.guarantees
    assert (judgement.verdict, card.verdict) == (verdict, "holds")
    assert reason in judgement.reason


def test_a_token_is_asked_of_an_edited_queue(lab_of: LabOf) -> None:
    """A defect is found wherever its statements stand by now; what is not offered is named."""
    token = glance(lab_of(BROKEN)).guarantees[0].replay
    assert token is not None
    looks_first = "-- name: claim\nSELECT count(*) FROM jobs;\n"
    again = replay(lab_of(BROKEN.replace("-- name: claim\n", looks_first)), token)
    assert again is not None
    assert again.data["schedule"] != decode_token(token)[3]["schedule"]
    assert replay(lab_of(SOUND), token) is None
    # A kind that nobody knows is another version's.
    sound = lab_of(SOUND)
    data: dict[str, Any] = {"schedule": [], "under": {}, "broken": "order"}
    kinds = {
        "cleanup": "needs cleanup, which it no longer offers",
        "juggle": r'\[0\]\.kind is "juggle", and not one of: enqueue, claim',
    }
    for kind, told in kinds.items():
        data["program"] = [[], [[["w1", [[kind]]]]], []]
        with pytest.raises(QueueproofError, match=told):
            replay(sound, encode_token("0123456789ab", "order", 0, **data))


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("status = 'queued' ORDER", "status = 'waiting' ORDER", "claim returned nothing"),
        ("AND status = 'running'", "AND status = 'queued'", "complete was refused"),
        ("SET status = 'completed'", "SET state = 'completed'", "PostgreSQL rejected this SQL"),
        ("SET status = 'completed'", "SET status = (1 / (id - id))::text", "division by zero"),
        # which is a server's own word for too many connections, unless a RAISE says it
        ("UPDATE jobs SET status = 'completed'", RAISES, r"SQL: no slots \(53300\)\nHINT: wait"),
    ],
)
def test_what_never_works_is_unusable(lab_of: LabOf, part: str, instead: str, message: str) -> None:
    """Rule 7: what does not even work undisturbed is an error of the queue, not a verdict."""
    with pytest.raises(QueueError, match=message):
        glance(lab_of(SOUND.replace(part, instead)))


@pytest.fixture
def overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found without conditions, until a story has been made short."""
    monkeypatch.setattr(Examination, "_search", lambda *_: None)
    monkeypatch.setattr(Examination, "_breaks_anyway", lambda *_, **__: False)


@pytest.mark.usefixtures("overlooked")
def test_what_a_shortened_story_breaks_without_its_conditions_is_plainly_broken(
    lab_of: LabOf,
) -> None:
    """The conditions are not to blame, and say what is: a guarantee, or an error that is none."""
    lab = lab_of(AGAIN)
    plain, varied = glance(lab, "final-state", "server-clock").guarantees
    assert (plain.id, plain.verdict, varied.verdict) == ("final-state", "broken", "inconclusive")
    assert varied.reason == "final-state is broken without it too"
    assert "Sessions differ in TimeZone" not in (plain.story or "")
    assert plain.replay is not None
    assert replay(lab, plain.replay) is not None
    (judgement,) = glance(lab_of(REFUSED), "isolation").guarantees
    assert judgement.verdict == "inconclusive"
    assert judgement.reason == "error 55P03 occurs without it too"
    assert "retryable errors (55P03)" not in judgement.evidence


def test_priority_alone_says_nothing_of_equals(lab_of: LabOf) -> None:
    """Jobs of one priority may come in any order, which breaks the order of a queue by age too."""
    text = reference('"priority, fifo"', '"priority"', "DESC, run_at, id\n", "DESC, id DESC\n")
    lab = lab_of(text)
    program = play(
        "producer enqueues, enqueues; +9; producer enqueues; w1 claims, claims, claims", 0
    )
    program = program._replace(reserve=(JobSpec(priority=1), JobSpec(), JobSpec()))
    history = Runner(lab).run(program).history
    found = check(history, declare(offered(lab)))
    assert (found.violations, found.evidence["order", "pairs of jobs compared"] > 0) == ([], True)
    by_age = replace(declare(offered(lab)), order="priority, fifo")
    assert [one.guarantee for one in check(history, by_age).violations] == ["order"]


def test_must_hold_asks_what_the_queue_offers() -> None:
    """A wait is measured again; a program without an operation of the queue shows nothing."""
    with pytest.raises(AssertionError, match="backoff: A failed job waits"):
        must_hold("backoff", STRATEGIES / "broken" / "backoff_none.sql", probe=True)
    must_hold("backoff", REFERENCE, probe=True)
    queue = STRATEGIES / "sound" / "sessions.sql"
    with pytest.raises(AssertionError, match="does not offer heartbeat, which the program does"):
        must_hold("single-claim", queue, program=play("w1 beats"))
    explodes = play("w1 beats")._replace(stages=((("w1", (testing.Do("explode"),)),),))  # type: ignore[arg-type]
    with pytest.raises(QueueproofError, match="breaks single-claim is a run: give must_hold its"):
        must_hold("single-claim", queue)
    with pytest.raises(QueueproofError, match='kind is "explode", and not one of: enqueue, cl'):
        must_hold("single-claim", queue, program=explodes)


def example(queue: Path) -> Callable[[], None]:
    """The test in the module's docstring, about a queue."""
    told = (testing.__doc__ or "").partition("    from ")[2].partition("\nA `Program`")[0]
    code = textwrap.dedent(f"    from {told}").replace("jobs.sql", str(queue))
    names: dict[str, Callable[[], None]] = {}
    exec(code, names)  # noqa: S102 - the documentation's own
    return names["test_single_claim"]


@pytest.mark.sample
def test_the_example_passes_and_fails() -> None:
    """It tells the story of the queue without a lock, and nothing of the reference."""
    example(REFERENCE)()
    with pytest.raises(AssertionError, match="w1 got a job that w2 already holds"):
        example(STRATEGIES / "select_then_update.sql")()


@pytest.mark.parametrize(
    ("name", "guarantee"),
    [
        ("live_lease_two_step", "live-lease"),  # read, and freed by id
        ("fencing_checked_before", "fencing"),  # inside a function
        ("final_state_heartbeat_revives", "final-state"),  # from a thread of the worker's own
        ("no_lost_job_two_step_fail", "no-lost-job"),  # a death between two transactions
    ],
)
def test_a_race_is_found(lab_of: LabOf, name: str, guarantee: str) -> None:
    """By what the specification says may go on meanwhile."""
    lab = lab_of(STRATEGIES / "broken" / f"{name}.sql")
    offer = calibrate(lab)
    work, inside = Work(lab, offer, 0), Conditions(gate="every")
    most, schedules = 200, 6  # as many as the quick profile
    assert any(
        one.violation.guarantee == guarantee and not one.violation.doubts
        for program in Suite(offer).first(MEETINGS, most)
        for tried in work.tries(Exploration(program, inside, schedules, fixed=1))
        for one in tried.broken
    )
