"""Guarantees on who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.moments import past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    HEARTBEATS,
    RECOVER,
    Do,
    JobSpec,
    Program,
    Stage,
    advance,
    claim,
    complete,
    crash,
    fail,
    heartbeat,
    in_turn,
    script,
    whole,
)
from queueproof.space.pieces import (
    CLEAN,
    DELAY,
    LOOKS,
    NEW,
    ONE,
    PAGE,
    SETTLE,
    SPENT,
    THREE,
    TWO,
    Pieces,
)


def _nth(ender: Do, n: int) -> Do:
    """The same on the worker's `n`th job."""
    return ender._replace(n=n)


def _non_blocking(pieces: Pieces) -> Iterator[Program]:
    pair = (script("w1", claim()), script("w2", claim()))
    yield Program(TWO, (pair,))
    if pieces.takes_limit:
        yield Program((JobSpec(),) * 4, ((script("w1", claim(2)), script("w2", claim(2))),))
    # Whoever would wait does so wherever in the other's operation it comes.
    rival = script("w2", whole(claim()))
    lives = [do for n, ender in enumerate(pieces.enders()) for do in (claim(), _nth(ender, n))]
    if lives:
        yield Program((JobSpec(),) * len(lives), ((script("w1", *lives), rival),))
    if "heartbeat" in pieces.offers:
        mine = in_turn(script("w1", claim()), script("w2", claim()))
        others = script("w2", *pieces.enders()[::-1], claim())
        beat = script("w1", heartbeat())
        yield Program(TWO, (*mine[:1], (beat, rival)))
        yield Program(THREE, (*mine, (script("w1", whole(heartbeat())), others)))
        if "complete_many" in pieces.offers and pieces.takes_limit:
            batch = in_turn(script("w1", claim(2)), script("w2", claim()))
            both: Stage = (script("w1", COMPLETE_ALL), script("w2", whole(heartbeat())))
            yield Program(THREE, (*batch, both))
    yield from _late(pieces)
    yield Program(ONE, ((script("producer", Do("enqueue")), *pair),), reserve=ONE)


def _late(pieces: Pieces) -> Iterator[Program]:
    """A recovery, or a claim that takes over, while somebody is in the middle of something."""
    if pieces.lease is None or pieces.offer.held:
        return
    over = script("clock", advance(past(pieces.lease)))
    stale = in_turn(script("w1", claim()), over)
    for reaper in pieces.reaper():
        yield Program(TWO, (*stale, (reaper, script("w2", claim()))))
        if not pieces.offer.queue.leader:
            yield Program(ONE, (*stale, (reaper, script("reaper2", whole(RECOVER)))))
        if "heartbeat" in pieces.offers:
            fresh = in_turn(script("w2", claim()))
            yield Program(TWO, (*stale, *fresh, (reaper, script("w2", heartbeat()))))
    # One job for each of what its late worker may do; one of them has no other attempt left.
    enders = [_nth(do, n) for n, do in enumerate(pieces.enders())]
    if not enders:
        return
    jobs = [JobSpec(bound=int(do.kind == "fail" and 1 in pieces.bounds())) for do in enders]
    taken = in_turn(script("w1", *[claim()] * len(jobs)), over)
    rivals = [script("w2", whole(claim(len(jobs))))]
    rivals += [script("reaper", whole(do)) for _, dos in pieces.reaper() for do in dos]
    for rival in rivals:
        yield Program(tuple(jobs), (*taken, (script("w1", *enders), rival)))


