"""A process at a worker of a cluster, which does units there.

It is one because a unit moves clocks and environments, and because it can be killed at any moment:
then its watchdog removes the server.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process
from typing import Any

from distributed import get_worker

from queueproof import waits
from queueproof.cluster.process import done
from queueproof.examine.processes import Processes
from queueproof.examine.work import ends
from queueproof.postgres.server import Lent

PART = waits.BULK  # seconds for one unit, with the start of a server before the first


class LostError(Exception):
    """The process was killed, or was frozen."""


class Seat:
    """A process that does one unit after the other, from the first unit on.

    A client holds one as a result of the cluster's, and each worker that does a unit gets a copy.
    Once the client lets go of it, whether it says so or was killed, the copies go, and with each
    its process.

    Args:
        lent: The server that the process has one like.
        queue: What it installs there, as pickle has it.
        given: What else goes to it with each unit.
    """

    def __init__(self, lent: Lent, queue: bytes, given: bytes) -> None:
        self._made_from = lent, queue, given
        self._given = given
        self._process = Processes(1, lent, queue)

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, self._made_from

    def __del__(self) -> None:
        self.kill()

    def submit(self, unit: bytes) -> Future[bytes]:
        """Have a unit done.

        Args:
            unit: As pickle has it.
        """
        current_process().daemon = False  # a nanny's worker is, and may have no process then
        try:
            return self._process.submit(done, self._given, unit)
        except BrokenProcessPool:  # by what was done before
            self._process = Processes(1, *self._made_from[:2])
            return self._process.submit(done, self._given, unit)

    def kill(self) -> None:
        """End the process, whatever it is at; the next unit has another one."""
        self._process.kill()


def do(seat: Seat, unit: bytes) -> tuple[str, bytes]:
    """Do a unit at a worker.

    Args:
        seat: Whose process does it.
        unit: As pickle has it.

    Returns:
        The worker's address, and what `process.done` says.

    Raises:
        LostError: The process was killed, or has not done it in time.
    """
    worker = get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    future = seat.submit(unit)

    def end_where_unwanted() -> None:
        if task.state == "cancelled":  # its client has gone
            seat.kill()

    if not ends(future, PART, end_where_unwanted):
        seat.kill()
    try:
        return worker.address, future.result()
    except BrokenProcessPool:
        raise LostError from None
