"""Answers that contradict each other are an operation's fault, and no verdict on the queue."""

import os
import signal
from contextlib import suppress
from functools import partialmethod
from typing import Any

import pytest

from queueproof import ending
from queueproof.errors import QueueError, ServerError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.judge.answers import contradiction
from queueproof.judge.checker import check, declare
from queueproof.queues import model
from queueproof.queues.model import FAILURE, Claim, JobRow, Operation, Queue, Result, Step, Value
from queueproof.report.text import remedy
from queueproof.run.runner import Runner
from queueproof.schedule.programs import Program
from queueproof.space.crowds import numbered
from queueproof.space.pieces import ONE, SAME, Pieces
from queueproof.space.situations import skins
from tests.fix_histories import Case, Told, cases
from tests.fix_labs import LabOf, judged, offered
from tests.fix_places import SKIP_LOCKED, STRATEGIES, reference
from tests.fix_plays import play

JOBS = "SELECT id, status AS state, attempts\nFROM jobs"
ENQUEUED = "RETURNING id;\n\n-- name: claim"
LIST = {
    "left out job 2": " ORDER BY id LIMIT 1",
    "left out job 3": " WHERE run_at <= now()",
    "left out job 4": " WHERE queue = 'default'",
    "failed by its holder": " WHERE status <> 'running'",
    "lists job 1 more than once": f" UNION ALL {JOBS}",
}
STATE = {
    "reported job 1 as completed": "'completed'",
    "which had attempts left": "CASE WHEN status = 'queued' AND attempts > 0 THEN 'failed' "
    "ELSE status END",
}
TWO_IDS = "RETURNING id;\nSELECT unnest(ARRAY[max(id), -max(id)]) AS id FROM jobs;\n-- name: claim"
BATCH = "held.id\nRETURNING jobs.id"
NEWEST = "AS attempt, (SELECT max(payload::text) FROM jobs) AS payload;"
READY = "AND run_at <= now()"
UNMOVED = "AND run_at <= ('no' || 'w')::timestamptz"
WRONG = [
    ("enqueue", "the id 7 for two jobs", ENQUEUED, "RETURNING 7 AS id;\n-- name: claim"),
    ("enqueue", "no id", ENQUEUED, "RETURNING id;\nSELECT 1 AS id WHERE false;\n-- name: claim"),
    ("enqueue", "2 ids", ENQUEUED, TWO_IDS),
    ("claim", "the id 1001", "RETURNING id, attempts AS", "RETURNING id + 1000 AS id, attempts AS"),
    ("claim", "job 1 with the payload of job 2", "AS attempt, payload;", NEWEST),
    ("claim", "does not see that the database's clock was moved", READY, UNMOVED),
    ("complete_many", "the id 50\\d", BATCH, f"{BATCH} + 500 AS id"),
    ("jobs", "id is NULL", JOBS, JOBS.replace("id,", "NULL AS id,")),
    *(("jobs", message, JOBS, JOBS + rest) for message, rest in LIST.items()),
    *(("jobs", message, JOBS, JOBS.replace("status", state)) for message, state in STATE.items()),
]


