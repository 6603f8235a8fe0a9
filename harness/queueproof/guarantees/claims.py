"""Guarantees on the claim: who gets which job, when, how many and in which order."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee
from queueproof.queues.offer import Offer
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.moments import DAY, HOUR, past
from queueproof.schedule.programs import (
    REWRITE,
    Do,
    JobSpec,
    Program,
    advance,
    claim,
    complete,
    fail,
    heartbeat,
    in_turn,
    script,
    until,
    whole,
)
from queueproof.space.pieces import (
    ALIGNED,
    DELAY,
    MOMENT_OF_ALL,
    MOST_ATTEMPTS,
    NEW,
    ONE,
    PAGE,
    SAME,
    SETTLE,
    THREE,
    TWO,
    Pieces,
)

APART = 7.0  # seconds between due times, of which two of three are in the same minute
MINUTE = 61.0  # seconds; what is counted from an aligned clock ends at the same fraction
FRACTION = 61.47  # seconds; of which rounding takes more than a margin
_PREFIXED = "default.high"  # a queue whose name begins as another's
_PATTERN = "default_high"  # and one whose name, to LIKE, is that
_LONG = "mail-" * 13  # longer than the 63 bytes of the server's own names


def _ordered(offer: Offer) -> str | None:
    return "no order is declared" if offer.queue.order == "none" else None


def _routed(offer: Offer) -> str | None:
    takes = offer.queue.takes
    if "queue" in takes("enqueue") and "queue" in takes("claim"):
        return None
    return "enqueue and claim do not both take a queue"


def _capped(offer: Offer) -> str | None:
    return "no concurrency_limit is declared" if offer.queue.concurrency_limit is None else None


def _single_claim(pieces: Pieces) -> Iterator[Program]:
    pair = (script("w1", claim()), script("w2", claim()))
    yield Program(ONE, (pair,))
    yield Program(TWO, (pair,))
    yield Program(ONE, ((*pair, script("w3", claim())),))
    if pieces.takes_limit:
        yield Program(TWO, ((script("w1", claim(2)), script("w2", claim(2))),))
    # What a claim has set aside for some seconds, in a step of its own, is over before the next.
    later = script("w2", advance(0.6 * (pieces.lease or MINUTE)), whole(claim()))
    yield Program(ONE, ((script("w1", claim()), later),))
    for ender in pieces.enders():
        yield Program(ONE, ((script("w1", claim(), ender), script("w2", claim())),))
    if pieces.lease is None:
        for begins in pieces.beginning(claim()):
            yield Program(ONE, ((script("w1", claim()), begins),))
    first = in_turn(script("w1", claim()))
    if "fail" in pieces.offers:
        failed = in_turn(script("w1", claim(), fail()))
        race = (script("w2", claim()), script("w3", claim()))
        yield Program(ONE, (*failed, *pieces.wait_out(), race))
    if pieces.lease is not None:
        race = (script("w2", claim()), script("w3", claim()))
        yield Program(ONE, (*first, *pieces.lapse(), race))
    if "payload" in pieces.offer.queue.takes("enqueue"):
        # An enqueue may answer the job that is there, and no claim gets it while it is held.
        taker = in_turn(script("w2", claim()))
        yield Program((SAME,), (*first, *in_turn(NEW), *taker), reserve=(SAME,))
        yield Program((SAME,), ((script("w1", claim()), NEW), *taker), reserve=(SAME,))


def _claim_limit(pieces: Pieces) -> Iterator[Program]:
    takes = pieces.offer.queue.takes("enqueue")
    if "priority" in takes and (pieces.takes_limit or not pieces.offer.held):
        # Each lane of a claim may have a limit of its own, and so may what is tried again.
        lanes = tuple(JobSpec(priority=rank) for rank in (1, 0, -1))
        yield Program(lanes, in_turn(SETTLE, script("w1", claim())))
    if not pieces.takes_limit:
        return
    yield Program((JobSpec(),) * 4, ((script("w1", claim(1)), script("w2", claim(2))),))
    yield Program(MOMENT_OF_ALL, in_turn(SETTLE, script("w1", claim())))
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        failed = (*in_turn(script("w1", claim(), fail())), *pieces.wait_out())
        yield Program(THREE, (*failed, *in_turn(script("w2", claim()))))
    if pieces.lease is not None:
        # What is stale stands beside what is ready, and counts with it.
        over = in_turn(script("clock", advance(past(pieces.lease))))
        taken = in_turn(script("w1", claim(2)))
        yield Program((JobSpec(),) * 4, (*taken, *over, *in_turn(script("w2", claim()))))


def _order(pieces: Pieces) -> Iterator[Program]:
    takes = pieces.offer.queue.takes("enqueue")
    ranks = (0, 9, 10) if pieces.offer.queue.by_priority else (0, 0, 0)
    jobs = tuple(JobSpec(priority=rank) for rank in ranks)
    yield Program(jobs, in_turn(SETTLE, script("w1", claim())))
    yield Program(TWO, in_turn(script("w1", claim())))
    # Without ORDER BY rows come as they lie: often, but not always, as they were put in.
    turned = script("janitor", REWRITE)
    yield Program(TWO, in_turn(turned, script("w1", claim())))
    yield Program(jobs, in_turn(SETTLE, turned, script("w1", claim())))
    yield Program(jobs, in_turn(SETTLE, script("w1", claim(), claim())))
    if ranks[-1]:
        # Less than none, which was put in first.
        less = (JobSpec(priority=-1), JobSpec())
        yield Program(less, in_turn(SETTLE, script("w1", claim())))
        # Behind more than a page of others.
        yield Program((jobs[0],) * PAGE + jobs[2:], in_turn(SETTLE, script("w1", claim())))
        # However long the other one has waited.
        waited = in_turn(script("clock", advance(DAY)), NEW, SETTLE, script("w1", claim()))
        yield Program(jobs[:1], waited, reserve=(JobSpec(priority=1),))
        # Of more than three digits, too.
        yield Program((JobSpec(), JobSpec(priority=1000)), in_turn(SETTLE, script("w1", claim())))
    three = in_turn(*(script(who, Do("enqueue")) for who in ("w1", "w2", "w1")))
    yield Program((), (*three, *in_turn(script("w3", claim(), claim()))), reserve=THREE)
    if pieces.takes_limit:
        pair = (script("w1", claim(2)), script("w2", claim(2)))
        yield Program((*jobs, *TWO), in_turn(SETTLE, *pair))
    if "delay" in takes:
        delayed = (JobSpec(delay=3.1), JobSpec(delay=5.3), JobSpec(delay=7.9))
        yield Program(delayed, in_turn(script("clock", advance(DELAY)), script("w1", claim())))
    for ender in pieces.enders():
        yield Program((*ONE, *jobs), in_turn(SETTLE, script("w1", claim(), ender, claim())))


def _not_early(pieces: Pieces) -> Iterator[Program]:
    take = script("w1", claim())
    yield Program((), ((script("producer", Do("enqueue")), take),), reserve=ONE)
    if "delay" in pieces.offer.queue.takes("enqueue"):
        urgent = 9 if "priority" in pieces.offer.queue.takes("enqueue") else 0
        late = (JobSpec(delay=DELAY),)
        half = script("clock", advance(DELAY / 2))
        yield Program((), ((script("producer", Do("enqueue")), take),), reserve=late)
        yield Program((JobSpec(priority=urgent, delay=DELAY),), in_turn(take))
        yield Program(late, in_turn(take, half, take, half, take))
        # What waits together is not due together.
        line = tuple(JobSpec(delay=DELAY + APART * n) for n in range(3))
        over, several = script("clock", advance(DELAY + 2)), script("w1", *[claim(3)] * 2)
        yield Program(line, in_turn(over, several, script("clock", advance(APART)), several))
        # Of a long one whatever but its seconds may be lost, or its days.
        long = (JobSpec(delay=2 * DAY + HOUR),)
        yield Program(long, in_turn(script("clock", advance(DAY)), take))
        yield Program((JobSpec(delay=40 * DAY),), in_turn(script("clock", advance(39 * DAY)), take))
        new, almost = script("producer", Do("enqueue")), script("clock", until(MINUTE))
        yield Program((), in_turn(ALIGNED, new, almost, take), reserve=(JobSpec(delay=MINUTE),))
        # Of a delay itself the fraction may be lost.
        almost = script("clock", until(FRACTION))
        yield Program((), in_turn(ALIGNED, new, almost, take), reserve=(JobSpec(delay=FRACTION),))
        yield Program((*ONE, *late), in_turn(script("w1", claim(2)), half, take))
        if pieces.joins:
            yield Program((*ONE, *late), in_turn(script("w1", claim(), complete(), claim())))
        if "recover" in pieces.offers and pieces.lease is not None:
            yield Program(late, in_turn(*pieces.reaper(), take))


def _routing(pieces: Pieces) -> Iterator[Program]:
    from queueproof.queues.worker import WorkerQueue  # noqa: PLC0415 - it is heavy

    both = (JobSpec(queue="other"), JobSpec())
    for jobs in (both, both[::-1], both * 2):
        yield Program(jobs, in_turn(script("w1", claim(2)), script("w2", claim(2, "other"))))
        yield Program(jobs, ((script("w1", claim()), script("w2", claim(1, "other"))),))
    for ender in pieces.enders():
        yield Program(both, in_turn(script("w1", claim(), ender), script("w2", claim())))
    if pieces.joins:
        others = script("w1", claim(1, "other"), complete(), claim(1, "other"))
        yield Program(both, in_turn(others))
    if not isinstance(pieces.offer.queue, WorkerQueue):  # which may know two queues and no third
        pairs = [("default", _PREFIXED), (_PREFIXED, "default"), (_PATTERN, _PREFIXED)]
        pairs += [(f"{_LONG}in", f"{_LONG}out"), ("default", "Default")]
        for mine, theirs in pairs:
            yield Program((JobSpec(queue=theirs),), in_turn(script("w1", claim(1, mine))))
    other = in_turn(script("w1", claim(1, "other")))
    if pieces.lease is not None:
        yield Program(both[:1], (*other, *pieces.lapse(), *in_turn(script("w2", claim()))))
    if "fail" in pieces.offers:
        failed = in_turn(script("w1", claim(1, "other"), fail()))
        yield Program(both[:1], (*failed, *pieces.wait_out(), *in_turn(script("w2", claim()))))


def _concurrency_limit(pieces: Pieces) -> Iterator[Program]:
    cap = pieces.offer.queue.concurrency_limit or 1
    if cap > MOST_ATTEMPTS:
        return
    jobs = (JobSpec(),) * (cap + 2)
    full = [claim()] * (cap - 1) if not pieces.offer.held else []
    if pieces.takes_limit:
        yield Program(jobs, in_turn(script("w1", claim(cap + 2))))
        yield Program(jobs, ((script("w1", claim(cap)), script("w2", claim(cap))),))
    race = (script("w2", claim()), script("w3", claim()))
    yield Program(jobs, (*in_turn(script("w1", *full)), race))
    if "priority" in pieces.offer.queue.takes("enqueue"):
        # What has come in since a claim began is claimed by another one: what is counted is old.
        meanwhile = script("w3", whole(Do("enqueue")), whole(claim()))
        urgent = (script("w2", claim()), meanwhile)
        yield Program(
            jobs[:cap], (*in_turn(script("w1", *full)), urgent), reserve=(JobSpec(priority=5),)
        )
    singles = [script(f"w{n + 1}", claim()) for n in range(cap + 1)]
    others = [script(f"w{n}", claim()) for n in (2, 3, 4, 5)]
    yield Program(jobs, in_turn(*singles))
    if pieces.routes() and not pieces.offer.held:  # the cap is over all queues
        other = (JobSpec(),) * cap + (JobSpec(queue="other"),)
        yield Program(other, in_turn(script("w1", *full, claim()), script("w2", claim(1, "other"))))
    for ender in pieces.enders():
        if ender.kind != "heartbeat":
            ended = in_turn(script("w1", *full, claim(), ender))
            yield Program(jobs, (*ended, race, *in_turn(script("w4", claim()))))
            # What is refused frees nothing.
            twice = in_turn(script("w1", *full, claim(), ender, ender))
            yield Program(jobs, (*twice, *in_turn(*others[:2])))
    if pieces.lease is not None and full and "heartbeat" in pieces.offers:
        # A job that nobody has taken back runs again once its worker's late heartbeat is accepted.
        lapsed = in_turn(script("w1", *full, claim()), script("clock", advance(past(pieces.lease))))
        yield Program(
            jobs, (*lapsed, *in_turn(script("w2", *full, claim()), script("w1", heartbeat())))
        )
        # One of a worker's jobs lives on by its heartbeats, the others are taken back.
        taken = in_turn(script("w1", *full, claim()), pieces.within())
        beaten = in_turn(script("w1", heartbeat(cap - 1)), pieces.within(), *pieces.reaper())
        yield Program(jobs, (*taken, *beaten, *in_turn(script("w2", *full, claim()))))
    if pieces.lease is not None:
        taken = in_turn(script("w1", *full, claim()))
        yield Program(jobs, (*taken, *pieces.lapse(), race, *in_turn(script("w4", claim()))))
        over = (*taken, *pieces.lapse(), *in_turn(script("w2", *full, claim())))
        for ender in pieces.enders():
            yield Program(jobs, (*over, *in_turn(script("w1", ender), *others[2:])))


GUARANTEES = (
    Guarantee(
        id="single-claim",
        sentence="No job is held by two workers at once.",
        why="the job's effect happens twice: two mails, two payments",
        source="https://www.postgresql.org/docs/current/sql-select.html (The Locking Clause)",
        wild=(
            "A SELECT finds a free job and an UPDATE by its id marks it: two workers read the same "
            "row before either writes. A row lock without a transaction around it ends with its "
            "own statement, and is no better."
        ),
        safe=(
            "One statement locks and marks: UPDATE jobs SET ... WHERE id = ANY (ARRAY(SELECT id "
            "FROM jobs WHERE ... ORDER BY ... LIMIT n FOR UPDATE SKIP LOCKED))."
        ),
        example="single_claim_select_then_update",
        programs=_single_claim,
        life=True,
        acknowledged=True,
        lacking="overlapping claims",
        lesson="why a claim must lock",
    ),
    Guarantee(
        id="claim-limit",
        sentence="A claim never takes more than its limit, whatever plan the server chooses.",
        why="one worker swallows the whole queue, and its leases run out while it works",
        source="https://github.com/oban-bg/oban/issues/4",
        wild=(
            "UPDATE ... WHERE id IN (SELECT ... LIMIT n FOR UPDATE SKIP LOCKED): under a nested "
            "loop the sub-select runs once per outer row, and each run passes over the rows just "
            "taken. It looks right until the planner's statistics change."
        ),
        safe=(
            "Have the sub-select run once: WHERE id = ANY (ARRAY(SELECT ...)), or WITH next AS "
            "MATERIALIZED (SELECT ...) and a join with it."
        ),
        programs=_claim_limit,
        lacking="claims with more jobs free than allowed",
        probe="plans",
    ),
    Guarantee(
        id="order",
        sentence="Jobs that are free are claimed in the declared order.",
        why="urgent work, or what came first, waits behind the rest",
        source="https://github.com/procrastinate-org/procrastinate/issues/212",
        wild=(
            "The claim has no ORDER BY, or sorts one page of the oldest rows: jobs come as the "
            "plan and the table happen to hold them. Or priorities are text, or run lowest first "
            "where highest first was meant."
        ),
        safe=(
            "ORDER BY priority DESC, id (with priority a number) in the very query that has the "
            "LIMIT and the lock, and an index in that order; no CACHE on the sequence of ids."
        ),
        asks="an order other than none in the header",
        needs=_ordered,
        programs=_order,
        extra=(Conditions(planner="no index"),),
        lacking="pairs of jobs compared",
        probe="behind ordinary",
        passed_over=True,
    ),
    Guarantee(
        id="not-early",
        sentence="A job is not claimed before its time, nor before its enqueue commits.",
        why="a reminder is sent before it is due, or for an order that is not committed",
        source="https://github.com/pgmq/pgmq/issues/367",
        wild=(
            "The delay is asked of retries only, is rounded to whole seconds, or is written by a "
            "second statement after the INSERT has committed."
        ),
        safe=(
            "INSERT the job with its run_at, in full precision, in one statement: "
            "clock_timestamp() + delay. Every claim, the first attempt's too, asks for run_at <= "
            "now()."
        ),
        programs=_not_early,
        life=True,
        acknowledged=True,
        timed=True,
    ),
    Guarantee(
        id="routing",
        sentence="A worker of one queue never gets another queue's job.",
        why="jobs run where their code is not deployed",
        source="https://www.inferable.ai/blog/posts/postgres-skip-locked",
        wild=(
            "The queue's name is compared by LIKE or as a prefix: to LIKE, mail_in is mail-in as "
            "well. Or the optional filter (queue = $1 OR $1 IS NULL) is inverted, and every job "
            "passes."
        ),
        safe=(
            "WHERE queue = $1 in the query that chooses the rows, and first in its index; claims, "
            "takeovers and recoveries leave the job's queue as it is."
        ),
        example="routing_inverted_filter",
        asks="queue as a parameter of both enqueue and claim",
        needs=_routed,
        programs=_routing,
        life=True,
        acknowledged=True,
        lacking="claims beside another queue's jobs",
        two_queues=True,
    ),
    Guarantee(
        id="concurrency-limit",
        sentence="Never more running jobs than the declared cap.",
        why="the dependency that the cap protects is overrun",
        source="https://github.com/janbjorge/pgqueuer/issues/761",
        wild=(
            "The claim counts the running jobs: two claims count the same number in their "
            "snapshots, and both fill the gap. Or a worker that has lost its job frees the slot of "
            "the next one."
        ),
        safe=(
            "A slot is a row: claim free slots as free jobs are claimed, with FOR UPDATE SKIP "
            "LOCKED, or have a unique index refuse the second holder. Free it only in the fenced "
            "statement that ends the attempt."
        ),
        example="concurrency_limit_count_then_claim",
        asks="concurrency_limit in the header",
        needs=_capped,
        programs=_concurrency_limit,
        life=True,
        acknowledged=True,
        lacking="claims that reached the cap",
    ),
)
"""In the order of the scenarios."""
