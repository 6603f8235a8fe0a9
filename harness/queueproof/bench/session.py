"""A bare libpq connection that runs a queue's blocks as prepared statements, and parses little.

Statements are prepared once, values passed back as the text in which they came. psycopg's own
cursor reaches two thirds to nine tenths of this. The module imports no more than it runs: many
processes start it.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar, cast

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from queueproof import waits
from queueproof.errors import QueueError
from queueproof.queues.model import array_literal

_CHANGES = frozenset({b"INSERT", b"UPDATE", b"DELETE", b"MERGE"})
_DONE, _ROWS = int(pq.ExecStatus.COMMAND_OK), int(pq.ExecStatus.TUPLES_OK)  # compared often
# Types whose values need no quotes inside an array: int8, int2, int4, oid, float4, float8, uuid.
_PLAIN = frozenset({20, 21, 23, 26, 700, 701, 2950})
SHOWN = 60  # characters of a statement in a message

T = TypeVar("T")
Known: TypeAlias = dict[str, bytes | None]  # parameters by name, in PostgreSQL's text form
Prepared: TypeAlias = tuple[bytes, list[bytes | None]]  # a statement's name, and its parameters
Asked: TypeAlias = Prepared | bytes
Steps: TypeAlias = Generator[Asked | float, PGresult, T]
"""A worker's steps, each up to where it waits: for a statement's answer, or for some seconds.

