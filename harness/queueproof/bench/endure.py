"""Endurance: what claims cost while an old snapshot is held, and once it is gone.

One worker puts a job in for each that it claims, of three priorities, so that the queue keeps its
depth. Buffers are counted, so that they say the same on any machine; times are told beside them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
    """The figures measured at a moment."""

    phase: str  # one of `PHASES`
    seconds: float
    claims: int
    buffers: float  # shared, that a claim touches; with its completion if it holds a transaction
    p50: float  # seconds that a claim took since the last point: median
    dead: int  # dead rows in all tables
    size: int  # bytes of all tables and their indexes
    autovacuums: int  # runs of autovacuum on these tables since the beginning


GATES: Mapping[str, str] = {
    "buffers_slope_clean": "by how much buffers per claim grow in 1,000 claims, before",
    "buffers_slope_old_snapshot": "the same while an old snapshot is held",
    "buffers_recovered": "buffers per claim at the end of recovery",
}
"""The figures of endurance that do not depend on the machine's speed, and what each means."""


def gates(points: Sequence[Point]) -> dict[str, float]:
    """The figures by `GATES`, of the phases that are whole."""
    *growing, after = ([p for p in points if p.phase == phase] for phase in PHASES)
    figures = [slope(phase, lambda p: p.buffers) if phase else None for phase in growing]
    figures.append(after[-1].buffers if after else None)
    found = zip(GATES, figures, strict=True)
    return {name: round(figure, 3) for name, figure in found if figure is not None}


def endure(
    admin: psycopg.Connection[Any],
    work: Alone,
    batch: int,
    seconds: float,
    points: list[Point],
    *,
    snapshot: Callable[[], AbstractContextManager[object]],
) -> None:
    """Go through the phases, of so many seconds each, beside which somebody holds a snapshot.

    What was measured is added to the points, as soon as it is.
    """
    began, claims = time.monotonic(), 0
    priorities = cycle(range(PRIORITIES))

    def put_in(jobs: int) -> None:
        for priority in islice(priorities, jobs):
            work.enqueue(priority)

    for phase in PHASES:
        with snapshot() if phase == PHASES[1] else nullcontext():
            for _ in range(POINTS):
                until, times = time.monotonic() + seconds / POINTS, list[float]()
                while not times or time.monotonic() < until:
                    put_in(batch)
                    wanted = time.monotonic()
                    work.claim()
                    times.append(time.monotonic() - wanted)
                    work.complete()
                put_in(JOBS * batch)
                counted = counters.count(admin, work, locking=0)
                claims += len(times) + JOBS
                row = admin.execute(counters.ASKED["vacuumed"]).fetchone()
                assert row is not None  # an aggregate
                each = counted.get("buffers_per_job", 0.0) * batch
                buffers = counted.get("buffers_per_claim", each)
                now, p50 = time.monotonic() - began, statistics.median(times)
                points.append(Point(phase, now, claims, buffers, p50, *map(int, row)))


def slope(points: Sequence[Point], of: Callable[[Point], float]) -> float:
    """By how much something grows in 1,000 claims: the line that fits two points or more best."""
    line = statistics.linear_regression([p.claims for p in points], [of(p) for p in points])
    return 1000 * line.slope
