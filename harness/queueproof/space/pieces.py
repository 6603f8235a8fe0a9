"""Parts that the programs for a queue are built of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queueproof.queues.offer import Offer
from queueproof.schedule.actors import PROMOTER
from queueproof.schedule.moments import MOMENT, past
from queueproof.schedule.programs import (
    ALIGN,
    PROMOTE,
    RECOVER,
    Do,
    DoKind,
    JobSpec,
    Program,
    Script,
    Stage,
    advance,
    claim,
    complete,
    fail,
    heartbeat,
    in_turn,
    script,
)
from queueproof.space.constants import constants_in

ONE = (JobSpec(),)
TWO = (JobSpec(), JobSpec())
THREE = (JobSpec(), JobSpec(), JobSpec())
DELAY = 61.3  # seconds
LOWEST, HIGHEST = -(2**31), 2**31 - 1  # priorities (rule 2): SQL that counts with them overflows
# 9 < 10 as text? And the greatest two are one as a real.
RANKS = (LOWEST, -2, -1, 0, 1, 5, 9, 10, 99, 100, 1000, HIGHEST - 1, HIGHEST)
SETTLE = script("clock", advance(MOMENT))
ALIGNED = script("clock", ALIGN)
PAGE = 30  # more than a batch; so many that shrinking takes no more than seconds
SPENT = 12  # jobs that may not run any more: more than a claim of ten looks at
SAME = JobSpec(payload="same")  # two jobs may well be alike
NEW = script("producer", Do("enqueue"))
CLEAN = script("janitor", Do("cleanup", seconds=0.0))
# One job after the other, and for each a worker with more claims than may pass it by.
LOOKS = Program(
    (),
    in_turn(
        *(one for n in range(12) for one in (NEW, SETTLE, *[script(f"w{n + 1}", claim())] * 12))
    ),
    reserve=ONE * 12,
)
MOST_ATTEMPTS = 30  # that are used up, one by one, before a job's last: more takes seconds


class Pieces:
    """The pieces of programs that follow from what a queue offers."""

    def __init__(self, offer: Offer, through: DoKind | None = None) -> None:
        self.offer = offer
        self.through = through  # only programs that do this operation; None: all
        queue = offer.queue
        self.offers = queue.offers
        self.one_each = queue.jobs_per_worker is not None
        self.takes_limit = "limit" in queue.takes("claim") and not offer.held and not self.one_each
        self.joins = offer.joins
        self.alike = "payload" in queue.takes("enqueue") and not offer.exclusive
        self.lease = queue.lease_seconds
        self.bound = queue.max_attempts
        self.constants = constants_in(queue.written)

    def reaper(self) -> tuple[Script, ...]:
        """The scripts of a reaper and a promoter, where there is something to reap with."""
        reaper = (script("reaper", RECOVER),) if "recover" in self.offers else ()
        return (*reaper, script(PROMOTER, PROMOTE)) if "promote" in self.offers else reaper

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
            yield in_turn(script("w1", claim(), *self.ending())), CLEAN

    def ending(self) -> list[Do]:
        """The operation that ends a worker's first job; empty where there is none."""
        return [do for do in self.enders() if do.kind != "heartbeat"][:1]

    def bounds(self) -> list[int]:
        """Values of max_attempts to enqueue with: 1, the header's and one between."""
        if self.bound is None:
            return []
        if "max_attempts" not in self.offer.queue.takes("enqueue"):
            return [self.bound]
        return sorted({1, (1 + self.bound) // 2, self.bound} & set(range(1, MOST_ATTEMPTS + 1)))

    @property
    def spans(self) -> list[float]:
        """Seconds of what the queue declares to last."""
        return [span for span in (self.lease, self.offer.queue.backoff_seconds) if span]

    def through_only(self, programs: Iterable[Program]) -> Iterator[Program]:
        """Those of some programs that do the operation that is asked for; all where none is."""
        return (one for one in programs if self.through is None or one.does(self.through))
