"""One measurement: a fresh queue, jobs in it, workers on it, and what the table says afterwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from queueproof import waits
from queueproof.bench import counters, endure, latency
from queueproof.bench.counters import ASKED, NOTHING
from queueproof.bench.endure import Point
from queueproof.bench.hosted import MOST_JOBS, HostedWorkers
from queueproof.bench.load import Loaded, fill
from queueproof.bench.measured import Measured, Pace, Shape, percentile
from queueproof.bench.pool import Pool
from queueproof.bench.session import LoadSession
from queueproof.bench.worker import TICK, Load, Tally
from queueproof.errors import QueueError
from queueproof.postgres import Server
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.worker import WorkerQueue

CLOSED = Pace()
SUMMED = (  # counts of all workers, whose sum is told
    *("rejected", "empty", "retries", "deadlocks", "round_trips", "worker_cpu"),
    *("warm", "late", "skipped"),
)


class Ground(ExitStack):
    """A database and worker processes for one measurement after another; they go at its end."""

    def __init__(self, server: Server, workers: int, pace: Pace = CLOSED) -> None:
        """Start processes for so many workers; without a durable server figures mean little."""
        super().__init__()
        self.pace = pace  # of the next load
        # Whether a queue that completes and claims in one statement uses two, as pgbench does
        self.apart = False
        self.server = server
        try:
            self._pool = self.enter_context(closing(Pool(workers)))
            # A server of ours leaves deadlocks to the scheduler; here they end as elsewhere.
            given = {"deadlock_timeout": "1s"} if server.superuser else {}
            conninfo = self.enter_context(server.database("queueproof_bench", given))
            if not server.trusted:  # before PostgreSQL 15 it is not the database's owner's
                with waits.LimitedConnection.open(conninfo) as ours:
                    ours.execute(f"ALTER SCHEMA public OWNER TO {server.owner}")
            self.conninfo = server.for_queue(conninfo)
            self._admin = self.enter_context(waits.LimitedConnection.open(self.conninfo))
            self._admin.seconds = waits.BULK
            self._load_stack = self.enter_context(ExitStack())  # of the last load
            self._autovacuum("off")
        except BaseException:
            self.close()
            raise

    def setting(self, name: str) -> str:
        """A setting of the server."""
        row = self._admin.execute("SELECT pg_catalog.current_setting(%s)", [name]).fetchone()
        return str(row[0]) if row else ""

    def _autovacuum(self, value: str, nap: float = 60.0) -> None:
        """Turn it on or off, on a server of ours; `nap` is in seconds."""
        if not (self.server.ours and self.server.superuser):
            return
        self.server.administer(
            f"ALTER SYSTEM SET autovacuum_naptime = '{max(1, round(nap))}s'",
            f"ALTER SYSTEM SET autovacuum = {value}",
            "SELECT pg_catalog.pg_reload_conf()",
        )
        waits.until(lambda: self.setting("autovacuum") == value, waits.GONE, "autovacuum to be set")

    def prepare(self, queue: Loaded, shape: Shape, jobs: int) -> Prepared:
        """Install a queue anew, put jobs in, vacuum, and let the workers get ready.

        QueueError: the queue has no such claim, or the server rejected its SQL.
        """
        pace = self.pace
        if isinstance(queue, WorkerQueue):  # whose workers are programs, started anew
            self._clear()
            hosted = HostedWorkers(queue, self.conninfo, shape)
            self._load_stack.enter_context(closing(hosted))
            hosted.fill(min(jobs, MOST_JOBS), pace.payload)
            self._vacuum()
            hosted.begin()
            return Prepared(hosted, self._admin, hosted.ids, message=hosted.message)
        load, ids = self.install(queue, shape, jobs + pace.backlog)
        rate = pace.rate / shape.batch / shape.workers
        load = replace(
            load,
            jobs=jobs,
            rate=rate,
            standing=pace.backlog > 0,
            warm_up=pace.warm_up,
            exchange=None if rate or self.apart else load.exchange,
        )
        self._pool.prepare(self.conninfo, load, shape.workers)
        return Prepared(self._pool, self._admin, ids, bool(rate))

    def count(self, queue: Loaded, batch: int) -> dict[str, float]:
        """Count what a queue costs one worker alone: `COUNTERS`. Errors are those of `prepare`."""
        if isinstance(queue, WorkerQueue):
            return {}  # its workers do not hand over what a single claim has touched
        jobs = max(counters.LEAST_JOBS, 2 * batch * (counters.WARM + counters.COUNTED))
        with self._alone(queue, batch, jobs) as work:
            return counters.count(self._admin, work)

    def endure(self, queue: SqlFileQueue, batch: int, seconds: float, points: list[Point]) -> None:
        """Measure what claims cost under an old snapshot and after it; autovacuum is on.

        Each phase takes so many seconds. What was measured is added to the points, as soon as it
        is. Errors are those of `prepare`.
        """
        with self._alone(queue, batch, self.pace.backlog or endure.BACKLOG) as work:
            self._autovacuum("on", seconds / endure.NAPS)
            try:
                endure.endure(
                    self._admin, work, batch, seconds, points, snapshot=self._old_snapshot
                )
            finally:
                self._autovacuum("off")

    @contextmanager
    def _alone(self, queue: SqlFileQueue, batch: int, jobs: int) -> Iterator[counters.Alone]:
        """One worker at a queue that was installed anew, with so many jobs in it."""
        load, _ = self.install(queue, Shape(batch, 1), jobs)
        with closing(LoadSession(self.conninfo, load.setup, load.retry_on)) as session:
            yield counters.Alone(session, load)

    @contextmanager
    def _old_snapshot(self) -> Iterator[None]:
        """A reader elsewhere in the same database, as a report or pg_dump is."""
        with waits.LimitedConnection.open(self.conninfo) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            yield
            reader.execute("ROLLBACK")

    def _clear(self) -> None:
        """Leave nothing of the last load, nor anybody who drove it."""
        self._load_stack.close()
        self._admin.execute(ASKED["end_others"], [round(waits.GONE * 1000)])
        for (schema,) in self._admin.execute(ASKED["schemas"]).fetchall():
            self._admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        self._admin.execute("CREATE SCHEMA public")

    def _vacuum(self) -> None:
        tables = self._admin.execute(ASKED["tables"]).fetchall()
        if tables:
            names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
            self._admin.execute(sql.SQL("VACUUM (ANALYZE) {}").format(names))

    def install(self, queue: SqlFileQueue, shape: Shape, jobs: int) -> tuple[Load, list[bytes]]:
        """The beginning of `prepare`; what was compiled, and the jobs' ids."""
        self._clear()
        setup = b"SET search_path = public; SET client_min_messages = error"
        with closing(LoadSession(self.conninfo, setup)) as session:
            filled = fill(queue, session, shape, jobs=jobs, payload=self.pace.payload)
        self._vacuum()
        return filled


