"""Under what a run takes place, beside its schedule: gates, planner, isolation, clocks, pooler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

from queueproof.schedule.actors import DRAINER

_NESTED = dict.fromkeys(
    ("enable_hashagg", "enable_hashjoin", "enable_material", "enable_sort", "enable_mergejoin"),
    "off",
)
_NO_INDEX = dict.fromkeys(("enable_indexscan", "enable_bitmapscan", "enable_indexonlyscan"), "off")
PLANNERS: Mapping[str, Mapping[str, str]] = {
    "default settings": {},
    "nested loops only": _NESTED,
    "nested loops only, no index": {**_NESTED, **_NO_INDEX},
    "no index": _NO_INDEX,
    "no sequential scan": {"enable_seqscan": "off"},
}
"""Planner settings: what a queue promises it promises under any plan."""

_ZONES: tuple[Mapping[str, str], ...] = (
    {"TimeZone": "Pacific/Kiritimati", "DateStyle": "German"},  # 14 hours ahead of UTC
    {"TimeZone": "Pacific/Niue", "DateStyle": "SQL, DMY"},  # 11 hours behind it
    {"TimeZone": "America/St_Johns", "DateStyle": "Postgres, MDY"},
)
# Of the zones; who else there is: 2. What the drainer claims has been put in on another day of its
# own, whatever time it is.
_PLACES = {"w1": 0, "w2": 1, "reaper": 2, "producer": 0, DRAINER: 1}
# By how many seconds their clocks are ahead.
_AHEAD = {"w1": -7203.7, "w2": 7203.7, "reaper": 7203.7, "producer": 3607.1, DRAINER: 0.0}

Gate: TypeAlias = Literal["statement", "row", "every", "query"]
"""The place inside a statement where a session stops: one that changes a table with its snapshot
taken and nothing read, or with a row chosen and locked; a query with its snapshot taken and
nothing read."""

Isolation: TypeAlias = Literal["read committed", "repeatable read", "serializable"]
"""The levels that PostgreSQL tells apart."""

Pooled: TypeAlias = Literal["first idle", "round robin"]
"""The ways a pooler in transaction mode may choose (PgBouncer's server_round_robin = 0 and 1)."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that hold for every session of a run.

    Attributes:
        gate: Where inside their statements sessions stop.
        planner: Under which of `PLANNERS` they plan.
        isolation: The level that they ask for, instead of the one that the queue declares.
        clocks: Whether each worker has another time zone and date style, and a wrong clock.
        styles: Whether the date style differs, too; a worker process' driver sets its own.
        pooled: How the connection of each transaction is chosen, never the one before, where
            all share some; None where each has its own.
        pooler: The pooler that the sessions really go through: its name and version.
        far: Whether sequences begin where an int4 ends.
        killed: Whether the server may be killed: it is one of the queue's own then.
    """

    gate: Gate | None = None
    planner: Annotated[str, tuple(PLANNERS)] | None = None
    isolation: Isolation | None = None
    clocks: bool = False
    styles: bool = True
    pooled: Pooled | None = None
    pooler: str = ""
    killed: bool = False
    far: bool = False

    def settings(self, actor: str) -> Mapping[str, str]:
        """The settings that an actor's session makes when it begins."""
        wanted = dict(PLANNERS[self.planner]) if self.planner else {}
        if self.isolation:
            wanted["default_transaction_isolation"] = f"'{self.isolation}'"
        if self.clocks:
            zone = _ZONES[_PLACES.get(actor, 2)]
            wanted |= {name: f"'{value}'" for name, value in self._differing(zone).items()}
        return wanted

    def _differing(self, zone: Mapping[str, str]) -> dict[str, str]:
        return {name: zone[name] for name in zone if self.styles or name != "DateStyle"}

    def skew(self, actor: str) -> float:
        """Seconds by which the clock of an actor's process is ahead of the database's."""
        return _AHEAD.get(actor, 0.0) if self.clocks else 0.0

    def told(self) -> str:
        """The sentence of a story that names them; empty for plain ones."""
        if self.planner:
            shown = ", ".join(f"{k} = {v}" for k, v in PLANNERS[self.planner].items())
            return f"Planner: {shown}."
        if self.isolation:
            return f"Every session: default_transaction_isolation = '{self.isolation}'."
        if self.clocks:
            shown = "; ".join(
                f"{name}: {', '.join(self._differing(_ZONES[at]).values())}, {_AHEAD[name]:+g} s"
                for name, at in _PLACES.items()
            )
            what = ", ".join(self._differing(_ZONES[0]))
            return f"Sessions differ in {what} and clock ({shown})."
        if self.far:
            return "Sequences go on from 2147483645: an int4 ends two later."
        if self.killed:
            return (
                "The server commits with synchronous_commit = on, unless the queue says otherwise."
            )
        if self.pooler:
            return (
                f"All sessions go through {self.pooler}, pool_mode = transaction, with several "
                "connections to the server."
            )
        if self.pooled:
            return (
                "A pooler in transaction mode stands between: a transaction runs on any connection "
                "that is idle, and nothing is reset between two."
            )
        return ""

    def to_data(self) -> dict[str, Any]:
        """The fields that differ from plain conditions, for a replay token."""
        return {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default
        }


PLAIN = Conditions()
PLANNED = Conditions(planner="default settings")
"""Plain ones in which each statement is planned for its values, as it is under any others: an
expression of values alone may fail when it is planned, whether a row is met or not."""
