"""Queues whose workers are programs of their own, under load: one process each, asked in lines.

A worker is asked to claim and to complete as a check asks it, by a JSON object on its stdin, and
uses its own client for that. What such a message costs is measured beside it.
"""

from __future__ import annotations

import heapq
import random
import select
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import repeat
from typing import Any, Self, TypeAlias

from psycopg.conninfo import make_conninfo

from queueproof import waits
from queueproof.bench.load import PAYLOAD, RETRYABLE
from queueproof.bench.measured import Shape
from queueproof.bench.worker import DEADLOCK, PATIENCE, PAUSE, Tally
from queueproof.errors import QueueError, ServerError
from queueproof.queues.worker import Json, WorkerClaim, WorkerError, WorkerProcess, WorkerQueue

MOST_JOBS = 8_000  # one line has to name all of them, and goes in through the worker's own enqueue
CHUNK = 100  # jobs in a message
FILLERS = 2  # workers that put them in
LAZY = "-c synchronous_commit=off"
MESSAGES = 20  # whose cost is measured
WORKER = "00000000-0000-4000-8000-{:012d}"
TICK = 0.05  # seconds between two looks at the server

Steps: TypeAlias = Generator[Json | float, Any, None]  # what to ask next, or how long to pause


class HostedWorkers:
    """Workers of a queue whose tables are made; a context manager that ends them.

    Attributes:
        ids: The jobs.
        message: Seconds that a message costs in which the worker has nothing to do.
    """

    def __init__(self, queue: WorkerQueue, conninfo: str, shape: Shape) -> None:
        """Install the queue.

        Args:
            queue: The queue.
            conninfo: Of an empty database.
            shape: Of the load.

        Raises:
            QueueError: A worker does not begin, or the queue lacks what a load needs.
        """
        self.message = 0.0
        self._queue = queue
        self._conninfo = conninfo
        self._shape = shape
        self._tallies: list[Tally] = []
        self._stack = ExitStack()
        self._processes: list[WorkerProcess] = []
        self.ids: list[bytes] = []
        self._install()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.close()

    def close(self) -> None:
        """End the workers, and with them their connections."""
        self._stack.close()

    # --- before ---------------------------------------------------------------------------------

    @property
    def _init(self) -> Json:
        return self._queue.request("init", dsn=self._conninfo, queue="default")

    def begin(self) -> None:
        """Start the workers."""
        self._processes = self._started(self._stack, self._shape.workers, self._init)
        for number, process in enumerate(self._processes if "start" in self._queue.offers else ()):
            request = self._queue.request("start", worker=WORKER.format(number))
            self._queue.read_error("start", process.ask(request))
        self.message = self._cost_of_a_message()

    def _started(self, stack: ExitStack, count: int, init: Json) -> list[WorkerProcess]:
        names = [f"worker {number + 1}" for number in range(count)]
        processes = [stack.enter_context(self._queue.spawn(name)) for name in names]
        for process in processes:
            process.send(init)
        for process in processes:
            self._heard(process)
        return processes

    def _heard(self, process: WorkerProcess) -> None:
        limit = waits.Limit(waits.BEGIN, f"{self._queue.name} to begin")
        while process.answer is None:
            if waits.readable(process.stdout, limit.left(waits.SLICE)):
                process.receive()
            process.check()
        self._queue.described_by(process.take())

    def _install(self) -> None:
        request = self._queue.request("install", dsn=self._conninfo)
        try:
            with self._queue.spawn("the installer") as installer:
                installer.send(self._init)
                self._heard(installer)
                self._queue.read_error("install", installer.ask(request, waits.BEGIN))
        except WorkerError:  # its init may want the tables
            with self._queue.spawn("the installer") as installer:
                self._queue.read_error("install", installer.ask(request, waits.BEGIN))
                installer.send(self._init)
                self._heard(installer)
        refuse_operations(self._queue)

    def _cost_of_a_message(self) -> float:
        if not self._queue.moves_clock:
            return 0.0
        request = self._queue.request("clock", ahead=0.0)
        times = []
        for _ in range(MESSAGES):
            asked = time.monotonic()
            self._queue.read_error("clock", self._processes[0].ask(request))
            times.append(time.monotonic() - asked)
        return statistics.median(times)

    def fill(self, jobs: int, payload: int) -> None:
        """Put jobs in, by workers whose commits wait for no disk, which end then; promote them.

        Args:
            jobs: How many.
            payload: Bytes of each job's payload at least.
        """
        filler = "x" * max(0, payload - len(PAYLOAD))
        text = PAYLOAD.decode().replace("}", f', "filler": "{filler}"}}' if filler else "}")
        given = {"payload": text, "priority": 0, "delay": timedelta(0), "queue": "default"}
        (job,) = self._queue.request("enqueue", **given)["jobs"]
        left = [min(CHUNK, jobs - done) for done in range(0, jobs, CHUNK)]

        def put() -> Steps:
            while left:
                request = {"op": "enqueue", "jobs": list(repeat(job, left.pop()))}
                answer = yield request
                self.ids += [one.encode() for one in self._read("enqueue", request, answer)]

        lazy = make_conninfo(self._conninfo, options=LAZY)
        init = self._queue.request("init", dsn=lazy, queue="default")
        with ExitStack() as stack:
            fillers = self._started(stack, FILLERS, init)
            drive([(process, put()) for process in fillers])
            if "promote" in self._queue.offers:
                request = self._queue.request("promote")
                self._read("promote", request, fillers[0].ask(request, waits.BULK))

    def _read(self, operation: str, request: Json, answer: object) -> Any:  # noqa: ANN401 - JSON
        try:
            return self._queue.read(operation, request, answer)
        except ServerError as error:
            raise QueueError(f"{self._queue.name}: {operation} failed: {error}") from None

    # --- the load -------------------------------------------------------------------------------

    def work(self, seconds: float, tick: Callable[[], None]) -> tuple[float, list[Tally]]:
        """Claim and complete until all jobs are done or the time is up, and end the workers.

        Args:
            seconds: After which they claim no more.
            tick: Called again and again meanwhile.

        Returns:
            When it began, by `time.monotonic`, and what each did.
        """
        used = [processor_seconds(process.pid) for process in self._processes]
        began = time.monotonic()
        self._tallies = [Tally() for _ in self._processes]
        drive(
            [
                (process, self._work(number, began + seconds))
                for number, process in enumerate(self._processes)
            ],
            tick,
        )
        for tally, process, before in zip(self._tallies, self._processes, used, strict=True):
            tally.own_cpu = processor_seconds(process.pid) - before
        self.close()
        return began, self._tallies

    def _work(self, number: int, until: float) -> Steps:
        queue, tally = self._queue, self._tallies[number]
        chances = random.Random(number)  # noqa: S311 - pauses, not secrets
        worker = WORKER.format(number)
        claim = queue.request("claim", worker=worker, limit=self._shape.batch, queue="default")
        ids: list[bytes] = []
        wanted = now = time.monotonic()
        while now < until:
            answer = yield claim
            now = time.monotonic()
            jobs = answer.get("jobs")
            if not isinstance(jobs, list) or (jobs and not isinstance(jobs[0].get("id"), str)):
                jobs = self._or_again("claim", claim, answer, tally) or []
            if jobs:
                tally.latencies.append(now - wanted)
                ids += [job["id"].encode() for job in jobs]
                yield from self._complete(worker, jobs, tally, chances, until + PATIENCE)
                wanted = now = time.monotonic()
                continue
            tally.empty += 1
            if sum(one.accepted for one in self._tallies) >= len(self.ids):
                break
            yield chances.uniform(0, PAUSE)
            now = time.monotonic()
        tally.ids = b"\n".join(ids)

    def _complete(
        self,
        worker: str,
        jobs: Sequence[Mapping[str, Any]],
        tally: Tally,
        chances: random.Random,
        until: float,
    ) -> Steps:
        queue = self._queue
        claims = [WorkerClaim(job["id"], {}, job) for job in jobs]
        many = is_many(queue, self._shape.batch)
        operation = "complete_many" if many else "complete"
        for given in [{"jobs": claims}] if many else [{"job": claim} for claim in claims]:
            request = queue.request(operation, worker=worker, **given)
            told = None
            while told is None and time.monotonic() < until:
                answer = yield request
                told = self._or_again(operation, request, answer, tally)
                if told is None and many and answer.get("ids", ()) is None:
                    told = {claim.id for claim in claims}  # some, it says: the table will tell
                if told is None:
                    yield chances.uniform(0, PAUSE)
            done = len(told or ()) if many else int(bool(told))
            tally.accepted += done
            tally.rejected += (len(claims) if many else 1) - done
        tally.ended = time.monotonic()

    def _or_again(self, operation: str, request: Json, answer: object, tally: Tally) -> Any:  # noqa: ANN401 - JSON
        """What a worker answers; None where it means "nothing this time"."""
        try:
            return self._queue.read(operation, request, answer)
        except ServerError as error:
            if error.sqlstate not in self._queue.retry_on | RETRYABLE:
                raise QueueError(f"{self._queue.name}: {operation} failed: {error}") from None
            tally.retries += 1
            tally.deadlocks += error.sqlstate == DEADLOCK
            return None

    # --- after ----------------------------------------------------------------------------------

    def states(self) -> dict[bytes, bytes] | None:
        """The state of each job, by one more worker; None where the queue cannot say."""
        if "jobs" not in self._queue.offers:
            return None
        request = self._queue.request("jobs")
        with self._queue.spawn("the reader") as reader:
            reader.send(self._init)
            self._heard(reader)
            rows = self._read("jobs", request, reader.ask(request, waits.BULK))
        return {row.id.encode(): row.state.encode() for row in rows}


