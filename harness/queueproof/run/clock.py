"""The clock of a queue's database: real time, and the moves that the harness has made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

# Of a second: a queue that cuts it off is early by as much, and one that rounds to the nearest too.
FRACTION = 0.42


class Clock:
    """What `now()` and its kin show, as SQL that says so.

    Attributes:
        shift: Seconds by which it is ahead of real time.

    Args:
        superuser: Whether `rights.sql` is there.
    """

    def __init__(self, *, superuser: bool) -> None:
        self.shift = 0.0
        self._superuser = superuser
        self._server = 0.0  # seconds by which the server's time is ahead of `time.monotonic`
        self._moves: list[tuple[str, float]] = []  # (real moment, seconds), the latest first

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic() + self.shift

    def set_by(self, moment: Callable[[], str]) -> None:
        """Learn how the server's own clock goes, so that a worker's can go as it does.

        Args:
            moment: Asks it what it shows. What its answer takes is no worker's delay: a clock that
                is behind by that would not find what has just been enqueued.
        """
        asked = time.monotonic()
        self._server = datetime.fromisoformat(moment()).timestamp() - asked

    def shown(self, ahead: float) -> datetime:
        """What the clock of a worker shows.

        Args:
            ahead: Seconds by which it is wrong.
        """
        return datetime.fromtimestamp(self._server + self.now() + ahead, UTC)

    def until_aligned(self, moment: str) -> float:
        """Seconds until it shows the fraction at which what is timed begins.

        Args:
            moment: What the server's own clock shows, as text.
        """
        shown = datetime.fromisoformat(moment).timestamp() + self.shift
        return round((FRACTION - shown) % 1.0, 6)

    def move(self, seconds: float, show: Callable[[str, str], str], *, forget: bool) -> None:
        """Set it forward.

        Args:
            seconds: How far.
            show: Has the database show so much more than real time, as an interval, with the cases
                of earlier moves; answers the moment from which it does.
            forget: Whether no transaction is open, whose `now()` is that of an earlier moment.
        """
        self.shift += seconds
        if forget:
            self._moves.clear()
        earlier = " ".join(
            f"WHEN pg_catalog.now() >= '{since}' THEN interval '{shift:.6f} seconds'"
            for since, shift in self._moves
        )
        self._moves.insert(0, (show(f"{self.shift:.6f} seconds", earlier), self.shift))

    def reset(self) -> bool:
        """Show real time; whether that takes SQL."""
        moved = bool(self._moves)
        self._moves.clear()
        self.shift = 0.0
        return moved

    @property
    def real(self) -> str:
        """SQL that makes it show real time: each statement that is planned pays for its body.

        Most statements run before the first move. So it is PostgreSQL's own, under our name, which
        takes superuser rights to say; otherwise it is one expression, which is inlined.
        """
        own = "SELECT clock.real()"
        inlined = (
            "CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz "
            "LANGUAGE sql STABLE PARALLEL SAFE AS $$SELECT pg_catalog.now()$$"
        )
        return f"{own if self._superuser else inlined}; DELETE FROM clock.moves"
