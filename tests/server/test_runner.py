"""Runs on a real server: replay, lock waits, deadlocks, crashes, held claims, errors, rules."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from psycopg import errors

from queueproof.errors import QueueError
from queueproof.examine.calibrate import calibrate
from queueproof.history.calls import Contradiction
from queueproof.judge.answers import contradiction, is_raced
from queueproof.judge.checker import check, declare
from queueproof.probes import backoff
from queueproof.probes.backoff import measure
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load_text
from queueproof.run.drain import RETRIES
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.moments import HOUR, MARGIN
from queueproof.schedule.programs import (
    HEARTBEATS,
    MAINTENANCE,
    JobSpec,
    Program,
    completing_and_claiming,
)
from queueproof.search.explore import explore
from queueproof.space.pieces import LOOKS, SAME
from tests.fix_histories import Told
from tests.fix_labs import LabOf, offered
from tests.fix_places import BROKEN, SKIP_LOCKED, STRATEGIES, reference, text_of
from tests.fix_plays import calls, play
from tests.fix_queues import CLAIM_MANY, FREE, HOLDS, queue_file

RACE = "w1 claims | w2 claims"  # two claims at once
HELD = queue_file(
    more="CREATE TABLE beats (at timestamptz);",
    heartbeat="!\nINSERT INTO beats VALUES (now());",
    **HOLDS,
)
CROSSED = queue_file(
    claim="""
BEGIN;
SELECT 1 AS one FROM jobs WHERE id = 1 FOR UPDATE;
UPDATE jobs SET status = 'running' WHERE id = 2 AND status = 'queued' RETURNING id;
COMMIT;""",
    recover="""
BEGIN;
SELECT 1 AS one FROM jobs WHERE id = 2 FOR UPDATE;
SELECT id FROM jobs WHERE id = 1 FOR UPDATE;
COMMIT;""",
)
HOLDER = queue_file(**HOLDS).replace("claim\n", "claim(limit)\n").replace("LIMIT 1", "LIMIT :limit")
# A claim takes back what a dead worker had, which waits for three days.
_BEFORE, _, _AFTER = SKIP_LOCKED.partition("-- name: recover(lease)")
LATER = f"{_BEFORE}-- name: cleanup{_AFTER.partition('-- name: cleanup')[2]}".replace(
    "-- name: claim(worker, limit, queue)\n",
    "-- name: claim(worker, limit, queue, lease)\nWITH back AS (UPDATE jobs SET status = 'queued',"
    " run_at = now() + interval '3 days' WHERE status = 'running' AND locked_at < now() - :lease"
    " RETURNING id) SELECT count(*) FROM back;\n",
)
# From the second failure on a recovery puts jobs in line when they are due.
STAGED = (
    SKIP_LOCKED.replace("'queued', 'running'", "'queued', 'waiting', 'running'")
    .replace("-- ///\n\n", '-- [states]\n-- waiting = "queued"\n-- ///\n\n', 1)
    .replace(
        "CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END",
        "CASE WHEN attempts >= max_attempts THEN 'failed'"
        " WHEN attempts = 1 THEN 'queued' ELSE 'waiting' END",
        1,
    )
    .replace(
        "-- name: recover(lease)\n",
        "-- name: recover(lease)\nWITH due AS (UPDATE jobs SET status = 'queued'"
        " WHERE status = 'waiting' AND run_at <= now() RETURNING id) SELECT count(*) FROM due;\n",
    )
)
# Each looks into another sixth of the line: an offset that is drawn does so by chance.
SOMEWHERE = reference(
    *("-- name: schema#\n", "-- name: schema#\nCREATE SEQUENCE turns;\n"),
    *("  LIMIT :limit\n", "  OFFSET (SELECT nextval('turns') % 6) LIMIT :limit\n"),
)


def queue(lock: str = "", retry_on: str = "") -> str:
    """A queue that claims in two statements, which take a lock in a certain way or none."""
    return queue_file(
        header=f"retry_on = [{retry_on}]",
        claim=f"""
