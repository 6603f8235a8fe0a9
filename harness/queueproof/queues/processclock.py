"""The clock of this process, moved exactly: a library starts it where it was told some time ago."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import time_machine

EXACT = 0.001  # seconds
TRIES = 100  # readings of both clocks, between which the kernel may let others run


def moved(ahead: float) -> time_machine.travel:
    """Set this process' clock some seconds ahead of real time, until what is returned is stopped.

    `travel` is told a moment, and the clock goes on from there when it starts: on a machine that is
    busy that may be a good part of a second later, by which the clock would be late.
    """
    import time_machine  # noqa: PLC0415 - an extra, and most runs leave the clock alone

    traveller = time_machine.travel(time.time() + ahead, tick=True)
    coordinates = traveller.start()
    real: Callable[[], float] = time_machine.escape_hatch.time.time
    for _ in range(TRIES):
        before, shown, after = real(), time.time(), real()
        if after - before < EXACT:
            coordinates.shift(ahead - (shown - before))
            break
    return traveller
