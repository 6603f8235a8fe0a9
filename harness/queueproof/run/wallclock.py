"""The clock of a worker's own process, for queues whose operations are Python code.

An SQL file has no clock of its own. A Python class may ask for the time itself: its process then
moves with the database's clock, so that no lease is cut short by the harness, and goes wrong where
the question is whether that matters.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import chain
from typing import Any

from queueproof.errors import to_install
from queueproof.queues.model import Operation, Step, T, resumed
from queueproof.queues.processclock import moved

MOVABLE = find_spec("time_machine") is not None
"""True if the process' clock can be moved."""

_NEAR = timedelta(days=1.6)  # what a time zone and a delay of hours make of this moment
_DATE = re.compile(r"\b(20\d\d-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
# Seconds since 1970, or as many milli-, micro- or nanoseconds.
_EPOCH = re.compile(r"\b(\d{10})(?:(?:\d{3}){1,3}|\.\d+)?\b")
_ALONE = threading.Lock()  # what is moved is the clock of the whole process

MISSING = f"the clock of a worker's Python process cannot be set here: {to_install('clock')}"


def resumed_at(operation: Operation[T], shift: Callable[[], float]) -> Operation[T]:
    """An operation, not begun yet, that finds its process' clock ahead whenever it is resumed."""

    def resume(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - a step or an answer
        with _ALONE:
            traveller = moved(shift())
            try:
                return act()
            finally:
                traveller.stop()

    return resumed(operation, resume)


def carries_now(step: Step) -> bool:
    """True if a date or a number of seconds near to this moment stands in a statement."""
    now = datetime.now(UTC)
    for text in (step.sql, *(str(value) for value in step.params.values())):
        dates = (datetime.fromisoformat(f"{d}T{time}+00:00") for d, time in _DATE.findall(text))
        epochs = (datetime.fromtimestamp(int(one), UTC) for one in _EPOCH.findall(text))
        if any(abs(moment - now) < _NEAR for moment in chain(dates, epochs)):
            return True
    return False
