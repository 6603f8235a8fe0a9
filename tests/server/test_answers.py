"""Answers that contradict each other are an operation's fault, and no verdict on the queue."""

from __future__ import annotations

from typing import Any

import pytest

from queueproof.errors import QueueError, ServerError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.history.calls import Answer, Call, CallKind, Ref
from queueproof.judge.answers import contradiction
from queueproof.judge.checker import check, declare
from queueproof.queues.model import (
    FAILURE,
    Claim,
    JobRow,
    Operation,
    Queue,
    Result,
    State,
    Step,
    Value,
)
from queueproof.queues.offer import Offer
from queueproof.run.runner import Runner
from queueproof.schedule.programs import JobSpec, Program, claim, complete, fail, in_turn, script
from tests.fix_labs import LabOf
from tests.fix_places import SKIP_LOCKED, reference

JOBS = "SELECT id, status AS state, attempts\nFROM jobs"


class Calls(list[Call]):
    """Calls that follow each other, each answered before the next one is made."""

    def __init__(self, *jobs: str) -> None:
        super().__init__()
        for job in jobs:
            self.add("enqueue", job)

    def add(
        self,
        kind: CallKind,
        *ids: str,
        refs: tuple[Ref, ...] = (),
        states: dict[str, State] | None = None,
        answer: Answer = "accepted",
        bound: int | None = None,
        lasts: int = 1,
    ) -> Ref:
        """One more call; what names the first of its jobs."""
        moment = 2 * len(self)
        call = Call(
            len(self),
            kind,
            "w1",
            moment,
            0.0,
            moment + lasts,
            0.0,
            ids=(*(states or ()), *ids),
            refs=refs,
            states=states,
            answer=answer,
            bound=bound,
        )
        self.append(call)
        return Ref(call.index, ids[0] if ids else "")

    def told(self, *, by_worker: bool = False) -> str:
        """What contradicts what, and nothing where nothing does."""
        found = contradiction(self, by_worker=by_worker)
        return f"{found.operation}: {found.because}" if found else ""


def claimed_calls() -> tuple[Calls, Ref]:
    """A job that was enqueued and claimed, and what names it."""
    calls = Calls("7")
    return calls, calls.add("claim", "7")


# --- in histories -------------------------------------------------------------------------------


def test_two_jobs_have_two_ids() -> None:
    """An id that is answered for two jobs, none of which was ever claimed, is enqueue's fault."""
    calls = Calls("7")
    calls.add("enqueue", "7")
    assert calls.told().startswith("enqueue: enqueue answered the id 7 for two jobs")


@pytest.mark.parametrize("between", ["claim", "recover", "cleanup"])
def test_an_id_is_not_used_again(between: CallKind) -> None:
    """Once its job may have come to its end, another one's late operation would be about it."""
    calls = Calls("7")
    calls.add(between, *(["7"] if between in {"claim", "recover"} else []))
    calls.add("enqueue", "7")
    assert calls.told().startswith("enqueue: enqueue answered the id 7 again, which another job")


@pytest.mark.parametrize(("between", "answer"), [("restart", "accepted"), ("claim", "unknown")])
def test_what_a_fault_has_taken_away_may_be_given_out_again(
    between: CallKind, answer: Answer
) -> None:
    """A sequence that was not written down goes back, and that is judged elsewhere."""
    calls = Calls("7")
    calls.add(between, answer=answer)
    calls.add("enqueue", "7")
    assert not calls.told()


def test_a_recovered_job_was_enqueued() -> None:
    """An id that recover answers and no enqueue did is recover's fault."""
    calls = Calls("7")
    calls.add("recover", "8")
    assert calls.told().startswith("recover: recover answered the id 8")


@pytest.mark.parametrize("answer", ["unknown", "error"])
def test_a_recovered_job_may_be_one_whose_enqueue_was_not_answered(answer: Answer) -> None:
    """Where an enqueue has no answer, the job that nobody knows is its."""
    calls = Calls()
    calls.add("enqueue", answer=answer)
    calls.add("recover", "8")
    assert not calls.told()


