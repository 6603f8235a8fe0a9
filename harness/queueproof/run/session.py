"""Sessions: a statement is sent, and either answers or waits for a lock."""

from __future__ import annotations

import itertools
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType

from psycopg import OperationalError, postgres, pq
from psycopg.pq.abc import PGconn, PGresult

from queueproof import waits
from queueproof.errors import COPYING, QueueError, QueueproofError, RaisedError, ServerError, Source
from queueproof.queues.model import (
    Operation,
    Parameter,
    Result,
    Step,
    T,
    Value,
    Values,
    array_literal,
    interval,
    watched,
)
from queueproof.queues.sqltext import compile_statement

ARRAYS = """
SELECT t.oid, t.typarray
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.typarray <> 0 AND n.nspname !~ '^pg_'
"""
"""The array type of each type that is not the server's own."""
INTERVAL_OID = 1186  # in pg_type, of every server
STOPS = "queueproof: stops at a gate, "  # what a backend says that does: at which level (`gates`)
_OWN_SETTING = re.compile(r"\bset_config\b|\bset\s+(local\s+|session\s+)?[\w\"]+\.", re.IGNORECASE)
# It shows nothing and takes nothing, and so waits for the statement that it is for.
_BEGINS = frozenset({"BEGIN", "BEGIN TRANSACTION", "BEGIN WORK", "START TRANSACTION"})
_BEGUN = Result(in_transaction=True, command="BEGIN")
_FATAL = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)
_COPYING = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)
_FINISHED = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY)


class ConnectionLostError(QueueproofError):
    """The server closed a connection that the harness had not closed."""


