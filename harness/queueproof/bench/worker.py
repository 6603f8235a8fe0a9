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
from array import array
from collections.abc import Mapping, MutableSequence, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias, cast

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from queueproof.bench.session import (
    AnswerColumn,
    Known,
    LoadSession,
    RejectedError,
    Retryable,
    Script,
    Steps,
    array_literal,
    processor_seconds,
    values,
)

PAUSE = 0.002  # seconds at most; what a worker waits that got nothing, drawn evenly
LATE = 0.001  # seconds; as exactly as a sleeping process wakes
PATIENCE = 10.0  # seconds; how long a completion is tried again after the load has ended
DEADLOCK = "40P01"

Jobs: TypeAlias = list[list[bytes | None]]
"""Some jobs, by the columns of `Load.token`; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The block that completes a batch and claims the next one.

    Attributes:
        script: The block.
        token: The columns of `Load.token`, where its answer has them and as what it takes them.
        completed: Where it says of a row whether that job is completed now; others are claimed.
    """

    script: Script
    token: tuple[AnswerColumn, ...]
    completed: int


@dataclass(frozen=True, slots=True)
class Load:
    """Everything that a worker has to know.

    Attributes:
        setup: SQL for a new connection.
        start: What a worker does once, before all else; no command: nothing.
        claim: The claim.
        complete: The completion, of one job or of all that a claim got; no command where the
            claim itself is the end of its jobs.
        many: Whether it is of all.
        token: Columns of the claim's answer that the completion takes; the id comes first.
        constants: Parameters of the claim that are the same for every worker.
        retry_on: SQLSTATEs after which an operation is tried again.
        jobs: How many are to be completed.
        rate: Claims per second that this worker is to begin; 0: as many as it can.
        standing: Whether there are more jobs, so that claims go on getting some.
        exchange: What completes and claims at once, in a closed loop; None: two statements do.
    """

    setup: bytes
    start: Script
    claim: Script
    complete: Script
    many: bool
    token: tuple[AnswerColumn, ...]
    constants: Mapping[str, bytes | None]
    retry_on: frozenset[str]
    jobs: int
    rate: float = 0.0
    standing: bool = False
    exchange: Exchange | None = None


@dataclass(slots=True)
class Tally:
    """What a worker did.

    Attributes:
        ids: The job of every claim, joined by newlines; a job claimed twice is there twice.
        accepted: Completions that the queue accepted.
        rejected: Those that it rejected: somebody else had taken the job over.
        empty: Claims that got nothing.
        retries: Operations that failed with an error that means "nothing this time".
        deadlocks: Those of them that were deadlocks.
        latencies: Seconds from wanting jobs to having them, retries, empty answers and a held
            transaction included, one for each claim that got some; where one statement completes
            and claims, that is all of it.
        ended: When the last completion was answered, by `time.monotonic`; 0 if none was.
        trips: Statements sent and answered.
        own_cpu: Processor seconds of this worker's process; the first of several workers has them.
        server_cpu: Those of the server's process for it; None where it is not on this machine.
        warm: Completions accepted before the measurement began.
        late: Claims that began later than they were due, by more than `LATE`.
        skipped: Claims that were due and never began, or got nothing.
    """

    ids: bytes = b""
    accepted: int = 0
    rejected: int = 0
    empty: int = 0
    retries: int = 0
    deadlocks: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ended: float = 0.0
    trips: int = 0
    own_cpu: float = 0.0
    server_cpu: float | None = None
    warm: int = 0
    late: int = 0
    skipped: int = 0


