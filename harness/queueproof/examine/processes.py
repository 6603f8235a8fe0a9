"""Processes that judge queues beside each other, each on a server of its own where it can be."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.util import Finalize
from threading import Thread
from typing import Any

from queueproof import waits
from queueproof.ending import in_one_piece
from queueproof.errors import QueueproofError
from queueproof.machine import processors
from queueproof.postgres import Server
from queueproof.postgres.server import Lent
from queueproof.postgres.sources import borrowed
from queueproof.queues.model import Queue
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.schedule.actors import call_workers_apart

_LOOK = 0.2  # seconds
END = waits.GONE  # seconds for all of them, once nobody asks for anything more
MOST = 8  # each with some connections, and somebody's server may allow few
_server: list[Server | QueueproofError] = []  # of this process, or why there is none
_lab: list[Lab] = []  # which it has made there


@contextmanager
def processes(
    server: Server | None = None, count: int | None = None, queue: Queue | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Some processes; an error in the block ends what is under way.

    Args:
        server: Like which each of them has one, see `lent_server`; somebody's they share.
        count: How many; None for two for each processor, as each waits for the server half the
            time.
        queue: What each of them installs when it begins, see `lab_here`.
    """
    count = count or min(2 * processors(), MOST)
    lent = server.lent() if server else None
    pool = _Processes(count, lent, queue)
    try:
        for _ in range(count):
            pool.submit(os.getpid)  # they begin now
        yield pool
    except BaseException:
        for child in active_children():  # what they started goes with them
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _wait_for_all()


class _Processes(ProcessPoolExecutor):
    """Processes that begin in order whenever a signal comes."""

    def __init__(self, count: int, lent: Lent | None, queue: Queue | None) -> None:
        with in_one_piece():
            super().__init__(
                count,
                mp_context=get_context("spawn"),
                initializer=_begin,
                initargs=(lent, queue),
            )

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - as its parent's
        """See `ProcessPoolExecutor.submit`: it may begin a process."""
        with in_one_piece():
            return super().submit(*args, **kwargs)


def _wait_for_all() -> None:
    """Wait until the processes have ended; end one that still works on what nobody needs."""
    with suppress(waits.LimitError):
        waits.until(lambda: not active_children(), END, "processes that judge to end")
    for child in active_children():
        child.kill()  # a frozen one would not hear of anything less


def lent_server() -> Server:
    """The server of this process, which it has had since it began.

    Raises:
        ServerUnavailableError: It could not be started.
    """
    (server,) = _server
    if isinstance(server, QueueproofError):
        raise server
    return server


def lab_here() -> Lab:
    """Where this process has installed the queue that it was given when it began."""
    return _lab[0]


def end_without_parent() -> None:
    """End this process soon after its parent has ended, however: what it started goes with it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _begin(lent: Lent | None, queue: Queue | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    Thread(target=_end_with_parent, daemon=True).start()
    if lent is not None:
        stack = ExitStack()
        # Before the watchdog goes, which sees to the processes of a queue's workers.
        Finalize(None, stack.close, exitpriority=0)
        if lent.server is not None:
            call_workers_apart(os.getpid())
        try:
            _server.append(stack.enter_context(borrowed(lent)))
        except QueueproofError as error:  # for whoever asks for it
            _server.append(error)
        if queue is not None:
            try:
                _lab.append(stack.enter_context(open_lab(queue, lent_server())))
            except QueueproofError:  # what this process was to do, another one does
                os._exit(1)


def _end_with_parent() -> None:
    """End this process where its parent was killed: nobody would tell it."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a server's watchdog sees to the rest
