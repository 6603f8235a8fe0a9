"""One worker of a load, in a process of its own: claim, complete, again, until there is no more.

The fast path: statements prepared once on a bare libpq connection, values passed back as the text
in which they came, nothing parsed that completion does not need. psycopg's own cursor reaches two
thirds to nine tenths of this. The module imports no more than it runs: many processes start it.
"""

from __future__ import annotations

import gc
import random
import signal
import time
from array import array
from collections.abc import Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias, cast

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

PAUSE = 0.002  # seconds at most; what a worker waits that got nothing, drawn evenly
PATIENCE = 10.0  # seconds; how long a completion is tried again after the load has ended
DEADLOCK = "40P01"
_CHANGES = frozenset({b"INSERT", b"UPDATE", b"DELETE", b"MERGE"})

Known: TypeAlias = dict[str, bytes | None]  # parameters by name, in PostgreSQL's text form


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer that something later needs.

    Attributes:
        index: Its place in the row.
        name: The parameter that it becomes.
        plain: Whether its values need no quotes inside an array (numbers, UUIDs).
    """

    index: int
    name: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One statement as it is prepared and executed.

    Attributes:
        name: Of the prepared statement.
        sql: With `$1` to `$n`.
        types: Their types' oids.
        parameters: Their names.
        arrays: Columns of its answer that later commands of the block take as arrays.
        where: Its place in the queue file, for messages.
        wait: Seconds that the client waits before it sends this.
    """

    name: bytes
    sql: bytes
    types: tuple[int, ...]
    parameters: tuple[str, ...]
    arrays: tuple[Column, ...] = ()
    where: str = ""
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Script:
    """A block of a queue file, ready to run.

    Attributes:
        commands: Its steps.
        counts: Whether the answer is the count of rows affected (`!`), not rows.
    """

    commands: tuple[Command, ...]
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Everything that a worker has to know.

    Attributes:
        setup: SQL for a new connection.
        claim: The claim.
        complete: The completion, of one job or of all that a claim got.
        many: Whether it is of all.
        token: Columns of the claim's answer that the completion takes; the id comes first.
        constants: Parameters of the claim that are the same for every worker.
        retry_on: SQLSTATEs after which an operation is tried again.
        jobs: How many there are.
    """

    setup: bytes
    claim: Script
    complete: Script
    many: bool
    token: tuple[Column, ...]
    constants: Mapping[str, bytes | None]
    retry_on: frozenset[str]
    jobs: int


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
            transaction included, one for each claim that got some.
        ended: When the last completion was answered, by `time.monotonic`; 0 if none was.
    """

    ids: bytes = b""
    accepted: int = 0
    rejected: int = 0
    empty: int = 0
    retries: int = 0
    deadlocks: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ended: float = 0.0


class RejectedError(Exception):
    """The server rejected a statement, for a reason that trying again does not mend."""