@cases("""
    an id that is answered for two jobs, none of which was ever claimed, is enqueue's fault
        enqueue 7; enqueue 7 => enqueue: enqueue answered the id 7 for two jobs
    an id is not used again after a claim: another job's late operation would be about it
        enqueue 7; w1 claims 7; enqueue 7
        => enqueue: enqueue answered the id 7 again, which another job
    an id is not used again after a recovery
        enqueue 7; recover 7; enqueue 7
        => enqueue: enqueue answered the id 7 again, which another job
    an id is not used again after a cleanup
        enqueue 7; cleanup; enqueue 7 => enqueue: enqueue answered the id 7 again, which another job
    a sequence that a killed server had not written down goes back, and is judged elsewhere
        enqueue 7; restart; enqueue 7 => holds
    a sequence that a lost claim may have left behind goes back, and is judged elsewhere
        enqueue 7; w1 claims -> unknown; enqueue 7 => holds
    an id that recover answers and no enqueue did is recover's fault
        enqueue 7; recover 8 => recover: recover answered the id 8
    where an enqueue has no answer, the job that nobody knows is its
        begin enqueue; end producer -> unknown; recover 8 => holds
    where an enqueue was answered by an error, the job that nobody knows is its
        begin enqueue; end producer -> error; recover 8 => holds
    what an enqueue has committed is there before its producer hears of it
        begin recover; enqueue 8; end reaper 8 => holds
    an accepted id that the batch did not name is complete_many's fault
        enqueue 7; w1 claims 7; w1 batches 7 -> 9
        => complete_many: complete_many answered the id 9, which it was not given
    a list that leaves out a job may be right, as the job may be lost
        enqueue 7; jobs => holds
    what is claimed after a quiet look was there, and the list lacked it
        enqueue 7; jobs; w1 claims 7
        => jobs: jobs left out job 7, which had been enqueued and not ended, and it was claimed
        afterwards; list it, or leave the block out
    what its holder completes after a quiet look was there
        enqueue 7; w1 claims 7; jobs; w1 completes 7
        => jobs: jobs left out job 7, which had been enqueued and not ended, and it was completed
    after a lease may have run out, a completion is accepted of a job that is gone
        enqueue 7; w1 claims 7; jobs; advance; w1 completes 7 => holds
    a worker whose job is over lives on, and may say so
        enqueue 7; w1 claims 7; advance; w1 claims; jobs 7=completed; w1 beats 7
        => holds where by_worker=True
    a job that is over is not extended
        enqueue 7; w1 claims 7; advance; w1 claims; jobs 7=completed; w1 beats 7
        => jobs: jobs reported job 7 as completed, although nothing had ended it, and it was
        extended
    a list need not hold what was completed
        enqueue 7; w1 claims 7; w1 completes 7; jobs => holds
    a list need not hold what has failed
        enqueue 7; w1 claims 7; w1 fails 7; jobs => holds
    while an operation is under way a list may say anything
        enqueue 7; begin w2 claims; jobs; w1 claims 7; end w2 => holds
    after a fault a list may say anything
        enqueue 7; begin terminate; jobs; w1 claims 7; end nemesis => holds
    a job that is claimed later was not completed
        enqueue 7; jobs 7=completed; w1 claims 7
        => jobs: jobs reported job 7 as completed, although nothing had ended it
    what is to be tried again is queued, and not listed as failed
        enqueue 7 bound=2; w1 claims 7; w1 fails 7; jobs 7=failed; w1 claims 7
        => jobs: jobs reported job 7 as failed, which had attempts left
    what has failed for good and runs again is judged
        enqueue 7 bound=1; w1 claims 7; w1 fails 7; jobs 7=failed; w1 claims 7 => holds
    what has failed where no attempts are promised and runs again is judged
        enqueue 7; w1 claims 7; w1 fails 7; jobs 7=failed; w1 claims 7 => holds
""")
def test_what_contradicts_what_in_a_history(case: Case) -> None:
    """The operation that is at fault, and what it answered; nothing where nothing contradicts."""
    calls = Told(case.story).history.calls
    found = contradiction(calls, by_worker=case.facts.get("by_worker", False))
    if case.breaks:
        assert found is not None
        assert f"{found.operation}: {found.because}".startswith(case.breaks[0])
    else:
        assert found is None


@pytest.mark.parametrize(("operation", "message", "old", "new"), WRONG, ids=[w[1] for w in WRONG])
def test_a_wrong_answer(lab_of: LabOf, operation: str, message: str, old: str, new: str) -> None:
    """Nothing is judged; the message says which operation, in which line, and what it answered."""
    text = reference(old, new)
    line = text[: text.index(f"-- name: {operation}")].count("\n") + 1
    with pytest.raises(QueueError, match=rf"^queue\.sql:{line}: {operation} .*{message}"):
        calibrate(lab_of(text))


