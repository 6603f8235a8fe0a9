"""From the blocks of a queue file to what a load executes, and jobs put in through its `enqueue`.

All types are known. The limit is written into the statement because a parameter there is planned
anew each time, which costs a quarter of the throughput of a claim (findings: throughput).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from psycopg import postgres, pq
from psycopg.pq.abc import PGconn

from queueproof import waits
from queueproof.bench.measured import Shape
from queueproof.bench.session import Command, Field, LoadSession, RejectedError, Script, values
from queueproof.bench.worker import Exchange, Load
from queueproof.errors import QueueError, Source
from queueproof.queues.block import Block, Statement, type_of
from queueproof.queues.model import NOW, OPERATIONS, VOID, Queue
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltext import BEGINS, compile_statement, first_keyword, position_in
from queueproof.queues.worker import WorkerQueue

PIPELINE = 500  # statements between two synchronisations while jobs are put in
PAYLOAD = b'{"task": "benchmark"}'
RETRYABLE = frozenset({"40001", "40P01"})
_NOT_BOUND = frozenset({"job", "jobs", "limit"})  # columns of a claim, and a number in the text
# Of a queue whose jobs are still there once they are claimed; without all of these, and without
# complete, a claim is the end: at most once.
_HELD = frozenset({"complete_and_claim", "fail", "heartbeat", "recover"})
_CLOSES = frozenset({"COMMIT", "END", "ROLLBACK", "ABORT"})


Loaded: TypeAlias = SqlFileQueue | WorkerQueue
"""A queue to put under load: the text of a queue file, or workers with a client of their own."""


def refuse(queue: Queue) -> Loaded:
    """The queue, if it can be put under load; its workers may say otherwise. Else a QueueError."""
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


def why_not(queue: Loaded, shape: Shape) -> str | None:
    """Why a queue has no figure for a batch size or a hold; None where it has one."""
    batch, hold = shape.batch, shape.hold
    if isinstance(queue, WorkerQueue):
        return "its workers' transactions are their own: there is none to hold" if hold else None
    claim = queue.blocks["claim"]
    if batch > 1 and ends_open(claim):
        return "it keeps one transaction open per job, so it cannot claim several jobs at once"
    if batch > 1 and "limit" not in claim.used:
        return "its claim has no limit: it takes one job"
    words = [first_keyword(statement.text) for statement in claim.statements]
    whole = words[0] in BEGINS and words[-1] in _CLOSES
    if hold and not (len(words) == 1 or whole or ends_open(claim)):
        return "its claim is more than one transaction: there is none to hold"
    return None


def completes_many(queue: Loaded, batch: int) -> bool:
    """True when all that a claim got is completed at once."""
    return "complete_many" in queue.offers and (batch > 1 or "complete" not in queue.offers)


def ends_open(block: Block) -> bool:
    """True if a block leaves a transaction open, which its worker ends later."""
    is_open = False
    for statement in block.statements:
        word = first_keyword(statement.text)
        is_open = (is_open or word in BEGINS) and word not in _CLOSES
    return is_open


def literal_limit(text: str, limit: int) -> str:
    """A statement with a number for `:limit`, and else as it is."""
    found = compile_statement(text, move_clock=False)
    for edit in reversed(found.edits):
        if text[edit.start : edit.end] == ":limit":
            text = f"{text[: edit.start]}{limit}{text[edit.end :]}"
    return text


def compile_queue(queue: SqlFileQueue, pgconn: PGconn, shape: Shape) -> Load:
    """Compile a queue for a load.

    Where it is installed, statements are prepared to learn their types, and dropped. QueueError:
    it has no such claim, the server rejected a statement, or an answer lacks a column.
    """
    if reason := why_not(queue, shape):
        raise QueueError(reason)
    return _Compiler(queue, pgconn, shape).load()


def _own(operation: str) -> dict[str, int]:
    """The types of the parameters that an operation has of itself."""
    return {name: type_of(name) for name in (OPERATIONS[operation] | {NOW}) - _NOT_BOUND}


def _arrays(fields: list[Field]) -> dict[str, int]:
    """The parameters that an answer gives to what follows, with their types."""
    return {f"{field.name}s": field.array for field in fields}


def _place(block: Block, fields: list[Field], name: str) -> int:
    """The place of a column in a block's answer."""
    for field in fields:
        if field.name == name:
            return field.place
    raise QueueError(f"{block.name} must return a column {name}", block.source)