BEGIN;
{FREE} {lock};
UPDATE jobs SET status = 'running' WHERE id = ANY (:ids) RETURNING id;
COMMIT;""",
    )


def test_a_completion_and_the_claim_after_it_can_be_one_operation(lab_of: LabOf) -> None:
    """It counts as both: two calls of one invocation, one that accepts and one that takes."""
    lab = lab_of(STRATEGIES / "lease_table.sql")
    run = Runner(lab).run(completing_and_claiming(play("w1 claims, completes, claims", 2)))
    first, done, taken = [call for call in run.history.calls if call.actor == "w1"][:3]
    assert (done.kind, taken.kind) == ("complete_many", "claim")
    assert taken.is_one_with(done)
    assert not done.is_one_with(first)
    assert first.ids == done.ids
    assert len(set(taken.ids) - set(first.ids)) == 1


def test_an_enqueue_that_is_refused_brings_no_job(lab_of: LabOf) -> None:
    """Rule 2: nothing is said of it. It was taken for a job that is free and passed over."""
    once = SKIP_LOCKED.replace(
        "payload      jsonb       NOT NULL", "payload jsonb NOT NULL UNIQUE"
    ).replace("RETURNING id;", "ON CONFLICT DO NOTHING RETURNING id;", 1)
    lab = lab_of(once)
    jobs = (JobSpec(payload="same"), JobSpec(payload="same"), JobSpec())
    run = Runner(lab).run(play("w1 claims, claims", jobs))
    assert [call.answer for call in run.history.of_kind("enqueue")].count("rejected") == 1
    assert not check(run.history, declare(offered(lab))).violations


def test_what_was_just_enqueued_is_found_however_fast_the_machine_is(lab_of: LabOf) -> None:
    """A queue may keep milliseconds, rounded up, and jobs that are due a moment later."""
    lab = lab_of(reference("now() + :delay", "now() + :delay + interval '15 milliseconds'"))
    run = Runner(lab).run(play("w1 claims; producer enqueues; w2 claims", reserve=1))
    assert [len(call.ids) for call in run.history.of_kind("claim")[:2]] == [1, 1]
    assert measure(lab, calibrate(lab)).found  # its waits, too


@pytest.mark.parametrize("order", ["ASC", "DESC"])
def test_a_worker_takes_its_jobs_as_they_were_enqueued(lab_of: LabOf, order: str) -> None:
    """RETURNING follows the plan of the moment; which of its jobs a worker ends does not."""
    claim_all = f"WITH got AS ({CLAIM_MANY[:-1]}) SELECT id FROM got ORDER BY id {order};"
    run = Runner(lab_of(queue_file(claim=claim_all))).run(play("w1 claims 2, completes", jobs=2))
    claimed, completed = calls(run, "claim", "w1")[0], calls(run, "complete", "w1")[0]
    assert [claimed.ids, completed.refs[0].job] == [("1", "2"), "1"]


def events(run: Run, event: str) -> list[tuple[str, str]]:
    """Who did something, and what the trace says of it."""
    return [(beat.actor, beat.text) for beat in run.trace if beat.event == event]


def every(lab: Lab, program: Program, *, held: bool = False) -> list[tuple[Sequence[int], Run]]:
    """All runs of a program, with their schedules."""
    return list(explore(Runner(lab, held=held), program, budget=500))


@pytest.mark.parametrize("lock", ["", "FOR UPDATE", "FOR UPDATE SKIP LOCKED"])
def test_a_replay_is_the_same_run(lab_of: LabOf, lock: str) -> None:
    """A program under a schedule leaves the same trace and history twenty times over."""
    runner = Runner(lab_of(queue(lock)))
    # Of two that wait for one transaction PostgreSQL wakes both: only skipping is for three.
    third = " | w3 claims" if "SKIP" in lock else ""
    program = play(f"w1 claims, completes | w2 claims, completes{third}", 2)
    runs = [runner.run(program, (1, 2, 1, 0, 1, 1)) for _ in range(20)]
    known = [[(c.kind, c.answer, c.ids) for c in run.history.calls] for run in runs]
    assert known == known[:1] * 20
    assert len({tuple(run.trace) for run in runs}) == 1


def test_a_lock_wait_is_recognised(lab_of: LabOf) -> None:
    """A claim that waits for another's row is seen to, and goes on when the other has committed."""
    lab = lab_of(queue("FOR UPDATE"))
    waited = [run for _, run in every(lab, play(RACE, 2)) if events(run, "waits")]
    assert waited
    for run in waited:
        ((waiter, blocker),) = events(run, "waits")
        assert {waiter, blocker} == {"w1", "w2"}
        (wait,) = calls(run, "claim", waiter)[0].waits
        assert wait.blocker == blocker
        assert wait.call == calls(run, "claim", blocker)[0].index
        assert calls(run, "claim", waiter)[0].answer == "accepted"