@dataclass(slots=True)
class Prepared:
    """A measurement of which everything is ready but the start; made by `Ground.prepare`."""

    _workers: Pool | HostedWorkers
    _admin: psycopg.Connection[tuple[object, ...]]
    _ids: Sequence[bytes]
    _is_open: bool = False
    message: float = 0.0
    _doing: Counter[str] = field(default_factory=Counter)  # samples by what was waited for
    _cost: counters.Totals = NOTHING
    _next_sample: float = 0.0
    _released: float = 0.0
    _tallies: list[Tally] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Release the workers, which claim no more after some seconds, and wait for their end.

        This is what is timed. What goes wrong with a worker is a QueueError or a WorkerLostError.
        """
        before = counters.Totals.read(self._admin)
        self._released, self._tallies = self._workers.work(seconds, self._sample)

        def all_handed_over() -> bool:  # which sessions do where they end
            return self._admin.execute(ASKED["others"]).fetchone() == (0,)

        waits.until(all_handed_over, waits.GONE, "the workers' sessions to end")
        self._cost = counters.Totals.read(self._admin).since(before)

    def _sample(self) -> None:
        if time.monotonic() < self._next_sample:
            return
        self._next_sample = time.monotonic() + TICK
        for doing, backends in self._admin.execute(ASKED["doing"]):
            self._doing[str(doing)] += int(str(backends))

    def verdict(self) -> Measured:
        """Compare what the workers say with what the table says; QueueError: no job was done."""
        tallies = self._tallies
        claims = Counter(job for tally in tallies for job in tally.ids)
        # A queue that cannot say is taken at its workers' word.
        states = self._workers.states()
        if states is None:
            states = {job: b"queued" for job in self._ids if job not in claims}
        finished = {job for job in claims if states.get(job, b"completed") == b"completed"}
        lost = [j for j in self._ids if j not in claims and states.get(j, b"") != b"queued"]
        counted: dict[str, Any] = {name: sum(getattr(t, name) for t in tallies) for name in SUMMED}
        if not finished:
            raise QueueError(
                f"no job was completed: {claims.total()} were claimed, {counted['rejected']}"
                f" completions rejected, {counted['empty']} claims empty"
            )
        samples = self._doing.total()
        locks = sum(count for doing, count in self._doing.items() if doing.startswith("Lock:"))
        server_cpu = [t.server_cpu for t in tallies if t.server_cpu is not None]
        latencies = sorted(value for tally in tallies for value in tally.latencies)
        if not latencies:
            raise QueueError("no job was claimed once the warm-up was over")
        return Measured(
            jobs=len(self._ids),
            completed=len(finished),
            seconds=max(tally.ended for tally in tallies) - self._released,
            drained=len(finished) == len(self._ids),
            claimed=claims.total(),
            double_claims=claims.total() - len(claims),
            unfinished=len(claims) - len(finished),
            lost=len(lost),
            lock_waits=locks / samples if samples else None,
            waits={doing: count / samples for doing, count in self._doing.most_common()},
            p50=percentile(latencies, 0.50),
            p95=percentile(latencies, 0.95),
            p99=percentile(latencies, 0.99),
            buffers=self._cost.buffers,
            wal_bytes=self._cost.wal_bytes,
            rows_changed=self._cost.rows,
            dead_rows=self._cost.dead,
            server_cpu=sum(server_cpu) if len(server_cpu) == len(tallies) else None,
            histogram=latency.encoded(latencies) if self._is_open else "",
            message=self.message,
            **counted,
        )