class _Compiler(NamedTuple):
    queue: SqlFileQueue
    pgconn: PGconn
    shape: Shape

    def load(self) -> Load:
        queue, blocks = self.queue, self.queue.blocks
        claim, fields = self._script("claim")
        _place(blocks["claim"], fields, "id")
        enqueue, enqueued = self._script("enqueue")
        observed, answer = self._script("jobs")
        jobs = blocks.get("jobs")
        lease, strict = queue.lease_seconds, queue.isolation != "read committed"
        isolation = f"SET default_transaction_isolation = '{queue.isolation}'"
        load = Load(
            setup=f"SET search_path = public;{isolation}".encode(),
            start=self._script("start")[0],
            claim=claim,
            complete=Script(()),  # a claim that takes its jobs out for good
            many=True,
            token=tuple(field.renamed("s") for field in fields if field.name == "id"),
            constants={
                "queue": b"default",
                "priority": b"0",
                "max_attempts": str(queue.max_attempts or 3).encode(),
                "delay": b"0 seconds",
                "lease": f"{lease:.6f} seconds".encode() if lease else None,
                NOW: b"now",  # which PostgreSQL reads as the time
            },
            retry_on=queue.retry_on | (RETRYABLE if strict else {"40P01"}),
            enqueue=enqueue,
            enqueue_id=_place(blocks["enqueue"], enqueued, "id"),
            promote=replace(self._script("promote")[0], counts=True),
            observed=observed,
            observed_columns=[_place(jobs, answer, name) for name in ("id", "state") if jobs],
            states={own.encode(): state.encode() for own, state in queue.states.items()},
        )
        return self._completing(load, fields) if queue.completes else load

    def _completing(self, load: Load, fields: list[Field]) -> Load:
        """The load with its completion, which takes what a claim answers."""
        queue, hold = self.queue, self.shape.hold
        many = completes_many(queue, self.shape.batch)
        name, suffix = ("complete_many", "s") if many else ("complete", "")
        passed = _arrays(fields) if many else {field.name: field.oid for field in fields}
        complete, _ = self._script(name, passed)
        own = _own(name).keys()
        needed = queue.blocks[name].used.keys() - own
        both = None if hold else queue.blocks.get("complete_and_claim")
        if both:
            needed |= {name.removesuffix("s") + suffix for name in both.used.keys() - own}
        kept = [field for field in fields if field.name + suffix in needed or field.name == "id"]
        kept.sort(key=lambda field: field.name != "id")
        exchange = None
        if both:
            script, answer = self._script(both.name, _arrays(fields))
            at = [f._replace(place=_place(both, answer, f.name)).renamed("s") for f in kept]
            exchange = Exchange(script, tuple(at), _place(both, answer, "completed"))
        claim = load.claim
        if hold:
            claim, complete = self._held(claim, complete, hold)
        token = tuple(field.renamed(suffix) for field in kept)
        return replace(
            load, claim=claim, complete=complete, many=many, token=token, exchange=exchange
        )

    def _script(
        self, name: str, passed: Mapping[str, int] | None = None
    ) -> tuple[Script, list[Field]]:
        """An operation's commands, and the columns of its answer; none where the queue lacks it.

        A parameter of the operation's own wins over a column of the same name that is passed.
        """
        if (block := self.queue.blocks.get(name)) is None:
            return Script(()), []
        known = {**(passed or {}), **_own(name)}
        commands: list[Command] = []
        answer: list[Field] = []
        limit = self.shape.batch if "limit" in OPERATIONS[name] else None
        needed = {name for s in block.statements[1:] for name in s.parameters}
        for number, statement in enumerate(block.statements):
            command, fields = self._command(f"{name}_{number}", statement, known, limit)
            if fields is not None:
                answer = fields
                arrays = (field.renamed("s") for field in fields if f"{field.name}s" in needed)
                command = replace(command, arrays=tuple(arrays))
                known |= _arrays(fields)
            commands.append(command)
        return Script(tuple(commands), block.mode == "!"), answer

    def _command(
        self, name: str, statement: Statement, types: Mapping[str, int], limit: int | None
    ) -> tuple[Command, list[Field] | None]:
        """A statement, and the columns of its answer that have a value; None: it has no answer."""
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
            otherwise=statement.otherwise,
        )
        result = self.pgconn.prepare(b"", command.sql, command.types)
        if result.status != pq.ExecStatus.COMMAND_OK:
            position = result.error_field(pq.DiagnosticField.STATEMENT_POSITION)
            offset = position_in(compiled, int(position)) if position else 0
            line = statement.source.line + text.count("\n", 0, offset)
            message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
            source = Source(statement.source.path, line)
            raise QueueError(f"PostgreSQL rejected this SQL: {message}", source)
        told = self.pgconn.describe_prepared(b"")
        fields = [
            Field(place, (told.fname(place) or b"").decode(), oid, self._array_of(oid))
            for place, oid in enumerate(map(told.ftype, range(told.nfields)))
            if oid != VOID
        ]
        return command, fields if told.nfields else None

    def _array_of(self, oid: int) -> int:
        if known := postgres.types.get(oid):
            return known.array_oid
        query = b"SELECT typarray FROM pg_catalog.pg_type WHERE oid = $1"
        found = self.pgconn.exec_params(query, [str(oid).encode()])
        return int(found.get_value(0, 0) or 0) if found.ntuples else 0

    def _held(self, claim: Script, complete: Script, hold: float) -> tuple[Script, Script]:
        """Wait where the transaction of the claim is about to end."""
        commands = claim.commands
        if ends_open(self.queue.blocks["claim"]):
            first, *rest = complete.commands
            return claim, replace(complete, commands=(replace(first, wait=hold), *rest))
        if len(commands) == 1:
            begin = Command(b"hold_begin", b"BEGIN", (), ())
            commands = (begin, *commands, Command(b"hold_commit", b"COMMIT", (), ()))
        last = replace(commands[-1], wait=hold)
        return replace(claim, commands=(*commands[:-1], last)), complete


