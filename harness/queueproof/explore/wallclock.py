"""The clock of a worker's own process, for queues whose operations are Python code.

An SQL file has no clock of its own. A Python class may ask for the time itself: its process then
moves with the database's clock, so that no lease is cut short by the harness, and goes wrong where
the question is whether that matters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from queueproof.queue import Operation, T

try:
    import time_machine
except ImportError:
    time_machine = None  # type: ignore[assignment]

MOVABLE = time_machine is not None
"""Whether the process' clock can be moved."""

_ALONE = threading.Lock()  # what is moved is the clock of the whole process

MISSING = (
    "the clock of a worker's Python process cannot be set here: pip install 'queueproof[clock]'"
)


def resumed_at(operation: Operation[T], shift: Callable[[], float]) -> Operation[T]:
    """An operation that finds its process' clock off by some seconds whenever it is resumed."""

    def resume(act: Callable[[], Any]) -> Any:  # noqa: ANN401
        with _ALONE, time_machine.travel(time.time() + shift(), tick=True):
            return act()

    def run() -> Generator[Any, Any, Any]:
        act: Callable[[], Any] = partial(next, operation)
        while True:
            try:
                step = resume(act)
            except StopIteration as stop:
                return stop.value
            try:
                result = yield step
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the operation's
                act = partial(operation.throw, error)
            else:
                act = partial(operation.send, result)

    return run()