class Retryable(Exception):  # noqa: N818 - an answer of the queue's, not a failure
    """The server answered "nothing this time"."""

    def __init__(self, sqlstate: str) -> None:
        """Keep the SQLSTATE."""
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Session:
    """A connection that runs scripts; it waits for the server, however long.

    Attributes:
        pgconn: The connection.
    """

    def __init__(self, conninfo: str, setup: bytes, retry_on: frozenset[str] = frozenset()) -> None:
        """Connect.

        Args:
            conninfo: Where to.
            setup: SQL to begin with.
            retry_on: SQLSTATEs that raise Retryable.

        Raises:
            RejectedError: The server does not let us in, or rejects the setup.
        """
        self.pgconn: PGconn = self._connect(conninfo)
        if self.pgconn.status != pq.ConnStatus.OK:
            raise RejectedError(self.pgconn.get_error_message())
        self._retry_on = retry_on
        self.command(setup)

    def _connect(self, conninfo: str) -> PGconn:
        return pq.PGconn.connect(conninfo.encode())

    def _execute(self, sql: bytes) -> PGresult:
        return self.pgconn.exec_(sql)

    def _prepare(self, command: Command) -> PGresult:
        return self.pgconn.prepare(command.name, command.sql, command.types)

    def _execute_prepared(self, name: bytes, sent: list[bytes]) -> PGresult:
        return self.pgconn.exec_prepared(name, sent)

    def command(self, sql: bytes) -> None:
        """Execute statements that have no parameters."""
        self.check(self._execute(sql), "")

    def prepare(self, script: Script) -> None:
        """Prepare every command of a script.

        Raises:
            RejectedError: The server rejected one.
        """
        for command in script.commands:
            prepared = self._prepare(command)
            self.check(prepared, command.where)

    def run(self, script: Script, known: Known) -> tuple[PGresult | None, int]:
        """Run a script step by step, by the rules for blocks of several statements.

        Args:
            script: What to run.
            known: Its parameters; arrays of earlier steps are added to them.

        Returns:
            The answer with the last columns, None where there is none or a step without rows cut
            the block short; and the rows affected by the last statement that changed data.

        Raises:
            Retryable: An error that means "nothing this time"; the transaction is rolled back.
            RejectedError: Any other error.
        """
        pgconn = self.pgconn
        answer: PGresult | None = None
        changed = 0
        for command in script.commands:
            if command.wait:
                time.sleep(command.wait)
            # None is NULL, which psycopg's annotation of this one method leaves out.
            sent = cast("list[bytes]", [known[name] for name in command.parameters])
            result = self._execute_prepared(command.name, sent)
            if result.status == pq.ExecStatus.COMMAND_OK:
                changed = _changed(result, changed)
                continue
            self.check(result, command.where)
            changed = _changed(result, changed)
            answer = result
            if not result.ntuples:
                if pgconn.transaction_status != pq.TransactionStatus.IDLE:
                    self.command(b"ROLLBACK")
                    return None, 0
                last = command is script.commands[-1]
                return None, changed if last else 0
            for column in command.arrays:
                known[column.name] = array_literal(values(result, column.index), plain=column.plain)
        return answer, changed

    def check(self, result: PGresult, where: str) -> None:
        """Raise for an answer that is an error.

        Args:
            result: The answer.
            where: Place in the queue file, for the message.

        Raises:
            Retryable: It means "nothing this time"; the transaction is rolled back.
            RejectedError: Any other error.
        """
        if result.status in {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK}:
            return
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006").decode()
        if state in self._retry_on and self.pgconn.status == pq.ConnStatus.OK:
            if self.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                self._execute(b"ROLLBACK")
            raise Retryable(state)
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"the connection broke"
        raise RejectedError(f"{where}: {message.decode()} ({state})".removeprefix(": "))


def _changed(result: PGresult, before: int) -> int:
    """Rows affected, if this was a statement that changes data."""
    command, _, _ = (result.command_status or b"").partition(b" ")
    return result.command_tuples or 0 if command in _CHANGES else before


def values(result: PGresult, index: int) -> list[bytes | None]:
    """A column of an answer."""
    return [result.get_value(row, index) for row in range(result.ntuples)]


def array_literal(texts: Sequence[bytes | None], *, plain: bool) -> bytes:
    """PostgreSQL's text form of an array (manual, 8.15.6).

    Args:
        texts: The elements' own text forms.
        plain: Whether they need no quotes.
    """
    if plain and None not in texts:
        return b"{" + b",".join(cast("Sequence[bytes]", texts)) + b"}"
    return b"{" + b",".join(map(_quoted, texts)) + b"}"


def _quoted(text: bytes | None) -> bytes:
    if text is None:
        return b"NULL"
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