def of_size(payload: int) -> bytes:
    """A job's payload, of so many bytes at least."""
    filler = b"x" * max(0, payload - len(PAYLOAD))
    return PAYLOAD.replace(b"}", b', "filler": "%b"}' % filler) if filler else PAYLOAD


def fill(
    queue: SqlFileQueue, session: LoadSession, shape: Shape, *, jobs: int, payload: int
) -> tuple[Load, list[bytes]]:
    """Install a queue in an empty schema and put jobs in; what was compiled, and the jobs' ids.

    A job's payload has so many bytes at least. Errors are those of `compile_queue`.
    """
    for statement in queue.blocks["schema"].statements:
        try:
            session.command(statement.text.encode())
        except RejectedError as error:
            raise QueueError(str(error), statement.source) from None
    load = compile_queue(queue, session.pgconn, shape)
    load = replace(load, constants={**load.constants, "payload": of_size(payload)})
    session.prepare(load.enqueue)
    session.prepare(load.promote)
    ids = _enqueued(load, session, jobs)
    promote(load, session, jobs)
    return load, ids


def promote(load: Load, session: LoadSession, jobs: int) -> None:
    """Make claimable so many jobs, at most, as were put in, where that takes a step of its own.

    A function, which does not tell what it has changed, runs once.
    """
    for _ in range(jobs if load.promote.commands else 0):
        _, changed = session.run(load.promote, dict(load.constants))
        if not changed:
            return


def _enqueued(load: Load, session: LoadSession, jobs: int) -> list[bytes]:
    if len(load.enqueue.commands) == 1:
        return _pipelined(load, session, jobs)
    ids: list[bytes] = []
    for _ in range(jobs):
        answer, _ = session.run(load.enqueue, dict(load.constants))
        ids += [text or b"" for text in values(answer, load.enqueue_id)] if answer else []
    return ids


def _pipelined(load: Load, session: LoadSession, jobs: int) -> list[bytes]:
    """Enqueue without waiting for each answer, in one transaction."""
    (command,) = load.enqueue.commands
    known = [load.constants[parameter] for parameter in command.parameters]
    pgconn = session.pgconn
    ids: list[bytes] = []
    session.command(b"BEGIN")
    for start in range(0, jobs, PIPELINE):
        count = min(PIPELINE, jobs - start)
        pgconn.enter_pipeline_mode()
        for _ in range(count):
            pgconn.send_query_prepared(command.name, known)
        pgconn.pipeline_sync()
        limit = waits.Limit(waits.BULK, f"PostgreSQL to enqueue {count} jobs")
        waits.flush(pgconn, limit)
        synchronised = False
        while not synchronised:
            while pgconn.is_busy():
                if waits.readable(pgconn.socket, limit.left()):
                    pgconn.consume_input()
            result = pgconn.get_result()  # None stands between the answers
            if result is None:
                continue
            synchronised = result.status == pq.ExecStatus.PIPELINE_SYNC
            if not synchronised:
                session.check(result, command.where)
                ids.append(result.get_value(0, load.enqueue_id) or b"")
        pgconn.exit_pipeline_mode()
    session.command(b"COMMIT")
    return ids
