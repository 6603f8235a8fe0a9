"""A queue's schema installed, and jobs put in through its own `enqueue`."""

from __future__ import annotations

from dataclasses import replace

from psycopg import pq

from queueproof import waits
from queueproof.bench.load import PAYLOAD, CompiledLoad, compile_queue
from queueproof.bench.session import LoadSession, RejectedError, values
from queueproof.errors import QueueError
from queueproof.queues.sqlfile import SqlFileQueue

PIPELINE = 500  # statements between two synchronisations while jobs are put in


def fill(
    queue: SqlFileQueue,
    session: LoadSession,
    *,
    batch: int,
    hold: float,
    jobs: int,
    payload: int = 0,
) -> tuple[CompiledLoad, list[bytes]]:
    """Install a queue and put jobs in; what was compiled, and the jobs' ids.

    Args:
        queue: The queue.
        session: A connection to its empty schema.
        batch: Jobs per claim.
        hold: Seconds for which a claim's transaction is kept open.
        jobs: How many.
        payload: Bytes of each job's payload at least.

    Raises:
        NotApplicableError: The queue has no such claim.
        QueueError: The server rejected the schema, or the text of a block.
        RejectedError: The server rejected an enqueue.
    """
    for statement in queue.blocks["schema"].statements:
        try:
            session.command(statement.text.encode())
        except RejectedError as error:
            raise QueueError(str(error), statement.source) from None
    compiled = compile_queue(queue, session.pgconn, batch=batch, hold=hold)
    if payload > len(PAYLOAD):
        filler = b"x" * (payload - len(PAYLOAD))
        long = PAYLOAD.replace(b"}", b', "filler": "%b"}' % filler)
        compiled = replace(compiled, constants={**compiled.constants, "payload": long})
    session.prepare(compiled.enqueue)
    session.prepare(compiled.promote)
    ids = _enqueued(compiled, session, jobs)
    promote(compiled, session, jobs)
    return compiled, ids


def promote(compiled: CompiledLoad, session: LoadSession, jobs: int) -> None:
    """Make jobs claimable that were put in, where that takes a step of its own.

    Args:
        compiled: The queue.
        session: A connection on which its `promote` is prepared.
        jobs: How many there may be; a function, which does not tell what it has changed, runs once.

    Raises:
        RejectedError: The server rejected it.
    """
    for _ in range(jobs if compiled.promote.commands else 0):
        _, changed = session.run(compiled.promote, {})
        if not changed:
            return


def _enqueued(compiled: CompiledLoad, session: LoadSession, jobs: int) -> list[bytes]:
    if len(compiled.enqueue.commands) == 1:
        return _pipelined(compiled, session, jobs)
    ids: list[bytes] = []
    for _ in range(jobs):
        answer, _ = session.run(compiled.enqueue, dict(compiled.constants))
        ids += [text or b"" for text in values(answer, compiled.enqueue_id)] if answer else []
    return ids


def _pipelined(compiled: CompiledLoad, session: LoadSession, jobs: int) -> list[bytes]:
    """Enqueue without waiting for each answer, in one transaction."""
    (command,) = compiled.enqueue.commands
    known = [compiled.constants[parameter] for parameter in command.parameters]
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
                ids.append(result.get_value(0, compiled.enqueue_id) or b"")
        pgconn.exit_pipeline_mode()
    session.command(b"COMMIT")
    return ids
