"""One clock for several machines: the server's, which all of them can ask."""

from __future__ import annotations

import time
from typing import NamedTuple

import psycopg

from queueproof import waits
from queueproof.errors import QueueproofError

LOOKS = 5  # the fastest answer tells most exactly

_NOW = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8"


class _Look(NamedTuple):
    """One answer of the server's."""

    took: float
    ahead: float


def ahead(conninfo: str) -> float:
    """How far a server's clock, in seconds since 1970, is ahead of `time.monotonic` here.

    It is wrong by half of what the fastest answer took, at most.

    Raises:
        QueueproofError: The server does not answer, or does not let us in.
    """
    try:
        with waits.LimitedConnection.open(conninfo) as connection:
            return min(_look(connection) for _ in range(LOOKS)).ahead
    except psycopg.Error as error:
        raise QueueproofError(f"no connection to the server: {error}") from None


def _look(connection: waits.LimitedConnection) -> _Look:
    before = time.monotonic()
    ((now,),) = connection.execute(_NOW)
    assert isinstance(now, float)
    took = time.monotonic() - before
    return _Look(took, now - before - took / 2)
