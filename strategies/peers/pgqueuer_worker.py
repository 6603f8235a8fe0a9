"""PgQueuer 1.6 (https://pgqueuer.readthedocs.io) as a queue under test.

    queueproof check strategies.peers.pgqueuer_worker:PgQueuer

One `Queries` on one asyncpg connection is one worker. Its methods are called as its QueueManager
calls them (core/qm.py): `dequeue`, `log_jobs`, `retry_job`, `update_heartbeat`; whether and when a
failed job is tried again is its DatabaseRetryEntrypointExecutor's to say. An entrypoint is what
stands for the harness' queue.

What it promises, and where that is written (docs/ of its repository):

- at least once: "no fencing tokens" (adr/ADR-0004-delivery-is-at-least-once.md);
- a crashed worker's job: one whose heartbeat is older than the timeout, 30 s by default, "becomes
  claimable again through the ordinary claim path", so that there is no other recovery
  (adr/ADR-0005-worker-liveness-is-application-signal.md);
- attempts: "max_attempts, default 5: maximum retries before the exception becomes terminal", which
  makes six (guides/retry.md, Parameters); a job whose worker crashes each time is the user's to
  find (guides/reliability.md, Poison Jobs);
- backoff: initial_delay * 2 ** attempts, at most max_delay (guides/retry.md, Backoff schedule);
- order: by priority, higher first, then by id (reference/skip-locked.md, In PgQueuer).

Background work is off: no listener, no timers, and no buffers, which the manager empties by time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import anyio
import asyncpg
from pgqueuer import AsyncpgDriver, DatabaseRetryEntrypointExecutor, Job, Queries, RetryRequested
from pgqueuer.executors import EntrypointExecutorParameters
from pgqueuer.models import Context, QueueEntrypoint, QueueManagerId
from pgqueuer.queries import EntrypointExecutionParameter

from queueproof import Client, State

_STATES: dict[str, State] = {"queued": "queued", "picked": "running", "failed": "failed"}
_ALL = 1_000_000  # jobs; what lists them wants a limit


class _Driver(AsyncpgDriver):
    """Knows how many rows the last statement changed, which `Queries` keeps to itself."""

    affected = 0

    async def execute(self, query: str, *args: object) -> str:
        """Run a statement; its command tag."""
        tag = await super().execute(query, *args)
        count = tag.rpartition(" ")[2]
        self.affected = int(count) if count.isdigit() else 0
        return tag


class PgQueuer(Client):
    """A worker of PgQueuer with its default settings."""

    retries = 5
    max_attempts = retries + 1
    lease = timedelta(seconds=30)
    backoff = timedelta(seconds=1)
    order = "priority, fifo"
    delivery = "at-least-once"
    breaks: Mapping[str, str] = {
        "fencing": '"no fencing tokens": ADR-0004, Delivery is at-least-once',
        "retry-bound": "a job whose worker crashes each time is the user's to find, by a query: "
        "docs/guides/reliability.md, Poison Jobs",
    }

    _connection: asyncpg.Connection | None = None

    async def install(self) -> None:
        """Create its tables."""
        connection = await asyncpg.connect(self.dsn)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    async def open(self) -> None:
        """Connect."""
        self._connection = await asyncpg.connect(self.dsn)
        self._driver = _Driver(self._connection)
        self._queries = Queries(self._driver)
        # asyncpg looks a type up where it first meets it, which would be inside an operation.
        await self._connection.prepare("SELECT NULL::pgqueuer_status, NULL::pgqueuer_status[]")

    async def _connected(self) -> Queries:
        # Its manager ends with its connection; whoever runs it starts another.
        if self._connection is None or self._connection.is_closed():
            await self.open()
        return self._queries

    async def enqueue(
        self, payload: dict[str, Any], priority: int, delay: timedelta, queue: str
    ) -> list[int]:
        """Put a job in."""
        queries = await self._connected()
        body = json.dumps(payload).encode()
        return list(await queries.enqueue(queue, body, priority, execute_after=delay or None))

    async def claim(self, worker: str, limit: int, queue: str) -> list[dict[str, Any]]:
        """Take some jobs, stale ones of others among them."""
        queries = await self._connected()
        jobs = await queries.dequeue(
            batch_size=limit,
            entrypoints={QueueEntrypoint(queue): EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=QueueManagerId(UUID(worker)),
            global_concurrency_limit=None,
            heartbeat_timeout=self.lease,
        )
        return [job.model_dump(mode="json") for job in jobs]

    async def complete(self, job: dict[str, Any]) -> bool:
        """Log a job as done, which deletes it."""
        queries = await self._connected()
        await queries.log_jobs([(Job.model_validate(job), "successful", None)])
        return self._driver.affected > 0

    async def complete_many(self, jobs: Sequence[dict[str, Any]]) -> list[str] | None:
        """Log several, as its manager's buffer does."""
        queries = await self._connected()
        await queries.log_jobs([(Job.model_validate(job), "successful", None) for job in jobs])
        if self._driver.affected == 0:
            return []
        return [job["id"] for job in jobs] if self._driver.affected == len(jobs) else None

    async def fail(self, job: dict[str, Any], error: str) -> bool:
        """Have its executor decide, and do what its manager does then (QueueManager._dispatch)."""
        queries = await self._connected()
        failed = Job.model_validate(job)

        async def failing(_job: Job) -> None:
            raise RuntimeError(error)

        parameters = EntrypointExecutorParameters(concurrency_limit=0, func=failing)
        executor = DatabaseRetryEntrypointExecutor(parameters, max_attempts=self.retries)
        try:
            await executor.execute(failed, Context(cancellation=anyio.CancelScope()))
        except RetryRequested as retry:
            await queries.retry_job(failed, retry.delay, None)
        except Exception:  # noqa: BLE001 - its manager takes any for the job's own
            await queries.log_jobs([(failed, "exception", None)])
        return self._driver.affected > 0

    async def heartbeat(self, job: dict[str, Any]) -> bool:
        """Say that a job is being worked on."""
        queries = await self._connected()
        await queries.update_heartbeat([Job.model_validate(job).id])
        return self._driver.affected > 0

    async def jobs(self) -> list[dict[str, Any]]:
        """All that have not ended; those that have are deleted."""
        queries = await self._connected()
        found = await queries.browse_queue(limit=_ALL)
        return [{"id": job.id, "state": _STATES[job.status]} for job in found]


class PatientPgQueuer(PgQueuer):
    """The same with many retries, for what their number does to the backoff."""

    retries = 60
    max_attempts = retries + 1
