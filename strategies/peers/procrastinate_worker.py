"""Procrastinate 3.10 (https://procrastinate.readthedocs.io) as a queue under test.

    queueproof check strategies.peers.procrastinate_worker:Procrastinate

One App, with its connector, is one worker. Jobs are deferred by tasks; the JobManager's methods are
called as its Worker calls them (worker.py): `prune_stalled_workers` when it starts, `fetch_job`,
`finish_job`, `retry_job`. What becomes of a failed job is its task's RetryStrategy to say, and how
often it may be attempted is a property of its task, so that there is a task for every number of
attempts that is asked for.

What it promises, and where that is written (docs/ of its repository):

- a job that a worker starts executing is executed by "the only one" (discussions.md, How does this
  all work);
- a crashed worker's job: stalled once its worker's heartbeat, one for all its jobs, is 30 s old by
  default; "if no specific action is taken" it stays so. The action is `get_stalled_jobs` and
  `retry_job`, in a periodic task of the user (howto/production/retry_stalled_jobs.md): `recover`;
- attempts: "Retry 5 times (so 6 attempts total)" (howto/advanced/retry.md, Simple strategies);
- backoff: exponential_wait ** (attempts + 1) (howto/advanced/retry.md, Advanced strategies);
- order: by priority, higher first (howto/advanced/priorities.md), then "in creation order"
  (discussions.md, About locks).

Background work is off: no listener, no polling, no timers. Its worker beats every 10 s for as long
as it lives; here it beats whenever it claims, and by `heartbeat`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any

from procrastinate import App, PsycopgConnector, RetryStrategy
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.tasks import Task
from procrastinate.types import TimeDeltaParams
from psycopg.errors import RaiseException

from queueproof import Client, State

_STATES: dict[str | None, State] = {
    "todo": "queued",
    "doing": "running",
    "succeeded": "completed",
    "failed": "failed",
}
# What `update_heartbeat` runs, and whether there is such a worker, which it does not tell.
_BEAT = """
SELECT procrastinate_update_heartbeat_v1(id) FROM procrastinate_workers WHERE id = %(id)s
"""


class Procrastinate(Client):
    """A worker of Procrastinate with its default settings, and the documented recovery."""

    lease = timedelta(seconds=30)
    max_attempts = 3
    backoff = timedelta(seconds=2)
    order = "priority, fifo"

    async def install(self) -> None:
        """Create its schema."""
        async with App(connector=PsycopgConnector(conninfo=self.dsn)).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        """Connect."""
        # A pool of one: its operations come one by one.
        connector = PsycopgConnector(conninfo=self.dsn, min_size=1, max_size=1)
        self._app = App(connector=connector)
        await self._app.open_async()
        if not await self._app.check_connection_async():
            raise RuntimeError("its tables are not there")
        self._workers: dict[str, int] = {}

    @property
    def _manager(self) -> JobManager:
        return self._app.job_manager

    def _task(self, bound: int) -> Task[Any, Any, Any]:
        """The task whose jobs may be attempted so often."""
        name = f"attempted.{bound}"
        if name not in self._app.tasks:
            retry = bound > 1 and RetryStrategy(max_attempts=bound - 1, exponential_wait=2)
            self._app.task(name=name, retry=retry)(_work)
        return self._app.tasks[name]

    async def enqueue(
        self,
        payload: dict[str, Any],
        priority: int,
        delay: timedelta,
        max_attempts: int,
        queue: str,
    ) -> int:
        """Defer a job."""
        later = _parameters(delay) if delay else None
        task = self._task(max_attempts)
        job = task.configure(queue=queue, priority=priority, schedule_in=later)
        return await job.defer_async(payload=payload)

    # --- the worker's row -----------------------------------------------------------------------

    async def start(self, worker: str) -> None:
        """Register, as its Worker.run does before it fetches."""
        await self._manager.prune_stalled_workers(self.lease.total_seconds())
        self._workers = {worker: await self._manager.register_worker()}

    async def _registered(self, worker: str) -> int:
        """The id of a worker, which may have been pruned since it began."""
        if worker not in self._workers:
            await self.start(worker)
        return self._workers[worker]

    async def heartbeat(self, worker: str) -> bool:
        """Say that a worker is alive, whatever it works on."""
        known = await self._registered(worker)
        return bool(await self._app.connector.execute_query_all_async(_BEAT, id=known))

    # --- jobs -----------------------------------------------------------------------------------

    async def claim(self, worker: str, limit: int, queue: str) -> list[dict[str, Any]]:
        """Fetch some jobs, one by one."""
        worker_id = await self._registered(worker)
        await self.heartbeat(worker)
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            try:
                job = await self._manager.fetch_job([queue], worker_id)
            except ConnectorException:
                if not found:
                    raise
                break  # those that came before are this worker's
            if job is None:
                break
            token = {"id": job.id, "attempts": job.attempts, "task": job.task_name}
            found.append({**token, "queue": job.queue})
        return found

    async def complete(self, job: dict[str, Any]) -> bool:
        """Finish a job."""
        return await self._ended(
            self._manager.finish_job(_job(job), Status.SUCCEEDED, delete_job=False)
        )

    async def fail(self, job: dict[str, Any], error: str) -> bool:
        """Have its task decide, and do what its worker does then (Worker._process_job)."""
        failed = _job(job)
        task = self._task(int(failed.task_name.rpartition(".")[2]))
        retry = task.get_retry_exception(exception=RuntimeError(error), job=failed)
        if retry is None:
            return await self._ended(
                self._manager.finish_job(failed, Status.FAILED, delete_job=False)
            )
        retry_at = retry.retry_decision.retry_at
        return await self._ended(self._manager.retry_job(failed, retry_at=retry_at))

    async def _ended(self, ending: Awaitable[None]) -> bool:
        """Whether a job could be brought to its next state."""
        try:
            await ending
        except ConnectorException as error:
            if isinstance(error.__cause__, RaiseException):  # "Job was not found or ..."
                return False
            raise
        return True

    async def recover(self) -> Sequence[int]:
        """Retry stalled jobs."""
        recovered: list[int] = []
        for job in await self._manager.get_stalled_jobs():
            try:
                retried = await self._ended(self._manager.retry_job(job))
            except ConnectorException:
                if not recovered:
                    raise
                break  # the next recovery's
            if retried and job.id is not None:
                recovered.append(job.id)
        return recovered

    async def jobs(self) -> list[dict[str, Any]]:
        """All of them."""
        found = await self._manager.list_jobs_async()
        return [{"id": job.id, "state": _STATES[job.status]} for job in found]


class PatientProcrastinate(Procrastinate):
    """The same with many retries, for what their number does to the backoff."""

    max_attempts = 60


async def _work(payload: dict[str, Any]) -> None:
    """What a job would do."""


def _parameters(delay: timedelta) -> TimeDeltaParams:
    return {"days": delay.days, "seconds": delay.seconds, "microseconds": delay.microseconds}


def _job(token: dict[str, Any]) -> Job:
    return Job(
        id=int(token["id"]),
        queue=token["queue"],
        lock=None,
        queueing_lock=None,
        task_name=token["task"],
        attempts=token["attempts"],
    )
