"""Processes that judge queues beside each other, each on a server of its own."""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

from queueproof.postgres import Server, open_server

_LOOK = 0.2  # seconds
MOST = 8  # with a server each


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two for each processor, as each waits for its server half the time.

    An error in the block ends what is under way.
    """
    pool = ProcessPoolExecutor(
        min(2 * (os.cpu_count() or 1), MOST),
        mp_context=get_context("spawn"),
        initializer=_begin,
    )
    try:
        yield pool
    except BaseException:
        for child in active_children():  # what they started goes with them
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def own_server(postgres: str | None, *, trust: bool = False) -> Server:
    """This process's server, started at the first call and gone when the process ends.

    Args:
        postgres: As `open_server` takes it.
        trust: The same.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_server(postgres, trust=trust))


def end_without_parent() -> None:
    """End this process soon after its parent has ended, however: what it started goes with it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed asks for nothing more, and tells nobody so."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a server's watchdog sees to the rest
