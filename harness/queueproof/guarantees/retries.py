"""Guarantees on a job's attempts and its end."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee, finishing, followed
from queueproof.queues.offer import Offer
from queueproof.schedule.actors import PROMOTER
from queueproof.schedule.moments import DAY, past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    HEARTBEATS,
    OBSERVE,
    PROMOTE,
    START,
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
    ELSEWHERE,
    MOMENT_OF_ALL,
    NEW,
    ONE,
    SAME,
    SETTLE,
    SPENT,
    THREE,
    TWO,
    Pieces,
)


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
    for bound in pieces.bounds():
        jobs = (JobSpec(bound=bound),)
        crashes: tuple[Stage, ...] = ()
        fails: tuple[Stage, ...] = ()
        mixed: tuple[Stage, ...] = ()
        for n in range(bound + 1):
            died = (*in_turn(script(f"w{n + 1}", claim(), crash())), *pieces.lapse())
            failed = (*in_turn(script(f"w{n + 1}", claim(), fail())), *pieces.wait_out())
            crashes += died
            fails += failed
            mixed += died if n % 2 == 0 else failed
        if pieces.offer.expires:
            yield Program(jobs, crashes)
        if "fail" in pieces.offers:
            yield Program(jobs, fails)
        if pieces.lease is not None and "fail" in pieces.offers:
            yield Program(jobs, mixed)
            over = in_turn(script("clock", advance(past(pieces.lease))))
            race: Stage = (script("w1", fail()), *pieces.reaper())
            last = in_turn(script("w2", claim(), crash()))
            yield Program(
                jobs, (*in_turn(script("w1", claim())), *over, race, *last, *pieces.lapse())
            )
    yield from _kept_count(pieces)


def _kept_count(pieces: Pieces) -> Iterator[Program]:
    """What may give attempts back: heartbeats, cleanups, a worker that takes its own job again."""
    bound = next((bound for bound in pieces.bounds() if 1 < bound <= SPENT), 0)
    if not bound or pieces.offer.held:
        return
    jobs = (JobSpec(bound=bound),)
    if "fail" in pieces.offers:
        beat = [heartbeat()] if "heartbeat" in pieces.offers else []
        clean = (CLEAN,) if "cleanup" in pieces.offers else ()
        if beat or clean:
            spared: tuple[Stage, ...] = ()
            for n in range(bound + 1):
                failed = in_turn(script(f"w{n + 1}", claim(), *beat, fail()))
                spared += (*failed, *pieces.wait_out(), *in_turn(*clean))
            yield Program(jobs, spared)
    if pieces.lease is not None:
        slow = (*in_turn(script("w1", claim())), *pieces.lapse())
        yield Program(jobs, slow * (bound + 1))
        if "start" in pieces.offers:
            # Who begins takes back what is stale before any reaper has come.
            over = script("clock", advance(past(pieces.lease)))
            lives = [
                script(f"w{n + 1}", *[START] * (n > 0), claim(), crash()) for n in range(bound + 1)
            ]
            yield Program(jobs, in_turn(*(part for life in lives for part in (life, over))))


def _retry_given(pieces: Pieces) -> Iterator[Program]:
    """The same programs: they drive a job to its last attempt, and show whether it gets there."""
    yield from _retry_bound(pieces)
    if "fail" in pieces.offers and pieces.bound is not None and pieces.bound > 1:
        yield _repeated(pieces, fail())
        yield _beside_its_twin(fail())
        if pieces.routes():
            mine = script("w1", claim(queue="other"), fail())
            yield Program(ELSEWHERE, (*in_turn(mine), *pieces.wait_out()))
        # However old the job is.
        old = in_turn(script("clock", advance(40 * DAY)), script("w1", claim(), fail()))
        yield Program(ONE, (*old, *pieces.wait_out()))
        tries = max((bound for bound in pieces.bounds() if bound <= SPENT), default=0)
        if tries > 1 and "delay" in pieces.offer.queue.takes("enqueue"):
            # However late it was to begin.
            begun = in_turn(script("clock", advance(past(DELAY))))
            fails = [
                stage
                for n in range(tries)
                for stage in (*in_turn(script(f"w{n + 1}", claim(), fail())), *pieces.wait_out())
            ]
            yield Program((JobSpec(bound=tries, delay=DELAY),), (*begun, *fails))
        # A claim that comes away empty has counted nothing.
        yield Program(_two_tries(pieces), ((script("w1", claim(), fail()), script("w2", claim())),))


def _repeated(pieces: Pieces, late: Do) -> Program:
    """A fail that leaves attempts is sent twice: it counts once, and requeues once.

    Of two attempts none is left where it counts twice; where it requeues twice, two get the job.
    """
    twice = in_turn(script("w1", claim(), fail()), script("w1", late))
    others = in_turn(script("w2", claim()), script("w3", claim()))
    return Program(_two_tries(pieces), (*twice, *pieces.wait_out(), *others))


def _two_tries(pieces: Pieces) -> tuple[JobSpec, ...]:
    """A job with two attempts, where that can be said."""
    return (JobSpec(bound=2),) if 2 in pieces.bounds() else ONE  # noqa: PLR2004 - two attempts


def _final_state(pieces: Pieces) -> Iterator[Program]:
    first = in_turn(script("w1", claim()))
    for ended in (do for do in pieces.enders() if do.kind != "heartbeat"):
        done = in_turn(script("w1", claim(), ended))
        jobs = (JobSpec(bound=1),) if ended.kind == "fail" else ONE
        yield Program(jobs, (*done, *pieces.lapse(), *in_turn(script("w2", claim()))))
        for late in pieces.enders():
            after = in_turn(script("w1", late), script("w2", claim()))
            yield Program(jobs, (*done, *after))
            if ended.kind == "fail" and (pieces.bound is None or pieces.bound > 1):
                yield _repeated(pieces, late)
        if "heartbeat" in pieces.offers and not pieces.offer.held:
            # A worker's heartbeats may come from a thread of their own (rule 3).
            both: Stage = (script("w1", ended), script(f"w1{HEARTBEATS}", heartbeat()))
            later = (*pieces.lapse(), *in_turn(script("w2", claim())))
            yield Program(jobs, (*first, both, *later))
        if pieces.lease is not None:
            over = in_turn(script("clock", advance(past(pieces.lease))))
            pair: Stage = (script("w1", ended), *pieces.reaper())
            yield Program(jobs, (*first, *over, pair, *in_turn(script("w2", claim()))))
            race: Stage = (*pair, script("w2", claim()))
            yield Program(jobs, (*first, *over, race, *in_turn(script("w3", claim()))))
    if "complete_many" in pieces.offers and pieces.takes_limit:
        done = in_turn(script("w1", claim(2), COMPLETE_ALL))
        yield Program(TWO, (*done, *pieces.lapse(), *in_turn(script("w2", claim(2)))))
    if "promote" in pieces.offers and not pieces.offer.queue.leader:
        # What a promoter has read is old when it acts: another was faster, and a worker as well.
        # The job is enqueued here: whatever is due when the clock moves is promoted at once.
        others = script("w2", whole(PROMOTE), whole(claim()), *map(whole, pieces.ending()))
        race = (script(PROMOTER, PROMOTE), others)
        yield Program((), (*in_turn(NEW), race, *in_turn(script("w3", claim()))), reserve=ONE)


def _no_lost_job(pieces: Pieces) -> Iterator[Program]:
    ways = [complete(), fail()] if "fail" in pieces.offers else [complete()]
    for ender in ways:
        yield Program(ONE, in_turn(script("w1", claim(), ender)))
        yield Program(TWO, ((script("w1", claim(), ender), script("w2", claim(), complete())),))
        yield Program(ONE, ((script("w1", claim(), ender), script("nemesis", crash(1))),))
    yield Program(TWO, ((script("w1", claim()), script("nemesis", crash(1))),))
    if "complete_many" in pieces.offers and pieces.takes_limit:
        yield Program(TWO, in_turn(script("w1", claim(2), COMPLETE_ALL)))
        yield Program(THREE, in_turn(script("w1", claim(2), claim(), COMPLETE_ALL)))
        batch = script("w1", claim(2), COMPLETE_ALL)
        yield Program(TWO, ((batch, script("w2", claim(2), COMPLETE_ALL)),))
    low = -1 if "priority" in pieces.offer.queue.takes("enqueue") else 0
    yield Program((JobSpec(priority=low),), in_turn(script("clock", advance(400 * DAY))))
    if "delay" in pieces.offer.queue.takes("enqueue"):
        long = 100 * DAY
        yield Program((JobSpec(delay=long),), in_turn(script("clock", advance(past(long)))))
    yield from _arrivals(pieces)
    yield from _payloads(pieces)
    # Who goes on behind the last time that was seen passes by what has the same.
    yield Program(MOMENT_OF_ALL, in_turn(SETTLE, script("w1", claim())))
    if "cleanup" in pieces.offers:
        yield Program(TWO, ((script("w1", claim(), complete()), CLEAN),))
        # What is left of a job that is cleaned up is in no other job's way.
        done = in_turn(script("w1", claim(), *pieces.ending()))
        yield Program(ONE, (*done, *in_turn(SETTLE, CLEAN, NEW)), reserve=ONE)
        yield from _kept(pieces)
    if "fail" in pieces.offers and pieces.bound is not None:
        # What is left of a job that has ended, and of its cleanup, is in no other job's way.
        later = in_turn(*([CLEAN] if "cleanup" in pieces.offers else []), NEW)
        for bound in pieces.bounds():
            tries = tuple(
                stage
                for n in range(bound)
                for stage in (*in_turn(script("w1", claim(), fail(n))), *pieces.wait_out())
            )
            yield Program((JobSpec(bound=bound),), (*tries, *later), reserve=ONE)


def _payloads(pieces: Pieces) -> Iterator[Program]:
    """Two jobs that are alike in all, and one that no index takes."""
    enders = [do.kind for do in pieces.enders() if do.kind != "heartbeat"]
    for kind in enders:
        both = in_turn(script("w1", claim(), Do(kind), claim(), Do(kind, 1)))
        for bound in {0, *(one for one in pieces.bounds() if one == 1 and kind == "fail")}:
            yield Program((SAME._replace(bound=bound),) * 2, both)
            large = JobSpec(bound=bound, payload="large")
            yield Program((large,), in_turn(script("w1", claim(), Do(kind))))
        yield _beside_its_twin(Do(kind))


def _beside_its_twin(ender: Do) -> Program:
    """A job ends, or is tried again, where another one like it has come in meanwhile."""
    again = in_turn(script("w1", claim()), NEW, script("w1", ender))
    return Program((SAME,), again, reserve=(SAME,))


def _arrivals(pieces: Pieces) -> Iterator[Program]:
    """Jobs are enqueued while somebody acts: a counter of jobs may miss one."""
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
    if "promote" in pieces.offers and "fail" in pieces.offers:
        # A failure likewise: its wait is counted from where its transaction began.
        taken = in_turn(script("w1", claim()))
        race: Stage = (script("w1", fail()), script(PROMOTER, advance(DAY), PROMOTE))
        yield Program(_two_tries(pieces), (*taken, race))


def _kept(pieces: Pieces) -> Iterator[Program]:
    """Cleanups that come too early for a job, however long ago the rest of its life was."""
    if "jobs" not in pieces.offers or "age" not in pieces.offer.queue.takes("cleanup"):
        return
    early = in_turn(script("janitor", OBSERVE, Do("cleanup", seconds=DAY), OBSERVE))
    late, most = in_turn(script("clock", advance(DAY))), script("clock", advance(0.6 * DAY))
    take = in_turn(script("w1", claim()))
    for job in (ONE, (JobSpec(bound=1),)) if 1 in pieces.bounds() else (ONE,):
        yield Program(job, (*in_turn(script("w1", claim(), crash())), *late, *early))
        yield Program(job, (*late, *early))
    for ender in (do for do in pieces.enders() if do.kind != "heartbeat"):
        end = in_turn(script("w1", ender))
        yield Program(ONE, (*take, *end, *early))
        yield Program(ONE, (*late, *take, *end, *early))
        yield Program(ONE, (*take, *late, *end, *early))
        yield Program(ONE, (*take, *end, *in_turn(most), *early))
        if ender.kind == "fail" and 1 in pieces.bounds():
            yield Program((JobSpec(bound=1),), (*late, *take, *end, *early))
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        failed = in_turn(script("w1", claim(), fail()))
        again = in_turn(script("w1", claim(), complete(1)))
        yield Program(ONE, (*failed, *pieces.wait_out(), *again, *early))
        yield Program(ONE, (*failed, *pieces.wait_out(), *late, *early))
        yield Program(_two_tries(pieces), (*failed, *pieces.wait_out(), *early))


GUARANTEES = (
    Guarantee(
        id="retry-bound",
        sentence="A job is attempted at most max_attempts times, crashes included.",
        why="a job that cannot succeed, or that kills its worker, is tried for ever",
        source="https://github.com/elizaOS/eliza/issues/10854",
        wild=(
            "Only failures are counted: a job that kills its worker is handed out for ever. Or one "
            "path does not ask: the recovery knows a default and not the job's own max_attempts, "
            "or <= grants one attempt more."
        ),
        safe=(
            "The claim counts (attempts = attempts + 1), so that crashes count. fail and the "
            "recovery both end the job where attempts >= max_attempts, the row's own."
        ),
        safe_alone=(
            "The claim counts (attempts = attempts + 1), so that crashes count. If your claim "
            "takes jobs over by itself, end exhausted jobs there, or add a recover block. fail "
            "ends the job where attempts >= max_attempts, the row's own."
        ),
        example="retry_bound_crash_not_counted",
        asks="max_attempts in the header, and fail or a lease",
        needs=_bound,
        programs=_retry_bound,
        life=True,
        acknowledged=True,
        lacking="jobs attempted as often as allowed",
    ),
    Guarantee(
        id="retry-given",
        sentence=(
            "A failed job that has attempts left is tried again, and so is a crashed worker's."
        ),
        why="a passing fault, or a worker that dies, ends a job for good",
        source=(
            "https://github.com/inferablehq/inferable/blob/c67acb8/"
            "control-plane/src/modules/jobs/self-heal-jobs.ts"
        ),
        wild=(
            "One attempt is counted twice, by the claim and by the recovery, or by a fail that was "
            "sent again because its answer was lost: the job is given up with attempts left."
        ),
        safe=(
            "Count in the claim only; fail and the recovery compare: CASE WHEN attempts < "
            "max_attempts THEN 'queued' ELSE 'failed' END. Fence fail, so that the second of two "
            "changes nothing."
        ),
        example="retry_given_crash_counted_twice",
        asks="max_attempts in the header, and fail or a lease",
        needs=_bound,
        programs=_retry_given,
        life=True,
        acknowledged=True,
        lacking="jobs tried as often as allowed",
    ),
    Guarantee(
        id="backoff",
        sentence=(
            "A failed job waits before its next attempt; the wait grows, is capped, and never "
            "overflows."
        ),
        why="a failing dependency is hammered, or a job comes back in the year 9999, or never",
        source="https://github.com/riverqueue/river/pull/698",
        wild=(
            "The cap is applied after the power: from some attempt on the product is no interval "
            "any more, and fail itself fails. Or the wait counts from now(), which stands still in "
            "a long transaction, and is over before it begins. Or what was caught does not fit, "
            "and fail itself fails: a column of 255 characters, JSON put together by hand."
        ),
        safe=(
            "Cap the exponent, then the wait, and count from the real time: run_at = "
            "clock_timestamp() + least(interval '1 hour', interval '5 seconds' * 2 ^ "
            "least(attempts - 1, 16)). What was caught goes into a text column, cut, or through "
            "to_jsonb: it has quotes, line ends and the length of a traceback."
        ),
        example="backoff_overflow",
        asks="fail, and backoff in the header",
        by_life=True,
        needs=_waiting,
        timed=True,
        probe="waits",
    ),
    Guarantee(
        id="final-state",
        sentence="A completed or failed job never runs again.",
        why="finished work is done a second time, hours later",
        source="https://github.com/riverqueue/river/issues/1302",
        wild=(
            "complete leaves the lease in place, and the recovery asks for old leases without "
            "asking for the status. Or the recovery reads the stale jobs and requeues by id one "
            "that its late worker completes in between."
        ),
        safe=(
            "Whatever puts a job back asks for status = 'running' of the row that it locks. "
            "complete and fail ask for it too, and set the end and clear the lease in one UPDATE."
        ),
        undone=True,
        example="final_state_completed_lease",
        asks="complete, complete_many or fail",
        needs=finishing,
        programs=_final_state,
        life=True,
        acknowledged=True,
        lacking="sweeps over a finished job",
    ),
    Guarantee(
        id="no-lost-job",
        sentence="Every enqueued job ends completed or failed, or can still be claimed.",
        why="work that was accepted is never done, and nobody is told",
        source="https://github.com/riverqueue/river/pull/619",
        wild=(
            "Cleanup goes by age and deletes jobs that still wait, or fail takes the row out and "
            "puts it back in two transactions. Or claims begin above a mark: ids are given out "
            "before the commit, and an enqueue that commits late is below it."
        ),
        safe=(
            "One transaction for each change of state, and one statement where a row moves: WITH "
            "due AS (DELETE ... RETURNING *) INSERT ... SELECT FROM due. Cleanup deletes only "
            "WHERE status IN ('completed', 'failed') AND the end is old, and no claim or promote "
            "passes over jobs by age, id, the time of its last tick or a flag kept elsewhere."
        ),
        example="no_lost_job_cleanup",
        programs=_no_lost_job,
        life=True,
        acknowledged=True,
        lacking="jobs followed to their end",
        timed=True,
    ),
)
"""In the order of the scenarios."""
