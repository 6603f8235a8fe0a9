"""Processes that judge queues beside each other, on one server."""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

from queueproof.check import check_queue
from queueproof.explore.lab import open_lab
from queueproof.guarantees import select
from queueproof.postgres import Server
from queueproof.postgres.server import Lent
from queueproof.postgres.sources import borrowed
from queueproof.queue import Queue
from queueproof.report.card import Card

_LOOK = 0.2  # seconds
MOST = 8  # each with some connections, and somebody's server may allow few
_here: list[Server] = []  # which this process was lent


@contextmanager
def processes(server: Server | None = None) -> Iterator[ProcessPoolExecutor]:
    """Two for each processor, as each waits for the server half the time.

    An error in the block ends what is under way.

    Args:
        server: What they all work on, see `lent_server`.
    """
    pool = ProcessPoolExecutor(
        min(2 * (os.cpu_count() or 1), MOST),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(server.lent() if server else None,),
    )
    try:
        yield pool
    except BaseException:
        for child in active_children():  # what they started goes with them
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def lent_server() -> Server:
    """The server that this process was given when it began."""
    return _here[0]


def judge(
    queue: Queue,
    guarantees: Iterable[str] | None,
    *,
    server: Server | None = None,
    seed: int,
    profile: str,
    required: Iterable[str] = (),
) -> Card:
    """The card of a queue; to be called in one of the processes.

    Args:
        queue: Which.
        guarantees: Ids of those to judge it by; None for all.
        server: Where; None for the one that this process was lent.
        seed: As for `check_queue`.
        profile: The same.
        required: The same.
    """
    with open_lab(queue, server or lent_server()) as lab:
        wanted = select(guarantees)
        return check_queue(lab, wanted, seed=seed, profile=profile, required=required)


def end_without_parent() -> None:
    """End this process soon after its parent has ended, however: what it started goes with it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _begin(lent: Lent | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    Thread(target=_end_with_parent, daemon=True).start()
    if lent is not None:
        stack = ExitStack()
        atexit.register(stack.close)
        _here.append(stack.enter_context(borrowed(lent)))


def _end_with_parent() -> None:
    """A parent that was killed asks for nothing more, and tells nobody so."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a server's watchdog sees to the rest
