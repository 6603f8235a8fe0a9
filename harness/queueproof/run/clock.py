"""The clock of a queue's database: real time, and the moves that the harness has made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from queueproof.run.gates import Scheduler

# Of a second: a queue that cuts it off is early by as much, and one that rounds to the nearest too.
FRACTION = 0.42

# A body of `clock.now` that a move leaves alone. To write one makes every plan that has it invalid.
_READ = """
CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT pg_catalog.now()
  + pg_catalog.pg_sequence_last_value('clock.ahead') * interval '1 microsecond'
$$
"""


class Clock:
    """The time that `now()` and its kin show, as SQL that says so."""

    def __init__(self, *, superuser: bool) -> None:
        self.shift = 0.0  # seconds by which it is ahead of real time
        self._superuser = superuser  # whether `rights.sql` is there
        self._swift = superuser  # whether a move need not be seen by transactions that are open
        self._read = False  # whether `clock.now` has the body that reads the sequence
        self._server = 0.0  # seconds by which the server's time is ahead of `time.monotonic`
        self._moves: list[tuple[str, float]] = []  # (real moment, seconds), the latest first

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic() + self.shift

    def set_by(self, moment: Callable[[], str]) -> None:
        """Learn how the server's own clock goes, so that a worker's can go as it does.

        What its answer takes is no worker's delay: a clock that is behind by that would not find
        what has just been enqueued.
        """
        asked = time.monotonic()
        self._server = datetime.fromisoformat(moment()).timestamp() - asked

    def shown(self, ahead: float) -> datetime:
        """The time that the clock of a worker shows, which is wrong by some seconds."""
        return datetime.fromtimestamp(self._server + self.now() + ahead, UTC)

    def until_aligned(self, moment: str) -> float:
        """Seconds until it shows the fraction at which what is timed begins: 0.5 to 1.5.

        A shorter move would leave it to the machine's speed whether a lease that began before it is
        over at a moment that is counted from after it, or whether the fraction has just passed.
        """
        shown = datetime.fromisoformat(moment).timestamp() + self.shift
        return round((FRACTION - shown - 0.5) % 1.0 + 0.5, 6)

    def move(self, seconds: float, control: Scheduler, *, forget: bool) -> None:
        """Set it forward; forget earlier moments where no transaction is open that shows one."""
        self.shift += seconds
        ahead = f"{self.shift:.6f} seconds"
        if forget:
            self._moves.clear()
        if forget and self._swift:
            self._moves.append((control.asked("hop", ahead), self.shift))
            if not self._read:
                control.run(_READ)
                self._read = True
            return
        self._read = False
        earlier = " ".join(
            f"WHEN pg_catalog.now() >= '{since}' THEN interval '{shift:.6f} seconds'"
            for since, shift in self._moves
        )
        self._moves.insert(0, (control.asked("move", ahead, earlier), self.shift))

    def reset(self, *, measured: bool) -> str:
        """SQL that shows real time; empty where it is shown already.

        Args:
            measured: Whether what statements cost will be measured: they are planned as they would
                be without us then, at each move anew.
        """
        moved = bool(self._moves) or (measured and self._read)
        self._moves.clear()
        self.shift = 0.0
        self._swift = self._superuser and not measured
        if not moved:
            return ""
        if self._read and not measured:
            return "SELECT setval('clock.ahead', 0); DELETE FROM clock.moves"
        self._read = False
        return self.real

    @property
    def real(self) -> str:
        """SQL that makes it show real time as PostgreSQL does, under our name.

        That takes superuser rights to say; otherwise it is one expression, which is inlined.
        """
        own = "SELECT clock.real()"
        inlined = (
            "CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz "
            "LANGUAGE sql STABLE PARALLEL SAFE AS $$SELECT pg_catalog.now()$$"
        )
        return f"{own if self._superuser else inlined}; DELETE FROM clock.moves"
