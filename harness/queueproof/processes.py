"""Processes that judge queues beside each other, each on a server of its own."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import active_children, get_context

from queueproof.postgres import Server, open_server

MOST = 8  # with a server each


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """As many as there are processors; what is under way ends with the block, and with an error."""
    pool = ProcessPoolExecutor(
        min(os.cpu_count() or 1, MOST),
        mp_context=get_context("spawn"),
        initializer=_leave_interrupts,
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
def own_server(postgres: str | None) -> Server:
    """This process's server, started at the first call and gone when the process ends.

    Args:
        postgres: As `open_server` takes it.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_server(postgres))


def _leave_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