def test_a_job_may_be_recovered_before_its_enqueue_is_answered() -> None:
    """What an enqueue has committed is there before its producer hears of it."""
    calls = Calls()
    calls.add("recover", "8", lasts=9)
    calls.add("enqueue", "8")
    assert not calls.told()


def test_a_batch_is_accepted_of_what_was_given() -> None:
    """An accepted id that the batch did not name is complete_many's fault."""
    calls, claimed = claimed_calls()
    calls.add("complete_many", "9", refs=(claimed,))
    assert calls.told() == (
        "complete_many: complete_many answered the id 9, which it was not given"
    )


def test_a_list_that_leaves_out_a_job_that_comes_later_is_wrong() -> None:
    """What is claimed after a quiet look was there, and the list lacked it."""
    calls = Calls("7")
    calls.add("jobs", states={})
    assert not calls.told()  # it may be lost
    calls.add("claim", "7")
    assert calls.told() == (
        "jobs: jobs left out job 7, which had been enqueued and not ended, and it was claimed "
        "afterwards; list it, or leave the block out"
    )


def test_a_list_that_leaves_out_a_job_in_hand_is_wrong() -> None:
    """What its holder completes after a quiet look was there."""
    calls, claimed = claimed_calls()
    calls.add("jobs", states={})
    calls.add("complete", refs=(claimed,))
    assert "left out job 7" in calls.told()


def test_a_lost_claim_proves_nothing() -> None:
    """After a lease may have run out, a completion is accepted of a job that is gone."""
    calls, claimed = claimed_calls()
    calls.add("jobs", states={})
    calls.add("advance")
    calls.add("complete", refs=(claimed,))
    assert not calls.told()


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_heartbeat_that_names_a_worker_proves_nothing(*, by_worker: bool) -> None:
    """A worker whose job is over lives on, and may say so."""
    calls, claimed = claimed_calls()
    calls.add("advance")
    calls.add("claim")
    calls.add("jobs", states={"7": "completed"})
    calls.add("heartbeat", refs=(claimed,))
    assert ("extended" in calls.told(by_worker=by_worker)) == (not by_worker)


@pytest.mark.parametrize("kind", ["complete", "fail"])
def test_a_job_that_has_ended_may_be_gone(kind: CallKind) -> None:
    """A list need not hold what was completed or failed."""
    calls, claimed = claimed_calls()
    calls.add(kind, refs=(claimed,))
    calls.add("jobs", states={})
    assert not calls.told()


@pytest.mark.parametrize("kind", ["claim", "terminate"])
def test_only_a_quiet_look_counts(kind: CallKind) -> None:
    """While an operation is under way, or after a fault, a list may say anything."""
    calls = Calls("7")
    calls.add(kind, lasts=9)
    calls.add("jobs", states={})
    calls.add("claim", "7")
    assert not calls.told()


def test_what_nothing_has_ended_is_not_listed_as_ended() -> None:
    """A job that is claimed later was not completed."""
    calls = Calls("7")
    calls.add("jobs", states={"7": "completed"})
    calls.add("claim", "7")
    assert "reported job 7 as completed, although nothing had ended it" in calls.told()


@pytest.mark.parametrize(("bound", "wrong"), [(2, True), (1, False), (None, False)])
def test_a_job_with_attempts_left_is_not_listed_as_failed(bound: int | None, wrong: bool) -> None:  # noqa: FBT001
    """What is to be tried again is queued; what has failed for good and runs again is judged."""
    calls = Calls()
    calls.add("enqueue", "7", bound=bound)
    claimed = calls.add("claim", "7")
    calls.add("fail", refs=(claimed,))
    calls.add("jobs", states={"7": "failed"})
    calls.add("claim", "7")
    assert wrong == ("which had attempts left" in calls.told())


# --- in queues ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("operation", "message", "old", "new"), WRONG, ids=[w[1] for w in WRONG])
def test_a_wrong_answer_is_named_with_its_block(
    lab_of: LabOf, operation: str, message: str, old: str, new: str
) -> None:
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


# --- of a Python class --------------------------------------------------------------------------


