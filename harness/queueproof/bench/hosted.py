"""Queues whose workers are programs of their own, under load: one process each, asked in lines.

A worker is asked to claim and to complete as a check asks it, by a JSON object on its stdin, and
uses its own client for that. What such a message costs is measured beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Mapping, MutableSequence, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeAlias

from psycopg.conninfo import make_conninfo

from queueproof import waits
from queueproof.bench.load import RETRYABLE, completes_many, of_size
from queueproof.bench.measured import Shape
from queueproof.bench.session import processor_seconds
from queueproof.bench.worker import NAME, Link, Tally, Worker, drive
from queueproof.errors import QueueError, ServerError
from queueproof.queues.worker import Json, WorkerClaim, WorkerError, WorkerProcess, WorkerQueue

MOST_JOBS = 8_000  # one line has to name all of them, and goes in through the worker's own enqueue
CHUNK = 100  # jobs in a message
FILLERS = 2  # workers that put them in
LAZY = "-c synchronous_commit=off"
MESSAGES = 20  # whose cost is measured

Steps: TypeAlias = Generator[Json | float, Any, Any]  # what to ask next, or how long to pause


class HostedWorkers:
    """Workers of a queue whose tables are made; whoever makes them closes them."""

    def __init__(self, queue: WorkerQueue, conninfo: str, shape: Shape) -> None:
        """Install the queue in an empty database.

        A QueueError says that a worker does not begin, or that the queue lacks what a load needs.
        """
        self.message = 0.0  # seconds that a message costs in which the worker has nothing to do
        self._queue = queue
        self._conninfo = conninfo
        self._shape = shape
        self._stack = ExitStack()
        self._processes: list[WorkerProcess] = []
        self.ids: list[bytes] = []
        self._init = queue.request("init", dsn=conninfo, queue="default")
        self._install()

    def close(self) -> None:
        """End the workers, and with them their connections."""
        self._stack.close()

    def begin(self) -> None:
        """Start the workers, and measure what a message costs."""
        self._processes = self._started(self._stack, self._shape.workers, self._init)
        for number, process in enumerate(self._processes if "start" in self._queue.offers else ()):
            request = self._queue.request("start", worker=NAME.format(number))
            self._queue.read_error("start", process.ask(request))
        if not self._queue.moves_clock:
            return
        request = self._queue.request("clock", ahead=0.0)
        times = []
        for _ in range(MESSAGES):
            asked = time.monotonic()
            self._queue.read_error("clock", self._processes[0].ask(request))
            times.append(time.monotonic() - asked)
        self.message = statistics.median(times)

    def _started(self, stack: ExitStack, count: int, init: Json) -> list[WorkerProcess]:
        names = [f"worker {number + 1}" for number in range(count)]
        processes = [stack.enter_context(WorkerProcess(self._queue, name)) for name in names]

        def begin() -> Steps:
            self._queue.described_by((yield init))

        drive([(_link(process), begin()) for process in processes])
        return processes

    def _install(self) -> None:
        request = self._queue.request("install", dsn=self._conninfo)
        try:
            with WorkerProcess(self._queue, "the installer") as installer:
                self._queue.described_by(installer.ask(self._init, waits.BEGIN))
                self._queue.read_error("install", installer.ask(request, waits.BEGIN))
        except WorkerError:  # its init may want the tables
            with WorkerProcess(self._queue, "the installer") as installer:
                self._queue.read_error("install", installer.ask(request, waits.BEGIN))
                self._queue.described_by(installer.ask(self._init, waits.BEGIN))
        if not self._queue.completes:
            raise QueueError(
                f"{self._queue.name}: bench measures from claim to completion, and its workers"
                " offer no complete"
            )

    def fill(self, jobs: int, payload: int) -> None:
        """Put jobs in, whose payload has so many bytes at least, and promote them.

        That is done by workers whose commits wait for no disk, and which end then.
        """
        text = of_size(payload).decode()
        given = {"payload": text, "priority": 0, "delay": timedelta(0), "queue": "default"}
        (job,) = self._queue.request("enqueue", **given)["jobs"]
        left = [min(CHUNK, jobs - done) for done in range(0, jobs, CHUNK)]

        def put() -> Steps:
            while left:
                request = {"op": "enqueue", "jobs": list(repeat(job, left.pop()))}
                answer = yield request
                found = _read(self._queue, "enqueue", request, answer)
                self.ids += [one.encode() for one in found]

        lazy = make_conninfo(self._conninfo, options=LAZY)
        init = self._queue.request("init", dsn=lazy, queue="default")
        with ExitStack() as stack:
            fillers = self._started(stack, FILLERS, init)
            drive([(_link(process), put()) for process in fillers])
            if "promote" in self._queue.offers:
                request = self._queue.request("promote")
                _read(self._queue, "promote", request, fillers[0].ask(request, waits.BULK))

    def work(self, seconds: float, tick: Callable[[], None]) -> tuple[float, list[Tally]]:
        """Claim and complete, and end the workers; else as `Pool.work`."""
        accepted = [0] * len(self._processes)
        workers = [
            HostedWorker(self._queue, self._shape.batch, number, len(self.ids), accepted)
            for number in range(len(accepted))
        ]
        used = [processor_seconds(process.pid) or 0.0 for process in self._processes]
        began = time.monotonic()
        pairs = zip(self._processes, workers, strict=True)
        tallies = drive([(_link(p), one.work(began + seconds)) for p, one in pairs], tick)
        for tally, process, before in zip(tallies, self._processes, used, strict=True):
            tally.worker_cpu = (processor_seconds(process.pid) or 0.0) - before
        self.close()
        return began, tallies

    def states(self) -> dict[bytes, bytes] | None:
        """The state of each job, by one more worker; None where the queue cannot say."""
        if "jobs" not in self._queue.offers:
            return None
        request = self._queue.request("jobs")
        with WorkerProcess(self._queue, "the reader") as reader:
            self._queue.described_by(reader.ask(self._init, waits.BEGIN))
            rows = _read(self._queue, "jobs", request, reader.ask(request, waits.BULK))
        return {row.id.encode(): row.state.encode() for row in rows}


def _link(process: WorkerProcess) -> Link:
    def receive() -> Json | None:
        process.receive()
        process.check()
        return None if process.answer is None else process.take()

    return Link(process.stdout, process.send, receive)


class HostedWorker(Worker):
    """A worker that is a program, and is asked for each operation."""

    def __init__(
        self, queue: WorkerQueue, batch: int, number: int, jobs: int, accepted: MutableSequence[int]
    ) -> None:
        super().__init__(number, jobs, accepted)
        self._queue = queue
        self._many = completes_many(queue, batch)
        self._worker = NAME.format(number)
        self._claim = queue.request("claim", worker=self._worker, limit=batch, queue="default")

    def work(self, until: float) -> Steps:
        """Claim and complete until all jobs are done or the time is up; what came of it."""
        yield from self._at_once(until)
        return self.tally

    def claim(self) -> Steps:
        """Claim once; what it got, which is nothing where there was nothing this time."""
        answer = yield self._claim
        jobs = answer.get("jobs")
        if not isinstance(jobs, list) or (jobs and not isinstance(jobs[0].get("id"), str)):
            jobs = _read(self._queue, "claim", self._claim, answer, self._count)
        self.tally.empty += not jobs
        return jobs

    def complete(self, held: Sequence[Mapping[str, Any]], until: float) -> Steps:
        """Complete what a claim got."""
        claims = [WorkerClaim(job["id"], {}, job) for job in held]
        operation = "complete_many" if self._many else "complete"
        done = 0
        for given in [{"jobs": claims}] if self._many else [{"job": claim} for claim in claims]:
            request = self._queue.request(operation, worker=self._worker, **given)
            told = None
            while told is None and time.monotonic() < until:
                answer = yield request
                told = _read(self._queue, operation, request, answer, self._count)
                if told is None and self._many and answer.get("ids", ()) is None:
                    told = {claim.id for claim in claims}  # some, it says: the table will tell
                if told is None:
                    yield self._pause()
            done += len(told or ()) if self._many else bool(told)
        self.tally.ended = time.monotonic()
        self._note([claim.id.encode() for claim in claims], done)


def _read(
    queue: WorkerQueue,
    operation: str,
    request: Json,
    answer: object,
    count: Callable[[str], None] | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """The answer of a worker; None where it means "nothing this time", if somebody counts that."""
    try:
        return queue.read(operation, request, answer)
    except ServerError as error:
        if count is None or error.sqlstate not in queue.retry_on | RETRYABLE:
            raise QueueError(f"{queue.name}: {operation} failed: {error}") from None
        count(error.sqlstate)
        return None
