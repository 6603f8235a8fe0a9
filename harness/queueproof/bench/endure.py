"""Endurance: what claims cost while an old snapshot is held, and once it is gone.

One worker puts a job in for each that it claims, of three priorities, so that the queue keeps its
depth. Buffers are counted, so that they say the same on any machine; times are told beside them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import cycle, islice
from typing import Any, NamedTuple

import psycopg

from queueproof.bench import counters
from queueproof.bench.counters import Alone

PHASES = ("clean", "old snapshot", "recovery")
POINTS = 6  # measurements in a phase
BACKLOG = 3_000  # jobs that wait, unless --backlog says how many
NAPS = 6  # of autovacuum in a phase
PRIORITIES = 3  # a mark of each priority must move: with one alone it would not be seen
JOBS = counters.WARM + counters.COUNTED  # claims of a measurement that only counts


class Point(NamedTuple):
    """What was measured at a moment.

    Attributes:
        phase: One of `PHASES`.
        seconds: Since the beginning.
        claims: Since the beginning.
        buffers: Shared buffers that a claim touches; with its completion, where it holds its
            transaction open.
        p50: Seconds that a claim took since the last point: median.
        dead: Dead rows in all tables.
        size: Bytes of all tables and their indexes.
        autovacuums: Runs of autovacuum on these tables since the beginning.
    """

    phase: str
    seconds: float
    claims: int
    buffers: float
    p50: float
    dead: int
    size: int
    autovacuums: int


GATES: Mapping[str, str] = {
    "buffers_slope_clean": "by how much buffers per claim grow in 1,000 claims, before",
    "buffers_slope_old_snapshot": "the same while an old snapshot is held",
    "buffers_recovered": "buffers per claim at the end of recovery",
}
"""What of endurance does not depend on how fast the machine is, and what it means."""


def gates(points: Sequence[Point]) -> dict[str, float]:
    """The figures by `GATES`, of the phases that are whole."""
    clean, held, after = ([p for p in points if p.phase == phase] for phase in PHASES)
    found = {
        "buffers_slope_clean": slope(clean, _buffers) if clean else None,
        "buffers_slope_old_snapshot": slope(held, _buffers) if held else None,
        "buffers_recovered": after[-1].buffers if after else None,
    }
    return {name: round(figure, 3) for name, figure in found.items() if figure is not None}


def _buffers(point: Point) -> float:
    return point.buffers


class Enduring(NamedTuple):
    """A worker beside which somebody holds a snapshot.

    Attributes:
        admin: Reads the counts.
        work: The worker's operations.
        enqueue: Puts one job of a priority in.
        snapshot: Holds a snapshot as long as it is open.
    """

    admin: psycopg.Connection[Any]
    work: Alone
    enqueue: Callable[[int], object]
    snapshot: Callable[[], AbstractContextManager[object]]

    def through(self, batch: int, seconds: float, points: list[Point]) -> None:
        """Go through the phases.

        Args:
            batch: Jobs per claim.
            seconds: Of each phase.
            points: What was measured is added here, as soon as it is.
        """
        began, claims = time.monotonic(), 0
        priorities = cycle(range(PRIORITIES))

        def put_in(jobs: int) -> None:
            for priority in islice(priorities, jobs):
                self.enqueue(priority)

        for phase in PHASES:
            with ExitStack() as held:
                if phase == PHASES[1]:
                    held.enter_context(self.snapshot())
                for _ in range(POINTS):
                    until, times = time.monotonic() + seconds / POINTS, list[float]()
                    while not times or time.monotonic() < until:
                        put_in(batch)
                        wanted = time.monotonic()
                        self.work.claim()
                        times.append(time.monotonic() - wanted)
                        self.work.complete()
                    put_in(JOBS * batch)
                    counted = counters.count(self.admin, self.work, locking=0)
                    claims += len(times) + JOBS
                    row = self.admin.execute(counters.ASKED["vacuumed"]).fetchone()
                    assert row is not None  # an aggregate
                    each = counted.get("buffers_per_job", 0.0) * batch
                    points.append(
                        Point(
                            phase,
                            time.monotonic() - began,
                            claims,
                            counted.get("buffers_per_claim", each),
                            statistics.median(times),
                            int(row[1]),
                            int(row[2]),
                            int(row[0]),
                        )
                    )


def slope(points: Sequence[Point], of: Callable[[Point], float]) -> float:
    """By how much something grows in 1,000 claims: the line that fits best.

    Args:
        points: Two or more.
        of: What of a point.
    """
    line = statistics.linear_regression([p.claims for p in points], [of(p) for p in points])
    return 1000 * line.slope
