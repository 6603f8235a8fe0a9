"""Workers of a load: claim, complete, again, until there is no more.

Each has a connection of its own; a process drives several of them, as pgbench's threads do its
clients, so that a machine with few cores is busy with the queue and not with changing processes.
"""

from __future__ import annotations

import gc
import heapq
import random
import select
import signal
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Generator, Mapping, MutableSequence, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import pq

from queueproof import waits
from queueproof.bench.session import Field, Known, LoadSession, Retryable, Script, Steps, values
from queueproof.errors import QueueError, QueueproofError

TICK = 0.05  # seconds between two looks at the server while a load runs
PAUSE = 0.002  # seconds at most; what a worker waits that got nothing, drawn evenly
LATE = 0.001  # seconds; as exactly as a sleeping process wakes
PATIENCE = 10.0  # seconds; how long a completion is tried again after the load has ended
DEADLOCK = "40P01"
# Of a worker: like the UUID text that workers have elsewhere, and the same in every run.
NAME = "00000000-0000-4000-8000-{:012d}"

Jobs: TypeAlias = list[list[bytes | None]]
"""Some jobs, by the columns of `Load.token`; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The block that completes a batch and claims the next one."""

    script: Script
    token: tuple[Field, ...]  # columns of `Load.token`: where it answers each, and takes it
    completed: int  # where it says of a row whether that job is completed now; others are claimed


@dataclass(frozen=True, slots=True)
class Load:
    """The blocks of a queue that a measurement takes, and what a worker has to know of it."""

    setup: bytes  # SQL for a new connection
    start: Script  # what a worker does once, before all else; no command: nothing
    claim: Script
    complete: Script  # no command where the claim itself is the end of its jobs
    many: bool  # whether it is of all that a claim got
    token: tuple[Field, ...]  # columns of the claim's answer that it takes; the id comes first
    constants: Mapping[str, bytes | None]  # parameters that are the same for every worker
    retry_on: frozenset[str]  # SQLSTATEs after which an operation is tried again
    enqueue: Script
    enqueue_id: int  # where the id stands in the answer of enqueue
    promote: Script  # for what was put in; no command where the queue does not offer it
    observed: Script  # what the table says at the end; no command where the queue does not offer it
    observed_columns: Sequence[int]  # where id and state stand in that answer
    states: Mapping[bytes, bytes]  # what the queue's own names of states stand for
    exchange: Exchange | None = None  # for a closed loop; None: two statements do the same
    jobs: int = 0  # how many are to be completed
    rate: float = 0.0  # claims per second that this worker is to begin; 0: as many as it can
    standing: bool = False  # whether there are more jobs, so that claims go on getting some
    warm_up: float = 0.0  # seconds of the same before what is measured, of which only counts remain


@dataclass(slots=True)
class Tally:
    """The work of one worker; what is counted has the name that it has in `Measured`."""

    ids: list[bytes] = field(default_factory=list)  # a job claimed twice is there twice
    accepted: int = 0  # completions that the queue accepted
    # Seconds from wanting jobs to having them, retries, empty answers and a held transaction
    # included, one for each claim that got some; where one statement completes and claims, that is
    # all of it
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ended: float = 0.0  # when the last completion was answered, by `time.monotonic`; 0 if none was
    rejected: int = 0
    empty: int = 0
    retries: int = 0
    deadlocks: int = 0
    round_trips: int = 0
    worker_cpu: float = 0.0  # of this worker's process; the first of several workers has them
    server_cpu: float | None = None
    warm: int = 0
    late: int = 0
    skipped: int = 0


class Worker(ABC):
    """A worker under load."""

    def __init__(
        self, number: int, jobs: int, accepted: MutableSequence[int], *, standing: bool = False
    ) -> None:
        self.tally = Tally()  # what it has done so far
        self._number = number
        self._jobs = jobs  # how many are to be completed, by all
        self._accepted = accepted  # by worker; it writes its own, and reads all to see the end
        self._standing = standing  # whether there are more jobs, so that claims go on getting some
        self._random = random.Random(number)  # noqa: S311 - pauses, not secrets

    @abstractmethod
    def claim(self) -> Generator[Any, Any, Any]:
        """Claim once; what it got, which is nothing where there was nothing this time."""

    @abstractmethod
    def complete(self, held: Any, until: float) -> Generator[Any, Any, None]:  # noqa: ANN401 - its own
        """Complete what a claim got; by `time.monotonic` it is tried again until then."""

    def _at_once(self, until: float) -> Generator[Any, Any, None]:
        """A closed loop: the next claim follows the completion."""
        wanted = now = time.monotonic()
        while now < until:
            held = yield from self.claim()
            now = time.monotonic()
            if held:
                self.tally.latencies.append(now - wanted)
                yield from self.complete(held, until + PATIENCE)
                wanted = now = time.monotonic()
            if (self._standing or not held) and sum(self._accepted) >= self._jobs:
                break
            if not held:
                yield self._pause()

    def _pause(self) -> float:
        return self._random.uniform(0, PAUSE)

    def _note(self, ids: Sequence[bytes | None], done: int) -> None:
        """Note what a claim got, and how much of it is completed."""
        self.tally.ids += [text or b"" for text in ids]
        self.tally.accepted += done
        self.tally.rejected += len(ids) - done
        self._accepted[self._number] += done

    def _count(self, sqlstate: str) -> None:
        """Count an error that means "nothing this time"."""
        self.tally.retries += 1
        self.tally.deadlocks += sqlstate == DEADLOCK


