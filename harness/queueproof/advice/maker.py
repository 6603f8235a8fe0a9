"""Safe SQL for a table of jobs in its own names: what operations ask of a job, and what they write.

Where a schema is known (`init --from-schema`) types and NULLs count; of a queue that is SQL alone
(`mend`, remedies) each column is taken for the most usual of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from queueproof.advice.roles import Column, Table, words

_TELLS = {  # what tells a state that no status has
    "running": ("is_running", "owner", "until", "since", "beat"),
    "completed": ("is_completed", "completed"),
    "failed": ("is_failed", "failed"),
}
_ENDED = ("completed", "failed")
_UUID = len("00000000-0000-0000-0000-000000000000")
_NONE = Column()


class Clause(NamedTuple):
    """A condition on a column, or with `=` an assignment."""

    column: Column
    value: str  # what it is compared with, or given
    sign: str = "="  # what stands between them

    def __str__(self) -> str:
        if self.sign == "NOT":  # a flag that is never NULL
            return f"NOT {self.column}"
        return f"{self.column} {self.sign} {self.value}".rstrip()


@dataclass(frozen=True)
class Jobs:
    """A table read as one of jobs."""

    table: Table
    key: Column  # the column by which a job is named
    columns: Mapping[str, Column]  # by what they are for (`ROLES`)
    states: Mapping[str, str]  # what SQL calls each state that the status may have
    token: str  # the parameter that tells one claim of a job from a later one; or nothing
    number: int = 3  # how many attempts a job has, where no column says so

    def __getitem__(self, role: str) -> Column:
        """The column for something; none where nothing tells."""
        return self.columns.get(role, _NONE)

    @property
    def clock(self) -> str:
        """The role of the column that tells since or until when a job runs."""
        return next((role for role in ("until", "beat", "since") if self[role]), "")

    @property
    def lease(self) -> Column:
        """The column that tells since or until when a job runs."""
        return self[self.clock]

    @property
    def count(self) -> Column:
        """The column that counts attempts, up or down."""
        return self["attempts"] or self["left"]

    @property
    def may(self) -> Clause:
        """The condition that a job has an attempt left."""
        if self["attempts"]:
            return Clause(self["attempts"], f"{self['most'] or self.number}", "<")
        return Clause(self["left"], "0", ">")

    @property
    def spent(self) -> Clause:
        """The condition that it has none."""
        return self.may._replace(sign=">=" if self["attempts"] else "<=")

    def tells(self, state: str) -> Column:
        """The column that tells a state that no status has."""
        roles = () if state in self.states else _TELLS.get(state, ())
        return next((self[role] for role in roles if self[role]), _NONE)

    def now(self, column: Column, later: str = "", *, written: bool = False) -> str:
        """The time, or one later or earlier, for a column where it is written, or else compared.

        One without a time zone has the same time for every session; one of whole seconds is never
        earlier than it says where it is written, and never later where it is compared.
        """
        if column.family == "timestamp":
            return f"(now() AT TIME ZONE 'UTC'){later}"
        if column.family != "epoch":
            return f"now(){later}"
        most = "ceil" if written else "floor"
        times = " * 1000" * _in_milliseconds(column)
        return f"{most}(extract(epoch FROM now(){later}){times})::{column.type}"

    # --- what is asked ----------------------------------------------------------------------

    def is_in(self, state: str) -> list[Clause]:
        """The conditions of a job that is queued, or runs."""
        status = self["status"]
        if status and "running" in self.states:
            return [self._has(state)]
        if not (lock := self.tells("running")):
            return []
        ended = [one for one in map(self.tells, _ENDED) if one]
        asked = [self._has("queued")] if status else []
        return [*asked, holds(lock, state == "running"), *(holds(one, on=False) for one in ended)]

    def _has(self, state: str) -> Clause:
        literal = self.states[state]
        return Clause(self["status"], literal, "IS" if literal == "NULL" else "=")

    def mine(self) -> list[Clause]:
        """The conditions for a worker to end a job: it is still its own."""
        held = self.is_in("running")
        if self["owner"]:  # which is asked for by its name
            held = [one for one in held if one != holds(self["owner"], on=True)]
        return [Clause(self.key, ":id"), *held, *self.tokens()]

    def tokens(self) -> list[Clause]:
        """The conditions that only the worker knows that has the job."""
        asked = [Clause(self["owner"], self.worker)] if self["owner"] else []
        if self.token:
            asked.append(Clause(self.count or self.lease, f":{self.token}"))
        return asked

    @property
    def worker(self) -> str:
        """The worker's name, as its column takes it."""
        owner = self["owner"]
        if width := re.fullmatch(r"character(?: varying)?\((\d+)\)", owner.type):
            return ":worker" if int(width[1]) >= _UUID else f"left(:worker, {width[1]})"
        return ":worker::uuid" if owner.family == "uuid" else ":worker"

    def of_queue(self) -> Clause:
        """The condition that a job is of the worker's queue."""
        return Clause(self["queue"], ":queue")

    def is_due(self) -> Clause:
        """The condition that a job's time has come."""
        return Clause(self["due"], self.now(self["due"]), "<=")

    def is_stale(self, length: str = ":lease") -> Clause:
        """The condition that a lease, of a length where no column tells its end, is over."""
        over = "" if self.clock == "until" else f" - {length}"
        return Clause(self.lease, self.now(self.lease, over), "<")

    @property
    def least_first(self) -> bool:
        """True where the table's own index has small priorities ahead, and then what came first."""
        columns = [*(self[role] for role in ("due", "created") if self[role]), self.key]
        then = "|".join(re.escape(column.sql) for column in columns)
        ahead = rf"[( ]{re.escape(self['priority'].sql)}, (?:{then})(?:,|\)| NULLS)"
        return any(re.search(ahead, index) for index in self.table.indexes)

    def order(self, *, urgent: bool = True) -> list[str]:
        """The order in which jobs are claimed: the more `urgent` first, or as they came."""
        greatest = "" if self.least_first else " DESC"
        order = [f"{self['priority']}{greatest}"] if urgent and self["priority"] else []
        if due := self["due"]:
            order.append(f"{due}{' NULLS FIRST' * due.nullable}")
        elif self["created"] and self.key.family != "int":
            order.append(f"{self['created']}")
        return [*order, f"{self.key}"] if self.key.family == "int" else order

    def index(self, *, queue: bool = True, urgent: bool = True) -> str:
        """The index that serves a claim, of one queue or of all, behind its CREATE INDEX."""
        keys = [f"{self['queue']}"] if queue and self["queue"] else []
        free = " AND ".join(map(str, self.is_in("queued")))
        columns = ", ".join([*keys, *self.order(urgent=urgent)])
        return f"ON {self.table.sql} ({columns}) WHERE {free}"

    # --- what is written ----------------------------------------------------------------------

    def becomes(self, state: str, *, if_spent: bool = False) -> list[Clause]:
        """The assignments that make a job queued, running, completed or failed.

        With `if_spent` only a job that has no attempt left; another one is queued.
        """
        sets = []
        status = self["status"]
        if status and (state in self.states or state == "queued"):
            to = self.states[state]
            if if_spent:
                to = f"CASE WHEN {self.may} THEN {self.states['queued']} ELSE {to} END"
                to += f"::{status.type}" if status.family == "enum" else ""
            sets.append(Clause(status, to))
        if flag := self[f"is_{state}"]:
            sets.append(Clause(flag, f"{self.spent}" if if_spent else "true"))
        if state in _ENDED and (since := self[state]):
            to = self.now(since, written=True)
            sets.append(Clause(since, f"CASE WHEN {self.spent} THEN {to} END" if if_spent else to))
        if state != "running" and self["is_running"]:
            sets.append(Clause(self["is_running"], "false"))
        return sets

    @property
    def buries(self) -> bool:
        """True where something tells that a job was given up."""
        return "failed" in self.states or bool(self.tells("failed"))

    def tried_again(self, *, crashed: bool = False) -> list[Clause]:
        """The assignments that end an attempt which came to nothing.

        Where its worker has `crashed`, and did not say so, without a count it is tried again.
        """
        if not self.buries or (crashed and not self.count):
            return [*self.becomes("queued"), *self.released()]
        return [*self.becomes("failed", if_spent=bool(self.count)), *self.released()]

    def released(self) -> list[Clause]:
        """The assignments by which nobody has a job any more."""
        roles = ("owner", "since", "beat", "until")
        return [Clause(self[role], "NULL") for role in roles if self[role].nullable]

    def begins(self, *roles: str) -> list[Clause]:
        """The assignments with which a lease begins, of columns that tell since or until when."""
        return [
            Clause(column, self.now(column, " + :lease" * (role == "until"), written=True))
            for role in roles
            if (column := self[role])
        ]

    def counted(self) -> Clause:
        """The assignment that counts an attempt."""
        return Clause(self.count, f"{self.count} {'+' if self['attempts'] else '-'} 1")

    def wait(self, least: str) -> str:
        """The time for which a failed job waits: it doubles, within what an interval can hold."""
        tries = f"{self.count} - 1"
        if not self["attempts"]:
            tries = f"GREATEST({self.number - 1} - {self.count}, 0)"
        return f"{least} * 2 ^ LEAST({tries}, 10)"


def holds(column: Column, on: bool) -> Clause:  # noqa: FBT001 - which of two
    """The condition that a flag is set, or that a time or a name is there; or that it is not."""
    if column.family != "bool":
        return Clause(column, "NOT NULL" if on else "NULL", "IS")
    if column.nullable:
        return Clause(column, "TRUE" if on else "NOT TRUE", "IS")
    return Clause(column, "", "" if on else "NOT")


def _in_milliseconds(column: Column) -> bool:
    """Of a time that is a number: what its name or DEFAULT says, or else its size."""
    if re.search(r"ms$|millis$", words(column.name)) or "* (1000)" in column.default:
        return True
    return column.type != "integer"