@pytest.mark.parametrize(
    "slow", ["pg_sleep(0.02)", "count(*) FROM generate_series(1, 100000)"], ids=["sleep", "cpu"]
)
def test_a_slow_statement_waits_for_nobody(lab_of: LabOf, slow: str) -> None:
    """A statement that sleeps or computes is never taken for one that waits for a lock."""
    text = queue("FOR UPDATE SKIP LOCKED").replace("BEGIN;", f"BEGIN;\nSELECT {slow};")
    for _, run in list(explore(Runner(lab_of(text)), play(RACE), budget=6)):
        assert events(run, "waits") == []


def test_a_deadlock_is_found_and_its_victim_is_always_the_same(lab_of: LabOf) -> None:
    """Of those that wait in a circle the one that joined last is told 40P01, on every replay."""
    lab, program = lab_of(CROSSED), play("w1 claims | reaper recovers", 2)
    runs = every(lab, program)
    deadlocked = [known for known in runs if any(call.error for call in known[1].history.calls)]
    assert deadlocked
    for schedule, run in deadlocked:
        again = Runner(lab).run(program, schedule)
        for one in (run, again):
            assert events(one, "error") == [("reaper", "40P01: deadlock detected")]
            assert calls(one, "claim", "w1")[0].ids == ("2",)
        assert run.trace == again.trace


def test_a_crash_rolls_an_open_transaction_back(lab_of: LabOf) -> None:
    """Wherever a worker dies in its claim, the job is taken once or is free, never in between."""
    program = play("w1 claims | nemesis crashes 1")
    answers = set()
    for _, run in every(lab_of(queue("FOR UPDATE SKIP LOCKED")), program):
        mine = calls(run, "claim", "w1")
        answers |= {call.answer for call in mine}
        taken = bool(mine) and mine[0].answer == "accepted"
        assert run.history.final == {"1": "running" if taken else "completed"}
    assert answers == {"pending", "accepted"}
    # Between two transactions, of which one was committed, the answer is unknown.
    text = queue().replace("BEGIN;\n", "").replace("COMMIT;\n", "SELECT id FROM jobs WHERE id = 1;")
    runs = (run for _, run in every(lab_of(text), program))
    answers = {call.answer for run in runs for call in calls(run, "claim", "w1")}
    assert answers == {"pending", "unknown", "accepted"}


def test_a_claim_may_be_held_in_its_transaction(lab_of: LabOf) -> None:
    """Rule 19: it is its worker's only one, of one job, and nobody else's until that crashes."""
    lab = lab_of(HELD)
    run = Runner(lab, held=True).run(play("w1 claims; w2 claims; w1 completes"))
    (mine,), (theirs,) = calls(run, "claim", "w1"), calls(run, "claim", "w2")
    assert mine.held
    assert (mine.ids, theirs.ids) == (("1",), ())
    assert calls(run, "complete", "w1")[0].answer == "accepted"
    assert run.history.final == {"1": "completed"}
    run = Runner(lab, held=True).run(play("w1 claims, claims", 2))
    assert len(calls(run, "claim", "w1")) == 1
    # A heartbeat commits meanwhile, on a connection of its own (rule 3).
    run = Runner(lab, held=True).run(play("w1 claims, beats, crashes; w2 claims"))
    assert calls(run, "claim", "w2")[0].ids == ("1",)
    assert calls(run, "heartbeat", "w1")[0].answer == "accepted"
    assert lab.execute("SELECT count(*) FROM public.beats") == [(1,)]
    # Whatever a program wants: the transaction that ends the first ends them all.
    run = Runner(lab_of(HOLDER), held=True).run(play("w1 claims 2", 2))
    assert {1} == {call.limit for call in run.history.of_kind("claim")}
    assert [job for call in run.history.of_kind("claim")[:1] for job in call.ids] == ["1"]


def test_a_reaper_may_take_back_one_job_per_call(lab_of: LabOf) -> None:
    """A drain goes on for as long as recover has something to answer."""
    before, recover, after = SKIP_LOCKED.partition("-- name: recover(lease)\n")
    lab = lab_of(before + recover + after.replace("FOR UPDATE", "LIMIT 1 FOR UPDATE", 1))
    jobs = RETRIES + 2
    run = Runner(lab).run(play(f"w1 claims {jobs}, crashes", jobs))
    assert set((run.history.final or {}).values()) == {"completed"}
    sweeps = run.history.of_kind("sweep")
    assert len(sweeps) == 2  # at once, and when the leases were over


