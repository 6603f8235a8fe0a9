"""From the blocks of a queue file to what a load executes: the limit a literal, all types known.

The limit is written into the statement because a parameter there is planned anew each time, which
costs a quarter of the throughput of a claim (findings: throughput).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from psycopg import postgres, pq
from psycopg.pq.abc import PGconn

from queueproof.bench.session import AnswerColumn, Command, Script
from queueproof.bench.worker import Exchange, Load
from queueproof.errors import QueueError, QueueproofError, Source
from queueproof.queues.block import Block, Statement
from queueproof.queues.model import NOW, OPERATIONS, VOID, Queue
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltext import compile_statement, first_keyword, position_in
from queueproof.queues.worker import WorkerQueue

SCHEMA = "queue"
PAYLOAD = b'{"task": "benchmark"}'
RETRYABLE = frozenset({"40001", "40P01"})
_PLAIN = frozenset({20, 21, 23, 26, 700, 701, 2950})  # int8, int2, int4, oid, float4, float8, uuid
_TYPES = {
    "worker": 25,
    "queue": 25,
    "payload": 3802,
    "priority": 23,
    "max_attempts": 23,
    "delay": 1186,
    "lease": 1186,
    NOW: 1184,
}
# Of a queue whose jobs are still there once they are claimed; without all of these, and without
# complete, a claim is the end: at most once.
_HELD = frozenset({"complete_and_claim", "fail", "heartbeat", "recover"})
_OPENS = frozenset({"BEGIN", "START"})
_CLOSES = frozenset({"COMMIT", "END", "ROLLBACK", "ABORT"})


class NotApplicableError(QueueproofError):
    """A queue that cannot be measured this way, by its own contract; the message says why."""


class Field(NamedTuple):
    """A column of an answer, as the server describes it."""

    name: str
    oid: int


@dataclass(frozen=True, slots=True)
class CompiledLoad:
    """The blocks of a queue that a measurement takes.

    Attributes:
        load: For the workers.
        enqueue: For the preload.
        enqueue_id: Where the id stands in the answer of enqueue.
        promote: For what was put in; no command where the queue does not offer it.
        jobs: What the table says at the end; None where the queue does not offer it.
        jobs_columns: Where id and state stand in the answer of jobs.
        states: What the queue's own names of states stand for.
        constants: The parameters of all of these.
    """

    load: Load
    enqueue: Script
    enqueue_id: int
    promote: Script
    jobs: Script | None
    jobs_columns: tuple[int, int]
    states: Mapping[bytes, bytes]
    constants: Mapping[str, bytes | None]


Loaded: TypeAlias = SqlFileQueue | WorkerQueue
"""What can be put under load: the text of a queue file, or workers with a client of their own."""


def refuse(queue: Queue) -> Loaded:
    """Return a queue that can be put under load; what its workers offer they say when they begin.

    Raises:
        QueueError: It is neither a queue file nor a program, or has nothing to complete a job with.
    """
    if isinstance(queue, WorkerQueue):
        return queue
    if not isinstance(queue, SqlFileQueue):
        raise QueueError(
            f"{queue.name}: bench measures queue files, and queues whose workers are programs"
            ' (`"exec: command"`, or a class of queueproof.Client); this class gives SQL step by'
            " step to whoever drives it, which is no program to measure"
        )
    if not queue.completes and queue.offers & _HELD:
        raise QueueError(
            f"{queue.name}: bench measures from claim to completion, and the queue has no block"
            " complete; write `-- name: complete(id, worker)!`"
        )
    return queue


def why_not(queue: Loaded, *, batch: int, hold: float) -> str | None:
    """Why a queue has no figure for a batch size or a hold; None where it has one.

    Args:
        queue: The queue.
        batch: Jobs per claim.
        hold: Seconds for which a claim's transaction is kept open.
    """
    if isinstance(queue, WorkerQueue):
        return "its workers' transactions are their own: there is none to hold" if hold else None
    claim = queue.blocks["claim"]
    if batch > 1 and ends_open(claim):
        return "a claim that ends inside its transaction takes one job"
    if batch > 1 and "limit" not in claim.used:
        return "its claim has no limit: it takes one job"
    words = [first_keyword(statement.text) for statement in claim.statements]
    whole = words[0] in _OPENS and words[-1] in _CLOSES
    if hold and not (len(words) == 1 or whole or ends_open(claim)):
        return "its claim is more than one transaction: there is none to hold"
    return None


def ends_open(block: Block) -> bool:
    """Whether a block leaves a transaction open, which its worker ends later."""
    is_open = False
    for statement in block.statements:
        word = first_keyword(statement.text)
        is_open = (is_open or word in _OPENS) and word not in _CLOSES
    return is_open


def literal_limit(text: str, limit: int) -> str:
    """Write a number for `:limit`, and nothing else.

    Args:
        text: A statement.
        limit: The number.
    """
    found = compile_statement(text, move_clock=False)
    for edit in reversed(found.edits):
        if text[edit.start : edit.end] == ":limit":
            text = f"{text[: edit.start]}{limit}{text[edit.end :]}"
    return text


def compile_queue(queue: SqlFileQueue, pgconn: PGconn, *, batch: int, hold: float) -> CompiledLoad:
    """Compile an installed queue.

    Args:
        queue: The queue.
        pgconn: A connection to where it is installed; statements are prepared there to learn
            their types, and dropped.
        batch: Jobs per claim.
        hold: Seconds for which a claim's transaction is kept open; 0: not at all.

    Raises:
        NotApplicableError: The queue has no such claim.
        QueueError: The server rejected a statement, or an answer lacks a column.
    """
    if reason := why_not(queue, batch=batch, hold=hold):
        raise NotApplicableError(reason)
    return _Compiler(queue, pgconn).compile(batch, hold)


def _own(operation: str) -> dict[str, int]:
    """The types of the parameters that an operation has of itself."""
    return {name: _TYPES[name] for name in (OPERATIONS[operation] | {NOW}) & _TYPES.keys()}


class _Compiler:
    def __init__(self, queue: SqlFileQueue, pgconn: PGconn) -> None:
        self._queue = queue
        self._pgconn = pgconn
        lease = queue.lease_seconds
        self._constants: dict[str, bytes | None] = {
            "queue": b"default",
            "payload": PAYLOAD,
            "priority": b"0",
            "max_attempts": str(queue.max_attempts or 3).encode(),
            "delay": b"0 seconds",
            "lease": f"{lease:.6f} seconds".encode() if lease else None,
            NOW: b"now",  # which PostgreSQL reads as the time
        }

    def compile(self, batch: int, hold: float) -> CompiledLoad:
        queue = self._queue
        claim_block = queue.blocks["claim"]
        claim, fields = self._script(claim_block, _own("claim"), batch)
        self._column(claim_block, fields, "id")
        strict = queue.isolation != "read committed"
        load = Load(
            setup=self._setup(),
            start=self._of_itself("start"),
            claim=claim,
            complete=Script(()),  # a claim that takes its jobs out for good
            many=True,
            token=self._columns(fields, "s", set()),
            constants={key: self._constants[key] for key in ("queue", "lease", NOW)},
            retry_on=queue.retry_on | (RETRYABLE if strict else {"40P01"}),
        )
        return self._compiled(
            self._completing(load, fields, batch, hold) if queue.completes else load
        )

    def _completing(self, load: Load, fields: list[Field], batch: int, hold: float) -> Load:
        """The load with its completion, which takes what a claim answers."""
        queue = self._queue
        many = "complete_many" in queue.offers and (batch > 1 or "complete" not in queue.offers)
        block = queue.blocks["complete_many" if many else "complete"]
        suffix = "s" if many else ""
        passed = {
            f.name + suffix: self._array_of(f.oid) if many else f.oid
            for f in fields
            if f.oid != VOID
        }
        # A parameter of the operation's own wins over a column of the same name.
        own = _own(block.name)
        complete, _ = self._script(block, {**passed, **own})
        needed = block.used.keys() - own.keys()
        both = None if hold else queue.blocks.get("complete_and_claim")
        if both:
            needed |= {name.removesuffix("s") + suffix for name in both.used.keys() - own.keys()}
        token = self._columns(fields, suffix, needed)
        exchange = self._exchange(both, fields, token, batch) if both else None
        claim = load.claim
        if hold:
            claim, complete = self._held(claim, complete, hold)
        return replace(
            load, claim=claim, complete=complete, many=many, token=token, exchange=exchange
        )

    def _compiled(self, load: Load) -> CompiledLoad:
        queue = self._queue
        enqueue_block = queue.blocks["enqueue"]
        enqueue, answer = self._script(enqueue_block, _own("enqueue"))
        enqueue_id = self._column(enqueue_block, answer, "id")
        observed: Script | None = None
        columns = (0, 0)
        if "jobs" in queue.offers:
            jobs_block = queue.blocks["jobs"]
            observed, answer = self._script(jobs_block, {})
            columns = (
                self._column(jobs_block, answer, "id"),
                self._column(jobs_block, answer, "state"),
            )
        states = {own.encode(): state.encode() for own, state in queue.states.items()}
        promote = replace(self._of_itself("promote"), counts=True)
        return CompiledLoad(
            load, enqueue, enqueue_id, promote, observed, columns, states, self._constants
        )

    def _of_itself(self, operation: str) -> Script:
        """A block that takes nothing of any job; no command where the queue does not have it."""
        block = self._queue.blocks.get(operation)
        return self._script(block, _own(operation))[0] if block else Script(())

    def _exchange(
        self, block: Block, fields: list[Field], token: tuple[AnswerColumn, ...], batch: int
    ) -> Exchange:
        """A block that completes and claims, by what a claim answers and what is kept of that."""
        own = _own(block.name)
        arrays = {f"{f.name}s": self._array_of(f.oid) for f in fields if f.oid != VOID}
        script, answer = self._script(block, {**arrays, **own}, batch)
        names = [fields[column.index].name for column in token]
        columns = tuple(
            AnswerColumn(self._column(block, answer, name), f"{name}s", column.plain)
            for name, column in zip(names, token, strict=True)
        )
        return Exchange(script, columns, self._column(block, answer, "completed"))

    def _setup(self) -> bytes:
        return (
            f"SET search_path = {SCHEMA}, public;"
            f"SET default_transaction_isolation = '{self._queue.isolation}'"
        ).encode()

    def _script(
        self, block: Block, types: Mapping[str, int], limit: int | None = None
    ) -> tuple[Script, list[Field]]:
        """A block's commands, and the columns of its answer."""
        known = dict(types)
        commands: list[Command] = []
        answer: list[Field] = []
        needed = {name for s in block.statements[1:] for name in s.parameters}
        for number, statement in enumerate(block.statements):
            name = f"{block.name}_{number}"
            command, fields = self._command(name, statement, known, limit)
            command = replace(command, otherwise=statement.otherwise)
            if fields:
                answer = fields
                arrays = self._columns(fields, "s", needed, leading="")
                command = replace(command, arrays=arrays)
                known |= {f"{f.name}s": self._array_of(f.oid) for f in fields if f.oid != VOID}
            commands.append(command)
        return Script(tuple(commands), block.mode == "!"), answer

    def _command(
        self, name: str, statement: Statement, types: Mapping[str, int], limit: int | None
    ) -> tuple[Command, list[Field]]:
        text = statement.text if limit is None else literal_limit(statement.text, limit)
        compiled = compile_statement(text, move_clock=False)
        for parameter in compiled.names:
            if parameter not in types:
                known = ", ".join(sorted(types))
                message = f"there is no parameter :{parameter} here, only {known}"
                raise QueueError(message, statement.parameters[parameter])
        command = Command(
            name=name.encode(),
            sql=compiled.sql.encode(),
            types=tuple(types[parameter] for parameter in compiled.names),
            parameters=compiled.names,
            where=str(statement.source),
        )
        result = self._pgconn.prepare(b"", command.sql, command.types)
        if result.status != pq.ExecStatus.COMMAND_OK:
            position = result.error_field(pq.DiagnosticField.STATEMENT_POSITION)
            offset = position_in(compiled, int(position)) if position else 0
            line = statement.source.line + text.count("\n", 0, offset)
            message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
            source = Source(statement.source.path, line)
            raise QueueError(f"PostgreSQL rejected this SQL: {message}", source)
        told = self._pgconn.describe_prepared(b"")
        fields = [
            Field((told.fname(column) or b"").decode(), told.ftype(column))
            for column in range(told.nfields)
        ]
        return command, fields

    def _columns(
        self, fields: list[Field], suffix: str, needed: set[str], *, leading: str = "id"
    ) -> tuple[AnswerColumn, ...]:
        """The columns that are needed later, the leading one first and in any case."""
        columns = [
            AnswerColumn(index, field.name + suffix, field.oid in _PLAIN)
            for index, field in enumerate(fields)
            if field.oid != VOID and (field.name + suffix in needed or field.name == leading)
        ]
        return tuple(sorted(columns, key=lambda column: column.name != leading + suffix))

    def _column(self, block: Block, fields: list[Field], name: str) -> int:
        for index, field in enumerate(fields):
            if field.name == name:
                return index
        source = Source(block.statements[0].source.path, block.line)
        raise QueueError(f"{block.name} must return a column {name}", source)

    def _array_of(self, oid: int) -> int:
        known = postgres.types.get(oid)
        if known is not None:
            return known.array_oid
        query = b"SELECT typarray FROM pg_catalog.pg_type WHERE oid = $1"
        found = self._pgconn.exec_params(query, [str(oid).encode()])
        return int(found.get_value(0, 0) or 0) if found.ntuples else 0

    def _held(self, claim: Script, complete: Script, hold: float) -> tuple[Script, Script]:
        """Wait where the transaction of the claim is about to end."""
        commands = claim.commands
        if ends_open(self._queue.blocks["claim"]):
            first, *rest = complete.commands
            return claim, replace(complete, commands=(replace(first, wait=hold), *rest))
        if len(commands) == 1:
            begin = Command(b"hold_begin", b"BEGIN", (), ())
            commands = (begin, *commands, Command(b"hold_commit", b"COMMIT", (), ()))
        last = replace(commands[-1], wait=hold)
        return replace(claim, commands=(*commands[:-1], last)), complete
