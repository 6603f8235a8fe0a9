"""The clock of a queue's database: real time, and the moves that the harness has made of it."""

from __future__ import annotations

import time
from datetime import datetime

# Of a second: a queue that cuts it off is early by as much, and one that rounds to the nearest too.
FRACTION = 0.42


class Clock:
    """What `now()` and its kin show, as SQL that says so.

    Attributes:
        shift: Seconds by which it is ahead of real time.

    Args:
        superuser: Whether a function may be declared to be one of PostgreSQL's own.
    """

    def __init__(self, *, superuser: bool) -> None:
        self.shift = 0.0
        self._superuser = superuser
        self._moves: list[tuple[str, float]] = []  # (real moment, seconds), the latest first

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic() + self.shift

    def until_aligned(self, moment: str) -> float:
        """Seconds until it shows the fraction at which what is timed begins.

        Args:
            moment: What the server's own clock shows, as text.
        """
        shown = datetime.fromisoformat(moment).timestamp() + self.shift
        return round((FRACTION - shown) % 1.0, 6)

    def move(self, seconds: float, moment: str, *, forget: bool) -> None:
        """Set it forward.

        Args:
            seconds: How far.
            moment: What the server's own clock shows, as text.
            forget: Whether no transaction is open, whose `now()` is that of an earlier moment.
        """
        self.shift += seconds
        if forget:
            self._moves.clear()
        self._moves.insert(0, (moment, self.shift))

    def reset(self) -> bool:
        """Show real time; whether that takes SQL."""
        moved = bool(self._moves)
        self._moves.clear()
        self.shift = 0.0
        return moved

    @property
    def sql(self) -> str:
        """Gives `now()` the body that fits the moves: each statement that is planned pays for it.

        Most statements run before the first move: then it is PostgreSQL's own, under our name,
        which takes superuser rights to say. Otherwise it is one expression, which is inlined.
        """
        cases = " ".join(
            f"WHEN pg_catalog.now() >= '{since}' THEN interval '{shift:.6f} seconds'"
            for since, shift in self._moves
        )
        rows = "; ".join(
            f"INSERT INTO clock.moves VALUES ('{since}', '{shift:.6f} seconds')"
            for since, shift in self._moves[:1]
        )
        body = "LANGUAGE sql STABLE PARALLEL SAFE AS $$SELECT pg_catalog.now()"
        if cases:
            body += f" + CASE {cases} ELSE interval '0' END$$"
        elif self._superuser:
            body = "LANGUAGE internal STABLE STRICT PARALLEL SAFE AS $$now$$"
        else:
            body += "$$"
        return (
            f"CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz {body}; "
            f"{rows or 'DELETE FROM clock.moves'}"
        )
