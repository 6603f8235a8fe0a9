"""What goes to a process at a worker of a cluster, and what it may answer.

It stands apart from who starts that process: neither needs what the other one imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from queueproof.errors import QueueproofError

if TYPE_CHECKING:
    from queueproof.bench.worker import Load


class SeatError(QueueproofError):
    """A worker of the cluster cannot do units, and what it lacks."""


class LateError(QueueproofError):
    """The start of a load was over when its word came."""


class Brief(NamedTuple):
    """What a process begins with that does units.

    Attributes:
        source: The server that it starts; see `open_server`.
        trust: The same.
        version: The server_version_num that it is to have.
        given: What the queue brings, and the seed of the schedules, as cloudpickle has it.
    """

    source: str
    trust: bool
    version: int
    given: bytes


class LoadBrief(NamedTuple):
    """What a process begins with that drives loads.

    Attributes:
        size: Workers of a load at most, elsewhere too.
        processes: That it has for its share of them.
    """

    size: int
    processes: int


class Prepare(NamedTuple):
    """A share of a load, whose workers are to connect and prepare; see `Pool.prepare`."""

    conninfo: str
    load: Load
    workers: int
    first: int
    step: int


class Release(NamedTuple):
    """The word to begin; see `Pool.release`.

    Attributes:
        start: When, by the server's clock, in seconds since 1970.
        seconds: How long.
        warm_up: How long before that.
    """

    start: float
    seconds: float
    warm_up: float