def refuse_operations(queue: WorkerQueue) -> None:
    """Refuse a queue that has nothing to complete a job with.

    Raises:
        QueueError: It is so.
    """
    if not queue.completes:
        raise QueueError(
            f"{queue.name}: bench measures from claim to completion, and its workers offer no"
            " complete"
        )


def is_many(queue: WorkerQueue, batch: int) -> bool:
    """Whether one message completes all that a claim got."""
    return "complete_many" in queue.offers and (batch > 1 or "complete" not in queue.offers)


def drive(
    pairs: Sequence[tuple[WorkerProcess, Steps]], tick: Callable[[], None] = lambda: None
) -> None:
    """Ask workers side by side, each in its own steps, until all have ended.

    Args:
        pairs: Processes, and what each is asked.
        tick: Called again and again meanwhile.

    Raises:
        QueueError: A worker died, is silent, or answers what is no answer.
    """
    pauses: list[tuple[float, int]] = []  # when they end, and whose they are
    asked: dict[int, int] = {}  # from where an answer is due, and whose it is
    left = set(range(len(pairs)))
    limit = waits.Limit(waits.STATEMENT, "a worker to answer")

    def go_on(number: int, answer: Json | None) -> None:
        process, steps = pairs[number]
        try:
            request = next(steps) if answer is None else steps.send(answer)
        except StopIteration:
            left.discard(number)
            return
        if isinstance(request, float):
            heapq.heappush(pauses, (time.monotonic() + request, number))
        else:
            process.send(request)
            asked[process.stdout] = number

    for number in range(len(pairs)):
        go_on(number, None)
    while left:
        now = time.monotonic()
        seconds = min(TICK, max(0.0, pauses[0][0] - now)) if pauses else TICK
        ready = select.select(list(asked), (), (), seconds)[0]
        for stdout in ready:
            process = pairs[asked[stdout]][0]
            process.receive()
            process.check()
            if process.answer is not None:
                go_on(asked.pop(stdout), process.take())
        now = time.monotonic()
        if ready or pauses:
            limit = waits.Limit(waits.STATEMENT, "a worker to answer")
        elif limit.is_over():
            raise WorkerError(f"no worker has answered within {waits.STATEMENT:g} s")
        while pauses and pauses[0][0] <= now:
            go_on(heapq.heappop(pauses)[1], None)
        tick()


def processor_seconds(pid: int) -> float:
    """What a process has used, all its threads; 0 where the system does not say.

    Of its clock, in nanoseconds: /proc/PID/stat counts ticks of 10 ms, and a short load is none.
    """
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # what Linux's clock_getcpuclockid(3) answers
    return 0.0