Whoever drives it decides whether anything else goes on meanwhile.
"""


class Field(NamedTuple):
    """A column of an answer, as the server describes it."""

    place: int  # its place in the row
    name: str  # its name, or that of the parameter that it becomes
    oid: int
    array: int  # of the array of that

    def renamed(self, suffix: str) -> Field:
        """The same as a parameter that has another name than the column."""
        return self._replace(name=self.name + suffix)

    def array_of(self, texts: Sequence[bytes | None]) -> bytes:
        """Some of its values as an array."""
        if self.oid in _PLAIN and None not in texts:
            return b"{" + b",".join(cast("Sequence[bytes]", texts)) + b"}"
        return array_literal(texts)


@dataclass(frozen=True, slots=True)
class Command:
    """One statement as it is prepared and executed."""

    name: bytes  # of the prepared statement
    sql: bytes  # with `$1` to `$n`
    types: tuple[int, ...]
    parameters: tuple[str, ...]
    arrays: tuple[Field, ...] = ()  # of its answer, which later commands take as arrays
    where: str = ""  # its place in the queue file, for messages
    wait: float = 0.0  # seconds that the client waits before it sends this
    otherwise: bool = False  # whether it is sent only where the one before it answered no row


@dataclass(frozen=True, slots=True)
class Script:
    """A block of a queue file, ready to run."""

    commands: tuple[Command, ...]
    counts: bool = False  # whether the answer is the count of rows affected (`!`), not rows


class RejectedError(QueueError):
    """The server rejected a statement, for a reason that trying again does not mend."""


class Retryable(Exception):  # noqa: N818 - an answer of the queue's, not a failure
    """The server answered "nothing this time", by an SQLSTATE, which is all that it says."""


class LoadSession:
    """A connection that runs scripts; no answer is waited for longer than `waits.BULK`."""

    def __init__(self, conninfo: str, setup: bytes, retry_on: frozenset[str] = frozenset()) -> None:
        """Connect, and begin with some SQL; SQLSTATEs in `retry_on` raise Retryable.

        A RejectedError says that the server does not let us in, or rejects the setup.
        """
        try:
            self.pgconn = waits.connect(conninfo)
        except psycopg.OperationalError as error:
            raise RejectedError(str(error)) from None
        self.trips = 0  # how many statements scripts have sent
        self._retry_on = retry_on
        self._last: PGresult | None = None  # of the answer that is coming
        self.command(setup)

    def close(self) -> None:
        """Close the connection."""
        self.pgconn.finish()

    def send(self, asked: Asked) -> None:
        """Ask, and wait for no answer."""
        if type(asked) is tuple:
            self.pgconn.send_query_prepared(*asked)
        else:
            self.pgconn.send_query(cast("bytes", asked))

    def receive(self) -> PGresult | None:
        """The answer to what was sent; None where not all of it is there yet."""
        self.pgconn.consume_input()
        while not self.pgconn.is_busy():
            result = self.pgconn.get_result()
            if result is None:
                answer, self._last = self._last, None
                return _unless_closed(answer)
            self._last = result
        return None

    def _answer(self, sql: bytes) -> PGresult:
        what = f"PostgreSQL to answer {textwrap.shorten(sql.decode(), SHOWN)}"
        return _unless_closed(waits.answer(self.pgconn, waits.BULK, what))

    def command(self, sql: bytes) -> None:
        """Execute statements that have no parameters."""
        self.send(sql)
        self.check(self._answer(sql))

    def prepare(self, script: Script) -> None:
        """Prepare every command of a script."""
        for command in script.commands:
            self.pgconn.send_prepare(command.name, command.sql, command.types)
            self.check(self._answer(command.sql), command.where)

    def run(self, script: Script, known: Known) -> tuple[PGresult | None, int]:
        """Run a script, and wait for each answer; `steps` says more."""
        return self.perform(self.steps(script, known))

    def perform(self, steps: Steps[T], *, blocking: bool = False) -> T:
        """Go through steps to their end; `blocking`: libpq waits, endlessly, and costs less."""
        try:
            asked = next(steps)
            while True:
                if isinstance(asked, float):
                    time.sleep(asked)
                    asked = next(steps)
                elif not blocking:
                    self.send(asked)
                    name = asked[0] if isinstance(asked, tuple) else asked
                    asked = steps.send(self._answer(name))
                elif type(asked) is tuple:
                    # None is NULL, which psycopg's annotation of this one method leaves out.
                    asked = steps.send(self.pgconn.exec_prepared(*asked))  # type: ignore[arg-type]
                else:
                    asked = steps.send(self.pgconn.exec_(cast("bytes", asked)))
        except StopIteration as end:
            return cast("T", end.value)

    def steps(self, script: Script, known: Known) -> Steps[tuple[PGresult | None, int]]:
        """Go through a script, by the rules for blocks of several statements.

        Arrays of earlier steps are added to the parameters that are known. After an error that
        means "nothing this time" the transaction is rolled back, and Retryable raised. Returned is
        the answer with the last columns, None where there is none or a step without rows cut the
        block short, and the rows affected by the last that changed data, where that is counted.
        """
        answer: PGresult | None = None
        changed = 0
        answered = True
        for command, following in zip_longest(script.commands, script.commands[1:]):
            if command.otherwise and answered:
                continue
            if command.wait:
                yield command.wait
            result = yield command.name, [known[name] for name in command.parameters]
            self.trips += 1
            status = result.status
            if status not in {_DONE, _ROWS}:
                try:
                    self.check(result, command.where)
                except Retryable:
                    if self.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                        yield b"ROLLBACK"
                    raise
            if script.counts and (result.command_status or b"").partition(b" ")[0] in _CHANGES:
                changed = result.command_tuples or 0
            if following is not None and following.otherwise:
                answered = bool(result.ntuples if status == _ROWS else result.command_tuples)
                if not answered:
                    continue
            if status == _DONE:
                continue
            answer = result
            if not result.ntuples:
                if self.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                    self.check((yield b"ROLLBACK"), command.where)
                    return None, 0
                return None, 0 if following else changed
            for column in command.arrays:
                known[column.name] = column.array_of(values(result, column.place))
        return answer, changed

    def check(self, result: PGresult, where: str = "") -> None:
        """Raise for an answer that is an error, whose message says where in the queue file.

        Retryable means "nothing this time"; an open transaction is to be rolled back.
        """
        if result.status in {_DONE, _ROWS}:
            return
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006").decode()
        if state in self._retry_on and self.pgconn.status == pq.ConnStatus.OK:
            raise Retryable(state)
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"the connection broke"
        raise RejectedError(f"{where}: {message.decode()} ({state})".removeprefix(": "))

    def server_seconds(self) -> float | None:
        """Processor seconds of its server process; None where that is not on this machine."""
        pid = self.pgconn.backend_pid
        if self.pgconn.host.startswith(b"/"):
            with suppress(OSError):
                # A socket of a container's leads to processes that have numbers of their own there.
                if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "postgres":
                    return processor_seconds(pid)
        return None


def _unless_closed(answer: PGresult | None) -> PGresult:
    if answer is None:
        raise RejectedError("the server closed the connection")
    return answer


def values(result: PGresult, index: int) -> list[bytes | None]:
    """A column of an answer."""
    return [result.get_value(row, index) for row in range(result.ntuples)]


def processor_seconds(pid: int) -> float | None:
    """Processor seconds of a process, all its threads; None where the system does not say.

    Of its clock, in nanoseconds: /proc/PID/stat counts ticks of 10 ms, and a short load is none.
    """
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # what Linux's clock_getcpuclockid(3) answers
    return None
