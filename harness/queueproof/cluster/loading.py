"""The process at a worker of a cluster that drives its share of a load.

It has the processes that a benchmark has on one machine, and ends with them as soon as its pipes
do: whoever wants the load holds their other ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from queueproof.bench.pool import Pool
from queueproof.bench.worker import Tally
from queueproof.cluster.clock import ahead
from queueproof.cluster.orders import LateError, LoadBrief, Prepare, Release
from queueproof.errors import QueueproofError


def main(fd: int, counting: int) -> None:
    """Do what comes through a pipe, until it ends.

    Args:
        fd: One end of it.
        counting: One end of another, over which completions are counted meanwhile.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client's to handle
    for one in (fd, counting):
        os.set_inheritable(one, False)  # noqa: FBT003 - the standard library's
    pipe: Connection[Any, Any] = Connection(fd)
    brief: LoadBrief = pickle.loads(pipe.recv_bytes())  # noqa: S301 - the client's
    with Pool(brief.size, brief.processes) as pool, suppress(EOFError, OSError):
        Thread(target=_count, args=(Connection(counting), pool), daemon=True).start()
        share = _Share(pool)
        found: bytes | QueueproofError = b""
        while True:
            pipe.send(found if isinstance(found, QueueproofError) else None)
            if isinstance(found, bytes):
                pipe.send_bytes(found)
            order = pickle.loads(pipe.recv_bytes())  # noqa: S301 - the client's
            try:
                found = pickle.dumps(share.done(order))
            except QueueproofError as error:
                found = error


def _count(pipe: Connection[Any, Any], pool: Pool) -> None:
    """Tell how much is done here, and hear how much is done elsewhere, until nobody asks."""
    with suppress(EOFError, OSError):
        while True:
            pipe.send(pool.exchange(pipe.recv()))
    pool.kill()  # at work they hear nothing before their time is up
    os._exit(1)


class _Share:
    """Of a load.

    Args:
        pool: Whose processes drive it.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ahead = 0.0  # of the server's clock

    def done(self, order: Prepare | Release) -> list[Tally]:
        """Do what is asked for; times are the server's.

        Raises:
            LateError: The start is over.
            QueueError: The server rejected something.
            WorkerLostError: A process died.
            QueueproofError: The server cannot be reached from here.
        """
        if isinstance(order, Prepare):
            self._ahead = ahead(order.conninfo)
            self._pool.prepare(
                order.conninfo, order.load, order.workers, first=order.first, step=order.step
            )
            return []
        early = order.start - self._ahead - time.monotonic()
        if early < 0:
            raise LateError(f"heard of the start {-early:.3f} s late")
        time.sleep(early)
        _, tallies = self._pool.release(order.seconds, lambda: None, warm_up=order.warm_up)
        for tally in tallies:
            tally.ended += self._ahead if tally.ended else 0.0
        return tallies


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