def test_heartbeats_are_sent_beside_their_workers_operation(lab_of: LabOf) -> None:
    """Rule 3: a heartbeat may run on a second connection, in the midst of a complete, and wait."""
    lab = lab_of(SKIP_LOCKED)
    runs = [run for _, run in every(lab, play("w1 claims; w1 completes | (w1) beats"))]
    beats = [call for run in runs for call in calls(run, "heartbeat", f"w1{HEARTBEATS}")]
    assert {call.answer for call in beats} == {"accepted", "rejected"}
    assert any(call.waits for call in beats)
    # Whoever crashes sends nothing more, on none of its connections.
    crashing = [run for _, run in every(lab, play("w1 claims; w1 crashes | (w1) beats"))]
    for run in crashing:
        crashed = run.history.of_kind("crash")[0].index
        assert all(beat.index < crashed for beat in run.history.of_kind("heartbeat"))
    assert all(run.history.final == {"1": "completed"} for run in runs + crashing)


def test_nobody_acts_between_the_statements_of_what_is_one_step(lab_of: LabOf) -> None:
    """A recovery in two statements, taken whole, is met at its ends only."""
    lab = lab_of(BROKEN / "live_lease_two_step.sql")
    program = play("w1 claims; +lease; reaper wholly recovers | w2 claims, claims", 3)
    runs = [run for _, run in every(lab, program)]
    assert len(runs) == 5  # before, after or between the steps of the claims, and their commits
    for run in runs:
        turns = [actor for actor, _ in groupby(beat.actor for beat in run.trace)]
        assert turns.count("reaper") == 1


@pytest.mark.parametrize(("retry_on", "expected"), [('"55P03"', "retry"), ("", "error")])
def test_an_error_means_nothing_happened(lab_of: LabOf, retry_on: str, expected: str) -> None:
    """Rule 7: an error that the header lists may be tried again, any other one is an error."""
    runs = [run for _, run in every(lab_of(queue("FOR UPDATE NOWAIT", retry_on)), play(RACE))]
    refused = [(call, run) for run in runs for call in run.history.of_kind("claim") if call.error]
    assert refused
    for call, run in refused:
        assert (expected, ()) == (call.answer, call.ids)
        assert call.error.startswith("55P03")
        assert run.history.final in ({"1": "running"}, {"1": "completed"})


def test_the_clock_stops_a_moment_before_a_limit(lab_of: LabOf) -> None:
    """Rule 24: what may be claimed later than that is looked for in the last tenths of a second."""
    lab = lab_of(queue("FOR UPDATE SKIP LOCKED"))
    calls = Runner(lab).run(play("w1 claims; clock waits 61; w2 claims")).history.calls
    first, second, *_ = (call for call in calls if call.kind == "claim")
    (move,) = (call for call in calls if call.kind == "advance" and call.actor == "clock")
    assert move.delay <= 61.0 - MARGIN <= second.began - first.began + 0.1


def test_a_leader_s_maintenance_meets_no_other_and_idle_workers_beat(lab_of: LabOf) -> None:
    """Under every schedule; each worker has registered, and beats when the clock has moved."""
    lab = lab_of(STRATEGIES / "sound" / "leader_promotes.sql")
    together = "reaper recovers | promoter promotes | janitor promotes"
    seen = [run for _, run in explore(Runner(lab), play(f"{together}; +40; w2 claims"), budget=20)]
    assert len(seen) > 1
    for run in seen:
        kept = [call for call in run.history.calls if call.kind in MAINTENANCE]
        assert not any(one.overlaps(other) for one in kept for other in kept if one is not other)
        beats = run.history.of_kind("heartbeat")
        beating = {(beat.actor, beat.answer) for beat in beats}
        assert beating == {("w2", "accepted"), (DRAINER, "accepted")}
        assert [call.ids for call in run.history.of_kind("claim") if call.actor == "w2"] == [("1",)]


def test_jobs_that_are_alike_are_two(lab_of: LabOf) -> None:
    """They have one payload, and ids of their own; a large one is longer than an index takes."""
    lab = lab_of(SKIP_LOCKED)
    alike = play("w1 claims; producer enqueues", [SAME])._replace(reserve=(SAME,))
    made = Runner(lab).run(alike).history.of_kind("enqueue")
    assert [call.payload for call in made] == ["same", "same"]
    assert len({job for call in made for job in call.ids}) == 2
    Runner(lab).run(play("w1 claims", [JobSpec(payload="large")]))
    with pytest.raises(errors.ProgramLimitExceeded, match="index row"):
        lab.execute("CREATE INDEX ON public.jobs (payload)")