class Answering(Queue):
    """A queue whose operations answer what they are told to."""

    def __init__(self, operation: str, answer: object) -> None:
        self._operation = operation
        self._answer = answer

    def _say(self, operation: str, answer: object) -> Operation[Any]:
        yield Step("SELECT 1")
        return self._answer if operation == self._operation else answer

    def install(self) -> Operation[None]:
        """Nothing to install."""
        return self._say("install", None)

    def enqueue(self) -> Operation[list[str]]:
        """As told."""
        return self._say("enqueue", ["1"])

    def claim(self) -> Operation[list[Claim]]:
        """As told."""
        return self._say("claim", [])

    def complete(self) -> Operation[bool]:
        """As told."""
        return self._say("complete", True)  # noqa: FBT003 - the answer

    def jobs(self) -> Operation[list[JobRow]]:
        """As told."""
        return self._say("jobs", [])


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
    with pytest.raises(QueueError, match=rf"{operation} returned .*; it returns "):
        answered(queue.begin(operation))
    assert answered(Answering("", None).begin(operation)) is not None


def test_what_a_class_yields_is_checked() -> None:
    """An operation sends steps, and not for ever; what is no generator is no operation."""

    class Mine(Answering):
        def install(self) -> Operation[None]:
            yield "SELECT 1"  # type: ignore[misc]

        def claim(self) -> Operation[list[Claim]]:
            while True:
                yield Step("SELECT 1")

        def jobs(self) -> list[JobRow]:  # type: ignore[override]
            return []

        def enqueue(self) -> Operation[list[str]]:
            yield Step("SELECT %s", ["no name"])  # type: ignore[arg-type]
            return []

    queue = Mine("", None)
    with pytest.raises(QueueError, match="install yielded 'SELECT 1', which is no Step"):
        answered(queue.begin("install"))
    with pytest.raises(
        QueueError, match=r"enqueue yielded Step\('SELECT %s', \['no name'\]\);.*:id"
    ):
        answered(queue.begin("enqueue"))
    with pytest.raises(QueueError, match=r"claim sent 10,000 statements without an answer"):
        answered(queue.begin("claim"))
    with pytest.raises(QueueError, match="jobs is no generator"):
        queue.begin("jobs")


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
def test_a_claim_that_answers_far_too_many_rows_is_refused_at_its_first(
    lab_of: LabOf, rows: str
) -> None:
    """Each row would be a job to complete; one message says what a claim answers."""
    text = SKIP_LOCKED.replace(
        "-- name: complete(", f"{rows} LIMIT 20000;\n\n-- name: complete(", 1
    )
    with pytest.raises(
        QueueError, match=r"^queue\.sql:\d+: claim answered [\d,]+ rows, among them"
    ):
        calibrate(lab_of(text))


def test_a_worker_that_holds_nothing_may_be_refused_its_heartbeat(lab_of: LabOf) -> None:
    """It beats from its start on, and the natural heartbeat finds no row then."""
    named = "-- name: heartbeat(id, worker, attempt)!"
    head, _, tail = SKIP_LOCKED.partition(named)
    beat, _, tail = tail.partition("-- name: recover")
    beat = beat.replace("WHERE id = :id\n  AND status", "WHERE status").replace(
        "\n  AND attempts = :attempt", ""
    )
    start = "-- name: start(worker)\nSELECT :worker AS registered;\n\n"
    text = f"{head}{start}-- name: heartbeat(worker)!{beat}-- name: recover{tail}"
    assert calibrate(lab_of(text)).queue.offers >= {"start", "heartbeat"}
    never = text.replace(
        "WHERE status = 'running'\n  AND locked_by = :worker;", "WHERE :worker = '';"
    )
    assert never != text
    with pytest.raises(QueueError, match="heartbeat was refused to the job's only holder"):
        calibrate(lab_of(never))


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
    program = Program((JobSpec(),), in_turn(script("w1", claim(), complete(), fail())))
    run = Runner(lab).run(program)
    found = check(run.history, declare(Offer(lab.queue, held=False))).violations
    assert "final-state" in {one.guarantee for one in found}