class Session(ABC):
    """Somebody's connection, on which statements are started and later settled."""

    name: str  # whose it is, for messages
    conninfo: str  # where its server is
    stepped: bool = True  # it stops before each statement that whoever owns it sends by itself
    gate: str = ""  # the setting by which it asks for a gate, and says that it stops there
    said: str = ""  # the level at which it has said that the running statement stops at a gate
    # What is done while an answer is waited for that nobody else waits for.
    meanwhile: waits.Meanwhile | None = None

    @property
    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """The process ids of its backends."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """True if a transaction is open, failed ones included."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True if the connection is gone."""

    @property
    def busy(self) -> bool:
        """True if a transaction is open, be it that of one statement."""
        return self.in_transaction

    @property
    def waiting(self) -> Sequence[int]:
        """The backends that may wait for others."""
        return self.pids

    @abstractmethod
    def quieten(self) -> bool:
        """End what is open; whether it may be used in another run, once emptied."""

    @abstractmethod
    def send(self, step: Step, *, begin: bool = False) -> None:
        """Start a statement, or BEGIN and it in one message, without waiting for its answer."""

    @abstractmethod
    def ready(self, seconds: float) -> bool:
        """Wait up to some seconds for the running statement; whether its answer is complete."""

    @abstractmethod
    def result(self) -> Result:
        """The answer of a statement that is ready; ServerError where it is an error."""

    @abstractmethod
    def run(self, sql: str) -> None:
        """Execute statements of the harness's own that cannot wait for a lock, synchronously.

        Raises:
            ServerError: The server answered with an error; so for all here.
        """

    @abstractmethod
    def explain(self, step: Step, options: str) -> Result:
        """The plan of a statement, as it would be now; options of EXPLAIN are as `COSTS OFF`."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask the server to cancel the running statement, and wait until it has answered."""

    def probe(self) -> None:
        """See whether its server takes another connection."""
        waits.connect(self.conninfo).finish()

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the server rolls back what was open."""

    @property
    def pid(self) -> int:
        """The process id of the backend that runs, or ran last."""
        return self.pids[-1]


class LibpqSession(Session):
    """A connection of the harness's own, asynchronous."""

    def __init__(
        self,
        conninfo: str,
        name: str,
        arrays: Mapping[int, int] | None = None,
        meanwhile: waits.Meanwhile | None = None,
    ) -> None:
        self.name = name
        self.meanwhile = meanwhile
        self.conninfo = conninfo
        self._arrays = arrays or {}  # array type of each type that is not the server's own
        self.pgconn: PGconn = waits.connect(conninfo)
        self._pids = (self.pgconn.backend_pid,)
        self._answer: PGresult | None = None
        self._ahead: list[str] = []
        self._begins = ""  # the queue's own BEGIN, which goes with what follows it
        self._syncs = 0  # of a pipeline, that are to come
        # A statement is prepared when it is first sent: else half of the server's time would go
        # into parsing and planning the same ones.
        self.prepares = False
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}  # SQL and types, to its name
        self._untold: list[tuple[str, tuple[int, ...]]] = []  # whether they are is yet to be heard
        self._names = itertools.count()
        self._source: Source | None = None
        self.names_settings = False  # a statement made a setting of the queue's own, as `app.user`
        self.patience: float | None = None  # seconds that `run` waits, where it is not `waits.OWN`
        self.pgconn.notice_handler = self._hear

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of its backend."""
        return self._pids

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open, failed ones included."""
        return bool(self._begins) or self.pgconn.transaction_status != pq.TransactionStatus.IDLE

    def quieten(self) -> bool:
        """Cancel, drain and roll back; whether it may be used in another run, once emptied."""
        self.gate = self._begins = ""
        try:
            while waits.readable(self.pgconn.socket, 0):  # as its server's goodbye, and its end
                self.pgconn.consume_input()
            if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self.cancel()
            if self.in_transaction:
                self.run("ROLLBACK")
        except (ConnectionLostError, ServerError, OperationalError):
            return False
        return not self.names_settings  # DISCARD ALL empties them, and they had not existed

    def rename(self, name: str) -> None:
        """Be somebody else's from now on, as a new connection would be; it is quiet and emptied."""
        self.name = name
        self._answer = self._source = None

    @property
    def closed(self) -> bool:
        """True if the connection is gone."""
        return self.pgconn.status != pq.ConnStatus.OK

    def send(self, step: Step, *, begin: bool = False) -> None:
        """See `Session.send`."""
        self.said = ""
        for what in self._untold:  # what was cancelled, and its answer not taken, is prepared anew
            del self._prepared[what]
        self._untold.clear()
        begins, self._begins = self._begins or ("BEGIN" if begin else ""), ""
        if not self.in_transaction and not begins and _squeezed(step.sql) in _BEGINS:
            self._begins = step.sql
            return
        pipelined = bool(begins or self._ahead) or self.prepares
        if pipelined:
            self.pgconn.enter_pipeline_mode()
            for sql in self._ahead:
                self._query(sql)
            if self._ahead:
                self._sync()  # once: each is sent at once, and wakes the server
            self._ahead.clear()
        if begins:
            self._query(begins)
        self._send(step)
        if pipelined:
            self._sync()
        if self.pgconn.flush():
            limit = waits.Limit(waits.OWN, f"PostgreSQL to read {_shown(step.sql)}")
            waits.flush(self.pgconn, limit, self.meanwhile)

    def go_ahead(self, statements: Iterable[str]) -> None:
        """Have statements of the harness's own run ahead of the next one, in the same message.

        They cannot wait for a lock, and do not fail.
        """
        self._ahead += statements

    def _sync(self) -> None:
        # Where it fails, however, psycopg says that there is no pipeline.
        with suppress(OperationalError):
            if not self.closed:
                self.pgconn.pipeline_sync()
                self._syncs += 1
                return
        raise self._lost()

    def _lost(self) -> ConnectionLostError:
        reason = self.pgconn.get_error_message().strip() or "no reason given"
        return ConnectionLostError(f"the server closed the connection of {self.name}: {reason}")

    def _send(self, step: Step) -> None:
        self.names_settings = self.names_settings or _names_setting(step.sql)
        self._source = step.source
        compiled = compile_statement(step.sql)
        if not compiled.names:
            # What a client bound by its number, as PostgreSQL's text.
            bound = [value for name, value in step.params.items() if name.isdigit()]
            texts = [None if value is None else str(value).encode() for value in bound]
            self._query(compiled.sql, texts or None)
            return
        values: list[bytes | None] = []
        types: list[int] = []
        for name in compiled.names:
            if name not in step.params:
                given = ", ".join(f":{one}" for one in step.params) or "none"
                message = f"a statement uses :{name}, and its parameters are {given}: {step.sql}"
                raise QueueError(message, step.source)
            text, oid = self._encode(step.params[name])
            values.append(text)
            types.append(oid)
        self._query(compiled.sql, values, types)

    def _query(
        self, sql: str, values: list[bytes | None] | None = None, types: Sequence[int] = ()
    ) -> None:
        if not self.prepares:
            self.pgconn.send_query_params(sql.encode(), values, types or None)
            return
        what = sql, tuple(types)
        name = self._prepared.get(what)
        if name is None:
            name = self._prepared[what] = b"queueproof_%d" % next(self._names)
            self._untold.append(what)
            self.pgconn.send_prepare(name, sql.encode(), types or None)
        self.pgconn.send_query_prepared(name, values)

    def _encode(self, value: Parameter) -> tuple[bytes | None, int]:
        match value:
            case Value():
                return value.text, value.oid
            case Values():
                return _array_literal(value.texts), self._array_of(value.oid)
            case None:
                return None, 0
            case bool():
                return (b"t" if value else b"f"), 16
            case int():
                return str(value).encode(), 23 if -(2**31) <= value < 2**31 else 20
            case float():
                return repr(value).encode(), 701
            case timedelta():
                return interval(value).encode(), INTERVAL_OID
            case str():
                if "\0" in value:  # libpq would end the text there
                    raise QueueproofError(f"PostgreSQL stores no NUL character: {value!r}")
                return value.encode(), 0
            case list():
                encoded = [self._encode(one) for one in value]
                oids = {oid for _, oid in encoded}
                # Of one type that the server named; whatever else there is, it infers.
                known = oids.pop() if len(oids) == 1 else 0
                array = self._array_of(known) if known else 0
                return _array_literal(tuple(text for text, _ in encoded)), array
            case _:
                raise QueueError(
                    f"a parameter is {value!r}; write a str, int, float, bool, timedelta, None, "
                    "a list of these, or what the server answered"
                )

    def _array_of(self, oid: int) -> int:
        if oid in self._arrays:
            return self._arrays[oid]
        known = postgres.types.get(oid)
        if oid in self._arrays.values() or (known is not None and known.oid != oid):
            raise QueueproofError(
                "a column of an array type cannot be passed to a later step, whose parameter would "
                "be an array of arrays; answer one row for each element (unnest)"
            )
        return known.array_oid if known else 0

    def ready(self, seconds: float) -> bool:
        """Wait up to some seconds for more of the answer; whether it is complete.

        Where it says now that it stops at a gate, nothing more is waited for.
        """
        said = self.said
        while not self._begins and not self._complete():
            if said != self.said or not waits.readable(self.pgconn.socket, seconds):
                return False
            try:
                self.pgconn.consume_input()
            except OperationalError:
                return True  # the connection broke, as `result` says
        return True

    def _hear(self, notice: PGresult) -> None:
        primary = notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
        _, _, level = (primary or b"").decode(errors="replace").partition(STOPS)
        self.said = level or self.said

    def _complete(self) -> bool:
        """Take what has arrived; whether that is all."""
        while not self.pgconn.is_busy():
            answer = self.pgconn.get_result()
            if answer is None:
                # In a pipeline this ends one of its statements, outside it ends the answer.
                if not self._syncs or self.pgconn.status != pq.ConnStatus.OK:
                    return True
            elif answer.status == pq.ExecStatus.PIPELINE_SYNC:
                self._syncs -= 1
                if not self._syncs:
                    self.pgconn.exit_pipeline_mode()
                    return True
                if self._answer is not None and self._answer.status in _FATAL:
                    raise _server_error(self._answer)  # what went ahead
            elif answer.status in _COPYING:  # and so it would be for ever
                self._answer = answer
                return True
            elif answer.status != pq.ExecStatus.PIPELINE_ABORTED:
                self._answer = answer
        return False

    def result(self) -> Result:
        """See `Session.result`."""
        if self._begins:
            return _BEGUN
        answer, self._answer = self._answer, None
        if answer is not None and answer.status not in _FATAL:
            self._untold.clear()
        if answer is None or self.closed:
            raise self._lost()
        return self._read(answer)

    def _read(self, answer: PGresult) -> Result:
        if answer.status in _FATAL:
            raise _server_error(answer)
        if answer.status in _COPYING:
            self.close()  # it waits for data, or for somebody who reads it
            raise QueueError(COPYING, self._source)
        if answer.status not in _FINISHED:
            raise QueueproofError(f"a statement answered {pq.ExecStatus(answer.status).name}")
        fields = range(answer.nfields)
        columns = tuple((answer.fname(n) or b"?column?").decode() for n in fields)
        oids = tuple(answer.ftype(n) for n in fields)
        rows = [
            MappingProxyType(
                {c: Value(answer.get_value(r, n), oids[n]) for n, c in enumerate(columns)}
            )
            for r in range(answer.ntuples)
        ]
        command, affected = read_tag((answer.command_status or b"").decode())
        return Result(columns, oids, rows, affected, self.in_transaction, command)

    def run(self, sql: str) -> None:
        """See `Session.run`."""
        statements = filter(None, (*self._ahead, self._begins, sql))
        self._ahead, self._begins = [], ""
        for statement in statements:
            self.pgconn.send_query(statement.encode())
            self._answered(statement)

    def _answered(self, sql: str) -> PGresult:
        """The server's answer to the harness's own statement."""
        try:
            answer = waits.answer(
                self.pgconn,
                self.patience or waits.OWN,
                lambda: f"PostgreSQL to answer {self.name}: {_shown(sql)}",
                self.meanwhile,
            )
        except OperationalError:
            answer = None
        if answer is None or self.pgconn.status != pq.ConnStatus.OK:
            raise ConnectionLostError(f"the server closed the connection of {self.name}")
        if answer.status in _FATAL:
            raise _server_error(answer)
        return answer

    def explain(self, step: Step, options: str) -> Result:
        """See `Session.explain`: as it would be on this connection."""
        return execute(self, step._replace(sql=f"EXPLAIN ({options}) {step.sql}"))

    def cancel(self, cancels: Callable[[int], object] | None = None) -> None:
        """Ask the server to cancel the running statement, and wait until it has answered.

        Args:
            cancels: Asks for a backend; None: by a connection of its own, which takes longer.
        """
        limit = waits.Limit(waits.CANCEL, f"what {self.name} runs to end, now that it is cancelled")
        look = 0.0
        while not self.ready(limit.left(look)):
            look = 0.01  # what began a moment ago may miss the first one
            if cancels is None:
                waits.cancel(self.pgconn)
            else:
                cancels(self.pid)

    def close(self) -> None:
        """Close the connection; the server rolls back what was open."""
        self.pgconn.finish()