def test_without_a_list_of_jobs_answers_say_what_is_over(lab_of: LabOf) -> None:
    """Without a list only answers say what is done; a batch's of each of its jobs, and a beat's."""
    lab = lab_of(SKIP_LOCKED.partition("-- name: jobs")[0])
    late = "w1 claims; +lease; reaper recovers; w2 claims; w2 crashes; w1 batches"
    history = Runner(lab).run(play(late)).history
    (refused,) = history.of_kind("complete_many")
    assert (refused.answer, refused.accepted) == ("accepted", set())
    assert check(history, declare(offered(lab))).violations == []
    revives = "UPDATE jobs SET status = 'running', locked_at = now() WHERE id = :id;\n\n"
    begun, _, _ = SKIP_LOCKED.partition("-- name: heartbeat")
    recover = SKIP_LOCKED[
        SKIP_LOCKED.index("-- name: recover") : SKIP_LOCKED.index("-- name: jobs")
    ]
    lab = lab_of(f"{begun}-- name: heartbeat(id)!\n{revives}{recover}")
    history = Runner(lab).run(play("w1 claims; w1 completes; (w1) beats")).history
    (violation,) = check(history, declare(offered(lab))).violations
    assert violation.guarantee == "final-state"


def test_what_was_taken_back_may_wait_as_long_as_it_is_seen_to(lab_of: LabOf) -> None:
    """Rules 14 and 28: it is queued for three days, and comes then; the next stale job, too."""
    lab = lab_of(LATER)
    offer = calibrate(lab)
    run = Runner(lab).run(play("w1 claims, crashes"))
    assert check(run.history, declare(offer)).violations == []
    assert [job for call in run.history.of_kind("claim") for job in call.ids] == ["1", "1"]
    # The first that it ends shows in `jobs`, before which nobody had looked.
    lab = lab_of(text_of("sound/renewed_receipts"))
    offer = calibrate(lab)
    late = play(f"w1 claims, crashes; w2 claims, crashes; +{HOUR}", [JobSpec(bound=1), JobSpec()])
    assert check(Runner(lab).run(late).history, declare(offer)).violations == []


def test_a_wait_is_measured_as_it_is(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 28: recover runs while time passes; and a wait of 5 s is not measured as more."""
    lab = lab_of(STAGED)
    found = measure(lab, calibrate(lab))
    assert found.broken == ""
    assert len(found.found) == 2
    lab = lab_of(SKIP_LOCKED)
    end: Callable[..., bool] = backoff._end

    def slowly(*arguments: object, **facts: object) -> bool:
        lab.advance(0.8)
        return end(*arguments, **facts)

    monkeypatch.setattr(backoff, "_end", slowly)
    found = measure(lab, calibrate(lab))
    assert found.broken == ""
    assert found.found[0].least <= 5


def test_a_claim_that_is_empty_now_and_then_is_told(lab_of: LabOf) -> None:
    """It starves what it passes by; of one that is always empty nothing can be said."""
    lab = lab_of(SOMEWHERE)
    offer = calibrate(lab)
    assert offer.misses
    found = check(Runner(lab).run(LOOKS).history, declare(offer)).violations
    assert "no-starvation" in {one.guarantee for one in found}
    with pytest.raises(QueueError, match="claim returned nothing, although a job was enqueued"):
        calibrate(lab_of(reference("  LIMIT :limit\n", "  OFFSET 1000 LIMIT :limit\n")))
    # A job that is passed by three times in a row is neither starved nor lost in the end.
    lab = lab_of(SOMEWHERE.replace("% 6", "% 4"))
    offer = calibrate(lab)
    assert not offer.misses
    assert offer.passes > 1
    runner = Runner(lab, passes=offer.passes)
    for program in (LOOKS, play("w1 claims", [JobSpec(delay=HOUR), JobSpec()])):
        found = check(runner.run(program).history, declare(offer)).violations
        assert not {"no-starvation", "no-lost-job"} & {one.guarantee for one in found}


@pytest.mark.parametrize(
    ("recoveries", "raced"),
    [
        ("w1 recovers; w2 recovers", False),
        ("begin w1 recovers; begin w2 recovers; end w1; end w2", True),
    ],
)
def test_a_list_that_a_race_made_wrong_is_a_break(recoveries: str, *, raced: bool) -> None:
    """Rule 30: two recoveries at once make two of a job; where nothing raced, the list is wrong."""
    history = Told(f"enqueue 1; {recoveries}; jobs 1=queued").history
    history.calls[-1] = replace(history.calls[-1], ids=("1", "1"))
    wrong = contradiction(history.calls)
    assert isinstance(wrong, Contradiction)
    assert is_raced(history.calls, wrong) is raced
    history.contradiction = wrong
    declared = declare(Offer(load_text(SKIP_LOCKED, "q.sql"), held=False))
    (found,) = check(history, declared).violations
    assert (found.guarantee, found.job, found.call) == ("single-claim", "1", 3)
