"""A client's requests, and the answers that the server still owes for them; no I/O."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from queueproof.wire import protocol
from queueproof.wire.protocol import Message

_ANSWERED = {"1": "P", "2": "B", "3": "C", "T": "D", "n": "D"}
_BEGUN = frozenset({"BEGIN", "START TRANSACTION"})
_ENDED = frozenset({"COMMIT", "ROLLBACK", "PREPARE TRANSACTION"})
_GOES_ON = re.compile(r"\A\s*rollback\s.*\bto\b|\band\s+chain\b", re.IGNORECASE | re.DOTALL)
# What these do, or an empty query, is not seen by others when the Sync behind them commits.
_PRIVATE = frozenset(
    "SET RESET SHOW SAVEPOINT RELEASE LISTEN UNLISTEN DEALLOCATE DISCARD".split()  # noqa: SIM905 - a list of quoted words is longer
) | {""}


@dataclass(eq=False, slots=True)
class PreparedStatement:
    """A statement that was prepared."""

    sql: str  # as the client wrote it
    oids: tuple[int, ...]  # the types of its parameters as far as they are known, 0 where not


_UNKNOWN = PreparedStatement("", ())


class Portal(NamedTuple):
    """A statement with parameters bound to it; formats are 0 for text and 1 for binary."""

    statement: PreparedStatement = _UNKNOWN
    formats: tuple[int, ...] = ()
    values: tuple[bytes | None, ...] = ()

    @property
    def params(self) -> protocol.Params:
        """The parameters, for reading."""
        return protocol.decode(self.values, self.formats, self.statement.oids)


class Due(NamedTuple):
    """A message that the server has to answer."""

    kind: str
    statement: PreparedStatement = _UNKNOWN  # that it is about
    undo: Callable[[], None] | None = None  # called when the server refuses it


Finished = Literal["", "execute", "ready", "copy"]


class Pipeline:
    """One connection's conversation after login.

    Whoever passes messages on tells of each, in order, of both directions.
    """

    def __init__(self) -> None:
        self.tag = ""  # of the command that the server completed last, such as `UPDATE 1`
        self.error: tuple[str, str] | None = None  # SQLSTATE and message of the last one
        self.in_transaction = False  # an explicit one is open, failed ones included
        self.uncommitted = False  # an Execute outside of one has succeeded; its Sync will commit
        self.copying = False  # the server reads COPY data
        self.skipping = False  # it ignores everything up to the next Sync, after an error
        self._synced = True  # nothing was sent since the last Sync
        self._due: deque[Due] = deque()
        self._statements: dict[str, PreparedStatement] = {}
        self._portals: dict[str, Portal] = {}

    @property
    def answered(self) -> bool:
        """True if the server owes nothing."""
        return not self._due

    @property
    def rests(self) -> bool:
        """True if the server owes nothing, and waits for a new command."""
        return self._synced and not self._due

    def note(self, message: Message) -> Due:
        """Know what a message names, before it is sent; what the server will owe for it."""
        match message.kind:
            case "P":
                return self._parse(protocol.read_parse(message.body))
            case "B":
                bind = protocol.read_bind(message.body)
                statement = self._statements.get(bind.statement, _UNKNOWN)
                self._portals[bind.portal] = Portal(statement, bind.formats, bind.values)
            case "C":
                kind, name = protocol.read_target(message.body)
                (self._statements if kind == "S" else self._portals).pop(name, None)
            case "D":
                kind, name = protocol.read_target(message.body)
                if kind == "S":
                    return Due("D", self._statements.get(name, _UNKNOWN))
            case "E":
                return Due("E", self.portal(message).statement)
        return Due(message.kind)

    def _parse(self, parse: protocol.Parse) -> Due:
        before = self._statements.get(parse.name)
        statement = self._statements[parse.name] = PreparedStatement(parse.sql, parse.oids)

        def undo() -> None:
            if before is None:
                self._statements.pop(parse.name, None)
            else:
                self._statements[parse.name] = before

        return Due("P", statement, undo)

    def portal(self, execute: Message) -> Portal:
        """The portal that an Execute runs."""
        return self._portals.get(protocol.read_text(execute.body), Portal())

    def sent(self, message: Message, noted: Due | None = None) -> None:
        """A message goes to the server; `noted` is what `note` gave for it, if it was asked."""
        kind = message.kind
        if self.copying:
            # The server ignores a Sync that it finds where COPY data should be.
            self.copying = kind not in "cf"
            return
        if kind == "S":
            self.skipping, self._synced = False, True
        elif self.skipping:
            return
        elif kind in "PBDCEH":
            self._synced = False
        if kind in "PBDCESQF":
            self._due.append(noted or self.note(message))

    def received(self, message: Message) -> Finished:
        """A message has come from the server.

        Returns:
            Whether it ends an `execute`, or everything up to a Sync or a simple Query (`ready`), or
            begins a `copy`.
        """
        match message.kind:
            case "E":
                return self._fail(protocol.read_error(message.body))
            case "1" | "2" | "3" | "T" | "n":
                if self._next == _ANSWERED[message.kind]:
                    self._due.popleft()
            case "t":
                if self._next == "D":
                    self._due[0].statement.oids = protocol.read_oids(message.body)
            case "C":
                return self._complete(protocol.read_text(message.body))
            case "I":
                return self._complete("")
            case "s":
                self.uncommitted = not self.in_transaction
                return self._complete("")
            case "G" | "W":
                return self._copy()
            case "Z":
                return self._ready(message.body)
        return ""

    @property
    def _next(self) -> str:
        return self._due[0].kind if self._due else ""

    def _complete(self, tag: str) -> Finished:
        self.copying = False
        self.tag = tag
        if self._next != "E":
            return ""
        sql = self._due.popleft().statement.sql
        if tag in _BEGUN:
            self.in_transaction = True
        elif tag in _ENDED:
            if not _GOES_ON.search(sql):
                self.in_transaction = self.uncommitted = False
        elif not self.in_transaction and tag.partition(" ")[0] not in _PRIVATE:
            self.uncommitted = True
        return "execute"

    def _fail(self, error: tuple[str, str]) -> Finished:
        self.error = error
        self.copying = False
        if self._next and self._next in "QF":
            return ""
        refused = []
        while self._next not in {"", "S"}:
            refused.append(self._due.popleft())
        for due in reversed(refused):
            if due.undo is not None:
                due.undo()
        self.uncommitted = False
        self.skipping = not self._due and not self._synced
        return "execute"

    def _copy(self) -> Finished:
        self.copying = True
        while self._next == "E" and len(self._due) > 1 and self._due[1].kind == "S":
            del self._due[1]  # the server ignores it, as it comes before the data
            self._synced = False
        return "copy"

    def _ready(self, status: bytes) -> Finished:
        while self._due and self._due.popleft().kind not in "SQF":
            pass
        self.copying = self.uncommitted = False
        self.in_transaction = status != b"I"
        if not self._due:
            self.skipping, self._synced = False, True
            if not self.in_transaction:
                self._portals.clear()  # no portal outlives its transaction
        return "ready"