def execute(session: Session, step: Step) -> Result:
    """Run a statement to its end, as `settle` does; for sessions that nobody can make wait."""
    session.send(step)
    return settle(session, step)


def settle(session: Session, step: Step) -> Result:
    """The answer to what was sent last, once it is there.

    Raises:
        ServerError: The server answered with an error.
        QueueError: The server did not answer in time.
    """
    if session.ready(waits.SOON):
        return session.result()
    limit = waits.Limit(waits.STATEMENT, "an answer")
    look = waits.SLICE
    try:
        while not session.ready(limit.left(look)):
            if session.meanwhile is not None:
                session.meanwhile()
                look = waits.OTHERS
    except waits.StoppedError:
        raise
    except waits.LimitError:
        session.probe()
        raise unanswered(step, limit.seconds) from None
    return session.result()


def unanswered(step: Step, seconds: float, operation: str = "") -> QueueError:
    """The user's error for a statement that neither ends nor waits for anybody."""
    asked = str(step.request["op"]) if step.request else step.block
    sql = _shown(step.sql)
    return QueueError(
        f"{operation or asked or 'a statement'} has neither answered nor waited for another worker "
        f"after {seconds:g} s{': ' if sql else ''}{sql}",
        step.source,
    )


def _shown(sql: str) -> str:
    return textwrap.shorten(sql, 200, placeholder=" ...")


