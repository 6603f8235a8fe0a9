"""From a queue and a server to a laboratory of the kind that the queue needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from textwrap import shorten

import psycopg

from queueproof.errors import QueueError, ServerError, ServerUnavailableError
from queueproof.postgres import Server, open_server
from queueproof.queues.model import Queue
from queueproof.queues.worker import WorkerQueue
from queueproof.run.lab import Lab
from queueproof.run.session import ConnectionLostError
from queueproof.run.tables import HINDERED
from queueproof.run.workers import ClientLab

CONNECTIONS = 20  # that an installed queue may come to have at once
_CRASH = 300  # characters of what is told of it
_ENDED = "57P01"  # admin_shutdown, or pg_terminate_backend
_ALIVE = 2  # seconds for a server to show that it runs
_FULL = re.compile(  # libpq's words
    "too many clients already|remaining connection slots are reserved|too many connections for"
)


@contextmanager
def open_lab(
    queue: Queue, server: Server, settings: Mapping[str, str] | None = None
) -> Iterator[Lab]:
    """Install a queue in a fresh database of a server; both are gone afterwards.

    Raises:
        QueueError: The queue's SQL was rejected, or keeps the harness from its work.
    """
    with (
        server.database(settings=settings) as conninfo,
        _held_responsible(server, server.for_queue(conninfo)),
    ):
        if isinstance(queue, WorkerQueue):
            lab: Lab = ClientLab(queue, server, conninfo)
        else:
            lab = Lab(queue, server, conninfo)
        try:
            yield lab
        finally:
            lab.close()


def twin_of(lab: Lab) -> Lab:
    """The same queue on a server of its own, which may be killed; opened at the first call.

    The lab's own server may have other labs. The twin's sessions begin with synchronous_commit =
    on, so that the kill of a process loses nothing that was acknowledged; what a power failure
    loses with fsync = off is not asked. The twin ends with the lab.

    Raises:
        ServerUnavailableError: The server could not be started once more.
    """
    if lab.twin is None:
        again = open_server(lab.server.source, trust=lab.server.trusted)
        server = lab.resources.enter_context(again)
        twin = open_lab(lab.queue, server, {"synchronous_commit": "on"})
        lab.twin = lab.resources.enter_context(twin)
    return lab.twin


@contextmanager
def _held_responsible(server: Server, conninfo: str) -> Iterator[None]:
    """Blame the queue for what its SQL does to the harness's own statements and connections."""
    began = _start_of(conninfo)
    try:
        yield
    except (psycopg.Error, ServerError, ConnectionLostError) as error:
        state = getattr(error, "sqlstate", None)
        told = str(error).strip().partition("\n")[0]
        # It may come from a function that one of the harness's statements has set off.
        context = error.diag.context if isinstance(error, psycopg.Error) else None
        if state in HINDERED or "function" in (context or ""):
            raise QueueError(
                f"the queue's SQL keeps queueproof from its work: {told} ({state}). Has it"
                " made an event trigger, or set default_transaction_read_only?"
            ) from None
        lost = state in {None, _ENDED}
        if _FULL.search(told):
            raise ServerUnavailableError(
                f"the server has no connection left: {told}. Allow {2 * CONNECTIONS} for --jobs 1,"
                f" and {CONNECTIONS} more for each further process (max_connections of the server,"
                " CONNECTION LIMIT of the role)"
            ) from None
        if lost and server.is_full:
            raise ServerUnavailableError(
                f"the disk is full in {server.home}, where PostgreSQL keeps its data, and it has"
                " ended. TMPDIR chooses another directory."
            ) from None
        if lost and server.lacks(conninfo):
            raise ServerUnavailableError(
                "somebody has dropped the database of this run while it ran, so there is no verdict"
            ) from None
        if lost:
            refuse_crashed(server)
        if lost and began is not None and began == _start_of(conninfo):
            raise QueueError(
                f"a connection was ended while the server went on: {told}. If it was the queue's"
                " SQL (pg_terminate_backend): with its connection a worker loses what it is at"
            ) from None
        raise


def refuse_crashed(server: Server) -> None:
    """Say of a server whose connections are lost that it has crashed, where its log has that."""
    if crash := server.crash():
        why = "No statement may crash it: try another version (--postgres), and report this one"
        if crash.startswith("signal 9:"):
            why = "Somebody has killed it, or the kernel, which does so where memory runs out"
        told = f"PostgreSQL itself has crashed ({shorten(crash, _CRASH)}), so there is no verdict"
        raise ServerUnavailableError(f"{told}. {why}") from None


def _start_of(conninfo: str) -> object:
    """The time at which a server was started; None where it does not say."""
    try:
        with psycopg.connect(conninfo, connect_timeout=_ALIVE) as connection:
            # As text: psycopg reads times in the style ISO alone, and a role may have another.
            asked = "SELECT pg_catalog.pg_postmaster_start_time()::pg_catalog.text"
            return connection.execute(asked).fetchone()
    except psycopg.Error:
        return None