class SqlWorker(Worker):
    """A worker that sends the statements of a queue file."""

    def __init__(
        self, session: LoadSession, load: Load, number: int, accepted: MutableSequence[int]
    ) -> None:
        """Prepare the statements of a load over its connection, and start; else as `Worker`."""
        super().__init__(number, load.jobs, accepted, standing=load.standing)
        self._session = session
        self._load = load
        self._own: Known = {"worker": NAME.format(number).encode()}
        self._wanted: Known = {**load.constants, **self._own}
        self._kept: Jobs = []  # what the next claim completes
        session.prepare(load.start)
        self._start()
        session.prepare(load.claim)
        session.prepare(load.complete)
        if load.exchange:
            session.prepare(load.exchange.script)

    def _start(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._session.run(self._load.start, self._own.copy())
                break
            except Retryable as error:
                if time.monotonic() > until:
                    raise QueueError(f"start failed with {error} for {PATIENCE:g} s") from None
                time.sleep(self._pause())
        self._session.trips = 0  # what is counted is what jobs cost

    def work(self, begin: float, until: float) -> Steps[Tally]:
        """Claim and complete until all jobs are done or the time is up.

        What is claimed by then is completed: no job is left in a worker's hands. Both times are
        of `time.monotonic`; before the beginning is the warm-up.
        """
        server_cpu = self._session.server_seconds()
        if time.monotonic() < begin:
            yield from self._at_once(begin)
            self.tally.warm = self.tally.accepted
            del self.tally.latencies[:]
        if self._load.rate:
            yield from self._on_time(begin, until)
        else:
            yield from self._at_once(until)
        if server_cpu is not None and (now_used := self._session.server_seconds()) is not None:
            self.tally.server_cpu = now_used - server_cpu
        self.tally.round_trips = self._session.trips
        return self.tally

    def _at_once(self, until: float) -> Steps[None]:
        """The same; what no further claim completes is completed in the end."""
        yield from super()._at_once(until)
        if self._kept:
            kept, self._kept = self._kept, []
            yield from self._complete(kept, until + PATIENCE)

    def _on_time(self, begin: float, until: float) -> Steps[None]:
        """An open loop: claims are due at random times, and whoever is late has waited since then.

        Latencies count from when a claim was due, so that a stall meets every claim that it held
        up, not only the one that it began with (coordinated omission).
        """
        due = begin + self._random.expovariate(self._load.rate)
        while due < until:
            now = time.monotonic()
            if now < due:
                yield due - now
            self.tally.late += now > due + LATE
            held: Jobs = []
            while not held and time.monotonic() < until:
                held = yield from self.claim()
                if not held:
                    yield self._pause()
            self.tally.skipped += not held
            if held:
                self.tally.latencies.append(time.monotonic() - due)
                yield from self.complete(held, until + PATIENCE)
            due += self._random.expovariate(self._load.rate)

    def claim(self) -> Steps[Jobs]:
        """Claim once, and complete by that what is kept; nothing where there was nothing."""
        kept, exchange = self._kept, self._load.exchange
        try:
            if kept and exchange:
                return (yield from self._exchange(exchange, kept))
            answer, _ = yield from self._session.steps(self._load.claim, self._wanted.copy())
        except Retryable as error:
            self._count(str(error))
            return []
        if answer is None:
            self.tally.empty += 1
            return []
        return [values(answer, column.place) for column in self._load.token]

    def _exchange(self, exchange: Exchange, kept: Jobs) -> Steps[Jobs]:
        """Complete a batch, and claim the next one, by one statement."""
        known = _as_arrays(exchange.token, kept)
        answer, _ = yield from self._session.steps(exchange.script, known | self._wanted)
        self._kept = []
        flags = values(answer, exchange.completed) if answer else []
        claimed = [row for row, flag in enumerate(flags) if flag == b"f"]
        if len(claimed) < len(flags):
            self.tally.ended = time.monotonic()
        self._note(kept[0], len(flags) - len(claimed))
        if answer is None or not claimed:
            self.tally.empty += 1
            return []
        places = [column.place for column in exchange.token]
        return [[answer.get_value(row, index) for row in claimed] for index in places]

    def complete(self, held: Jobs, until: float) -> Steps[None]:
        """Complete what a claim got, or keep it for the next one."""
        if self._load.exchange:
            self._kept = held
        else:
            yield from self._complete(held, until)

    def _complete(self, held: Jobs, until: float) -> Steps[None]:
        token, many = self._load.token, self._load.many
        if not self._load.complete.commands:
            self.tally.ended = time.monotonic()
            self._note(held[0], len(held[0]))
            return
        names = [column.name for column in token]
        each = (dict(zip(names, job, strict=True)) for job in zip(*held, strict=True))
        done = 0
        try:
            for known in [_as_arrays(token, held)] if many else each:
                accepted = yield from self._finish(known | self._own, until)
                done += accepted if many else accepted > 0
        except Retryable:
            return  # the claim was its transaction, and is undone with it
        self._note(held[0], done)

    def _finish(self, known: Known, until: float) -> Steps[int]:
        """Complete; how many jobs of those were accepted."""
        held = self._session.pgconn.transaction_status != pq.TransactionStatus.IDLE
        while True:
            try:
                done, changed = yield from self._session.steps(self._load.complete, known)
            except Retryable as error:
                self._count(str(error))
                if held:
                    raise
                if time.monotonic() > until:
                    return 0
                yield self._pause()
            else:
                self.tally.ended = time.monotonic()
                if self._load.complete.counts:
                    return changed
                return done.ntuples if done else 0


def _as_arrays(columns: Sequence[Field], jobs: Jobs) -> Known:
    """Jobs as the parameters of a block that takes several at once."""
    pairs = zip(columns, jobs, strict=True)
    return {column.name: column.array_of(texts) for column, texts in pairs}


class Link(NamedTuple):
    """The link over which somebody is asked."""

    descriptor: int  # on which answers come
    send: Callable[[Any], None]
    receive: Callable[[], Any]  # None where not all of the answer is there yet


def drive(
    pairs: Sequence[tuple[Link, Generator[Any, Any, Any]]], tick: Callable[[], None] = lambda: None
) -> list[Any]:
    """Go through steps side by side, each over its link, until all have ended; what each came to.

    `tick` is called again and again meanwhile. Where nobody answers for so long as a statement may
    take, that is a QueueError.
    """
    ended: dict[int, Any] = {}
    pauses: list[tuple[float, int]] = []  # when they end, and whose they are
    due: dict[int, int] = {}  # from where an answer is due, and whose it is
    silence: waits.Limit | None = None

    def go_on(number: int, answer: object) -> None:
        link, steps = pairs[number]
        try:
            asked = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            ended[number] = end.value
            return
        if isinstance(asked, float):
            heapq.heappush(pauses, (time.monotonic() + asked, number))
        else:
            link.send(asked)
            due[link.descriptor] = number

    for number in range(len(pairs)):
        go_on(number, None)
    while len(ended) < len(pairs):
        pause = pauses[0][0] - time.monotonic() if pauses else TICK
        # To the microsecond, by select(2): poll(2) counts in milliseconds.
        ready = select.select(list(due), (), (), min(TICK, max(0.0, pause)))[0]
        for descriptor in ready:
            answer = pairs[due[descriptor]][0].receive()
            if answer is not None:
                go_on(due.pop(descriptor), answer)
        if ready or pauses:
            silence = None
        elif silence is None:
            silence = waits.Limit(waits.STATEMENT, "a worker to answer")
        elif silence.is_over():
            raise QueueError(f"no worker has answered within {waits.STATEMENT:g} s")
        now = time.monotonic()
        while pauses and pauses[0][0] <= now:
            go_on(heapq.heappop(pauses)[1], None)
        tick()
    return [ended[number] for number in range(len(pairs))]


class Order(NamedTuple):
    """The parent's order to a process: to connect and prepare; the times follow at the start."""

    conninfo: str
    load: Load
    numbers: Sequence[int]  # of its workers


def main(pipe: Connection, accepted: MutableSequence[int]) -> None:
    """Run as a process: take orders from a pipe until it is closed.

    An order is answered by None when all is prepared, the times that follow, of the measurement's
    beginning and end, are answered by Tallies; what went wrong is answered as its message instead.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes the pipe
    gc.disable()
    with suppress(EOFError, OSError):  # the parent is gone, or wants no more
        while True:
            order: Order = pipe.recv()
            try:
                _obey(pipe, order, accepted)
            except (QueueproofError, psycopg.OperationalError) as error:
                pipe.send(str(error).strip())
            gc.collect()


def _obey(pipe: Connection, order: Order, accepted: MutableSequence[int]) -> None:
    load = order.load
    with ExitStack() as connections:
        workers = []
        for number in order.numbers:
            session = LoadSession(order.conninfo, load.setup, load.retry_on)
            connections.enter_context(closing(session))
            workers.append((session, SqlWorker(session, load, number, accepted)))
            session.pgconn.nonblocking = 0  # whoever sends under load waits until all is sent
        pipe.send(None)
        times = pipe.recv()
        before = time.process_time()
        pairs = [(session, worker.work(*times)) for session, worker in workers]
        if len(pairs) == 1:
            tallies = [session.perform(steps, blocking=True) for session, steps in pairs]
        else:
            tallies = drive([(Link(s.pgconn.socket, s.send, s.receive), of) for s, of in pairs])
        tallies[0].worker_cpu = time.process_time() - before
        pipe.send(tallies)
