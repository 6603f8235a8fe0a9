"""The process at a worker of a cluster: it has a server and the queue, and does units."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from queueproof.cluster.orders import Brief, SeatError
from queueproof.errors import QueueproofError
from queueproof.examine.processes import end_without_parent
from queueproof.examine.work import Done, Unit, Work
from queueproof.postgres import open_server
from queueproof.postgres.server import spoken
from queueproof.run.open import open_lab


def main(fd: int) -> None:
    """Do what comes through a pipe, until it ends.

    Args:
        fd: One end of it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client's to handle
    end_without_parent()
    os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's
    pipe = Connection(fd)
    brief: Brief = pickle.loads(pipe.recv_bytes())  # noqa: S301 - the client's
    try:
        offer, seed = cloudpickle.loads(brief.given)
    except ImportError as error:
        message = f"the queue's class needs {error.name}, which is not there: install it"
        pipe.send(SeatError(message))
        return
    try:
        with open_server(brief.source, trust=brief.trust) as server:
            if server.version != brief.version:
                here, there = spoken(server.version), spoken(brief.version)
                raise SeatError(f"its {brief.source} is PostgreSQL {here}, here it is {there}")
            with open_lab(offer.queue, server) as lab:
                work = Work(lab, offer, seed)
                _answer(pipe, b"")
                while True:
                    _answer(pipe, _done(work, pipe.recv_bytes()))
    except EOFError:
        return  # nobody asks for more
    except QueueproofError as error:
        pipe.send(error if isinstance(error, SeatError) else SeatError(str(error)))


def _done(work: Work, units: bytes) -> bytes:
    """What comes of some units."""
    found = [_one(work, unit) for unit in pickle.loads(units)]  # noqa: S301 - the client's
    told: bytes = cloudpickle.dumps(found)
    return told


def _one(work: Work, unit: Unit) -> Done | Exception:
    try:
        return work.done(unit)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client raises it
        error.add_note("".join(traceback.format_exception(error)))
        return error


def _answer(pipe: Connection[Any, Any], answer: bytes) -> None:
    pipe.send(None)
    pipe.send_bytes(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
