"""A load, and the figures of one run under it: data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Shape(NamedTuple):
    """The shape of a load on a queue."""

    batch: int  # jobs per claim
    workers: int  # each with a connection of its own
    hold: float = 0.0  # seconds for which a claim's transaction is kept open before its COMMIT

    def held(self, before: str) -> str:
        """The time that a claim is held open, behind some words; empty where it is not."""
        return f"{before}{self.hold * 1000:g} ms" if self.hold else ""


class Pace(NamedTuple):
    """The settings that all loads of a benchmark share."""

    # Jobs per second that are asked for, however long answers take (an open loop); 0: each worker
    # claims as soon as it has completed (a closed loop)
    rate: float = 0.0
    backlog: int = 0  # jobs that stand in the queue beyond those that are measured
    payload: int = 0  # bytes of each job's payload at least; 0: a few
    warm_up: float = 0.0  # seconds of the same load before what is measured


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run under load."""

    jobs: int  # jobs put in before
    completed: int  # distinct jobs that are completed, as the table says
    seconds: float  # from the release of the workers to the answer of the last completion
    drained: bool  # whether all jobs were completed; otherwise the time was up
    claimed: int  # jobs handed out, those handed out again included
    double_claims: int  # of these, how many had been handed out before
    unfinished: int  # jobs that were claimed and that the table does not show as completed
    lost: int  # jobs that nobody claimed and that the table does not show as queued
    rejected: int  # completions that the queue rejected
    empty: int  # claims that got nothing
    retries: int  # operations repeated after an error that means "nothing this time"
    deadlocks: int  # those of them that were deadlocks
    lock_waits: float | None  # share of samples with a wait for a lock; None without samples
    p50: float  # seconds from wanting jobs to having them (retries and the hold included): median
    p95: float  # the same, 95th percentile
    p99: float  # the same, 99th percentile
    # Share of samples by what a worker's backend waited for, as pg_stat_activity names it;
    # `Client:ClientRead` is its worker's turn, `none` that it worked
    waits: dict[str, float] = field(default_factory=dict)
    buffers: int = 0  # shared buffers that all of it touched
    wal_bytes: int = 0  # WAL that the server wrote meanwhile
    rows_changed: int = 0  # rows inserted, updated or deleted
    dead_rows: int = 0  # row versions left for vacuum
    round_trips: int = 0  # statements sent and answered
    worker_cpu: float = 0.0  # processor seconds of the worker processes
    server_cpu: float | None = None  # of the server's for them; None where they are elsewhere
    warm: int = 0  # jobs completed before it began; all counts but latencies include them
    late: int = 0  # claims that began more than a millisecond after their time, in an open loop
    skipped: int = 0  # those whose time came and that never began or got nothing
    # Their latencies from the time at which they were due, in microseconds: HdrHistogram's own
    # encoding, which merges; empty in a closed loop
    histogram: str = ""
    # Seconds that asking a worker program costs, beside what it does; 0 where each worker is ours,
    # or cannot say
    message: float = 0.0

    @property
    def rate(self) -> float:
        """Jobs completed per second."""
        return (self.completed - self.warm) / self.seconds

    @property
    def exactly_once(self) -> bool:
        """True if each job handed out was handed out once and completed, and none was lost."""
        return not (self.double_claims or self.unfinished or self.lost)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least a share, from 0 to 1, does not exceed (nearest rank).

    Every sample of a cell is kept, in ascending order here, so this is exact: a histogram would
    save memory that a second of load does not need.
    """
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