def _no_deadlock(pieces: Pieces) -> Iterator[Program]:
    if pieces.takes_limit:
        yield Program(TWO, ((script("w1", claim(2)), script("w2", claim(2))),))
        first = in_turn(script("w1", claim(2)))
        if "complete_many" in pieces.offers:
            others = [*pieces.reaper(), script("w2", claim(2))]
            if "heartbeat" in pieces.offers:
                others.append(script(f"w1{HEARTBEATS}", heartbeat(1)))
            over = in_turn(script("clock", advance(past(pieces.lease)))) if pieces.lease else ()
            for other in others:
                yield Program(TWO, (*first, *over, (script("w1", COMPLETE_ALL), other)))
            # w2 names its batch backwards: whoever takes the same rows in order meets it.
            backwards = in_turn(script("w2", claim(2)))
            for other in (*pieces.reaper(), script("w1", claim(2))):
                yield Program(TWO, (*backwards, *over, (script("w2", COMPLETE_ALL), other)))
            # Two batches that share no job: what both count in has an order, too.
            apart = in_turn(script("w1", claim(2)), script("w3", claim()), script("w2", claim(2)))
            both: Stage = (script("w1", COMPLETE_ALL), script("w2", COMPLETE_ALL))
            yield Program((JobSpec(),) * 5, (*apart, both))
            if pieces.lease is not None:
                # Two batches of the same jobs, the older one in vain, in opposite orders.
                yield Program(
                    TWO,
                    (
                        *first,
                        *pieces.lapse(),
                        *in_turn(script("w2", claim(2))),
                        (script("w1", COMPLETE_ALL), script("w2", COMPLETE_ALL)),
                    ),
                )
        if pieces.reaper() and pieces.lease is not None:
            two = (*pieces.reaper(), script("reaper2", RECOVER))
            yield Program(
                TWO, (*first, *in_turn(script("clock", advance(past(pieces.lease)))), two)
            )
    pair = (script("w1", claim(), complete()), script("w2", claim(), complete()))
    yield Program(TWO, (pair,))
    taken = in_turn(script("w1", claim()), script("w2", claim()))
    for n, mine in enumerate(pieces.enders()):
        for theirs in pieces.enders()[n:]:
            yield Program(TWO, (*taken, (script("w1", mine), script("w2", theirs))))
    for before, other in pieces.acts():
        yield Program(ONE, (*before, (NEW, other)), reserve=ONE)
    yield Program((), ((NEW, script("producer2", Do("enqueue"))),), reserve=TWO)
    if "cleanup" in pieces.offers:
        done = in_turn(script("w1", claim(), complete(), claim(), complete(1)))
        yield Program(TWO, (*done, (CLEAN, script("janitor2", *CLEAN[1]))))
        one_each = in_turn(script("w1", claim(), *pieces.ending()), script("w2", claim()))
        for ender in pieces.enders():
            yield Program(TWO, (*one_each, (CLEAN, script("w2", ender))))


def _overtaken(pieces: Pieces) -> list[Program]:
    """Programs in which a batch that has begun is taken over, and meets the next holder's.

    What it does not see any more, a statement with an old snapshot still locks.
    """
    if pieces.lease is None or not pieces.takes_limit or "complete_many" not in pieces.offers:
        return []
    between = [advance(past(pieces.lease)), whole(claim(2))]
    if "recover" in pieces.offers:
        between.insert(1, whole(RECOVER))
    late, next_one = script("w1", COMPLETE_ALL), script("w2", *between, COMPLETE_ALL)
    return [Program(TWO, (*in_turn(script("w1", claim(2))), (late, next_one)))]