class Worker:
    """A worker under load.

    Attributes:
        tally: What it has done so far.
    """

    def __init__(
        self, session: Session, load: Load, number: int, accepted: MutableSequence[int]
    ) -> None:
        """Prepare the statements.

        Args:
            session: Its connection.
            load: What to do.
            number: Which worker this is; its pauses are drawn by it.
            accepted: Completions by worker; it writes its own, and reads all to see the end.
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
        self.tally = Tally()
        session.prepare(load.claim)
        session.prepare(load.complete)

    def work(self, until: float) -> Tally:
        """Claim and complete until all jobs are done or the time is up.

        What is claimed by then is completed: no job is left in a worker's hands.

        Args:
            until: When to claim no more, by `time.monotonic`.

        Raises:
            RejectedError: The server rejected a statement.
        """
        wanted = now = time.monotonic()
        while now < until:
            answer = self._claim()
            now = time.monotonic()
            if answer is not None:
                self.tally.latencies.append(now - wanted)
                self._complete(answer, until + PATIENCE)
                wanted = now = time.monotonic()
            elif sum(self._accepted) >= self._load.jobs:
                break
            else:
                time.sleep(self._random.uniform(0, PAUSE))
        self.tally.ids = b"\n".join(self._ids)
        return self.tally

    def _claim(self) -> PGresult | None:
        try:
            answer, _ = self._session.run(self._load.claim, self._wanted.copy())
        except Retryable as error:
            self._count(error)
            return None
        if answer is None:
            self.tally.empty += 1
        return answer

    def _complete(self, answer: PGresult, until: float) -> None:
        token = self._load.token
        columns = [values(answer, column.index) for column in token]
        done = 0
        try:
            if self._load.many:
                known: Known = {
                    c.name: array_literal(texts, plain=c.plain)
                    for c, texts in zip(token, columns, strict=True)
                }
                done = self._finish({**known, **self._own}, until)
            else:
                names = [column.name for column in token]
                for row in zip(*columns, strict=True):
                    known = {**dict(zip(names, row, strict=True)), **self._own}
                    done += self._finish(known, until) > 0
        except Retryable:
            return  # the claim was its transaction, and is undone with it
        self._ids += [text or b"" for text in columns[0]]
        self.tally.accepted += done
        self.tally.rejected += answer.ntuples - done
        self._accepted[self._number] += done

    def _finish(self, known: Known, until: float) -> int:
        """Complete; how many jobs of those were accepted."""
        held = self._session.pgconn.transaction_status != pq.TransactionStatus.IDLE
        while True:
            try:
                done, changed = self._session.run(self._load.complete, known)
            except Retryable as error:
                self._count(error)
                if held:
                    raise
                if time.monotonic() > until:
                    return 0
                time.sleep(self._random.uniform(0, PAUSE))
            else:
                self.tally.ended = time.monotonic()
                if self._load.complete.counts:
                    return changed
                return done.ntuples if done else 0

    def _count(self, error: Retryable) -> None:
        self.tally.retries += 1
        self.tally.deadlocks += error.sqlstate == DEADLOCK


class Order(NamedTuple):
    """What the parent asks of a worker: to connect and prepare; `until` follows at the start."""

    conninfo: str
    load: Load


def main(pipe: Connection, number: int, accepted: MutableSequence[int]) -> None:
    """Run as a process: take orders from a pipe until it is closed.

    An order is answered by None when all is prepared, the time of the end that follows is
    answered by a Tally; what went wrong is answered as its message instead.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes the pipe
    gc.disable()
    with suppress(EOFError, OSError):  # the parent is gone, or wants no more
        while True:
            order: Order = pipe.recv()
            try:
                _obey(pipe, order, number, accepted)
            except RejectedError as error:
                pipe.send(str(error))
            gc.collect()


def _obey(pipe: Connection, order: Order, number: int, accepted: MutableSequence[int]) -> None:
    session = Session(order.conninfo, order.load.setup, order.load.retry_on)
    try:
        worker = Worker(session, order.load, number, accepted)
        pipe.send(None)
        pipe.send(worker.work(pipe.recv()))
    finally:
        session.pgconn.finish()
