"""A process at a worker of a cluster, which does units there.

It is one because a unit moves clocks and environments, and because it can be killed at any moment:
then its watchdog removes the server. It needs nothing of dask's.
"""

from __future__ import annotations

import pickle
import traceback
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process
from typing import Any

import cloudpickle

from queueproof.examine.processes import Processes
from queueproof.examine.work import Done, done_here
from queueproof.postgres import Server


class Seat:
    """A process that does one unit after the other, from the first unit on.

    A client holds one as a result of the cluster's, and each worker that does a unit gets a copy.
    Once the client lets go of it, whether it says so or was killed, the copies go, and with each
    its process. That has a server like the one that is lent, and installs the queue there, as
    pickle has it; what is given goes to it with each unit, see `done_here`.
    """

    def __init__(self, lent: Server, queue: bytes, given: bytes) -> None:
        self._made_from = lent, queue, given
        self._process = Processes(1, lent, queue)

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, self._made_from

    def __del__(self) -> None:
        self.kill()

    def submit(self, unit: bytes) -> Future[bytes]:
        """Have a unit done, as pickle has it; what comes of it is what `_done` says."""
        current_process().daemon = False  # a nanny's worker is, and may have no process then
        lent, queue, given = self._made_from
        try:
            return self._process.submit(_done, given, unit)
        except BrokenProcessPool:  # by what was done before
            self._process = Processes(1, lent, queue)
            return self._process.submit(_done, given, unit)

    def kill(self) -> None:
        """End the process, whatever it is at; the next unit has another one."""
        self._process.kill()


def _done(given: bytes, unit: bytes) -> bytes:
    """Findings or an error, as cloudpickle has them: a worker has no module of the queue's."""
    found: Done | Exception
    try:
        found = done_here(given, pickle.loads(unit))  # noqa: S301 - the client's
    except Exception as error:  # noqa: BLE001 - whatever it is, the client raises it
        error.add_note("".join(traceback.format_exception(error)))
        found = error
    return bytes(cloudpickle.dumps(found))
