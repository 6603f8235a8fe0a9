"""Pieces of SQL that say what the roles of a table's columns mean."""

from __future__ import annotations

import re

from queueproof.errors import QueueproofError
from queueproof.proposal.roles import States, roles_of, states_of, words
from queueproof.proposal.schema import Table

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
        self._most = self._c.get("most", "3") if "attempts" in self._c else None
        self._clock = next((r for r in ("until", "beat", "since") if r in self._c), None)
        self._id = self._identity()

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

    def _now(self, role: str) -> str:
        """The time, for a column; one without a time zone has the same time for every session."""
        plain = self._columns[role].family == "timestamp"
        return "(now() AT TIME ZONE 'UTC')" if plain else "now()"

    def _state(self, state: str) -> str:
        """A state as a literal of the status column."""
        name = self._states.names[state]
        quoted = name.replace("'", "''")
        return name if self._columns["status"].family == "int" else f"'{quoted}'"

    @property
    def _worker(self) -> str:
        owner = self._columns["owner"]
        if width := re.fullmatch(r"character(?: varying)?\((\d+)\)", owner.type):
            return ":worker" if int(width[1]) >= len(str(_UUID)) else f"left(:worker, {width[1]})"
        return ":worker::uuid" if owner.family == "uuid" else ":worker"

    @property
    def _lock(self) -> str:
        """The column that tells a job that runs, where no status does."""
        return next(
            self._c[role] for role in ("owner", "until", "since", "beat") if role in self._c
        )

    def _is(self, state: str) -> list[str]:
        if "status" in self._c:
            return [f"{self._c['status']} = {self._state(state)}"]
        ended = [f"{self._c[role]} IS NULL" for role in ("completed", "failed") if role in self._c]
        return [f"{self._lock} IS {'NOT ' if state == 'running' else ''}NULL", *ended]

    def _mine(self) -> list[str]:
        """What must be so for a worker to end a job: it is still its own."""
        running = self._is("running")
        if "status" not in self._c and "owner" in self._c:
            del running[0]  # the owner is asked for below
        conditions = [f"{self._id} = :id", *running]
        if "owner" in self._c:
            conditions.append(f"{self._c['owner']} = {self._worker}")
        if "attempts" in self._c:
            conditions.append(f"{self._c['attempts']} = :attempt")
        elif self._clock:
            conditions.append(f"{self._c[self._clock]} = :claimed_at")
        return conditions

    @property
    def _takes(self) -> str:
        worker = ", worker" if "owner" in self._c else ""
        token = "attempt" if "attempts" in self._c else "claimed_at" if self._clock else ""
        return f"id{worker}{', ' if token else ''}{token}"

    def _lease_begins(self) -> list[str]:
        set_to = {}
        for role in ("since", "beat", "until"):
            if role in self._c:
                later = " + :lease" if role == "until" else ""
                set_to[role] = f"{self._c[role]} = {self._now(role)}{later}"
        return list(set_to.values())

    def _released(self) -> list[str]:
        roles = [role for role in ("owner", "since", "beat", "until") if role in self._c]
        return [f"{self._c[role]} = NULL" for role in roles if self._columns[role].nullable]

    def _ended(self, role: str) -> list[str]:
        return [f"{self._c[role]} = {self._now(role)}"] if role in self._c else []

    def _spent_or(self, again: str, ended: str) -> str:
        return f"CASE WHEN {self._c['attempts']} < {self._most} THEN {again} ELSE {ended} END"

    def _tried_again(self) -> list[str]:
        """The assignments that end an attempt which came to nothing."""
        buries = "failed" in self._states.names
        assignments: list[str] = []
        if "status" in self._c:
            to = self._state("failed" if buries and self._most is None else "queued")
            if buries and self._most is not None:
                to = self._spent_or(self._state("queued"), self._state("failed"))
                status = self._columns["status"]
                to += f"::{status.type}" if status.family == "enum" else ""
            assignments.append(f"{self._c['status']} = {to}")
        if "failed" in self._c and (buries or "status" not in self._c):
            now = self._now("failed")
            ended = now if self._most is None else self._spent_or("NULL", now)
            assignments.append(f"{self._c['failed']} = {ended}")
        return assignments + self._released()

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
