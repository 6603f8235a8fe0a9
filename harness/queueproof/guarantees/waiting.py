"""Guarantees on who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee
from queueproof.schedule.moments import DAY, past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    Do,
    JobSpec,
    Program,
    Stage,
    advance,
    claim,
    crash,
    fail,
    heartbeat,
    in_turn,
    script,
    whole,
)
from queueproof.space.pieces import LOOKS, NEW, ONE, PAGE, SETTLE, SPENT, THREE, TWO, Pieces


def _non_blocking(pieces: Pieces) -> Iterator[Program]:
    """A batch of one worker, and the heartbeat of another, who holds a job of his own."""
    if {"heartbeat", "complete_many"} <= pieces.offers and pieces.takes_limit:
        taken = in_turn(script("w1", claim(2)), script("w2", claim()))
        both: Stage = (script("w1", COMPLETE_ALL), script("w2", whole(heartbeat())))
        yield Program(THREE, (*taken, both))


def _no_deadlock(pieces: Pieces) -> Iterator[Program]:
    """Two workers with batches of their own: what all jobs share has an order, too."""
    if pieces.takes_limit and "complete_many" in pieces.offers:
        # The one's jobs lie between the other's: what jobs share by their ids, by a priority that
        # orders none, or by their queue, two batches reach in two orders.
        queue, each = pieces.offer.queue, Do("complete_many", part="one of each")
        ranks = "priority" in queue.takes("enqueue") and not queue.by_priority
        others = [JobSpec(priority=1 * ranks), *[JobSpec(queue="other")] * queue.routes]
        for other in others:
            jobs = JobSpec(), other, JobSpec(), other, JobSpec()
            whose = zip(("w1", "w1", "w3", "w2", "w2"), jobs, strict=True)
            taken = in_turn(*(script(worker, claim(queue=job.queue)) for worker, job in whose))
            yield Program(jobs, (*taken, (script("w1", each), script("w2", each))))
        if pieces.lease is not None:
            # What a statement with an old snapshot does not see any more it still locks.
            over = (advance(past(pieces.lease)), *(do for _, dos in pieces.reaper() for do in dos))
            next_one = script("w2", *map(whole, (*over, claim(2))), COMPLETE_ALL)
            late = (*in_turn(script("w1", claim(2))), (script("w1", COMPLETE_ALL), next_one))
            yield Program(TWO, late)


def _no_starvation(pieces: Pieces) -> Iterator[Program]:
    """A page of jobs that cannot run, before one that can: a crowd has seldom so many alike."""
    if pieces.offer.misses:
        yield LOOKS
    takes, more = pieces.offer.queue.takes("enqueue"), pieces.bound is None or pieces.bound > 1
    ready = (JobSpec(),)
    top = JobSpec(priority=5 if pieces.offer.queue.by_priority and "priority" in takes else 0)
    if pieces.offer.held or pieces.one_each:
        # The last one asks twice: a claim may do maintenance and answer nothing.
        holders = [script(f"w{n + 1}", claim()) for n in range(SPENT)]
        last = script("late", claim(), claim())
        yield Program((top,) * SPENT + ready, in_turn(SETTLE, *holders, last))
    else:
        full = [claim(PAGE)] if pieces.takes_limit else [claim()] * PAGE
        yield Program((top,) * PAGE + ready, in_turn(SETTLE, script("w1", *full, crash())))
    if "fail" in pieces.offers and more:
        # Each fails once, and waits for its next attempt.
        dos = [do for n in range(SPENT) for do in (claim(), fail(n))]
        yield Program((top,) * SPENT + ready, in_turn(SETTLE, script("w1", *dos)))
        # A worker comes by its own failed job again, and by the next one.
        own = script("w1", claim(), fail()), script("clock", advance(DAY)), *pieces.reaper()
        again = NEW, SETTLE, script("w1", *[claim()] * 3)
        yield Program(ONE, in_turn(*own, *again), reserve=ONE)


GUARANTEES = (
    Guarantee(
        id="non-blocking",
        called="convoy, lock contention, SKIP LOCKED",
        sentence="A claim, a heartbeat or a recovery never waits for another worker's job.",
        why="workers form a convoy: adding some makes nothing faster",
        whys={
            "heartbeat": "a worker that waits with its heartbeat loses its lease while it lives",
            "recover": "jobs of crashed workers stay away as long as one worker is slow",
        },
        source="https://www.postgresql.org/docs/current/explicit-locking.html",
        wild="""FOR UPDATE without SKIP LOCKED, a recovery that is a plain UPDATE, or a counter
            that every claim writes: each worker waits for the one before it, however many there
            are.""",
        safe="""Use `FOR UPDATE SKIP LOCKED` in the claim and in the recovery, and no row that
            every worker writes. Where one at a time is enough, `pg_try_advisory_xact_lock` lets
            the others pass.""",
        programs=_non_blocking,
        lacking="operations that overlapped another",
        waits=True,
    ),
    Guarantee(
        id="no-deadlock",
        called="deadlock detected, 40P01",
        sentence="Operations that run at the same time never deadlock.",
        why="operations are aborted at random under load",
        source="https://github.com/timgit/pg-boss/issues/282",
        wild="""A batch is locked in the order in which its worker names it, or two operations
            lock two shared rows in opposite orders: PostgreSQL aborts one of them with 40P01.""",
        safe="""One order for all: `SELECT ... WHERE id = ANY (:ids) ORDER BY id FOR UPDATE`
            before a batch is changed, and shared rows in the same order in every operation.
            `SKIP LOCKED` wherever a job may be passed over: who does not wait cannot deadlock.""",
        programs=_no_deadlock,
        lacking="operations that overlapped another",
    ),
    Guarantee(
        id="no-starvation",
        called="head-of-line blocking",
        sentence="A job that cannot run now does not block ready jobs behind it.",
        why="the queue stands still although there is work",
        source="https://github.com/oban-bg/oban/issues/1498",
        wild="""The LIMIT is used up before it is asked what may run: jobs that are delayed,
            running or out of attempts fill the page at the head of the queue, and hide all
            ready ones behind them.""",
        safe="""Every condition for a job to run stands in the query that has the LIMIT and `FOR
            UPDATE SKIP LOCKED`; nothing is filtered out of its result.""",
        example="no_starvation_limit_before_filter",
        programs=_no_starvation,
        acknowledged=True,
        lacking="jobs claimed although others could not run",
        probe="behind more urgent",
    ),
)
