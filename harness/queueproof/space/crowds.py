"""Crowds: long random programs over many jobs that differ in whatever a queue may look at.

Each draws what it is made of first, and then from that alone: a program with a few kinds of
operations meets what one with all of them hides (A. Groce et al., "Swarm testing", 2012).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple, TypeAlias

from queueproof.schedule.actors import NEMESIS, PROMOTER
from queueproof.schedule.moments import DAY, HOUR, past
from queueproof.schedule.programs import (
    ALIGN,
    PROMOTE,
    RECOVER,
    START,
    Do,
    DoKind,
    JobSpec,
    Part,
    PayloadKind,
    Program,
    Schedule,
    Script,
    Stage,
    advance,
    claim,
    crash,
    script,
    until,
)
from queueproof.space.pieces import HIGHEST, LOWEST, RANKS, SAME, Pieces

STAGES = 60  # of a program: enough for lives of several attempts beside one another
LARGEST = 300  # jobs, where a number of the SQL asks for so many
BATCH = 60  # jobs that a claim asks for, at most
_CHOICES = 4 * STAGES  # of a schedule
# Drawn at random; what stands twice comes twice as often.
_JOBS = (3, 8, 20, 60)  # few meet often, many fill a page or a window
_PRIORITIES = (0, 0, *RANKS)
_LIMITS = (1, 1, 2, 3, 5, 10)
_SPANS = (3.1, 31.3, 61.3, HOUR, DAY, 2 * DAY + HOUR, 40 * DAY)
# What may be taken for one: by their case, by LIKE, by their first 63 bytes. Those that are alike
# stand by themselves, so that a worker of one of them often meets a job of the other.
_LONG = "mail-" * 13
_OTHER = ("default", "other")
_NAMES = (
    _OTHER,
    ("default", "Default"),
    ("default.high", "default_high"),
    (f"{_LONG}in", f"{_LONG}out"),
)
_NEAR, _CLOSE = 0.9, 0.5  # of a span that is not over
_LATEST = (0, -1, -1, -1, -2, -3, -4)  # of a worker's claims
_PAYLOADS: tuple[PayloadKind, ...] = ("", "", "same", "same", "large")
_ALL: Part = "all"
_BATCHES: tuple[tuple[int, Part], ...] = (
    *((nth, _ALL) for nth in (0, 1, 2, 5)),
    (0, "every other"),
    (1, "every other"),
    (0, "one of each"),
)


class Crowd(NamedTuple):
    """A drawn program, and the choices of its schedule."""

    program: Program
    schedule: Schedule


def crowd(pieces: Pieces, rng: random.Random) -> Crowd:
    """One crowd."""
    return _Drawing(pieces, rng).drawn()


def numbered(pieces: Pieces, seed: int, number: int) -> Crowd:
    """The crowd with a number, from 0: the same wherever and whenever it is drawn."""
    return crowd(pieces, random.Random(f"{seed} {number}"))  # noqa: S311 - reproducible, no secret


_Acts: TypeAlias = Callable[[], Script]


class _Drawing:
    """Draws one crowd: first what it is made of, then all else of that."""

    def __init__(self, pieces: Pieces, rng: random.Random) -> None:
        self.pieces, self.rng = pieces, rng
        self.takes = pieces.offer.queue.takes("enqueue")
        numbers, spans, words = pieces.constants
        near = [near for n in numbers for near in (n - 1, n, n + 1, -n)]
        self.priorities = [*_PRIORITIES, *(n for n in near if LOWEST <= n <= HIGHEST)]
        # Two or three workers who meet at a job or two, or some among many jobs.
        duel = self.often(0.5)
        sizes = [*_JOBS, *(n + 1 for n in numbers if 1 < n < LARGEST)]
        self.sizes = [1, 1, 2, 3] if duel else sizes
        self.limits = [1, 1, 2] if duel else [*_LIMITS, *(n for n in near if 0 < n <= BATCH)]
        self.later = 3 if duel else STAGES // 4
        self.spans = [*_SPANS, *spans]
        self.payloads = [one for one in _PAYLOADS if pieces.alike or one != SAME.payload]
        self.names = ["default"]
        if pieces.offer.queue.routes:
            groups = [*_NAMES, *(("default", word) for word in words)]
            if not pieces.offer.queue.takes_any_queue:
                groups = [_OTHER] * 2
            alike = rng.sample(groups, rng.choice([0, 1, 1, 2]))
            self.names = list(dict.fromkeys(one for names in alike for one in names)) or self.names
        self.bounds = pieces.bounds() or [0]
        self.workers = [1, 2, 3, 4][: rng.choice([2, 2, 3] if duel else [2, 3, 4, 4])]
        self.lives = len(self.workers)
        self.races = rng.choice([0.5, 0.8, 1.0] if duel else [0.0, 0.4, 0.4, 0.7])
        self.differ = {name for name in JobSpec._fields if not duel and self.often(0.5)}
        self.acts = self._chosen()

    def often(self, share: float) -> bool:
        """True in a share of the cases."""
        return self.rng.random() < share

    def drawn(self) -> Crowd:
        """The crowd."""
        rng = self.rng
        common = self._spec(set(JobSpec._fields))
        jobs = [self._job(common) for _ in range(rng.choice(self.sizes))]
        if len(jobs) > BATCH or self.often(0.3):  # a few behind many that are alike, or before them
            plain = [JobSpec()] * rng.choice([1, 3])
            jobs = [*plain, *jobs] if self.often(0.5) else [*jobs, *plain]
        reserve = [self._job(common) for _ in range(self.later)]
        stages = [self._stage() for _ in range(STAGES)]
        choices = [rng.choice([0, 0, 0, 1, 2]) for _ in range(_CHOICES if self.races else 0)]
        return Crowd(Program(tuple(jobs), tuple(stages), tuple(reserve)), tuple(choices))

    def _chosen(self) -> list[_Acts]:
        """The acts that are done, each as often as its weight says; some are not done at all."""
        offers = self.pieces.offers
        known: list[tuple[bool, int, _Acts]] = [
            *((do.kind in offers, 3, partial(self._ends, do.kind)) for do in self.pieces.enders()),
            ("complete_many" in offers, 2, partial(self._ends_batch, "complete_many")),
            (self.pieces.joins, 2, partial(self._ends_batch, "complete_and_claim")),
            ("recover" in offers, 2, lambda: script("reaper", RECOVER)),
            ("promote" in offers, 2, lambda: script(PROMOTER, PROMOTE)),
            ("cleanup" in offers, 1, self._cleans),
            ("start" in offers, 1, self._begins),
            (True, 3, self._waits),
            (True, 2, lambda: script("producer", Do("enqueue"))),
            (True, 1, self._dies),
        ]
        share = self.rng.choice([0.4, 0.8])
        kept = [
            act
            for offered, weight, act in known
            if offered and self.often(share)
            for _ in range(weight)
        ]
        return [self._claims] * 4 + kept

    def _stage(self) -> Stage:
        one = self.rng.choice(self.acts)()
        if self.often(self.races):
            other = self.rng.choice(self.acts)()
            if one[0] != other[0] and "clock" not in {one[0], other[0]}:
                return one, other
        return (one,)

    # --- jobs -----------------------------------------------------------------------------------

    def _job(self, common: JobSpec) -> JobSpec:
        """One that is like the others, but for that in which they differ."""
        own = self._spec(self.differ)
        return common._replace(**{name: getattr(own, name) for name in self.differ})

    def _spec(self, fields: AbstractSet[str]) -> JobSpec:
        rng = self.rng
        delayed = "delay" in fields & self.takes and self.often(0.4)
        return JobSpec(
            priority=rng.choice(self.priorities) if "priority" in fields & self.takes else 0,
            delay=rng.choice([1.0, 1.0, _NEAR]) * rng.choice(self.spans) if delayed else 0.0,
            bound=rng.choice(self.bounds) if "bound" in fields else 0,
            queue=rng.choice(self.names) if "queue" in fields else "default",
            payload=rng.choice(self.payloads) if "payload" in fields else "",
            joined="joined" in fields and self.often(0.3),
        )

    # --- acts -----------------------------------------------------------------------------------

    def _worker(self) -> str:
        return f"w{self.rng.choice(self.workers)}"

    def _claims(self) -> Script:
        limit = self.rng.choice(self.limits) if self.pieces.takes_limit else 1
        return script(self._worker(), claim(limit, self.rng.choice(self.names)))

    def _ends(self, kind: DoKind) -> Script:
        return script(self._worker(), Do(kind, job=self.rng.choice(_LATEST)))

    def _ends_batch(self, kind: DoKind) -> Script:
        (batch, part), queue = self.rng.choice(_BATCHES), "default"
        if kind == "complete_and_claim":
            queue = self.rng.choice(self.names)
        return script(self._worker(), Do(kind, batch=batch, part=part, queue=queue))

    def _cleans(self) -> Script:
        """A cleanup: nobody looks, for what a broken queue lists ends a check (rule 30)."""
        age = self.rng.choice([0.0, 0.0, HOUR, DAY, *self.pieces.constants.spans])
        return script("janitor", Do("cleanup", seconds=age))

    def _waits(self) -> Script:
        """Time passes, to a moment before or after something that lasts as long is over."""
        known = [one for one in self.pieces.spans for _ in range(3)] + self.spans
        span = self.rng.choice(known)
        how = self.rng.choice(
            [advance(past(span)), advance(past(span)), advance(_CLOSE * span), until(span)]
        )
        return script("clock", *((ALIGN, how) if self.often(0.1) else (how,)))

    def _new_life(self) -> int:
        self.lives += 1
        return self.lives

    def _begins(self) -> Script:
        self.workers[self.rng.randrange(len(self.workers))] = self._new_life()
        return script(f"w{self.lives}", START)

    def _dies(self) -> Script:
        """A worker crashes, and another has its place."""
        place = self.rng.randrange(len(self.workers))
        gone, self.workers[place] = self.workers[place], self._new_life()
        return script(NEMESIS, crash(gone))
