"""One measurement: a fresh queue, jobs in it, workers on it, and what the table says afterwards."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

import psycopg
from psycopg import pq, sql
from psycopg.pq.abc import PGconn, PGresult

from queueproof import waits
from queueproof.bench.load import SCHEMA, Compiled, compile_queue
from queueproof.bench.pool import TICK, Pool
from queueproof.bench.worker import Command, RejectedError, Session, Tally, values
from queueproof.errors import QueueError
from queueproof.postgres import Server
from queueproof.queues.sqlfile import SqlFileQueue

PIPELINE = 500  # statements between two synchronisations while jobs are put in
SHOWN = 60  # characters of a statement in a message

_SCHEMAS = """
SELECT nspname FROM pg_catalog.pg_namespace
WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
"""
_TABLES = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND NOT c.relispartition
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""
_WAITING = """
SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*)
FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND backend_type = 'client backend'
  AND pid <> pg_catalog.pg_backend_pid()
"""


class Shape(NamedTuple):
    """How a queue is put under load.

    Attributes:
        batch: Jobs per claim.
        workers: Processes.
        hold: Seconds for which a claim's transaction is kept open before its COMMIT.
    """

    batch: int
    workers: int
    hold: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run under load came to.

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
        p50: Seconds from wanting jobs to having them (retries and the hold included): median.
        p95: The same, 95th percentile.
        p99: The same, 99th percentile.
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

    @property
    def rate(self) -> float:
        """Jobs completed per second."""
        return self.completed / self.seconds

    @property
    def exactly_once(self) -> bool:
        """Whether each job handed out was handed out once and completed, and none was lost."""
        return not (self.double_claims or self.unfinished or self.lost)


class _Session(Session):
    """One of this process, which has signals to hear: no answer is waited for without an end."""

    def _connect(self, conninfo: str) -> PGconn:
        return waits.connect(conninfo)

    def _execute(self, sql: bytes) -> PGresult:
        self.pgconn.send_query(sql)
        return self._answer(sql)

    def _prepare(self, command: Command) -> PGresult:
        self.pgconn.send_prepare(command.name, command.sql, command.types)
        return self._answer(command.sql)

    def _execute_prepared(self, name: bytes, sent: list[bytes]) -> PGresult:
        self.pgconn.send_query_prepared(name, sent)
        return self._answer(name)

    def _answer(self, sql: bytes) -> PGresult:
        what = f"PostgreSQL to answer {textwrap.shorten(sql.decode(), SHOWN)}"
        answer = waits.answer(self.pgconn, waits.BULK, what)
        if answer is None:
            raise RejectedError("the server closed the connection")
        return answer


class Ground:
    """A database and worker processes, for one measurement after another.

    A context manager: the processes end and the database is dropped with it.
    """

    def __init__(self, server: Server, workers: int) -> None:
        """Start the processes and create the database.

        Args:
            server: Where; with durable settings, or the figures mean little.
            workers: Most workers that a measurement will have.
        """
        self._stack = ExitStack()
        with self._stack:  # so that what is there is undone if the rest fails
            self._pool = self._stack.enter_context(Pool(workers))
            self._conninfo = self._stack.enter_context(server.database("queueproof_bench"))
            connection = waits.Connection.open(self._conninfo)
            connection.seconds = waits.BULK
            self._conninfo = server.for_queue(self._conninfo)
            self._owner = server.owner
            self._admin = self._stack.enter_context(connection)
            if server.superuser:
                # A server of ours leaves deadlocks to the scheduler; here they end as elsewhere.
                self._admin.execute(
                    sql.SQL("ALTER DATABASE {} SET deadlock_timeout = '1s'").format(
                        sql.Identifier(connection.info.dbname)
                    )
                )
            self._stack = self._stack.pop_all()

    def __enter__(self) -> Self:
        """Return the ground."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the processes and drop the database."""
        self._stack.close()

    def setting(self, name: str) -> str:
        """A setting of the server."""
        row = self._admin.execute("SELECT pg_catalog.current_setting(%s)", [name]).fetchone()
        return str(row[0]) if row else ""

    def prepare(self, queue: SqlFileQueue, shape: Shape, jobs: int) -> Prepared:
        """Install a queue anew, put jobs in, vacuum, and let the workers get ready.

        Args:
            queue: The queue.
            shape: Of the load.
            jobs: How many to put in, through the queue's own `enqueue`.

        Raises:
            NotApplicableError: The queue has no such claim.
            QueueError: The server rejected the queue's SQL.
        """
        for (schema,) in self._admin.execute(_SCHEMAS).fetchall():
            self._admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        for schema in (SCHEMA, "public"):
            self._admin.execute(f"CREATE SCHEMA {schema}")
            self._admin.execute(f"ALTER SCHEMA {schema} OWNER TO {self._owner}")
        try:
            setup = f"SET search_path = {SCHEMA}, public; SET client_min_messages = error".encode()
            session = _Session(self._conninfo, setup)
            try:
                compiled, ids = _fill(queue, session, shape, jobs)
            finally:
                session.pgconn.finish()
        except RejectedError as error:
            raise QueueError(f"{queue.name}: {error}") from None
        tables = self._admin.execute(_TABLES).fetchall()
        if tables:
            names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
            self._admin.execute(sql.SQL("VACUUM (ANALYZE) {}").format(names))
        self._pool.prepare(self._conninfo, compiled.load, shape.workers)
        return Prepared(self._pool, self._admin, self._conninfo, compiled, shape, ids)


