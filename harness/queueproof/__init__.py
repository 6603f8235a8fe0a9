"""Finds race conditions in PostgreSQL job queues, and shows the exact steps.

Everything that a Python queue under test needs is here, and `check` and `replay`, which do what the
command line `queueproof` does.
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
    from queueproof.library import check as check
    from queueproof.library import replay as replay
    from queueproof.queues.client import Client as Client
    from queueproof.queues.sqlfile import load as load
    from queueproof.report.card import Card as Card

__version__: str

__all__ = [
    "Card",
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
    "check",
    "load",
    "replay",
]

# These cost time, and the pytest plugin imports this package in every run of every project.
_LATE = {
    "Card": "queueproof.report.card",
    "Client": "queueproof.queues.client",
    "check": "queueproof.library",
    "load": "queueproof.queues.sqlfile",
    "replay": "queueproof.library",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        from importlib import import_module

        found: object = getattr(import_module(_LATE[name]), name)
        return found
    if name == "__version__":
        from importlib.metadata import version

        return version("queueproof")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