class Worker:
    """A worker under load.

    Attributes:
        tally: What it has done so far.
    """

    def __init__(
        self, session: LoadSession, load: Load, number: int, accepted: MutableSequence[int]
    ) -> None:
        """Prepare the statements, and start.

        Args:
            session: Its connection.
            load: What to do.
            number: Which worker this is; its pauses are drawn by it.
            accepted: Completions by worker; it writes its own, and reads all to see the end.

        Raises:
            RejectedError: The server rejected a statement.
        """
        self._session = session
        self._load = load
        self._number = number
        self._accepted = accepted
        self._random = random.Random(number)  # noqa: S311 - pauses, not secrets
        self._ids: list[bytes] = []
        # A name like the UUID text that workers have elsewhere, and the same in every run.
        self._own: Known = {"worker": f"00000000-0000-4000-8000-{number:012d}".encode()}
        self._wanted: Known = {**load.constants, **self._own}
        self._held: Known = dict(self._own)  # the parameters of a completion
        self.tally = Tally()
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
            except Retryable as error:
                if time.monotonic() > until:
                    message = f"start failed with {error.sqlstate} for {PATIENCE:g} s"
                    raise RejectedError(message) from None
                time.sleep(self._random.uniform(0, PAUSE))
            else:
                self._session.trips = 0  # what is counted is what jobs cost
                return

    def work(self, begin: float, until: float) -> Steps[Tally]:
        """Claim and complete until all jobs are done or the time is up.

        What is claimed by then is completed: no job is left in a worker's hands.

        Args:
            begin: When the measurement begins, by `time.monotonic`; before it is the warm-up.
            until: When to claim no more.

        Raises:
            RejectedError: The server rejected a statement.
        """
        pgconn = self._session.pgconn
        server_cpu = processor_seconds(pgconn)
        if time.monotonic() < begin:
            yield from self._at_once(begin)
            self.tally.warm = self.tally.accepted
            del self.tally.latencies[:]
        if self._load.rate:
            yield from self._on_time(begin, until)
        else:
            yield from self._at_once(until)
        if server_cpu is not None and (now_used := processor_seconds(pgconn)) is not None:
            self.tally.server_cpu = now_used - server_cpu
        self.tally.ids = b"\n".join(self._ids)
        self.tally.trips = self._session.trips
        return self.tally

    def _at_once(self, until: float) -> Steps[None]:
        """A closed loop: the next claim follows the completion."""
        if self._load.exchange:
            yield from self._exchange_at_once(self._load.exchange, until)
            return
        wanted = now = time.monotonic()
        while now < until:
            answer = yield from self.claim()
            now = time.monotonic()
            if answer is not None:
                self.tally.latencies.append(now - wanted)
                yield from self.complete(answer, until + PATIENCE)
                wanted = now = time.monotonic()
                if self._load.standing and sum(self._accepted) >= self._load.jobs:
                    break
            elif sum(self._accepted) >= self._load.jobs:
                break
            else:
                yield self._random.uniform(0, PAUSE)

    def _exchange_at_once(self, exchange: Exchange, until: float) -> Steps[None]:
        """A closed loop in which the completion is the next claim."""
        held: Jobs = []
        wanted = now = time.monotonic()
        while now < until:
            try:
                held = yield from (self._exchange(exchange, held) if held else self._first())
            except Retryable as error:
                self._count(error)
                yield self._random.uniform(0, PAUSE)
                now = time.monotonic()
                continue
            now = time.monotonic()
            if held:
                self.tally.latencies.append(now - wanted)
                wanted = now
            enough = sum(self._accepted) >= self._load.jobs
            if enough and (self._load.standing or not held):
                break
            if not held:
                yield self._random.uniform(0, PAUSE)
        if held:
            yield from self._complete(held, until + PATIENCE)

    def _first(self) -> Steps[Jobs]:
        """What a claim gets; nothing where there was nothing."""
        answer = yield from self.claim()
        return [values(answer, column.index) for column in self._load.token] if answer else []

    def _exchange(self, exchange: Exchange, held: Jobs) -> Steps[Jobs]:
        """Complete a batch, and claim the next one; nothing where there was nothing."""
        known: Known = {
            column.name: array_literal(texts, plain=column.plain)
            for column, texts in zip(exchange.token, held, strict=True)
        }
        answer, _ = yield from self._session.steps(exchange.script, known | self._wanted)
        flags = values(answer, exchange.completed) if answer else []
        claimed = [row for row, flag in enumerate(flags) if flag == b"f"]
        if len(claimed) < len(flags):
            self.tally.ended = time.monotonic()
        self._note(held[0], len(flags) - len(claimed))
        if answer is None or not claimed:
            self.tally.empty += 1
            return []
        places = [column.index for column in exchange.token]
        return [[answer.get_value(row, index) for row in claimed] for index in places]

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
            answer = None
            while answer is None and time.monotonic() < until:
                answer = yield from self.claim()
                if answer is None:
                    yield self._random.uniform(0, PAUSE)
            if answer is None:
                self.tally.skipped += 1
            else:
                self.tally.latencies.append(time.monotonic() - due)
                yield from self.complete(answer, until + PATIENCE)
            due += self._random.expovariate(self._load.rate)

    def claim(self) -> Steps[PGresult | None]:
        """Claim once; None if there was nothing, or nothing this time."""
        try:
            answer, _ = yield from self._session.steps(self._load.claim, self._wanted.copy())
        except Retryable as error:
            self._count(error)
            return None
        if answer is None:
            self.tally.empty += 1
        return answer

    def complete(self, answer: PGresult, until: float) -> Steps[None]:
        """Complete what a claim got.

        Args:
            answer: The claim's.
            until: When to give up trying again, by `time.monotonic`.
        """
        held = [values(answer, column.index) for column in self._load.token]
        yield from self._complete(held, until)

    def _complete(self, held: Jobs, until: float) -> Steps[None]:
        token, known = self._load.token, self._held
        if not self._load.complete.commands:
            self.tally.ended = time.monotonic()
            self._note(held[0], len(held[0]))
            return
        done = 0
        try:
            if self._load.many:
                for column, texts in zip(token, held, strict=True):
                    known[column.name] = array_literal(texts, plain=column.plain)
                known |= self._own
                done = yield from self._finish(known, until)
            else:
                for job in zip(*held, strict=True):
                    for column, text in zip(token, job, strict=True):
                        known[column.name] = text
                    known |= self._own
                    done += (yield from self._finish(known, until)) > 0
        except Retryable:
            return  # the claim was its transaction, and is undone with it
        self._note(held[0], done)

    def _note(self, ids: list[bytes | None], done: int) -> None:
        """Note what a claim got, and how much of it is completed."""
        self._ids += [text or b"" for text in ids]
        self.tally.accepted += done
        self.tally.rejected += len(ids) - done
        self._accepted[self._number] += done

    def _finish(self, known: Known, until: float) -> Steps[int]:
        """Complete; how many jobs of those were accepted."""
        held = self._session.pgconn.transaction_status != pq.TransactionStatus.IDLE
        while True:
            try:
                done, changed = yield from self._session.steps(self._load.complete, known)
            except Retryable as error:
                self._count(error)
                if held:
                    raise
                if time.monotonic() > until:
                    return 0
                yield self._random.uniform(0, PAUSE)
            else:
                self.tally.ended = time.monotonic()
                if self._load.complete.counts:
                    return changed
                return done.ntuples if done else 0

    def _count(self, error: Retryable) -> None:
        self.tally.retries += 1
        self.tally.deadlocks += error.sqlstate == DEADLOCK


