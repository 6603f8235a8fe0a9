"""Guarantees on the claim: who gets which job, when, how many and in which order."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee
from queueproof.schedule.moments import DAY, HOUR
from queueproof.schedule.programs import (
    REWRITE,
    Do,
    JobSpec,
    Program,
    claim,
    in_turn,
    script,
    until,
    whole,
)
from queueproof.space.pieces import ALIGNED, MOST_ATTEMPTS, NEW, RANKS, SETTLE, THREE, TWO, Pieces

NAMES = 64  # of full queues, and of empty ones: of 1,024 hashes two are one
# Seconds: just a minute, an hour and a day, of which a part is 0; fractions; more than a month.
DELAYS = (0.9, 60.0, 3600.0, 86_400.0, 61.47, 2 * DAY + HOUR, 40 * DAY)


def _order(pieces: Pieces) -> Iterator[Program]:
    """Places of rows, and sessions that give out ids: no specification of a job knows them."""
    # Without ORDER BY rows come as they lie: often, but not always, as they were put in.
    ranked = tuple(JobSpec(priority=rank) for rank in RANKS)
    for jobs in (TWO, ranked if pieces.offer.queue.by_priority else THREE):
        claims = [script(f"w{n}", claim()) for n, _ in enumerate(jobs, 1)]
        yield Program(jobs, in_turn(SETTLE, script("janitor", REWRITE), *claims))
    three = in_turn(*(script(who, Do("enqueue")) for who in ("w1", "w2", "w1")))
    yield Program((), (*three, *in_turn(script("w3", claim(), claim()))), reserve=THREE)


def _not_early(pieces: Pieces) -> Iterator[Program]:
    """A claim at the last moment before a delay is over: crowds come so near by chance only."""
    if "delay" in pieces.offer.queue.takes("enqueue"):
        for delay in DELAYS:
            almost = in_turn(ALIGNED, NEW, script("clock", until(delay)), script("w1", claim()))
            yield Program((), almost, reserve=(JobSpec(delay=delay),))


def _routing(pieces: Pieces) -> Iterator[Program]:
    """Names are compared by a hash: among so many two are one, and in a crowd hardly ever."""
    if pieces.offer.queue.takes_any_queue:
        # Of names that differ in one word alone a CRC is never the same.
        full, empty = ([f"{name}-{n}" for n in range(NAMES)] for name in ("q", "other"))
        claims = (script("w1", claim(queue=queue)) for queue in empty)
        yield Program(tuple(JobSpec(queue=queue) for queue in full), in_turn(SETTLE, *claims))


def _concurrency_limit(pieces: Pieces) -> Iterator[Program]:
    """Jobs that came in since a claim began are claimed by another one: what is counted is old.

    Derived programs find a wrong count, but not one that is old under REPEATABLE READ alone.
    """
    queue = pieces.offer.queue
    cap = queue.concurrency_limit or 1
    # Two who want the same row collide, whatever they counted.
    others = [JobSpec(priority=5)] * ("priority" in queue.takes("enqueue"))
    others += [JobSpec(queue="other")] * queue.routes
    full = in_turn(script("w1", *[claim()] * (cap - 1 if not pieces.offer.held else 0)))
    for other in others if cap <= MOST_ATTEMPTS else ():
        takes = script("w3", whole(Do("enqueue")), whole(claim(queue=other.queue)))
        race = (script("w2", claim()), takes)
        yield Program((JobSpec(),) * cap, (*full, race), reserve=(other,))


GUARANTEES = (
    Guarantee(
        id="single-claim",
        called="double claim, a job claimed twice, a job that runs twice, duplicate, SKIP LOCKED",
        sentence="No job is held by two workers at once.",
        why="the job's effect happens twice: two mails, two payments",
        source="https://www.postgresql.org/docs/current/sql-select.html (The Locking Clause)",
        wild="""A SELECT finds a free job and an UPDATE by its id marks it: two workers read the
            same row before either writes. One UPDATE ... WHERE id = (SELECT ...) is no better:
            a second one waits for the first and then looks at the row's id again, but does not
            run the sub-select again. A row lock without a transaction around it does not help
            either: the lock ends with its own statement.""",
        safe="""One statement locks and marks: `UPDATE jobs SET ... WHERE id = ANY (ARRAY(SELECT
            id FROM jobs WHERE ... ORDER BY ... LIMIT n FOR UPDATE SKIP LOCKED))`. Without `SKIP
            LOCKED` a second claim waits for the first, and does not look for another job when
            it goes on.""",
        example="single_claim_select_then_update",
        acknowledged=True,
        lacking="overlapping claims",
    ),
    Guarantee(
        id="claim-limit",
        called="LIMIT that is not kept, oversized batch",
        sentence="A claim never takes more than its limit, whatever plan the server chooses.",
        why="one worker swallows the whole queue, and its leases run out while it works",
        source="https://github.com/oban-bg/oban/issues/4",
        wild="""UPDATE ... WHERE id IN (SELECT ... LIMIT n FOR UPDATE SKIP LOCKED): under a
            nested loop the sub-select runs once per outer row, and each run passes over the
            rows just taken. It looks right until the planner's statistics change.""",
        safe="""Have the sub-select run once: `WHERE id = ANY (ARRAY(SELECT ...))`, or `WITH
            next AS MATERIALIZED (SELECT ...)` and a join with it.""",
        lacking="claims while more jobs were free than a claim may take",
        probe="plans",
    ),
    Guarantee(
        id="order",
        called="FIFO, priorities, jobs out of order",
        sentence="Jobs that are free are claimed in the declared order.",
        why="urgent work, or what came first, waits behind the rest",
        source="https://github.com/procrastinate-org/procrastinate/issues/212",
        wild="""The claim has no ORDER BY, or sorts one page of the oldest rows: jobs come as
            the plan and the table happen to hold them. Or priorities are text, or run lowest
            first where highest first was meant.""",
        safe="""`ORDER BY priority DESC, id` (with priority a number) in the very query that has
            the LIMIT and the lock, and an index in that order; no CACHE on the sequence of ids.""",
        asks="an order other than none in the header",
        needs=lambda offer: "no order is declared" if offer.queue.order == "none" else None,
        programs=_order,
        lacking="pairs of jobs compared",
        probe="behind ordinary",
    ),
    Guarantee(
        id="not-early",
        called="delayed job, scheduled job",
        sentence="A job is not claimed before its time, nor before its enqueue commits.",
        why="a reminder is sent before it is due, or for an order that is not committed",
        source="https://github.com/pgmq/pgmq/issues/367",
        wild="""The delay is asked of retries only, is rounded to whole seconds, or is written
            by a second statement after the INSERT has committed.""",
        safe="""INSERT the job with its run_at, in full precision, in one statement:
            `clock_timestamp() + delay`. Every claim, the first attempt's too, asks for `run_at
            <= now()`.""",
        programs=_not_early,
        acknowledged=True,
        timed=True,
    ),
    Guarantee(
        id="routing",
        called="named queues, job of the wrong queue",
        sentence="A worker of one queue never gets another queue's job.",
        why="jobs run where their code is not deployed",
        source="https://www.inferable.ai/blog/posts/postgres-skip-locked",
        wild="""The queue's name is compared by LIKE or as a prefix: to LIKE, mail_in is mail-in
            as well. Or the optional filter (queue = :queue OR :queue IS NULL) is inverted, and
            every job passes.""",
        safe="""`WHERE queue = :queue` in the query that chooses the rows, and first in its
            index; claims, takeovers and recoveries leave the job's queue as it is.""",
        example="routing_inverted_filter",
        asks="queue as a parameter of both enqueue and claim",
        needs=lambda offer: (
            None if offer.queue.routes else "needs an enqueue and a claim that take a queue name"
        ),
        programs=_routing,
        acknowledged=True,
        lacking="claims beside another queue's jobs",
    ),
    Guarantee(
        id="concurrency-limit",
        called="max concurrency, semaphore, maximum of running jobs",
        sentence="There are never more running jobs than the declared limit.",
        why="the dependency that the cap protects is overrun",
        source="https://github.com/janbjorge/pgqueuer/issues/761",
        wild="""The claim counts the running jobs: two claims count the same number in their
            snapshots, and both fill the gap. Or a worker that has lost its job frees the slot
            of the next one.""",
        safe="""A slot is a row: claim free slots as free jobs are claimed, with `FOR UPDATE
            SKIP LOCKED`, or have a unique index refuse the second holder. Free it only in the
            fenced statement that ends the attempt.""",
        example="concurrency_limit_count_then_claim",
        asks="concurrency_limit in the header",
        needs=lambda offer: (
            "no concurrency_limit is declared" if offer.queue.concurrency_limit is None else None
        ),
        programs=_concurrency_limit,
        acknowledged=True,
        lacking="claims that reached the cap",
    ),
)