def test_a_recovery_that_answers_wrong_ids_is_named_when_it_first_recovers(lab_of: LabOf) -> None:
    """What no undisturbed run shows is seen in the runs of the guarantees."""
    words = "RETURNING jobs.id, jobs.status", "RETURNING jobs.id + 9 AS id, jobs.status"
    with pytest.raises(QueueError, match=r"queue\.sql:\d+: recover answered the id 10"):
        check_queue(lab_of(reference(*words)), [CATALOGUE["stale-recovery"]], profile="glance")


class Answering(Queue):
    """A queue whose operations answer what they are told to."""

    def __init__(self, operation: str, answer: object) -> None:
        self._operation = operation
        self._answer = answer

    def _say(self, operation: str, answer: object) -> Operation[Any]:
        yield Step("SELECT 1")
        return self._answer if operation == self._operation else answer

    install = partialmethod(_say, "install", None)
    enqueue = partialmethod(_say, "enqueue", ["1"])
    claim = partialmethod(_say, "claim", [])
    complete = partialmethod(_say, "complete", True)  # noqa: FBT003
    jobs = partialmethod(_say, "jobs", [])


def answered(operation: Operation[Any]) -> object:
    """What an operation returns, whatever the server answers."""
    try:
        next(operation)
        while True:
            operation.send(Result())
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        *[("enqueue", wrong) for wrong in ("7", None, [7], [Value(b"7", 20)])],
        *[("claim", wrong) for wrong in (None, ["7"], [{"id": "7"}], [Claim(7)])],  # type: ignore[arg-type]
        *[("complete", wrong) for wrong in (None, "yes")],
        *[("jobs", wrong) for wrong in (None, [("7", "queued")], [JobRow("7", "new")])],  # type: ignore[arg-type]
    ],
)
def test_what_a_class_returns_is_checked(operation: str, answer: object) -> None:
    """The message shows the operation, what it returned, and what it returns."""
    queue = Answering(operation, answer)
    with pytest.raises(QueueError, match=rf"{operation} returned .*; it returns ") as refused:
        answered(queue.begin(operation))
    assert ("write str(...)" in str(refused.value)) == ("Value(" in repr(answer))
    assert answered(Answering("", None).begin(operation)) is not None


def test_what_a_class_yields_is_checked() -> None:
    """An operation sends steps, and not for ever; what is no generator is no operation."""

    class Mine(Answering):
        def install(self) -> Operation[None]:
            yield "SELECT 1"  # type: ignore[misc]

        def claim(self) -> Operation[list[Claim]]:
            while True:
                yield Step("SELECT 1")

        def jobs(self) -> list[JobRow]:
            return []

        def enqueue(self) -> Operation[list[str]]:
            yield Step("SELECT %s", ["no name"])  # type: ignore[arg-type]
            return []

        def complete(self) -> Operation[bool]:
            os._exit(0)  # the status of a queue that holds
            yield

    before = os._exit
    for operation, told in {
        "install": "install yielded 'SELECT 1', which is no Step",
        "enqueue": r"enqueue yielded Step\('SELECT %s', \['no name'\]\);.*:id",
        "claim": r"claim sent 10,000 statements without an answer",
        "jobs": "jobs is no generator",
        "complete": r"complete ended its process: os\._exit\(0\)",
    }.items():
        with pytest.raises(QueueError, match=told):
            answered(Mine("", None).begin(operation))
    assert os._exit is before


