"""What the process at a worker of a cluster does, which has a server and the queue.

It stands apart from who starts that process: it needs nothing of dask's.
"""

from __future__ import annotations

import pickle
import traceback

import cloudpickle

from queueproof.examine.work import Done, done_here


def done(given: bytes, unit: bytes) -> bytes:
    """Do a unit.

    Args:
        given: See `done_here`.
        unit: The unit, as pickle has it.

    Returns:
        What was found or raised, as cloudpickle has it: a worker has no module of a queue's class.
    """
    found: Done | Exception
    try:
        found = done_here(given, pickle.loads(unit))  # noqa: S301 - the client's
    except Exception as error:  # noqa: BLE001 - whatever it is, the client raises it
        error.add_note("".join(traceback.format_exception(error)))
        found = error
    told: bytes = cloudpickle.dumps(found)
    return told
