"""Proves or breaks a PostgreSQL job queue.

Everything that a Python queue under test needs is here; the command line is `queueproof`.
"""

from __future__ import annotations

from queueproof.errors import Exit, QueueError, QueueproofError, ServerError, Source
from queueproof.queues.model import (
    Claim,
    JobRow,
    Operation,
    Parameter,
    Queue,
    Result,
    Row,
    State,
    Step,
    Value,
    Values,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from queueproof.queues.client import Client as Client
    from queueproof.queues.sqlfile import load as load

__version__: str

__all__ = [
    "Claim",
    "Client",
    "Exit",
    "JobRow",
    "Operation",
    "Parameter",
    "Queue",
    "QueueError",
    "QueueproofError",
    "Result",
    "Row",
    "ServerError",
    "Source",
    "State",
    "Step",
    "Value",
    "Values",
    "__version__",
    "load",
]


def __getattr__(name: str) -> object:
    # These cost time, and the pytest plugin imports this package in every run of every project.
    if name == "Client":
        from queueproof.queues.client import Client

        return Client
    if name == "load":
        from queueproof.queues.sqlfile import load

        return load
    if name == "__version__":
        from importlib.metadata import version

        return version("queueproof")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