def _fill(
    queue: SqlFileQueue, session: Session, shape: Shape, jobs: int
) -> tuple[Compiled, list[bytes]]:
    for statement in queue.blocks["schema"].statements:
        try:
            session.command(statement.text.encode())
        except RejectedError as error:
            raise QueueError(str(error), statement.source) from None
    compiled = compile_queue(queue, session.pgconn, batch=shape.batch, hold=shape.hold, jobs=jobs)
    session.prepare(compiled.enqueue)
    if len(compiled.enqueue.commands) == 1:
        return compiled, _pipelined(compiled, session, jobs)
    ids: list[bytes] = []
    for _ in range(jobs):
        answer, _ = session.run(compiled.enqueue, dict(compiled.constants))
        ids += [text or b"" for text in values(answer, compiled.enqueue_id)] if answer else []
    return compiled, ids


def _pipelined(compiled: Compiled, session: Session, jobs: int) -> list[bytes]:
    """Enqueue without waiting for each answer, in one transaction."""
    (command,) = compiled.enqueue.commands
    known = [compiled.constants[parameter] for parameter in command.parameters]
    pgconn = session.pgconn
    ids: list[bytes] = []
    session.command(b"BEGIN")
    for start in range(0, jobs, PIPELINE):
        count = min(PIPELINE, jobs - start)
        pgconn.enter_pipeline_mode()
        for _ in range(count):
            pgconn.send_query_prepared(command.name, known)
        pgconn.pipeline_sync()
        limit = waits.Limit(waits.BULK, f"PostgreSQL to enqueue {count} jobs")
        waits.flush(pgconn, limit)
        synchronised = False
        while not synchronised:
            while pgconn.is_busy():
                if waits.readable(pgconn.socket, limit.left()):
                    pgconn.consume_input()
            result = pgconn.get_result()  # None stands between the answers
            if result is None:
                continue
            synchronised = result.status == pq.ExecStatus.PIPELINE_SYNC
            if not synchronised:
                session.check(result, command.where)
                ids.append(result.get_value(0, compiled.enqueue_id) or b"")
        pgconn.exit_pipeline_mode()
    session.command(b"COMMIT")
    return ids


@dataclass(slots=True)
class Prepared:
    """A measurement of which everything is ready but the start; made by `Ground.prepare`."""

    _pool: Pool
    _admin: psycopg.Connection[tuple[object, ...]]
    _conninfo: str
    _compiled: Compiled
    _shape: Shape
    _ids: Sequence[bytes]
    _waiting: int = 0  # samples of a worker that waits for a lock
    _samples: int = 0
    _next_sample: float = 0.0
    _released: float = 0.0
    _tallies: list[Tally] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Release the workers and wait for their end; this is what is timed.

        Args:
            seconds: After which they claim no more.

        Raises:
            QueueError: The server rejected something under load.
            WorkerLostError: A worker died or did not answer.
        """
        self._released, self._tallies = self._pool.release(
            self._shape.workers, seconds, self._sample
        )

    def _sample(self) -> None:
        if time.monotonic() < self._next_sample:
            return
        self._next_sample = time.monotonic() + TICK
        for waiting, backends in self._admin.execute(_WAITING):
            self._waiting += int(str(waiting))
            self._samples += int(str(backends))

    def verdict(self) -> Measured:
        """Compare what the workers say with what the table says.

        Raises:
            QueueError: No job was completed, or `jobs` was rejected.
        """
        tallies = self._tallies
        claims = Counter(job for tally in tallies if tally.ids for job in tally.ids.split(b"\n"))
        states = self._states()
        finished = {job for job in claims if states.get(job, b"completed") == b"completed"}
        lost = [j for j in self._ids if j not in claims and states.get(j, b"") != b"queued"]
        rejected = sum(tally.rejected for tally in tallies)
        if not finished:
            raise QueueError(
                f"no job was completed: {claims.total()} were claimed, {rejected} completions"
                f" rejected, {sum(tally.empty for tally in tallies)} claims empty"
            )
        latencies = sorted(value for tally in tallies for value in tally.latencies)
        return Measured(
            jobs=len(self._ids),
            completed=len(finished),
            seconds=max(tally.ended for tally in tallies) - self._released,
            drained=len(finished) == len(self._ids),
            claimed=claims.total(),
            double_claims=claims.total() - len(claims),
            unfinished=len(claims) - len(finished),
            lost=len(lost),
            rejected=rejected,
            empty=sum(tally.empty for tally in tallies),
            retries=sum(tally.retries for tally in tallies),
            deadlocks=sum(tally.deadlocks for tally in tallies),
            lock_waits=self._waiting / self._samples if self._samples else None,
            p50=percentile(latencies, 0.50),
            p95=percentile(latencies, 0.95),
            p99=percentile(latencies, 0.99),
        )

    def _states(self) -> dict[bytes, bytes]:
        """The state of each job; a queue that cannot say is taken at its workers' word."""
        script = self._compiled.jobs
        if script is None:
            claimed = {job for tally in self._tallies for job in tally.ids.split(b"\n")}
            return {job: b"queued" for job in self._ids if job not in claimed}
        session = _Session(self._conninfo, self._compiled.load.setup)
        try:
            session.prepare(script)
            answer, _ = session.run(script, {})
        except RejectedError as error:
            raise QueueError(str(error)) from None
        finally:
            session.pgconn.finish()
        if answer is None:
            return {}
        job, state = (values(answer, column) for column in self._compiled.jobs_columns)
        return {j or b"": s or b"" for j, s in zip(job, state, strict=True)}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least a share of all does not exceed (nearest rank).

    Every sample of a cell is kept, so this is exact: a histogram would save memory that a second
    of load does not need.

    Args:
        ordered: Ascending; at least one.
        share: From 0 to 1.
    """
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
