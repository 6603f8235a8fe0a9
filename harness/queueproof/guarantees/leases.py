"""Guarantees on what is claimed: it is kept while it is worked on, and comes back after."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee, finishing, followed
from queueproof.judge.checker import declare
from queueproof.queues.offer import Offer
from queueproof.schedule.moments import past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    JobSpec,
    Program,
    advance,
    claim,
    crash,
    heartbeat,
    in_turn,
    script,
)
from queueproof.space.pieces import ONE, PAGE, SETTLE, SPENT, TWO, Pieces
from queueproof.space.situations import spent


def _expiry(offer: Offer) -> str | None:
    if offer.expires:
        return followed(offer)
    return "no lease is declared and no claim is held in a transaction"


def _losing(offer: Offer) -> str | None:
    if (missing := finishing(offer)) is not None:
        return missing
    if offer.held:
        return "a claim is its open transaction: nobody acts with one that has ended"
    if offer.queue.lease_seconds is None and not offer.retries:
        return "nobody loses a job and lives: no lease runs out, and what failed is not tried again"
    return None


def _stale_recovery(pieces: Pieces) -> Iterator[Program]:
    """A job of the dead behind a page of jobs that live: a crowd's workers seldom beat for all."""
    beats = pieces.offer.queue.jobs_per_worker is None and not pieces.offer.held
    if pieces.lease is None or "heartbeat" not in pieces.offers or not beats:
        return
    within = script("clock", advance(0.6 * pieces.lease))  # two of them are past it
    for page in sorted({n for n in pieces.constants.numbers if 1 < n <= PAGE} | {SPENT}):
        full = [claim(page)] if pieces.takes_limit else [claim()] * page
        jobs = [heartbeat(n) for n in range(1 if pieces.offer.queue.beats_by_worker else page)]
        dies = script("w2", claim(), crash())
        lives = in_turn(SETTLE, script("w1", *full), dies, within)
        ends = in_turn(script("w1", *jobs), within, script("w1", crash()))
        yield Program((JobSpec(),) * (page + 1), (*lives, *ends))


def _fencing(pieces: Pieces) -> Iterator[Program]:
    """Longer lives than one that meets every act."""
    # All tokens of a job while its last attempt runs: one of them may come again.
    for bound in pieces.bounds()[-1:] if pieces.offer.retries else ():
        *_, fails = spent(pieces, declare(pieces.offer), bound)
        for late in zip(*map(pieces.enders, range(bound - 1)), strict=True):
            stages = in_turn(SETTLE, *fails, script("w1", claim()), script("w100", *late))
            yield Program(ONE, stages)
    # A batch that meets its jobs' next life step by step: each may wait for the other, twice.
    if "complete_many" in pieces.offers and pieces.takes_limit and pieces.lease is not None:
        over = in_turn(script("w1", claim(2)), script("clock", advance(past(pieces.lease))))
        takes = (*(do for _, dos in pieces.reaper() for do in dos), claim())
        yield Program(TWO, (*over, (script("w2", *takes), script("w1", COMPLETE_ALL))))


GUARANTEES = (
    Guarantee(
        id="stale-recovery",
        called="""visibility timeout, heartbeat, stuck job, stalled job, lost job, orphaned job,
            abandoned job, crashed worker""",
        sentence="A crashed worker's job becomes claimable once its lease has run out.",
        why="a deployment or a crash strands the jobs that were running",
        source="https://github.com/RealOrangeOne/django-tasks/issues/46",
        wild="""The claim leaves the lease NULL until the first heartbeat: a worker that dies
            before it is never noticed. Or the reaper looks at a page or at the last hours only,
            or passes over jobs without an attempt left, which stay running for ever. Or, the
            commonest of all, nothing takes anything back.""",
        safe="""Begin the lease in the claim itself. Recover every row `WHERE status = 'running'
            AND locked_at < now() - lease`, and end there, as failed, the jobs that have no
            attempt left. Where a person is to look after them, declare it: `stale = "stays"`;
            where a claim ends the job: `delivery = "at-most-once"`.""",
        example="stale_recovery_null_lease",
        needs=followed,
        accepted=lambda offer: 'stale = "stays"' if offer.queue.stale == "stays" else "",
        acknowledged=True,
        programs=_stale_recovery,
        lacking="jobs of crashed workers claimed again",
        timed=True,
    ),
    Guarantee(
        id="live-lease",
        called="heartbeat, visibility timeout that is too short, a job that runs twice",
        sentence="A worker whose lease or heartbeat is fresh keeps its job.",
        why="a long job is started again while it still runs",
        whys=dict.fromkeys(
            ("complete", "complete_many", "fail"),
            "what a worker has done is not taken down, and is done once more",
        )
        | {"heartbeat": "a worker gives up a job that is still its own"},
        source="https://github.com/janbjorge/pgqueuer/issues/430",
        wild="""The reaper reads the stale jobs and frees them by id, or by UPDATE ... WHERE id
            IN (SELECT ...) without a lock: a heartbeat or a new claim that came in between is
            undone. Or the heartbeat moves a column that the reaper does not read. Or each
            worker that begins requeues all that runs, as if no other were there.""",
        safe="""The statement that frees a job asks of the row that it locks whether the lease
            has run out: `FOR UPDATE SKIP LOCKED` in the sub-select, or the same condition again
            in the UPDATE's own WHERE.""",
        safe_by_itself="""The operation that was refused asks for what the claim wrote into the
            row, its worker and its attempt, and for nothing else. A heartbeat that spares a
            write still answers.""",
        example="live_lease_two_step",
        asks="a lease in the header, or a claim that ends inside its transaction",
        needs=_expiry,
        acknowledged=True,
        lacking="claims and recoveries while a lease was fresh",
        timed=True,
    ),
    Guarantee(
        id="fencing",
        called="fencing token, lost lease, late completion, late heartbeat, zombie worker",
        sentence="""After a worker has lost its job, nothing that it sends for that attempt is
            accepted, even if it has claimed the same job again.""",
        why="a paused worker wakes up and marks somebody else's attempt as done",
        whys={
            "complete alone": "the answer of an attempt that was given up ends the one that runs",
            "fail": "a paused worker wakes up and ends somebody else's attempt as failed",
            "fail alone": "the failure of an attempt that was given up ends the one that runs",
            "heartbeat": "a paused worker wakes up and keeps alive what is no longer its own: when"
            " the holder dies, nobody notices",
        },
        source="https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
        wild="""`complete`, `fail` or `heartbeat` checks only the id or the worker's name. A
            worker wakes up after its lease has expired. It then ends the next worker's attempt,
            or it ends its own second attempt with the result of its first.""",
        safe="""Give each attempt a token, for example the count that the claim raises, and ask
            for it: `UPDATE jobs SET ... WHERE id = :id AND status = 'running' AND attempts =
            :attempt`. If no row changes, the worker has lost the job, and must be told.""",
        example="fencing_id_only",
        asks="""complete, complete_many or fail, and a way to lose a job: a lease in the header,
            or a fail after which the job is tried again""",
        needs=_losing,
        programs=_fencing,
        acknowledged=True,
        lacking="late calls refused",
        shows_late=True,
    ),
)
