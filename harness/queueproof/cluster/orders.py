"""What goes to a process at a worker of a cluster, and what it may answer.

It stands apart from who starts that process: neither needs what the other one imports.
"""

from __future__ import annotations

from typing import NamedTuple

from queueproof.errors import QueueproofError


class SeatError(QueueproofError):
    """A worker of the cluster cannot do units, and what it lacks."""


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