@pytest.mark.parametrize("catches", [0, 2])
def test_code_that_never_ends_is_interrupted(catches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that swallows what interrupts it is interrupted again; no alarm is left behind."""

    class Mine(Answering):
        def claim(self) -> Operation[list[Claim]]:
            for _ in range(catches):
                with suppress(Exception):
                    while True:
                        pass
            while True:
                pass
            yield

    monkeypatch.setattr(model, "LONGEST", 0.25)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(QueueError, match=r"claim ran for 0.25 s without a Step or an answer"):
        answered(Mine("", None).begin("claim"))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_signal_that_interrupts_it_leaves_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end Python forgets the handlers, and the alarm would end the process by itself."""

    class Mine(Answering):
        def claim(self) -> Operation[list[Claim]]:
            monkeypatch.setattr(ending, "_signals", [signal.SIGINT])
            raise KeyboardInterrupt
            yield

    with pytest.raises(KeyboardInterrupt):
        answered(Mine("", None).begin("claim"))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_operation_sees_the_error_of_its_statement() -> None:
    """What is thrown into an operation reaches the step that failed."""

    class Mine(Answering):
        def claim(self) -> Operation[list[Claim]]:
            try:
                yield Step("SELECT 1/0")
            except ServerError:
                yield Step("SELECT 2")
            return []

    operation = Mine("", None).begin("claim")
    next(operation)
    assert operation.throw(ServerError("22012", "division by zero")) == Step("SELECT 2")
    with pytest.raises(StopIteration):
        operation.send(Result())


@pytest.mark.parametrize(
    ("params", "message"),
    [({}, "uses :id, and its parameters are none"), ({"id": {1}}, r"a parameter is \{1\}")],
)
def test_parameters_are_checked(lab_of: LabOf, params: dict[str, Any], message: str) -> None:
    """A statement's parameters are all given, and are values."""
    with pytest.raises(QueueError, match=message):
        lab_of(SKIP_LOCKED).session("w1").send(Step("SELECT :id", params))


def test_a_clock_moves_by_less_than_a_microsecond(lab_of: LabOf) -> None:
    """However short a lease is, the clock takes it."""
    lab = lab_of(SKIP_LOCKED)
    lab.advance(0.0000006)
    assert lab.execute("SELECT count(*) FROM clock.moves") == [(1,)]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param("SELECT jobs.* FROM jobs, generate_series(1, 100)", id="a hundred times"),
        pytest.param("SELECT jobs.* FROM jobs, generate_series(1, 10000)", id="10,000 times"),
        pytest.param("SELECT id + n AS id FROM jobs, generate_series(0, 99) AS n", id="unknown"),
    ],
)
def test_a_claim_with_far_too_many_rows_is_refused_at_its_first(lab_of: LabOf, rows: str) -> None:
    """Each row would be a job to complete; one message says what a claim answers."""
    text = reference("-- name: complete(", f"{rows} LIMIT 20000;\n\n-- name: complete(")
    told = r"^queue\.sql:\d+: claim answered [\d,]+ rows, among them"
    with pytest.raises(QueueError, match=told):
        calibrate(lab_of(text))


def test_a_worker_that_holds_nothing_may_be_refused_its_heartbeat(lab_of: LabOf) -> None:
    """It beats from its start on, and the natural heartbeat finds no row then."""
    named = "-- name: heartbeat(id, worker, attempt)!"
    start = "-- name: start(worker)\nSELECT :worker AS registered;\n\n-- name: heartbeat(worker)!"
    head, _, tail = SKIP_LOCKED.partition(named)
    beat, recover, tail = tail.partition("-- name: recover")
    mine = "WHERE status = 'running'\n  AND locked_by = :worker;"
    beat = f"{beat[: beat.index('WHERE')]}{mine}\n\n"
    text = f"{head}{start}{beat}{recover}{tail}"
    assert calibrate(lab_of(text)).queue.offers >= {"start", "heartbeat"}
    never = text.replace(mine, "WHERE :worker = '';")
    with pytest.raises(QueueError, match="heartbeat was refused to the job's only holder"):
        calibrate(lab_of(never))


def test_a_heartbeat_that_is_refused_now_and_then_breaks_the_lease(lab_of: LabOf) -> None:
    """It was taken for one that never works; what mends it is in the heartbeat, not in recover."""
    alive = "    updated_at = now()\nWHERE id = :id\n  AND status = 'running'"
    throttled = f"{alive}\n  AND locked_at < now() - interval '10 seconds'"
    head, beats, tail = SKIP_LOCKED.partition("-- name: heartbeat")
    text = head + beats + tail.replace(alive, throttled, 1)
    assert text != SKIP_LOCKED
    judgement = judged(lab_of(text), "live-lease", profile="glance")["live-lease"]
    assert "was refused heartbeat" in judgement.reason
    assert "still answers" in remedy("live-lease", judgement.told)


