"""The programs that each guarantee needs, and a strategy that draws others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues.offer import Offer
from queueproof.queues.worker import ProgramQueue
from queueproof.schedule.actors import PROMOTER
from queueproof.schedule.moments import DAY, past
from queueproof.schedule.programs import (
    ALIGN,
    COMPLETE_ALL,
    HEARTBEATS,
    OBSERVE,
    PROMOTE,
    RECOVER,
    RESTART,
    REWRITE,
    Do,
    JobSpec,
    Program,
    Script,
    Stage,
    advance,
    claim,
    complete,
    crash,
    fail,
    heartbeat,
    in_turn,
    lose,
    script,
    terminate,
    until,
    whole,
)

ONE = (JobSpec(),)
TWO = (JobSpec(), JobSpec())
THREE = (JobSpec(), JobSpec(), JobSpec())
DELAY = 61.3  # seconds


class Suite:
    """Builds programs out of what a queue offers.

    Attributes:
        offer: The queue, and whether its claims are held in their transaction.
        through: Only programs that do this operation; None: all.
    """

    def __init__(self, offer: Offer, through: str | None = None) -> None:
        self.offer = offer
        self.through = through
        queue = offer.queue
        self.offers = queue.offers
        self.one_each = queue.jobs_per_worker is not None
        self.by_worker = "heartbeat" in self.offers and "job" not in queue.takes("heartbeat")
        self.takes_limit = "limit" in queue.takes("claim") and not offer.held and not self.one_each
        self.lease = queue.lease_time.total_seconds() if queue.lease_time else None
        self.bound = queue.max_attempts

    def programs(self, guarantee: str) -> list[Program]:
        """The fixed programs of a guarantee, those with fewest operations first."""
        build: Callable[[], Iterator[Program]] = getattr(self, f"_{guarantee.replace('-', '_')}")
        found = (one for one in build() if self.through is None or one.does(self.through))
        return sorted(found, key=lambda program: program.size)

    def has_programs(self, guarantee: str) -> bool:
        """Whether a guarantee is put to the test by programs of its own."""
        return hasattr(self, f"_{guarantee.replace('-', '_')}")

    def settled(self) -> list[Program]:
        """Programs in turn that begin a moment after the jobs."""
        return [
            program._replace(stages=(*in_turn(SETTLE), *program.stages))
            for program in self.varied(races=False)
        ]

    def varied(self, *, races: bool) -> list[Program]:
        """Programs for conditions that should change nothing: the short ones of what a job lives.

        Args:
            races: Those in which somebody acts beside somebody else, or those in turn.
        """
        found = {
            program: None
            for guarantee in _LIFE
            for program in self.programs(guarantee)
            if CATALOGUE[guarantee].needs(self.offer) is None
            and program.races == races
            and program.size <= LONG
        }
        return list(found)

    def delayed(self) -> list[Program]:
        """Programs in which one enqueues a delayed job and another claims, too early and in time.

        A time that the first one's clock had a part in is wrong in one direction or the other.
        """
        if "delay" not in self.offer.queue.takes("enqueue"):
            return []
        return [
            Program(
                (),
                in_turn(
                    script(who, Do("enqueue")),
                    script("w3", claim()),
                    script("clock", advance(DELAY + MOMENT)),
                    script("w3", claim()),
                ),
                reserve=(JobSpec(delay=DELAY),),
            )
            for who in ("w1", "w2")
        ]

    def overtaken(self) -> list[Program]:
        """Programs in which a batch that has begun is taken over, and meets the next holder's.

        What it does not see any more, a statement with an old snapshot still locks.
        """
        if self.lease is None or not self.takes_limit or "complete_many" not in self.offers:
            return []
        between = [advance(past(self.lease)), whole(claim(2))]
        if "recover" in self.offers:
            between.insert(1, whole(RECOVER))
        late, next_one = script("w1", COMPLETE_ALL), script("w2", *between, COMPLETE_ALL)
        program = Program(TWO, (*in_turn(script("w1", claim(2))), (late, next_one)))
        return [program] if self.through is None or program.does(self.through) else []

    def broken_off(self) -> list[Program]:
        """Programs in which a connection is cut or a backend ends, at any step of any operation."""
        return [
            _beside(program, fault)
            for fault in (lose(1), terminate(1))
            for program in (*self._operations(), *self._meetings())
            if self.through is None or program.does(self.through)
        ]

    def killed(self) -> list[Program]:
        """Programs in which the server is killed and starts again, at any step of any operation."""
        programs = [_beside(program, RESTART) for program in self._operations()]
        if self.lease is not None and "heartbeat" in self.offers:
            # What a heartbeat has promised shows only later, and so does what it leaves behind.
            fresh = in_turn(script("w1", claim()), self.within())
            beat: Stage = (script("w1", heartbeat()), script("nemesis", RESTART))
            later = in_turn(self.within(), *self.reaper(), script("w2", claim()))
            programs.append(Program(ONE, (*fresh, beat, *later)))
            beaten = in_turn(script("w1", claim(), heartbeat()))
            programs += [
                _beside(Program(ONE, (*beaten, *in_turn(script("w1", ender)))), RESTART)
                for ender in self.enders()
                if ender.kind == "complete"
            ]
        return [one for one in programs if self.through is None or one.does(self.through)]

    def _operations(self) -> Iterator[Program]:
        """Every operation by w1 in the last stage, with whatever it needs."""
        yield Program((), in_turn(script("w1", Do("enqueue"))), reserve=ONE)
        yield Program(ONE, in_turn(script("w1", claim())))
        for ender in self.enders():
            yield Program(ONE, in_turn(script("w1", claim(), ender)))
        if "complete_many" in self.offers:
            limit = 2 if self.takes_limit else 1
            yield Program(TWO, in_turn(script("w1", claim(limit), COMPLETE_ALL)))
        taken = in_turn(script("w2", claim()))
        if self.lease is not None and "recover" in self.offers:
            over = in_turn(script("clock", advance(past(self.lease))))
            yield Program(ONE, (*taken, *over, *in_turn(script("w1", RECOVER))))
        if self.lease is not None:
            yield Program(ONE, (*taken, *self.lapse(), *in_turn(script("w1", claim()))))
        if "fail" in self.offers and (self.bound is None or self.bound > 1):
            failed = in_turn(script("w2", claim(), fail()))
            yield Program(ONE, (*failed, *self.wait_out(), *in_turn(script("w1", claim()))))
        if "cleanup" in self.offers:
            done = in_turn(script("w2", claim(), complete()))
            yield Program(TWO, (*done, *in_turn(script("w1", Do("cleanup")))))

    def _meetings(self) -> Iterator[Program]:
        """w1 beside somebody for whom it may have to wait, or who may have to wait for it."""
        yield Program(TWO, ((script("w1", claim()), script("w2", claim())),))
        taken = in_turn(script("w1", claim()))
        if self.lease is None:
            return
        over = in_turn(script("clock", advance(past(self.lease))))
        rival = self.reaper() or (script("w2", claim()),)
        for ender in self.enders():
            yield Program(ONE, (*taken, *over, (script("w1", ender), *rival)))

    # --- pieces ---------------------------------------------------------------------------------

    def lapse(self) -> tuple[Stage, ...]:
        """The stages that make every lease run out and let a reaper see it."""
        if self.lease is None:
            return in_turn(*self.reaper()) if self.offer.queue.by_session else ()
        over = in_turn(script("clock", advance(past(self.lease))), *self.reaper())
        if self.offer.waits is None:
            return over
        # The claim that takes a job back answers nothing, and the job waits.
        taker = script("w9", claim()._replace(whole=True))
        return (*over, *in_turn(taker, script("clock", advance(self.offer.waits)), *self.reaper()))

    def reaper(self) -> tuple[Script, ...]:
        """The scripts of a reaper and a promoter, where there is something to reap with."""
        reaper = (script("reaper", RECOVER),) if "recover" in self.offers else ()
        return (*reaper, script(PROMOTER, PROMOTE)) if "promote" in self.offers else reaper

    def within(self) -> Script:
        """A move of the clock well inside a lease; two of them are past it."""
        return script("clock", advance(0.6 * (self.lease or 0.0)))

    def wait_out(self) -> tuple[Stage, ...]:
        """A move of the clock past every backoff and delay; the runner promotes what is due."""
        reaper = (script("reaper", RECOVER),) if self.offer.due_by_recover else ()
        return in_turn(script("clock", advance(DAY)), *reaper)

    def enders(self, nth: int = 0) -> list[Do]:
        """The operations by which a worker acts on a job that it claimed."""
        known = {"complete": complete(nth), "fail": fail(nth), "heartbeat": heartbeat(nth)}
        return [do for kind, do in known.items() if kind in self.offers]

    def acts(self) -> Iterator[tuple[tuple[Stage, ...], Script]]:
        """Each operation on a first job, with the stages that go before it."""
        taken = in_turn(script("w1", claim()))
        yield (), script("w1", claim())
        for ender in self.enders():
            yield taken, script("w1", ender)
        if self.lease is not None:
            for reaper in self.reaper():
                yield (*taken, *in_turn(script("clock", advance(past(self.lease))))), reaper
        if "cleanup" in self.offers:
            yield in_turn(script("w1", claim(), *self.ending())), _CLEAN

    def ending(self) -> list[Do]:
        """By which a worker ends its first job; nothing where it cannot."""
        return [do for do in self.enders() if do.kind != "heartbeat"][:1]

    def bounds(self) -> list[int]:
        """Values of max_attempts to enqueue with: 1, the header's and one between."""
        if self.bound is None:
            return []
        if "max_attempts" not in self.offer.queue.takes("enqueue"):
            return [self.bound] if self.bound <= FIXED_ATTEMPTS else []
        return sorted({1, (1 + self.bound) // 2, self.bound} & set(range(1, MOST_ATTEMPTS + 1)))

    # --- one guarantee each ---------------------------------------------------------------------

    def _single_claim(self) -> Iterator[Program]:
        pair = (script("w1", claim()), script("w2", claim()))
        yield Program(ONE, (pair,))
        yield Program(TWO, (pair,))
        yield Program(ONE, ((*pair, script("w3", claim())),))
        if self.takes_limit:
            yield Program(TWO, ((script("w1", claim(2)), script("w2", claim(2))),))
        for ender in self.enders():
            yield Program(ONE, ((script("w1", claim(), ender), script("w2", claim())),))
        first = in_turn(script("w1", claim()))
        if "fail" in self.offers:
            failed = in_turn(script("w1", claim(), fail()))
            race = (script("w2", claim()), script("w3", claim()))
            yield Program(ONE, (*failed, *self.wait_out(), race))
        if self.lease is not None:
            race = (script("w2", claim()), script("w3", claim()))
            yield Program(ONE, (*first, *self.lapse(), race))

    def _claim_limit(self) -> Iterator[Program]:
        if self.takes_limit:
            yield Program((JobSpec(),) * 4, ((script("w1", claim(1)), script("w2", claim(2))),))
            if self.lease is not None:
                # What is stale stands beside what is ready, and counts with it.
                over = in_turn(script("clock", advance(past(self.lease))))
                taken = in_turn(script("w1", claim(2)))
                yield Program((JobSpec(),) * 4, (*taken, *over, *in_turn(script("w2", claim()))))

    def _no_lost_job(self) -> Iterator[Program]:
        ways = [complete(), fail()] if "fail" in self.offers else [complete()]
        for ender in ways:
            yield Program(ONE, in_turn(script("w1", claim(), ender)))
            yield Program(TWO, ((script("w1", claim(), ender), script("w2", claim(), complete())),))
            yield Program(ONE, ((script("w1", claim(), ender), script("nemesis", crash(1))),))
        yield Program(TWO, ((script("w1", claim()), script("nemesis", crash(1))),))
        if "complete_many" in self.offers and self.takes_limit:
            yield Program(TWO, in_turn(script("w1", claim(2), COMPLETE_ALL)))
            yield Program(THREE, in_turn(script("w1", claim(2), claim(), COMPLETE_ALL)))
            batch = script("w1", claim(2), COMPLETE_ALL)
            yield Program(TWO, ((batch, script("w2", claim(2), COMPLETE_ALL)),))
        low = -1 if "priority" in self.offer.queue.takes("enqueue") else 0
        yield Program((JobSpec(priority=low),), in_turn(script("clock", advance(40 * DAY))))
        yield from self.arrivals()
        if "cleanup" in self.offers:
            yield Program(TWO, ((script("w1", claim(), complete()), _CLEAN),))
            yield from self._kept()
        if "fail" in self.offers and self.bound is not None:
            for bound in self.bounds():
                tries = tuple(
                    stage
                    for n in range(bound)
                    for stage in (*in_turn(script("w1", claim(), fail(n))), *self.wait_out())
                )
                yield Program((JobSpec(bound=bound),), tries)

    def arrivals(self) -> Iterator[Program]:
        """Jobs that are enqueued while somebody acts: what keeps count of jobs may miss one."""
        for before, other in self.acts():
            yield Program(ONE, (*before, (_NEW, other)), reserve=ONE)
        # Ids are given out before the commit: a later one may come, and go, before an earlier.
        clean = _CLEAN[1] if "cleanup" in self.offers else ()
        late = script("w1", Do("enqueue"), claim(), *self.ending(), *clean)
        yield Program((), ((_NEW, late),), reserve=TWO)

    def _kept(self) -> Iterator[Program]:
        """Cleanups that come too early for a job, however long ago the rest of its life was."""
        if "jobs" not in self.offers or "age" not in self.offer.queue.takes("cleanup"):
            return
        early = in_turn(script("janitor", OBSERVE, Do("cleanup", seconds=DAY), OBSERVE))
        late, most = in_turn(script("clock", advance(DAY))), script("clock", advance(0.6 * DAY))
        take = in_turn(script("w1", claim()))
        yield Program(ONE, (*in_turn(script("w1", claim(), crash())), *late, *early))
        for ender in (do for do in self.enders() if do.kind != "heartbeat"):
            end = in_turn(script("w1", ender))
            yield Program(ONE, (*take, *end, *early))
            yield Program(ONE, (*late, *take, *end, *early))
            yield Program(ONE, (*take, *late, *end, *early))
            yield Program(ONE, (*take, *end, *in_turn(most), *early))
            if ender.kind == "fail" and 1 in self.bounds():
                yield Program((JobSpec(bound=1),), (*late, *take, *end, *early))
        if "fail" in self.offers and (self.bound is None or self.bound > 1):
            failed = in_turn(script("w1", claim(), fail()))
            again = in_turn(script("w1", claim(), complete(1)))
            yield Program(ONE, (*failed, *self.wait_out(), *again, *early))
            yield Program(ONE, (*failed, *self.wait_out(), *late, *early))

    def _not_early(self) -> Iterator[Program]:
        take = script("w1", claim())
        yield Program((), ((script("producer", Do("enqueue")), take),), reserve=ONE)
        if "delay" in self.offer.queue.takes("enqueue"):
            late = (JobSpec(delay=DELAY),)
            half = script("clock", advance(DELAY / 2))
            yield Program((), ((script("producer", Do("enqueue")), take),), reserve=late)
            yield Program(late, in_turn(take))
            yield Program(late, in_turn(take, half, take, half, take))
            new, almost = script("producer", Do("enqueue")), script("clock", until(MINUTE))
            yield Program((), in_turn(ALIGNED, new, almost, take), reserve=(JobSpec(delay=MINUTE),))
            # Of a delay itself the fraction may be lost.
            almost = script("clock", until(FRACTION))
            yield Program((), in_turn(new, almost, take), reserve=(JobSpec(delay=FRACTION),))
            yield Program((*ONE, *late), in_turn(script("w1", claim(2)), half, take))
            if "recover" in self.offers and self.lease is not None:
                yield Program(late, in_turn(*self.reaper(), take))

    def _order(self) -> Iterator[Program]:
        takes = self.offer.queue.takes("enqueue")
        ranks = (0, 9, 10) if self.offer.queue.order == "priority, fifo" else (0, 0, 0)
        jobs = tuple(JobSpec(priority=rank) for rank in ranks)
        yield Program(jobs, in_turn(SETTLE, script("w1", claim())))
        yield Program(TWO, in_turn(script("w1", claim())))
        # Without ORDER BY rows come as they lie: often, but not always, as they were put in.
        turned = script("janitor", REWRITE)
        yield Program(TWO, in_turn(turned, script("w1", claim())))
        yield Program(jobs, in_turn(SETTLE, turned, script("w1", claim())))
        yield Program(jobs, in_turn(SETTLE, script("w1", claim(), claim())))
        if ranks[-1]:
            # Behind more than a page of others.
            yield Program((jobs[0],) * PAGE + jobs[2:], in_turn(SETTLE, script("w1", claim())))
        three = in_turn(*(script(who, Do("enqueue")) for who in ("w1", "w2", "w1")))
        yield Program((), (*three, *in_turn(script("w3", claim(), claim()))), reserve=THREE)
        if self.takes_limit:
            pair = (script("w1", claim(2)), script("w2", claim(2)))
            yield Program((*jobs, *TWO), in_turn(SETTLE, *pair))
        if "delay" in takes:
            delayed = (JobSpec(delay=3.1), JobSpec(delay=5.3), JobSpec(delay=7.9))
            yield Program(delayed, in_turn(script("clock", advance(DELAY)), script("w1", claim())))
        for ender in self.enders():
            yield Program((*ONE, *jobs), in_turn(SETTLE, script("w1", claim(), ender, claim())))

    def _stale_recovery(self) -> Iterator[Program]:
        gone = script("w1", claim(), crash())
        yield Program(ONE, in_turn(gone))
        yield Program(ONE, in_turn(gone, script("clock", advance(DAY))))
        if 1 in self.bounds():
            yield Program((JobSpec(bound=1),), in_turn(gone))
        yield Program(TWO, in_turn(gone, script("w2", claim())))
        yield Program(ONE, ((script("w1", claim()), script("nemesis", crash(1))),))
        if self.takes_limit:
            yield Program(TWO, in_turn(script("w1", claim(2), crash())))
        if "heartbeat" in self.offers:
            yield Program(ONE, in_turn(script("w1", claim(), heartbeat(), crash())))
            if self.lease is not None:
                beat = script("w1", heartbeat(), crash())
                yield Program(ONE, in_turn(script("w1", claim()), self.within(), beat))
        known = self.by_worker or "start" in self.offers
        if self.lease is not None and known and not self.one_each:
            # A worker that was given up may claim on: what it has then is to come back as well.
            paused = in_turn(script("w1", claim()))
            yield Program(TWO, (*paused, *self.lapse(), *in_turn(*self.reaper(), gone)))
        yield from self._behind_live()
        yield from self._beside_beaten()
        by_session = self.offer.queue.by_session
        if (self.lease is not None or by_session) and (self.bound is None or self.bound > 1):
            again = in_turn(script("w2", claim(), crash()))
            yield Program(ONE, (*in_turn(gone), *self.lapse(), *again))
            both = (script("w1", claim()), *self.reaper(), script("nemesis", crash(1)))
            yield Program(ONE, (both,))
        if "fail" in self.offers and (self.bound is None or self.bound > 1):
            retried = in_turn(script("w2", claim(), crash()))
            yield Program(
                ONE, (*in_turn(script("w1", claim(), fail())), *self.wait_out(), *retried)
            )
        for ender in self.enders():
            if ender.kind != "heartbeat":
                yield Program(TWO, in_turn(script("w1", claim(), ender, claim(), crash())))

    def _behind_live(self) -> Iterator[Program]:
        """A stale job behind more jobs with fresh leases than a reaper may look at."""
        priority = "priority" in self.offer.queue.takes("enqueue")
        if self.lease is None or self.offer.queue.order != "priority, fifo" or not priority:
            return
        last = JobSpec(priority=5)
        page = [claim(PAGE)] if self.takes_limit else [claim()] * PAGE
        yield Program(
            (*[JobSpec()] * PAGE, last),
            in_turn(
                script("w2", claim(), crash()),
                self.within(),
                script("w1", *page),
                self.within(),
                script("w1", crash()),
            ),
        )

    def _beside_beaten(self) -> Iterator[Program]:
        """A stale job behind others that are older and live by their heartbeats."""
        if self.lease is None or self.one_each or "heartbeat" not in self.offers:
            return
        page = [claim(SPENT)] if self.takes_limit else [claim()] * SPENT
        yield Program(
            (JobSpec(),) * (SPENT + 1),
            in_turn(
                script("w1", *page),
                script("w2", claim(), crash()),
                self.within(),
                script("w1", *(heartbeat(n) for n in range(SPENT))),
                self.within(),
                script("w1", crash()),
            ),
        )

    def _live_lease(self) -> Iterator[Program]:
        first = in_turn(script("w1", claim()))
        steal = in_turn(*self.reaper(), script("w2", claim()))
        yield Program(ONE, (*first, *steal))
        if self.lease is None:
            yield Program(ONE, (*first, *self.wait_out(), *steal))
            return
        almost = script("clock", until(self.lease))
        aligned = (*in_turn(ALIGNED), *first)
        # Where workers beat for themselves the lease may have begun a moment before the claim.
        later = in_turn(self.within() if self.by_worker else almost)
        yield Program(ONE, (*aligned, *later, *steal))
        if self.takes_limit:  # what is claimed in a batch is held for as long
            yield Program(TWO, (*in_turn(ALIGNED, script("w1", claim(2))), *later, *steal))
        if "fail" in self.offers:  # what takes long ends as well as what does not
            yield Program(ONE, (*first, *in_turn(self.within(), script("w1", fail()))))
        if "heartbeat" in self.offers:
            beat = in_turn(self.within(), script("w1", heartbeat()), self.within())
            yield Program(ONE, (*aligned, *beat[:2], *in_turn(almost), *steal))
            yield Program(ONE, (*first, *beat, *beat[1:], *steal))
            yield Program(ONE, (*first, *beat, *beat[1:] * BEATS, *steal))
            over = in_turn(script("clock", advance(past(self.lease))))
            pair: Stage = (script("w1", heartbeat()), *self.reaper())
            yield Program(ONE, (*first, *over, pair, *in_turn(script("w2", claim()))))
            meanwhile = script("w1", whole(heartbeat()))
            if self.reaper() and 1 in self.bounds():
                yield Program((JobSpec(bound=1),), (*first, *over, (meanwhile, *self.reaper())))
            # A claim may take over as well.
            race: Stage = (meanwhile, script("w2", claim()))
            yield Program(ONE, (*first, *over, race, *in_turn(script("w3", claim()))))
            if self.takes_limit:
                # The second one: a worker's heartbeat is for all that it holds.
                two = in_turn(script("w1", claim(2)), self.within(), script("w1", heartbeat(1)))
                yield Program(TWO, (*two, *in_turn(self.within()), *steal))
        over = in_turn(script("clock", advance(past(self.lease))))
        # What a reaper has read is old when it acts: another job was claimed, or this one freed by
        # somebody else and claimed anew.
        for reaper in self.reaper():
            freed = () if self.offer.queue.leader else (whole(RECOVER), whole(claim()))
            others = script("w2", whole(claim()), *freed)
            later = in_turn(script("w3", claim()))
            yield Program(TWO, (*first, *over, (reaper, others), *later))
        if "fail" in self.offers and (self.bound is None or self.bound > 1):
            failed = in_turn(script("w1", claim(), fail()))
            late = in_turn(script("w2", claim()), self.within(), *self.reaper())
            yield Program(ONE, (*failed, *self.wait_out(), *late, *in_turn(script("w3", claim()))))
        # A job that was taken over is as fresh as any other.
        if self.bound is None or self.bound > 1:
            taken = in_turn(script("w2", claim()), self.within())
            yield Program(
                ONE,
                (*first, *self.lapse(), *taken, *in_turn(*self.reaper(), script("w3", claim()))),
            )

    def _fencing(self) -> Iterator[Program]:
        first = in_turn(script("w1", claim()))
        enders = self.enders()
        for ended in (do for do in enders if do.kind != "heartbeat"):
            for late in enders:
                # It may not fall on the job that the same worker has claimed since.
                yield Program(TWO, in_turn(script("w1", claim(), ended, claim(), late)))
        if self.offer.queue.delivery is not None and self.lease is not None:
            # It may be accepted: what comes of it shows in the attempt that has begun since.
            taken = in_turn(script("w2", claim()), self.within())
            for late in enders:
                followed = in_turn(script("w1", late), script("w3", claim()))
                gone = in_turn(script("w2", crash()), self.within(), *self.reaper())
                yield Program(ONE, (*first, *self.lapse(), *taken, *followed))
                # Who was late is gone as well, or it would complete the job after all.
                lost = in_turn(script("w1", late, crash()))
                yield Program(ONE, (*first, *self.lapse(), *taken, *lost, *gone))
        for late in enders:
            if self.lease is not None:
                over = in_turn(script("clock", advance(past(self.lease))))
                for owner in ("w2", "w1"):
                    again = in_turn(script(owner, claim()), script("w1", late))
                    yield Program(ONE, (*first, *self.lapse(), *again))
                # Nor once the next lease has run out as well, nor once the next worker has ended.
                ends = in_turn(*(script("w2", do) for do in self.ending()), script("w1", late))
                again = (*in_turn(script("w2", claim())), *over, *in_turn(script("w1", late)))
                yield Program(ONE, (*first, *self.lapse(), *again, *ends))
                race: Stage = (script("w1", late), *self.reaper(), script("w2", claim()))
                yield Program(ONE, (*first, *over, race))
                if self.bound is not None and 1 in self.bounds():
                    last = in_turn(script("reaper", OBSERVE), script("w1", late))
                    yield Program((JobSpec(bound=1),), (*first, *self.lapse(), *last))
            if "fail" in self.offers:
                yield Program(ONE, in_turn(script("w1", claim(), fail(), claim(), late)))
                failed = in_turn(script("w1", claim(), fail()))
                for owner in ("w2", "w1"):
                    again = in_turn(script(owner, claim()), script("w1", late))
                    yield Program(ONE, (*failed, *self.wait_out(), *again))
        if "complete_many" in self.offers and self.takes_limit and self.lease is not None:
            batch = in_turn(script("w1", claim(2)))
            for owner in ("w2", "w1"):
                again = in_turn(script(owner, claim()), script("w1", COMPLETE_ALL))
                yield Program(TWO, (*batch, *self.lapse(), *again))
            if self.bound is None or self.bound > 2:  # noqa: PLR2004 - as it is claimed
                # The first job is an attempt ahead of the second: whose token is whose matters.
                ahead = (*in_turn(script("w2", claim())), *self.lapse(), *batch, *self.lapse())
                again = in_turn(script("w1", claim(2)), script("w1", COMPLETE_ALL))
                yield Program(TWO, (*ahead, *again))
            over = in_turn(script("clock", advance(past(self.lease))))
            takes_over = [do for _, dos in self.reaper() for do in dos] + [claim()]
            race = (script("w2", *takes_over), script("w1", COMPLETE_ALL))
            yield Program(TWO, (*batch, *over, race))

    def _retry_bound(self) -> Iterator[Program]:
        for bound in self.bounds():
            jobs = (JobSpec(bound=bound),)
            crashes: tuple[Stage, ...] = ()
            fails: tuple[Stage, ...] = ()
            mixed: tuple[Stage, ...] = ()
            for n in range(bound + 1):
                died = (*in_turn(script(f"w{n + 1}", claim(), crash())), *self.lapse())
                failed = (*in_turn(script(f"w{n + 1}", claim(), fail())), *self.wait_out())
                crashes += died
                fails += failed
                mixed += died if n % 2 == 0 else failed
            if self.offer.expires:
                yield Program(jobs, crashes)
            if "fail" in self.offers:
                yield Program(jobs, fails)
            if self.lease is not None and "fail" in self.offers:
                yield Program(jobs, mixed)
                over = in_turn(script("clock", advance(past(self.lease))))
                race: Stage = (script("w1", fail()), *self.reaper())
                last = in_turn(script("w2", claim(), crash()))
                yield Program(
                    jobs, (*in_turn(script("w1", claim())), *over, race, *last, *self.lapse())
                )

    def _retry_given(self) -> Iterator[Program]:
        """The same: who drives a job to its last attempt sees whether it gets that far."""
        yield from self._retry_bound()
        if "fail" in self.offers and self.bound is not None and self.bound > 1:
            yield self._repeated(fail())

    def _repeated(self, late: Do) -> Program:
        """What follows a fail that leaves attempts: said twice it counts once, and requeues once.

        Of two attempts none is left where it counts twice.
        """
        left = (JobSpec(bound=2),) if 2 in self.bounds() else ONE  # noqa: PLR2004
        return Program(left, in_turn(script("w1", claim(), fail()), script("w1", late)))

    def _final_state(self) -> Iterator[Program]:
        first = in_turn(script("w1", claim()))
        for ended in (do for do in self.enders() if do.kind != "heartbeat"):
            done = in_turn(script("w1", claim(), ended))
            jobs = (JobSpec(bound=1),) if ended.kind == "fail" else ONE
            yield Program(jobs, (*done, *self.lapse(), *in_turn(script("w2", claim()))))
            for late in self.enders():
                after = in_turn(script("w1", late), script("w2", claim()))
                yield Program(jobs, (*done, *after))
                if ended.kind == "fail" and (self.bound is None or self.bound > 1):
                    yield self._repeated(late)
            if "heartbeat" in self.offers and not self.offer.held:
                # A worker's heartbeats may come from a thread of their own (rule 3).
                both: Stage = (script("w1", ended), script(f"w1{HEARTBEATS}", heartbeat()))
                later = (*self.lapse(), *in_turn(script("w2", claim())))
                yield Program(jobs, (*first, both, *later))
            if self.lease is not None:
                over = in_turn(script("clock", advance(past(self.lease))))
                pair: Stage = (script("w1", ended), *self.reaper())
                yield Program(jobs, (*first, *over, pair, *in_turn(script("w2", claim()))))
                race: Stage = (*pair, script("w2", claim()))
                yield Program(jobs, (*first, *over, race, *in_turn(script("w3", claim()))))
        if "complete_many" in self.offers and self.takes_limit:
            done = in_turn(script("w1", claim(2), COMPLETE_ALL))
            yield Program(TWO, (*done, *self.lapse(), *in_turn(script("w2", claim(2)))))

    def _non_blocking(self) -> Iterator[Program]:
        pair = (script("w1", claim()), script("w2", claim()))
        yield Program(TWO, (pair,))
        if self.takes_limit:
            yield Program((JobSpec(),) * 4, ((script("w1", claim(2)), script("w2", claim(2))),))
        # Whoever would wait does so wherever in the other's operation it comes.
        rival = script("w2", whole(claim()))
        lives = [do for n, ender in enumerate(self.enders()) for do in (claim(), _nth(ender, n))]
        if lives:
            yield Program((JobSpec(),) * len(lives), ((script("w1", *lives), rival),))
        if "heartbeat" in self.offers:
            mine = in_turn(script("w1", claim()), script("w2", claim()))
            others = script("w2", *self.enders()[::-1], claim())
            beat = script("w1", heartbeat())
            yield Program(TWO, (*mine[:1], (beat, rival)))
            yield Program(THREE, (*mine, (script("w1", whole(heartbeat())), others)))
        yield from self._late()
        yield Program(ONE, ((script("producer", Do("enqueue")), *pair),), reserve=ONE)

    def _late(self) -> Iterator[Program]:
        """A recovery, or a claim that takes over, while somebody is in the middle of something."""
        if self.lease is None or self.offer.held:
            return
        over = script("clock", advance(past(self.lease)))
        stale = in_turn(script("w1", claim()), over)
        for reaper in self.reaper():
            yield Program(TWO, (*stale, (reaper, script("w2", claim()))))
            if not self.offer.queue.leader:
                yield Program(ONE, (*stale, (reaper, script("reaper2", whole(RECOVER)))))
            if "heartbeat" in self.offers:
                fresh = in_turn(script("w2", claim()))
                yield Program(TWO, (*stale, *fresh, (reaper, script("w2", heartbeat()))))
        # One job for each of what its late worker may do; one of them has no other attempt left.
        enders = [_nth(do, n) for n, do in enumerate(self.enders())]
        if not enders:
            return
        jobs = [JobSpec(bound=int(do.kind == "fail" and 1 in self.bounds())) for do in enders]
        taken = in_turn(script("w1", *[claim()] * len(jobs)), over)
        rivals = [script("w2", whole(claim(len(jobs))))]
        rivals += [script("reaper", whole(do)) for _, dos in self.reaper() for do in dos]
        for rival in rivals:
            yield Program(tuple(jobs), (*taken, (script("w1", *enders), rival)))

    def _no_deadlock(self) -> Iterator[Program]:
        if self.takes_limit:
            yield Program(TWO, ((script("w1", claim(2)), script("w2", claim(2))),))
            first = in_turn(script("w1", claim(2)))
            if "complete_many" in self.offers:
                others = [*self.reaper(), script("w2", claim(2))]
                if "heartbeat" in self.offers:
                    others.append(script(f"w1{HEARTBEATS}", heartbeat(1)))
                over = in_turn(script("clock", advance(past(self.lease)))) if self.lease else ()
                for other in others:
                    yield Program(TWO, (*first, *over, (script("w1", COMPLETE_ALL), other)))
                # w2 names its batch backwards: whoever takes the same rows in order meets it.
                backwards = in_turn(script("w2", claim(2)))
                for other in (*self.reaper(), script("w1", claim(2))):
                    yield Program(TWO, (*backwards, *over, (script("w2", COMPLETE_ALL), other)))
                if self.lease is not None:
                    # Two batches of the same jobs, the older one in vain, in opposite orders.
                    yield Program(
                        TWO,
                        (
                            *first,
                            *self.lapse(),
                            *in_turn(script("w2", claim(2))),
                            (script("w1", COMPLETE_ALL), script("w2", COMPLETE_ALL)),
                        ),
                    )
            if self.reaper() and self.lease is not None:
                two = (*self.reaper(), script("reaper2", RECOVER))
                yield Program(
                    TWO, (*first, *in_turn(script("clock", advance(past(self.lease)))), two)
                )
        pair = (script("w1", claim(), complete()), script("w2", claim(), complete()))
        yield Program(TWO, (pair,))
        taken = in_turn(script("w1", claim()), script("w2", claim()))
        for n, mine in enumerate(self.enders()):
            for theirs in self.enders()[n:]:
                yield Program(TWO, (*taken, (script("w1", mine), script("w2", theirs))))
        for before, other in self.acts():
            yield Program(ONE, (*before, (_NEW, other)), reserve=ONE)
        yield Program((), ((_NEW, script("producer2", Do("enqueue"))),), reserve=TWO)
        if "cleanup" in self.offers:
            done = in_turn(script("w1", claim(), complete(), claim(), complete(1)))
            yield Program(TWO, (*done, (_CLEAN, script("janitor2", *_CLEAN[1]))))
            one_each = in_turn(script("w1", claim(), *self.ending()), script("w2", claim()))
            for ender in self.enders():
                yield Program(TWO, (*one_each, (_CLEAN, script("w2", ender))))

    def _no_starvation(self) -> Iterator[Program]:
        takes = self.offer.queue.takes("enqueue")
        ready = (JobSpec(),)
        top = 5 if self.offer.queue.order == "priority, fifo" and "priority" in takes else 0
        if "delay" in takes:
            late = JobSpec(priority=top, delay=DELAY)
            for page in (1, PAGE):
                yield Program((late,) * page + ready, in_turn(script("w1", claim())))
        if self.routes():
            elsewhere = JobSpec(priority=top, queue="other")
            yield Program((elsewhere,) * PAGE + ready, in_turn(script("w1", claim())))
        if self.one_each:
            holders = [script(f"w{n + 1}", claim(), crash()) for n in range(SPENT)]
            yield Program((JobSpec(priority=top),) * SPENT + ready, in_turn(SETTLE, *holders))
        elif not self.offer.held:
            busy = (JobSpec(priority=top),) * PAGE
            full = [claim(PAGE)] if self.takes_limit else [claim()] * PAGE
            yield Program(busy + ready, in_turn(SETTLE, script("w1", *full, crash())))
        else:
            # The last one asks twice: a claim may do maintenance and answer nothing.
            holders = [script(f"w{n + 1}", claim()) for n in range(SPENT)]
            last = script("late", claim(), claim())
            yield Program(ready * (SPENT + 1), in_turn(SETTLE, *holders, last))
        if "fail" in self.offers and (self.bound is None or self.bound > 1):
            # Each fails once, and waits for its next attempt.
            jobs = (JobSpec(priority=top),) * SPENT + ready
            dos = [do for n in range(SPENT) for do in (claim(), fail(n))]
            yield Program(jobs, in_turn(SETTLE, script("w1", *dos)))
        spent = JobSpec(priority=top, bound=1)
        if "max_attempts" in takes and self.bound is not None:
            jobs = (spent,) * SPENT + ready
            dos = [do for n in range(SPENT) for do in (claim(), fail(n))]
            if "fail" in self.offers:
                yield Program(jobs, in_turn(script("w1", *dos)))
            if self.lease is not None and self.one_each:
                yield Program(jobs, in_turn(*holders))
            elif self.lease is not None and not self.offer.held:
                yield Program(jobs, in_turn(script("w1", *[claim()] * SPENT, crash())))

    def routes(self) -> bool:
        """Whether jobs are put into a named queue and claimed from one."""
        queue = self.offer.queue
        return "queue" in queue.takes("enqueue") and "queue" in queue.takes("claim")

    def _routing(self) -> Iterator[Program]:
        both = (JobSpec(queue="other"), JobSpec())
        for jobs in (both, both[::-1], both * 2):
            yield Program(jobs, in_turn(script("w1", claim(2)), script("w2", claim(2, "other"))))
            yield Program(jobs, ((script("w1", claim()), script("w2", claim(1, "other"))),))
        for ender in self.enders():
            yield Program(both, in_turn(script("w1", claim(), ender), script("w2", claim())))
        if not isinstance(self.offer.queue, ProgramQueue):  # which may know two queues and no third
            pairs = (("default", _PREFIXED), (_PREFIXED, "default"), (_PATTERN, _PREFIXED))
            for mine, theirs in pairs:
                yield Program((JobSpec(queue=theirs),), in_turn(script("w1", claim(1, mine))))
        other = in_turn(script("w1", claim(1, "other")))
        if self.lease is not None:
            yield Program(both[:1], (*other, *self.lapse(), *in_turn(script("w2", claim()))))
        if "fail" in self.offers:
            failed = in_turn(script("w1", claim(1, "other"), fail()))
            yield Program(both[:1], (*failed, *self.wait_out(), *in_turn(script("w2", claim()))))

    def _concurrency_limit(self) -> Iterator[Program]:
        cap = self.offer.queue.concurrency_limit or 1
        if cap > MOST_ATTEMPTS:
            return
        jobs = (JobSpec(),) * (cap + 2)
        full = [claim()] * (cap - 1) if not self.offer.held else []
        if self.takes_limit:
            yield Program(jobs, in_turn(script("w1", claim(cap + 2))))
            yield Program(jobs, ((script("w1", claim(cap)), script("w2", claim(cap))),))
        race = (script("w2", claim()), script("w3", claim()))
        yield Program(jobs, (*in_turn(script("w1", *full)), race))
        singles = [script(f"w{n + 1}", claim()) for n in range(cap + 1)]
        others = [script(f"w{n}", claim()) for n in (2, 3, 4, 5)]
        yield Program(jobs, in_turn(*singles))
        if self.routes() and not self.offer.held:  # the cap is over all queues
            other = (JobSpec(),) * cap + (JobSpec(queue="other"),)
            yield Program(
                other, in_turn(script("w1", *full, claim()), script("w2", claim(1, "other")))
            )
        for ender in self.enders():
            if ender.kind != "heartbeat":
                ended = in_turn(script("w1", *full, claim(), ender))
                yield Program(jobs, (*ended, race, *in_turn(script("w4", claim()))))
                # What is refused frees nothing.
                twice = in_turn(script("w1", *full, claim(), ender, ender))
                yield Program(jobs, (*twice, *in_turn(*others[:2])))
        if self.lease is not None:
            taken = in_turn(script("w1", *full, claim()))
            yield Program(jobs, (*taken, *self.lapse(), race, *in_turn(script("w4", claim()))))
            over = (*taken, *self.lapse(), *in_turn(script("w2", *full, claim())))
            for ender in self.enders():
                yield Program(jobs, (*over, *in_turn(script("w1", ender), *others[2:])))


# Guarantees on the life of a job, whose programs make every operation meet every other.
_LIFE = (
    "single-claim", "no-lost-job", "not-early", "stale-recovery", "live-lease", "fencing",
    "retry-bound", "retry-given", "final-state", "concurrency-limit", "routing",
)  # fmt: skip
# Guarantees whose breach means that something acknowledged was lost or doubled.
ACKNOWLEDGED = frozenset(_LIFE) | {"no-starvation"}
LONG = 16  # jobs and operations
MOMENT = 1.7  # seconds; a queue that keeps time in whole seconds may round up
SETTLE = script("clock", advance(MOMENT))
ALIGNED = script("clock", ALIGN)
MINUTE = 61.0  # seconds; what is counted from an aligned clock ends at the same fraction
FRACTION = 61.47  # seconds; of which rounding takes more than a margin
PAGE = 30  # more than a batch; so many that shrinking takes no more than seconds
BEATS = 25  # heartbeats, one after the other: a job that takes long
_NEW = script("producer", Do("enqueue"))
_CLEAN = script("janitor", Do("cleanup", seconds=0.0))
_PREFIXED = "default.high"  # a queue whose name begins as another's
_PATTERN = "default_high"  # and one whose name, to LIKE, is that
SPENT = 12
# Bounds that are driven to their end, crash by crash: of several, and of the only one there is.
MOST_ATTEMPTS, FIXED_ATTEMPTS = 30, 1100


def _nth(ender: Do, n: int) -> Do:
    """The same on the worker's `n`th job."""
    return ender._replace(n=n)


def _beside(program: Program, fault: Do) -> Program:
    """The program with a fault that may come at any moment of its last stage."""
    *before, last = program.stages
    return program._replace(stages=(*before, (*last, script("nemesis", fault))))


@st.composite
def drawn_programs(draw: st.DrawFn, suite: Suite) -> Program:
    """A program of at least eight operations: short ones find late, long ones shrink anyway."""
    queue = suite.offer.queue
    workers = st.sampled_from(["w1", "w2", "w3"])
    kinds = ["claim", "claim", *(do.kind for do in suite.enders())]
    if suite.lease is not None:
        kinds += ["recover", "recover", "lapse", "within"]
    elif queue.by_session and "recover" in queue.offers:
        kinds.append("recover")
    if "promote" in queue.offers:
        kinds.append("promote")
    if "complete_many" in queue.offers:
        kinds.append("complete_many")
    kinds.append("crash")
    stages: list[Stage] = []
    for _ in range(draw(st.integers(8, 14))):
        one = _drawn_script(draw, suite, workers, kinds)
        # A second script beside the first makes a race out of two operations.
        other = _drawn_script(draw, suite, workers, kinds) if draw(st.booleans()) else None
        together = other is not None and other[0] != one[0]
        stages.append((one, other) if together and other is not None else (one,))
    specs = st.builds(
        JobSpec,
        priority=st.integers(0, 2) if queue.order == "priority, fifo" else st.just(0),
        delay=st.sampled_from([0.0, 0.0, 0.0, DELAY]),
        bound=st.sampled_from(suite.bounds() or [0]),
        # `builds` draws any text for a field of a NamedTuple that is not given here.
        queue=st.sampled_from([*["default"] * 3, "other"] if suite.routes() else ["default"]),
    )
    return Program(tuple(draw(st.lists(specs, min_size=1, max_size=3))), tuple(stages))


def _drawn_script(
    draw: st.DrawFn, suite: Suite, workers: st.SearchStrategy[str], kinds: list[str]
) -> Script:
    kind = draw(st.sampled_from(kinds))
    lease = suite.lease or 0.0
    match kind:
        case "recover":
            return script("reaper", RECOVER)
        case "promote":
            return script(PROMOTER, PROMOTE)
        case "lapse":
            return script("clock", advance(past(lease)))
        case "within":
            return script("clock", advance(0.6 * lease))
        case "claim":
            limit = draw(st.integers(1, 2)) if suite.takes_limit else 1
            return script(draw(workers), claim(limit))
        case "crash":
            return script(draw(workers), crash())
        case _:
            return script(draw(workers), Do(kind, draw(st.integers(0, 1))))
