"""Finds race conditions in PostgreSQL job queues, and shows the exact steps.

Everything that a Python queue under test needs is here, and `check` and `replay`, which do what the
command line `queueproof` does.
"""

from __future__ import annotations

from queueproof.errors import Exit, QueueError, QueueproofError, ServerError, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from queueproof.library import check as check
    from queueproof.library import replay as replay
    from queueproof.queues.client import Client as Client
    from queueproof.queues.model import Claim as Claim
    from queueproof.queues.model import JobRow as JobRow
    from queueproof.queues.model import Operation as Operation
    from queueproof.queues.model import Parameter as Parameter
    from queueproof.queues.model import Queue as Queue
    from queueproof.queues.model import Result as Result
    from queueproof.queues.model import Row as Row
    from queueproof.queues.model import State as State
    from queueproof.queues.model import Step as Step
    from queueproof.queues.model import Value as Value
    from queueproof.queues.model import Values as Values
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

# These cost time: the pytest plugin imports this package in every run of every project, and Ctrl-C
# may come before the command line is there to hear it.
_MODEL = "Claim JobRow Operation Parameter Queue Result Row State Step Value Values"
_LATE = dict.fromkeys(_MODEL.split(), "queueproof.queues.model") | {
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
