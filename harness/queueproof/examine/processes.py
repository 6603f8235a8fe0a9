"""Processes that judge queues beside each other, each on a server of its own where it can be."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.util import Finalize
from threading import Thread
from typing import Any

from queueproof import waits
from queueproof.ending import end_process, in_one_piece
from queueproof.errors import QueueproofError
from queueproof.machine import processors
from queueproof.postgres import Server
from queueproof.postgres.sources import borrowed
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.schedule.actors import call_workers_apart

_LOOK = 0.2  # seconds
END = waits.GONE  # seconds for all of them, once nobody asks for anything more
MOST = 8  # each with some connections, and somebody's server may allow few
_server: list[Server | QueueproofError] = []  # of this process, or why there is none
_lab: list[Lab | QueueproofError] = []  # which it has made there, or why it could not


class UnableError(QueueproofError):
    """A process cannot do units, and what it lacks."""


@contextmanager
def processes(
    server: Server | None = None, count: int | None = None, queue: bytes | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Some processes; an error in the block ends what is under way.

    Each has a server like this one, see `lent_server`; somebody's they share. What each installs
    when it begins is a queue as pickle has it, see `lab_here`. Unless counted, they are two for
    each processor, as each waits for the server half the time.
    """
    count = count or min(2 * processors(), MOST)
    pool = Processes(count, server.lent() if server else None, queue)
    try:
        for _ in range(count):
            pool.submit(os.getpid)  # they begin now
        yield pool
    except BaseException:
        # First: its thread bears no cancelled task among those of processes that die.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in active_children():  # what they started goes with them
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        with suppress(waits.LimitError):  # one may still work on what nobody needs
            waits.until(lambda: not active_children(), END, "processes that judge to end")
        for child in active_children():
            child.kill()  # a frozen one would not hear of anything less


class _Asked(Future[Any]):
    def set_exception(self, exception: BaseException | None) -> None:
        # Until Python 3.12 a pool of which a process is killed tells those that were cancelled,
        # too, dies of their refusal, and tells no other.
        with suppress(InvalidStateError):
            super().set_exception(exception)


class Processes(ProcessPoolExecutor):
    """Processes that begin in order whenever a signal comes, each with a server like one."""

    def __init__(self, count: int, lent: Server | None, queue: bytes | None) -> None:
        with in_one_piece():
            super().__init__(
                count, mp_context=get_context("spawn"), initializer=_begin, initargs=(lent, queue)
            )

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - as its parent's
        """See `ProcessPoolExecutor.submit`: it may begin a process."""
        with in_one_piece():
            future = super().submit(*args, **kwargs)
        future.__class__ = _Asked
        return future

    def kill(self) -> None:
        """End them at once, whatever they are at: what they began goes with them."""
        for process in [*(self._processes or {}).values()]:
            process.kill()


def lent_server() -> Server:
    """The server of this process, which it has had since it began."""
    (server,) = _server
    if isinstance(server, QueueproofError):
        raise server
    return server


def lab_here() -> Lab:
    """The lab of this process, with the queue that it was given when it began."""
    (lab,) = _lab
    if isinstance(lab, QueueproofError):
        raise UnableError(str(lab))
    return lab


def end_without_parent() -> None:
    """End this process soon after its parent has ended, however: what it started goes with it."""
    began = parent_process()  # of a process of multiprocessing's, which may have ended already
    parent = os.getppid() if began is None else began.pid

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        end_process(1)  # a server's watchdog sees to the rest

    Thread(target=watch, daemon=True).start()


def _begin(lent: Server | None, queue: bytes | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    end_without_parent()
    if lent is not None:
        stack = ExitStack()
        # Before the watchdog goes, which sees to the processes of a queue's workers.
        Finalize(None, stack.close, exitpriority=0)
        if lent.shared:
            call_workers_apart(os.getpid())
        try:
            _server.append(stack.enter_context(borrowed(lent)))
        except QueueproofError as error:  # for whoever asks for it
            _server.append(error)
        if queue is not None:
            try:
                own = pickle.loads(queue)  # noqa: S301 - the parent's
                _lab.append(stack.enter_context(open_lab(own, lent_server())))
            except ImportError as error:
                needed = f"the queue's class needs {error.name}, which is not there: install it"
                _lab.append(QueueproofError(needed))
            except QueueproofError as error:
                _lab.append(error)