def _no_starvation(pieces: Pieces) -> Iterator[Program]:
    takes = pieces.offer.queue.takes("enqueue")
    ready = (JobSpec(),)
    if pieces.offer.misses:
        yield LOOKS
    top = 5 if pieces.offer.queue.by_priority and "priority" in takes else 0
    if "delay" in takes:
        late = JobSpec(priority=top, delay=DELAY)
        for page in (1, PAGE):
            yield Program((late,) * page + ready, in_turn(script("w1", claim())))
    if pieces.routes():
        elsewhere = JobSpec(priority=top, queue="other")
        yield Program((elsewhere,) * PAGE + ready, in_turn(script("w1", claim())))
    if pieces.one_each:
        holders = [script(f"w{n + 1}", claim(), crash()) for n in range(SPENT)]
        yield Program((JobSpec(priority=top),) * SPENT + ready, in_turn(SETTLE, *holders))
    elif not pieces.offer.held:
        busy = (JobSpec(priority=top),) * PAGE
        full = [claim(PAGE)] if pieces.takes_limit else [claim()] * PAGE
        yield Program(busy + ready, in_turn(SETTLE, script("w1", *full, crash())))
    else:
        # The last one asks twice: a claim may do maintenance and answer nothing.
        holders = [script(f"w{n + 1}", claim()) for n in range(SPENT)]
        last = script("late", claim(), claim())
        yield Program(ready * (SPENT + 1), in_turn(SETTLE, *holders, last))
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        # Each fails once, and waits for its next attempt.
        jobs = (JobSpec(priority=top),) * SPENT + ready
        dos = [do for n in range(SPENT) for do in (claim(), fail(n))]
        yield Program(jobs, in_turn(SETTLE, script("w1", *dos)))
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        # A worker comes by its own failed job again, and by the next one.
        own = (*in_turn(script("w1", claim(), fail())), *pieces.wait_out())
        again = in_turn(NEW, SETTLE, script("w1", *[claim()] * 3))
        yield Program(ONE, (*own, *again), reserve=ONE)
    if "cleanup" in pieces.offers:
        # Nor does what is left of a job that was cleaned up.
        done = in_turn(script("w1", claim(), *pieces.ending()))
        later = in_turn(SETTLE, CLEAN, NEW, SETTLE, script("w2", claim(), claim()))
        yield Program(ONE, (*done, *later), reserve=ONE)
    if "fail" in pieces.offers and "cleanup" in pieces.offers and 1 in pieces.bounds():
        # What is left of a job that has failed, once it is cleaned up.
        over = (*in_turn(script("w1", claim(), fail())), *pieces.wait_out())
        yield Program((JobSpec(bound=1),), (*over, *in_turn(CLEAN, NEW)), reserve=ONE)
    spent = JobSpec(priority=top, bound=1)
    if "max_attempts" in takes and pieces.bound is not None:
        jobs = (spent,) * SPENT + ready
        dos = [do for n in range(SPENT) for do in (claim(), fail(n))]
        if "fail" in pieces.offers:
            yield Program(jobs, in_turn(script("w1", *dos)))
        if pieces.lease is not None and pieces.one_each:
            yield Program(jobs, in_turn(*holders))
        elif pieces.lease is not None and not pieces.offer.held:
            yield Program(jobs, in_turn(script("w1", *[claim()] * SPENT, crash())))


GUARANTEES = (
    Guarantee(
        id="non-blocking",
        sentence="A claim, a heartbeat or a recovery never waits for another worker's job.",
        why="workers form a convoy: adding some makes nothing faster",
        whys={
            "heartbeat": "a worker that waits with its heartbeat loses its lease while it lives",
            "recover": "jobs of crashed workers stay away as long as one worker is slow",
        },
        source="https://www.postgresql.org/docs/current/explicit-locking.html",
        wild=(
            "FOR UPDATE without SKIP LOCKED, a recovery that is a plain UPDATE, or a counter that "
            "every claim writes: each worker waits for the one before it, however many there are."
        ),
        safe=(
            "FOR UPDATE SKIP LOCKED in the claim and in the recovery, and no row that all of them "
            "write. Where one at a time is enough, pg_try_advisory_xact_lock lets the others pass."
        ),
        programs=_non_blocking,
        lacking="operations in the midst of another's",
        waits=True,
    ),
    Guarantee(
        id="no-deadlock",
        sentence="No interleaving of operations deadlocks.",
        why="operations are aborted at random under load",
        source="https://github.com/timgit/pg-boss/issues/282",
        wild=(
            "A batch is locked in the order in which its worker names it, or two operations lock "
            "two shared rows in opposite orders: PostgreSQL aborts one of them with 40P01."
        ),
        safe=(
            "One order for all: SELECT ... WHERE id = ANY ($1) ORDER BY id FOR UPDATE before a "
            "batch is changed, and shared rows in the same order in every operation. SKIP LOCKED "
            "wherever a job may be passed over: who does not wait cannot deadlock."
        ),
        programs=_no_deadlock,
        late=_overtaken,
        extra=(Conditions(gate="row"),),
        lacking="operations in the midst of another's",
    ),
    Guarantee(
        id="no-starvation",
        sentence="A job that cannot run now does not keep ready jobs from being claimed.",
        why="the queue stands still although there is work",
        source="https://github.com/oban-bg/oban/issues/1498",
        wild=(
            "The LIMIT is used up before it is asked what may run: jobs that are delayed, running "
            "or out of attempts fill the page at the head of the queue, and hide all ready ones "
            "behind them."
        ),
        safe=(
            "Every condition for a job to run stands in the query that has the LIMIT and FOR "
            "UPDATE SKIP LOCKED; nothing is filtered out of its result."
        ),
        programs=_no_starvation,
        acknowledged=True,
        lacking="jobs claimed beside others that could not run",
        probe="behind more urgent",
        passed_over=True,
    ),
)
"""In the order of the scenarios."""
