"""Guarantees on a job's attempts and its end."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee, finishing, followed
from queueproof.judge.checker import declare
from queueproof.queues.offer import Offer
from queueproof.schedule.moments import past
from queueproof.schedule.programs import Do, JobSpec, Program, advance, claim, in_turn, script
from queueproof.space.pieces import CLEAN, DELAY, NEW, ONE, SAME, SETTLE, TWO, Pieces
from queueproof.space.situations import spent


def _bound(offer: Offer) -> str | None:
    if offer.queue.max_attempts is None:
        return "no max_attempts is declared"
    if offer.any_of("fail") or offer.queue.lease is not None:
        return followed(offer)
    return "neither fail nor a lease is offered: a job is attempted once"


def _waiting(offer: Offer) -> str | None:
    if "fail" not in offer.queue.offers:
        return "fail is not offered"
    return "no backoff is declared" if offer.queue.backoff is None else followed(offer)


def _retry_bound(pieces: Pieces) -> Iterator[Program]:
    """All attempts of a job's own are used up, and one more is asked for.

    Its bound is the header's, or lies between 1 and that: a life that is longer than the one which
    meets every act.
    """
    for bound in pieces.bounds()[1:]:
        for way in spent(pieces, declare(pieces.offer), bound + 1):
            yield Program((JobSpec(bound=bound),), in_turn(SETTLE, *way, script("w1", claim())))


def _no_lost_job(pieces: Pieces) -> Iterator[Program]:
    """Jobs are enqueued while somebody acts on others: a counter of jobs may miss one."""
    for before, other in pieces.acts():
        yield Program(ONE, (*before, (NEW, other)), reserve=ONE)
    # Ids are given out before the commit: a later one may come, and go, before an earlier.
    clean = CLEAN[1] if "cleanup" in pieces.offers else ()
    late = script("w1", Do("enqueue"), claim(), *pieces.ending(), *clean)
    yield Program((), ((NEW, late),), reserve=TWO)
    if "delay" in pieces.offer.queue.takes("enqueue"):
        # An enqueue that commits once its job is due, beside whoever looks for what is due.
        due, looks = JobSpec(delay=DELAY), advance(past(DELAY))
        for actor, dos in pieces.reaper() or (script("w1", claim()),):
            yield Program((), ((NEW, script(actor, looks, *dos)),), reserve=(due,))
    if pieces.alike:
        # A job ends, or is tried again, where another one like it has come in meanwhile.
        for ender in (do for do in pieces.enders() if do.kind != "heartbeat"):
            twin = in_turn(script("w1", claim()), NEW, script("w1", ender))
            yield Program((SAME,), twin, reserve=(SAME,))


GUARANTEES = (
    Guarantee(
        id="retry-bound",
        called="max attempts, poison pill, dead letter queue, DLQ, endless retries",
        sentence="A job is attempted at most max_attempts times, crashes included.",
        why="a job that cannot succeed, or that kills its worker, is tried for ever",
        source="https://github.com/elizaOS/eliza/issues/10854",
        wild="""Only failures are counted: a job that kills its worker is handed out for ever.
            Or one path does not ask: the recovery knows a default and not the job's own
            max_attempts, or <= grants one attempt more.""",
        safe="""The claim counts (`attempts = attempts + 1`), so that crashes count. fail and
            the recovery both end the job where `attempts >= max_attempts`, the row's own.""",
        safe_alone="""The claim counts (`attempts = attempts + 1`), so that crashes count. If
            your claim takes jobs over by itself, end exhausted jobs there, or add a recover
            block. fail ends the job where `attempts >= max_attempts`, the row's own.""",
        example="retry_bound_crash_not_counted",
        programs=_retry_bound,
        asks="max_attempts in the header, and fail or a lease",
        needs=_bound,
        acknowledged=True,
        lacking="jobs stopped at the last attempt",
    ),
    Guarantee(
        id="retry-given",
        called="missing retry, a job that is not retried",
        sentence="""A job that failed, or whose worker crashed, is tried again while it has
            attempts left.""",
        why="a passing fault, or a worker that dies, ends a job for good",
        source=(
            "https://github.com/inferablehq/inferable/blob/c67acb8/"
            "control-plane/src/modules/jobs/self-heal-jobs.ts"
        ),
        wild="""One attempt is counted twice, by the claim and by the recovery, or by a fail
            that was sent again because its answer was lost: the job is given up with attempts
            left.""",
        safe="""Count in the claim only; fail and the recovery compare: `CASE WHEN attempts <
            max_attempts THEN 'queued' ELSE 'failed' END`. Fence fail, so that the second of two
            changes nothing.""",
        example="retry_given_crash_counted_twice",
        asks="max_attempts in the header, and fail or a lease",
        needs=_bound,
        acknowledged=True,
        lacking="jobs that got all their attempts",
    ),
    Guarantee(
        id="backoff",
        called="retry, exponential backoff, retry delay, retry storm",
        sentence="""A failed job waits before its next attempt; the wait grows, is capped, and
            never overflows.""",
        why="a failing dependency is hammered, or a job comes back in the year 9999, or never",
        source="https://github.com/riverqueue/river/pull/698",
        wild="""The cap is applied after the power: from some attempt on the product is no
            interval any more, and fail itself fails. Or the wait counts from now(), which
            stands still in a long transaction, and is over before it begins. Or what was caught
            does not fit, and fail itself fails: a column of 255 characters, JSON put together
            by hand.""",
        safe="""Cap the exponent, then the wait, and count from the real time: `run_at =
            clock_timestamp() + least(interval '1 hour', interval '5 seconds' * 2 ^
            least(attempts - 1, 16))`. What was caught goes into a text column, cut, or through
            `to_jsonb`: it has quotes, line ends and the length of a traceback.""",
        example="backoff_overflow",
        asks="fail, and backoff in the header",
        needs=_waiting,
        timed=True,
        probe="waits",
    ),
    Guarantee(
        id="final-state",
        called="a job that runs again, a job that runs twice, duplicate",
        sentence="A completed or failed job never runs again.",
        why="finished work is done again, or a failed job counts as completed",
        source="https://github.com/riverqueue/river/issues/1302",
        wild="""complete leaves the lease in place, and the recovery asks for old leases without
            asking for the status. Or the recovery reads the stale jobs and requeues by id one
            that its late worker completes in between.""",
        safe="""complete, fail and recover change a job only if its row still says `status =
            'running'`. complete and fail set the end and clear the lease in one UPDATE.""",
        undone=True,
        example="final_state_completed_lease",
        asks="complete, complete_many or fail",
        needs=finishing,
        acknowledged=True,
        lacking="operations that left a finished job alone",
    ),
    Guarantee(
        id="no-lost-job",
        called="lost job, stuck job",
        sentence="Every enqueued job ends completed or failed, or can still be claimed.",
        why="work that was accepted is never done, and nobody is told",
        source="https://github.com/riverqueue/river/pull/619",
        wild="""Cleanup goes by age and deletes jobs that still wait, or fail takes the row out
            and puts it back in two transactions. Or claims begin above a mark: ids are given
            out before the commit, and an enqueue that commits late is below it.""",
        safe="""One transaction for each change of state, and one statement where a row moves:
            `WITH due AS (DELETE ... RETURNING *) INSERT ... SELECT FROM due`. Cleanup deletes
            only `WHERE status IN ('completed', 'failed')`, where the end is old; no claim or
            promote passes over jobs by age, id, the time of its last tick or a flag kept
            elsewhere.""",
        example="no_lost_job_cleanup",
        programs=_no_lost_job,
        acknowledged=True,
        lacking="jobs followed to their end",
        timed=True,
    ),
)
