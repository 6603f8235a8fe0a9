"""A process at a worker of a cluster, which does units there.

It is one because a unit moves clocks and environments, and because it can be killed at any moment:
then its watchdog removes the server. What is imported here, workers import in their event loop.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from typing import Any

from distributed import get_worker

from queueproof.cluster.orders import Brief

_LOOK = 0.1  # seconds
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

    def __init__(self, brief: Brief) -> None:
        worker = get_worker()
        key = worker.get_current_task()
        self._pipe, there = Pipe()
        self._turn = threading.Lock()  # a worker may have several threads
        command = [sys.executable, "-m", "queueproof.cluster.process", str(there.fileno())]
        process = subprocess.Popen(command, pass_fds=[there.fileno()])  # noqa: S603 - ours
        there.close()

        def watch() -> None:
            while (task := worker.state.tasks.get(key)) and task.state in _WANTED:
                time.sleep(_LOOK)
            process.kill()
            process.wait()

        threading.Thread(target=watch, daemon=True).start()
        self._ask(pickle.dumps(brief))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a process stays where it is")

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


def do(seat: Seat, what: bytes) -> bytes:
    """See `Seat.do`: a cluster runs functions.

    Args:
        seat: Whose process does it.
        what: The same as there.
    """
    return seat.do(what)