def together(pairs: Sequence[tuple[LoadSession, Steps[Tally]]]) -> list[Tally]:
    """Drive workers side by side, each over its connection, until all have ended.

    Args:
        pairs: Connections, and what is done over each.

    Raises:
        RejectedError: The server rejected a statement, or a connection broke.
    """
    if len(pairs) == 1:
        ((session, steps),) = pairs
        return [session.perform(steps)]  # libpq waits by itself, which costs less
    tallies: dict[int, Tally] = {}
    numbers = {session.pgconn.socket: number for number, (session, _) in enumerate(pairs)}
    last: list[PGresult | None] = [None] * len(pairs)
    asking = [False] * len(pairs)
    pauses: list[tuple[float, int]] = []  # when they end, and whose they are
    answers = select.poll()
    for socket in numbers:
        answers.register(socket, select.POLLIN)

    def go_on(number: int, answer: PGresult | None) -> None:
        session, steps = pairs[number]
        asking[number] = True
        try:
            asked = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            tallies[number] = cast("Tally", end.value)
            answers.unregister(session.pgconn.socket)
            return
        if type(asked) is tuple:
            session.pgconn.send_query_prepared(*asked)
        elif type(asked) is bytes:
            session.pgconn.send_query(asked)
        else:
            asking[number] = False
            heapq.heappush(pauses, (time.monotonic() + cast("float", asked), number))

    try:
        for number in range(len(pairs)):
            go_on(number, None)
        while len(tallies) < len(pairs):
            if pauses:
                waiting = [socket for socket, n in numbers.items() if n not in tallies]
                ready = _readable(waiting, pauses[0][0])
                now = time.monotonic()
                while pauses and pauses[0][0] <= now:
                    go_on(heapq.heappop(pauses)[1], None)
            else:
                ready = [socket for socket, _ in answers.poll()]
            for socket in ready:
                number = numbers[socket]
                pgconn = pairs[number][0].pgconn
                pgconn.consume_input()
                while asking[number] and not pgconn.is_busy():
                    result = pgconn.get_result()
                    if result is None:
                        answer, last[number] = last[number], None
                        if answer is None:
                            raise RejectedError("the server closed the connection")
                        go_on(number, answer)
                        break
                    last[number] = result
    except psycopg.OperationalError as error:
        raise RejectedError(str(error).strip()) from None
    return [tallies[number] for number in range(len(pairs))]


def _readable(sockets: Sequence[int], until: float) -> list[int]:
    """Which can be read, as soon as one can or the time has come."""
    # To the microsecond, by select(2): poll(2) counts in milliseconds.
    return select.select(sockets, (), (), max(0.0, until - time.monotonic()))[0]


class Order(NamedTuple):
    """What the parent asks of a process: to connect and prepare; the times follow at the start."""

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
            except RejectedError as error:
                pipe.send(str(error))
            gc.collect()


def _obey(pipe: Connection, order: Order, accepted: MutableSequence[int]) -> None:
    load = order.load
    with ExitStack() as connections:
        workers = []
        for number in order.numbers:
            session = LoadSession(order.conninfo, load.setup, load.retry_on)
            connections.callback(session.pgconn.finish)
            workers.append((session, Worker(session, load, number, accepted)))
        pipe.send(None)
        times = pipe.recv()
        before = time.process_time()
        tallies = together([(session, worker.work(*times)) for session, worker in workers])
        tallies[0].own_cpu = time.process_time() - before
        pipe.send(tallies)
