"""Pieces of SQL that say what the roles of a table's columns mean."""

from __future__ import annotations

import re

from queueproof.errors import QueueproofError
from queueproof.proposal.roles import States, roles_of, states_of, words
from queueproof.proposal.schema import Column, Table

_TELLS = {
    "running": ("is_running", "owner", "until", "since", "beat"),
    "completed": ("is_completed", "completed"),
    "failed": ("is_failed", "failed"),
}
_ENDED = ("completed", "failed")
_UUID = "00000000-0000-0000-0000-000000000000"


class TablePieces:
    """A table read as one of jobs, in pieces of SQL.

    Args:
        table: Of the jobs.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._columns = roles_of(table)
        self._c = {role: column.sql for role, column in self._columns.items()}
        status = self._columns.get("status")
        self._states = states_of(table, status) if status else States()
        self._notes: list[str] = []
        self._id = self._identity()
        self._clock = next((r for r in ("until", "beat", "since") if r in self._c), None)
        # What tells a state that no status has.
        self._tells = {
            state: next((self._columns[r] for r in roles if r in self._columns), None)
            for state, roles in _TELLS.items()
            if state not in self._states.names
        }
        waits = status is None or self._states.null_waits or "queued" in self._states.names
        if not waits or ("running" in self._tells and self._tells["running"] is None):
            known = ", ".join(self._states.names.values()) or "it has none"
            missing = "runs: a queue needs one, such as locked_at timestamptz"
            raise QueueproofError(
                f"{table.sql}: no column and none of its states ({known}) says that a job"
                f" {missing if waits else 'waits'}"
            )
        self._counts = "attempts" in self._c or "left" in self._c
        default = next((self._columns[r].default for r in ("most", "left") if r in self._c), "")
        number = re.match(r"'?(\d+)", default)
        self._number = int(number[1]) if number and int(number[1]) else 3
        self._spent = self._may = ""
        if "attempts" in self._c:
            most = self._c.get("most", str(self._number))
            self._may, self._spent = (f"{self._c['attempts']} {of} {most}" for of in ("<", ">="))
        elif "left" in self._c:
            self._may, self._spent = f"{self._c['left']} > 0", f"{self._c['left']} <= 0"

    def _identity(self) -> str:
        keys = [column for column in self._table.columns if column.key]
        named = [c for c in (keys or self._table.columns) if words(c.name).endswith("id")]
        if not (keys or named):
            raise QueueproofError(f"{self._table.sql} has no primary key, by which a job is named")
        self._key = (named or keys)[0]
        if len(keys) != 1:
            self._notes.append(f"{self._key.sql} alone is taken for a job's id; is it unique?")
        return self._key.sql

    def _as(self, column: str, name: str) -> str:
        return column if column == name else f"{column} AS {name}"

    def _now(self, role: str, later: str = "", *, written: bool = False) -> str:
        """The time, or one later or earlier, for a column.

        One without a time zone has the same time for every session; one of whole seconds is never
        earlier than it says where it is written, and never later where it is compared.
        """
        column = self._columns[role]
        if column.family == "timestamp":
            return f"(now() AT TIME ZONE 'UTC'){later}"
        if column.family != "epoch":
            return f"now(){later}"
        most = "ceil" if written else "floor"
        times = " * 1000" * (self._unit(column) == "milliseconds")
        return f"{most}(extract(epoch FROM now(){later}){times})::{column.type}"

    def _unit(self, column: Column) -> str:
        """Of a time that is a number: what its name or DEFAULT says, or else its size."""
        if re.search(r"ms$|millis$", words(column.name)) or "* (1000)" in column.default:
            return "milliseconds"
        return "seconds" if column.type == "integer" else "milliseconds"

    def _state(self, state: str) -> str:
        """A state as a literal of the status column."""
        if state == "queued" and self._states.null_waits:
            return "NULL"
        name = self._states.names[state]
        quoted = name.replace("'", "''")
        return name if self._columns["status"].family == "int" else f"'{quoted}'"

    @property
    def _worker(self) -> str:
        owner = self._columns["owner"]
        if width := re.fullmatch(r"character(?: varying)?\((\d+)\)", owner.type):
            return ":worker" if int(width[1]) >= len(str(_UUID)) else f"left(:worker, {width[1]})"
        return ":worker::uuid" if owner.family == "uuid" else ":worker"

    def _is(self, state: str) -> list[str]:
        """What must be so where a job is queued, or runs."""
        if "status" in self._c and "running" in self._states.names:
            literal = self._state(state)
            return [f"{self._c['status']} {'IS' if literal == 'NULL' else '='} {literal}"]
        lock = self._tells["running"]
        assert lock is not None
        asked = [f"{self._c['status']} = {self._state('queued')}"] if "status" in self._c else []
        ended = [one for s, one in self._tells.items() if s != "running" and one is not None]
        return [*asked, holds(lock, state == "running"), *(holds(one, on=False) for one in ended)]

    def _becomes(self, state: str, *, if_spent: bool = False) -> list[str]:
        """The assignments that make a job queued, running, completed or failed.

        Args:
            state: Which.
            if_spent: Only a job that has no attempt left; another one is queued.
        """
        sets = []
        if "status" in self._c and (state in self._states.names or state == "queued"):
            status, to = self._columns["status"], self._state(state)
            if if_spent:
                to = f"CASE WHEN {self._may} THEN {self._state('queued')} ELSE {to} END"
                to += f"::{status.type}" if status.family == "enum" else ""
            sets.append(f"{status.sql} = {to}")
        if f"is_{state}" in self._c:
            sets.append(f"{self._c[f'is_{state}']} = {self._spent if if_spent else 'true'}")
        if state in _ENDED and state in self._c:
            to = self._now(state, written=True)
            to = f"CASE WHEN {self._spent} THEN {to} END" if if_spent else to
            sets.append(f"{self._c[state]} = {to}")
        if state != "running" and "is_running" in self._c:
            sets.append(f"{self._c['is_running']} = false")
        return sets

    def _buries(self) -> bool:
        """Whether anything tells that a job was given up."""
        return "failed" in self._states.names or self._tells.get("failed") is not None

    def _mine(self) -> list[str]:
        """What must be so for a worker to end a job: it is still its own."""
        running = self._is("running")
        conditions = [f"{self._id} = :id", *running]
        if "owner" in self._c:
            owned = f"{self._c['owner']} IS NOT NULL"  # which is asked for here
            conditions = [one for one in conditions if one != owned]
            conditions.append(f"{self._c['owner']} = {self._worker}")
        if self._counts:
            conditions.append(f"{self._count} = :attempt")
        elif self._clock:
            conditions.append(f"{self._c[self._clock]} = :claimed_at")
        return conditions

    @property
    def _count(self) -> str:
        """The column that counts attempts, up or down."""
        return self._c["attempts" if "attempts" in self._c else "left"]

    @property
    def _takes(self) -> str:
        worker = ", worker" if "owner" in self._c else ""
        token = "attempt" if self._counts else "claimed_at" if self._clock else ""
        return f"id{worker}{', ' if token else ''}{token}"

    def _lease_begins(self) -> list[str]:
        return [
            f"{self._c[role]} = {self._now(role, ' + :lease' * (role == 'until'), written=True)}"
            for role in ("since", "beat", "until")
            if role in self._c
        ]

    def _released(self) -> list[str]:
        roles = [role for role in ("owner", "since", "beat", "until") if role in self._c]
        return [f"{self._c[role]} = NULL" for role in roles if self._columns[role].nullable]

    def _tried_again(self, *, crashed: bool = False) -> list[str]:
        """The assignments that end an attempt which came to nothing.

        Args:
            crashed: Its worker did not say so: without a count it is tried again.
        """
        if not self._buries() or (crashed and not self._counts):
            return [*self._becomes("queued"), *self._released()]
        return [*self._becomes("failed", if_spent=self._counts), *self._released()]

    def _order(self) -> list[str]:
        order = [f"{self._c['priority']} DESC"] if "priority" in self._c else []
        if "due" in self._c:
            first = " NULLS FIRST" if self._columns["due"].nullable else ""
            order.append(self._c["due"] + first)
        elif "created" in self._c and self._key.family != "int":
            order.append(self._c["created"])
        if self._key.family == "int":
            order.append(self._id)
        return order


def holds(column: Column, on: bool) -> str:  # noqa: FBT001 - which of two
    """What asks whether a flag is set, or a time or a name is there.

    Args:
        column: The flag, the time or the name.
        on: Whether it is to be; else that it is not.
    """
    if column.family != "bool":
        return f"{column.sql} IS {'NOT ' * on}NULL"
    if column.nullable:
        return f"{column.sql} IS {'' if on else 'NOT '}TRUE"
    return column.sql if on else f"NOT {column.sql}"
