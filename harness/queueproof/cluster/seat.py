"""Where a worker of a cluster has units done, or drives a load: a process of its own.

It is one because a unit moves clocks and environments, and because it can be killed at any moment:
then its watchdog removes the server. What is imported here, workers import in their event loop.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from distributed import Worker, get_worker

from queueproof.cluster.orders import Brief, LoadBrief

_LOOK = 0.1  # seconds
_GRACE = 1.0  # seconds for a process to end with what it has started
_WANTED = {"executing", "memory"}  # states of a seat's key while its client wants it


class LostError(Exception):
    """The process was killed, or ended without an answer."""


class Seat:
    """A process that does one unit after the other.

    It stays at the worker at which it began, as a result that the client keeps. Once the client
    lets go of it, whether it says so or was killed, the process is killed.

    Args:
        brief: What it begins with.
    """

    _module = "process"
    _pipes = 1

    def __init__(self, brief: Brief | LoadBrief) -> None:
        worker = get_worker()
        key = worker.get_current_task()
        pairs = [Pipe() for _ in range(self._pipes)]
        self._pipe, *self._others = [ours for ours, _ in pairs]
        self._turn = threading.Lock()  # a worker may have several threads
        fds = [there.fileno() for _, there in pairs]
        command = [sys.executable, "-m", f"queueproof.cluster.{self._module}", *map(str, fds)]
        process = subprocess.Popen(command, pass_fds=fds)  # noqa: S603 - ours
        for _, there in pairs:
            there.close()

        def watch() -> None:
            while (task := worker.state.tasks.get(key)) and task.state in _WANTED:
                time.sleep(_LOOK)
            self._hang_up(process)
            process.kill()
            process.wait()

        threading.Thread(target=watch, daemon=True).start()
        self._ask(pickle.dumps(brief))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a process stays where it is")

    def _hang_up(self, process: subprocess.Popen[bytes]) -> None:
        """Do what is to be done before a process is killed."""

    def do(self, units: bytes) -> bytes:
        """Do some units.

        Args:
            units: As pickle has them.

        Returns:
            What was found, as a list of `Done` or of what was raised, the same way.
        """
        return self._ask(units)

    def _ask(self, what: bytes) -> bytes:
        """Send something, and raise what comes of it or return it."""
        try:
            with self._turn:
                self._pipe.send_bytes(what)
                error = self._pipe.recv()
                if error is None:
                    return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise LostError from None
        raise error


class LoadSeat(Seat):
    """A process that drives its share of one load after the other, and has processes for that.

    It takes a `Prepare` or a `Release` in place of units, and gives a list of `Tally`.
    """

    _module = "loading"
    _pipes = 2

    def _hang_up(self, process: subprocess.Popen[bytes]) -> None:
        """Have it end its processes."""
        for pipe in self._others:  # from which another thread may read
            with socket.socket(fileno=os.dup(pipe.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)

    def exchange(self, elsewhere: int) -> int:
        """How much is done of the load that it drives, which is told how much is elsewhere.

        Args:
            elsewhere: Completions.
        """
        (counting,) = self._others
        try:
            counting.send(elsewhere)
            done: int = counting.recv()
        except (EOFError, OSError):
            return 0  # it is lost, and whoever waits for its load hears so
        return done


async def exchange(told: Mapping[str, tuple[str, int]], dask_worker: Worker) -> int:
    """See `LoadSeat.exchange`: a cluster runs functions.

    Args:
        told: The key of the seat, and how much is done elsewhere, by worker.
        dask_worker: Which one runs this; dask's own argument.
    """
    key, elsewhere = told[dask_worker.address]
    seat: LoadSeat = dask_worker.data[key]
    return await asyncio.to_thread(seat.exchange, elsewhere)


def do(seat: Seat, what: bytes) -> bytes:
    """See `Seat.do`: a cluster runs functions.

    Args:
        seat: Whose process does it.
        what: The same as there.
    """
    return seat.do(what)
