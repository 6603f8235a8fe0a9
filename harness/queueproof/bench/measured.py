"""A load, and the figures of one run under it: data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Shape(NamedTuple):
    """The shape of a load on a queue.

    Attributes:
        batch: Jobs per claim.
        workers: Each with a connection of its own.
        hold: Seconds for which a claim's transaction is kept open before its COMMIT.
    """

    batch: int
    workers: int
    hold: float = 0.0

    def held(self, before: str) -> str:
        """The time that a claim is held open, behind some words; empty where it is not."""
        return f"{before}{self.hold * 1000:g} ms" if self.hold else ""


class Pace(NamedTuple):
    """The settings that all loads of a benchmark share.

    Attributes:
        rate: Jobs per second that are asked for, however long answers take (an open loop); 0: each
            worker claims as soon as it has completed (a closed loop).
        backlog: Jobs that stand in the queue beyond those that are measured.
        payload: Bytes of each job's payload at least; 0: a few.
        warm_up: Seconds of the same load before what is measured.
    """

    rate: float = 0.0
    backlog: int = 0
    payload: int = 0
    warm_up: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run under load.

    Attributes:
        jobs: Jobs put in before.
        completed: Distinct jobs that are completed, as the table says.
        seconds: From the release of the workers to the answer of the last completion.
        drained: Whether all jobs were completed; otherwise the time was up.
        claimed: Jobs handed out, those handed out again included.
        double_claims: Of these, how many had been handed out before.
        unfinished: Jobs that were claimed and that the table does not show as completed.
        lost: Jobs that nobody claimed and that the table does not show as queued.
        rejected: Completions that the queue rejected.
        empty: Claims that got nothing.
        retries: Operations repeated after an error that means "nothing this time".
        deadlocks: Those of them that were deadlocks.
        lock_waits: Share of samples in which a worker waited for a lock; None without samples.
        waits: Share of samples by what a worker's backend waited for, as pg_stat_activity names
            it; `Client:ClientRead` is its worker's turn, `none` that it worked.
        p50: Seconds from wanting jobs to having them (retries and the hold included): median.
        p95: The same, 95th percentile.
        p99: The same, 99th percentile.
        buffers: Shared buffers that all of it touched.
        wal_bytes: WAL that the server wrote meanwhile.
        rows_changed: Rows inserted, updated or deleted.
        dead_rows: Row versions left for vacuum.
        round_trips: Statements sent and answered.
        worker_cpu: Processor seconds of the worker processes.
        server_cpu: Those of the server's processes for them; None where they are elsewhere.
        warm: Jobs completed before the measurement began; all counts but latencies include them.
        late: Claims that began more than a millisecond after their time, in an open loop.
        skipped: Those whose time came and that never began or got nothing.
        histogram: Their latencies from the time at which they were due, in microseconds:
            HdrHistogram's own encoding, which merges; empty in a closed loop.
        message: Seconds that asking a worker program costs, beside what it does; 0 where each
            worker is ours, or cannot say.
    """

    jobs: int
    completed: int
    seconds: float
    drained: bool
    claimed: int
    double_claims: int
    unfinished: int
    lost: int
    rejected: int
    empty: int
    retries: int
    deadlocks: int
    lock_waits: float | None
    p50: float
    p95: float
    p99: float
    waits: dict[str, float] = field(default_factory=dict)
    buffers: int = 0
    wal_bytes: int = 0
    rows_changed: int = 0
    dead_rows: int = 0
    round_trips: int = 0
    worker_cpu: float = 0.0
    server_cpu: float | None = None
    warm: int = 0
    late: int = 0
    skipped: int = 0
    histogram: str = ""
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
