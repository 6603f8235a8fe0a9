"""A bare libpq connection that runs a queue's blocks as prepared statements, and parses little.

Statements are prepared once, values passed back as the text in which they came. psycopg's own
cursor reaches two thirds to nine tenths of this. The module imports no more than it runs: many
processes start it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

_CHANGES = frozenset({b"INSERT", b"UPDATE", b"DELETE", b"MERGE"})
_DONE, _ROWS = int(pq.ExecStatus.COMMAND_OK), int(pq.ExecStatus.TUPLES_OK)  # compared often

T = TypeVar("T")
Known: TypeAlias = dict[str, bytes | None]  # parameters by name, in PostgreSQL's text form
Prepared: TypeAlias = tuple[bytes, list[bytes | None]]  # a statement's name, and its parameters
Steps: TypeAlias = Generator[Prepared | bytes | float, PGresult, T]
"""What a worker does, up to where it waits: for a statement's answer, or for some seconds.

Whoever drives it decides whether anything else goes on meanwhile.
"""


@dataclass(frozen=True, slots=True)
class AnswerColumn:
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
        otherwise: Whether it is sent only where the one before it answered no row.
    """

    name: bytes
    sql: bytes
    types: tuple[int, ...]
    parameters: tuple[str, ...]
    arrays: tuple[AnswerColumn, ...] = ()
    where: str = ""
    wait: float = 0.0
    otherwise: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A block of a queue file, ready to run.

    Attributes:
        commands: Its steps.
        counts: Whether the answer is the count of rows affected (`!`), not rows.
    """

    commands: tuple[Command, ...]
    counts: bool = False


class RejectedError(Exception):
    """The server rejected a statement, for a reason that trying again does not mend."""


class Retryable(Exception):  # noqa: N818 - an answer of the queue's, not a failure
    """The server answered "nothing this time"."""

    def __init__(self, sqlstate: str) -> None:
        """Keep the SQLSTATE."""
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class LoadSession:
    """A connection that runs scripts; it waits for the server, however long.

    Attributes:
        pgconn: The connection.
        trips: How many statements scripts have sent.
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
        self.trips = 0
        self._retry_on = retry_on
        self.command(setup)

    def _connect(self, conninfo: str) -> PGconn:
        return pq.PGconn.connect(conninfo.encode())

    def _execute(self, sql: bytes) -> PGresult:
        return self.pgconn.exec_(sql)

    def _prepare(self, command: Command) -> PGresult:
        return self.pgconn.prepare(command.name, command.sql, command.types)

    def _execute_prepared(self, name: bytes, sent: list[bytes | None]) -> PGresult:
        # None is NULL, which psycopg's annotation of this one method leaves out.
        return self.pgconn.exec_prepared(name, sent)  # type: ignore[arg-type]

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
        """Run a script, and wait for each answer; `steps` says more.

        Args:
            script: What to run.
            known: Its parameters.

        Raises:
            Retryable: An error that means "nothing this time".
            RejectedError: Any other error.
        """
        return self.perform(self.steps(script, known))

    def perform(self, steps: Steps[T]) -> T:
        """Go through steps to their end, and wait for each answer."""
        try:
            asked = next(steps)
            while True:
                if type(asked) is tuple:
                    asked = steps.send(self._execute_prepared(*asked))
                elif type(asked) is bytes:
                    asked = steps.send(self._execute(asked))
                else:
                    time.sleep(cast("float", asked))
                    asked = next(steps)
        except StopIteration as end:
            return cast("T", end.value)

    def steps(self, script: Script, known: Known) -> Steps[tuple[PGresult | None, int]]:
        """Go through a script, by the rules for blocks of several statements.

        Args:
            script: What to run.
            known: Its parameters; arrays of earlier steps are added to them.

        Returns:
            The answer with the last columns, None where there is none or a step without rows cut
            the block short; and the rows affected by the last statement that changed data, where
            the script counts them.

        Raises:
            Retryable: An error that means "nothing this time"; the transaction is rolled back.
            RejectedError: Any other error.
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
            if script.counts:
                changed = _changed(result, changed)
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
            Retryable: It means "nothing this time"; an open transaction is to be rolled back.
            RejectedError: Any other error.
        """
        if result.status in {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK}:
            return
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006").decode()
        if state in self._retry_on and self.pgconn.status == pq.ConnStatus.OK:
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


def processor_seconds(pgconn: PGconn) -> float | None:
    """What the server's process of a connection has used; None where it is not on this machine."""
    if not pgconn.host.startswith(b"/"):
        return None
    process = Path(f"/proc/{pgconn.backend_pid}")
    try:
        if process.joinpath("comm").read_text(encoding="utf-8").strip() != "postgres":
            return None  # a socket of a container's, whose processes have numbers of their own
        return int(process.joinpath("schedstat").read_text(encoding="utf-8").split()[0]) / 1e9
    except (OSError, ValueError):
        return None