def drive(
    session: Session, operation: Operation[T], act: Callable[[Session, Step], Result] = execute
) -> T:
    """Run an operation, not begun yet, alone from its first statement to its answer.

    Raises:
        ServerError: The server answered with an error that the operation does not handle.
    """
    try:
        step = next(operation)
        while True:
            step = operation.send(act(session, step))
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def noted(operation: Operation[T], sent: list[str]) -> Operation[T]:
    """The operation, not begun yet; its statements are noted as they are sent."""
    return watched(operation, lambda step: sent.append(step.sql))


@lru_cache(maxsize=4096)
def _squeezed(statement: str) -> str:
    return " ".join(statement.upper().split())


@lru_cache(maxsize=4096)
def _names_setting(statement: str) -> bool:
    """True if a statement may make a setting of the queue's own."""
    return bool(_OWN_SETTING.search(statement))


def read_tag(tag: str) -> tuple[str, int]:
    """The first word of a command tag, such as `UPDATE 1`, and the count at its end or 0."""
    count = tag.rpartition(" ")[2]
    return tag.partition(" ")[0], int(count) if count.isdigit() else 0


def _server_error(answer: PGresult) -> ServerError:
    field = answer.error_field
    state = (field(pq.DiagnosticField.SQLSTATE) or b"XX000").decode()
    message = (field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    position = field(pq.DiagnosticField.STATEMENT_POSITION)
    raised = field(pq.DiagnosticField.SOURCE_FUNCTION) == b"exec_stmt_raise"
    kind = RaisedError if raised else ServerError
    beside = [pq.DiagnosticField.MESSAGE_DETAIL, pq.DiagnosticField.MESSAGE_HINT]
    told = zip(("DETAIL", "HINT"), map(field, beside), strict=True)
    more = "".join(f"\n{name}: {text.decode(errors='replace')}" for name, text in told if text)
    return kind(state, message, int(position) if position else None, more)


_array_literal = lru_cache(maxsize=4096)(array_literal)