def test_a_fail_that_never_works_is_an_error_where_no_backoff_is_judged(lab_of: LabOf) -> None:
    """What it was given stands in the message; declared, the backoff would be broken."""
    by_hand = SKIP_LOCKED.replace("left(:error, 2000)", "('[\"' || :error || '\"]')::jsonb")
    assert by_hand != SKIP_LOCKED
    calibrate(lab_of(by_hand))
    undeclared = by_hand.replace('-- backoff = "5 seconds"\n-- jitter = 0.1\n', "")
    with pytest.raises(QueueError, match="22P02") as refused:
        calibrate(lab_of(undeclared))
    assert repr(FAILURE) in str(refused.value)


def test_a_job_that_fails_once_it_is_completed_is_waited_for(lab_of: LabOf) -> None:
    """Where the queue lists no jobs too: it comes back when it is due, and then it is seen."""
    head, _, tail = SKIP_LOCKED.partition("-- name: complete(")
    done, _, tail = tail.partition("-- name: complete_many(")
    failed, _, _ = tail.partition("-- name: fail(")[2].partition("-- name:")
    ends = f"-- name: complete({done}-- name: fail({failed}"
    unasked = ends.replace("  AND status = 'running'\n", "")
    unasked = unasked.replace("    locked_by    = NULL,\n", "")
    lab = lab_of(head + unasked)
    run = Runner(lab).run(play("w1 claims, completes, fails"))
    found = check(run.history, declare(offered(lab))).violations
    assert "final-state" in {one.guarantee for one in found}


def test_a_reaper_that_takes_back_one_at_a_time_is_not_late(lab_of: LabOf) -> None:
    """Of several that died together all are back once it has come as often."""
    stale = "    AND locked_at < now() - :lease\n"
    assert not calibrate(lab_of(reference(stale, f"{stale}  ORDER BY id LIMIT 1\n"))).late


@pytest.mark.sample(1)
@pytest.mark.parametrize("operation", ["fail", "complete", "heartbeat"])
def test_an_operation_that_works_on_some_jobs_is_judged(lab_of: LabOf, operation: str) -> None:
    """The first job is refused it and not the second; the story stands at what was refused."""
    head, named, tail = SKIP_LOCKED.partition(f"-- name: {operation}(id, worker")
    lab = lab_of(head + named + tail.replace("WHERE id = :id", "WHERE id = :id AND id % 2 = 0", 1))
    judgement = judged(lab, "live-lease", profile="glance")["live-lease"]
    assert f"was refused {operation} although it holds the job" in judgement.reason
    source = lab.queue.source_of(operation)
    assert judgement.place
    assert source
    assert 0 <= judgement.place.line - source.line <= 1


@pytest.mark.parametrize(("name", "keyed"), [("sound/deduplicated", True), ("skip_locked", False)])
def test_an_enqueue_that_makes_no_second_job_is_seen(
    lab_of: LabOf, name: str, *, keyed: bool
) -> None:
    """Then whoever enqueues the like of a job acts on that."""
    assert keyed == calibrate(lab_of(STRATEGIES / f"{name}.sql")).keyed


@pytest.mark.parametrize(
    ("name", "alike"),
    [("sound/one_of_a_key", False), ("sound/one_at_a_time", True), ("skip_locked", True)],
)
def test_a_job_that_waits_for_another_with_its_payload_is_seen(
    lab_of: LabOf, name: str, *, alike: bool
) -> None:
    """Then every job has a payload of its own, for no other may have to wait."""
    offer = calibrate(lab_of(STRATEGIES / f"{name}.sql"))
    pieces = Pieces(offer)
    crowds = [job for n in range(20) for job in numbered(pieces, 0, n).program.specs]
    assert alike == (SAME.payload in {job.payload for job in crowds})
    worn = [skin(Program(ONE, ())).jobs[0] for forms in skins(pieces) for skin in forms]
    assert alike == (SAME in worn)
