"""The uses of a table's columns, and the names of its states."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import NamedTuple

from queueproof.errors import QueueproofError


@dataclass(frozen=True, slots=True)
class Column:
    """A column as far as it is known: as the catalogue has it, or as a queue's SQL names it.

    `sql` and `table` are quoted where they must be; what a queue's SQL does not tell is as it most
    often is.
    """

    name: str = ""
    sql: str = ""
    table_oid: int = 0
    table: str = ""
    table_name: str = ""
    type: str = ""
    family: str = "timestamptz"
    needed: bool = False
    nullable: bool = False
    default: str = ""
    labels: Sequence[str] = ()
    checks: Sequence[str] = ()
    parent: int | None = None
    key: bool = False
    comment: str = ""
    sample: str = ""  # a text that its checks take

    def __bool__(self) -> bool:
        """True where there is one."""
        return bool(self.name)

    def __str__(self) -> str:
        return self.sql


class Table(NamedTuple):
    """A table, its columns, and its indexes but the primary key's."""

    sql: str = ""
    name: str = ""
    columns: Sequence[Column] = ()
    indexes: Sequence[str] = ()


class Role(NamedTuple):
    """A use that a table of jobs has for a column."""

    meaning: str
    types: str  # those that it may have, by their families
    names: str  # what it is called, as a regular expression
    weight: int = 1  # how much a table with it looks like one of jobs


_KNOWN = tomllib.loads(files(__package__).joinpath("roles.toml").read_text(encoding="utf-8"))


def _role(meaning: str, types: str, names: str, weight: int = 1) -> Role:
    known = _KNOWN["words"]
    return Role(meaning, types.format(**known), names.replace("\n", "").format(**known), weight)


ROLES: Mapping[str, Role] = {
    role: _role(names=_KNOWN["names"][role], **told) for role, told in _KNOWN["roles"].items()
}
_STATES: Mapping[str, list[str]] = {s: names.split() for s, names in _KNOWN["states"].items()}
_SURE = "lock|lease|claim"  # of two that tell since when, the one that says whose it is
_EPOCH = re.compile(r"_(at|until|till|from|after|before|on)$")  # a number that is a time
_UNIT = re.compile(r"_(ms|millis|epoch|unix|ts)$")
_LOCKS = {"status", "since", "until", "owner", "is_running"}
_JOBS = re.compile(
    r"(^|_)(jobs?|tasks?|queues?|outbox|works?|messages?|events?|deliver(y|ies))(_|$)"
)
ENOUGH = 7  # of a table's score: a status and a lock, and one thing more
_USUAL = {state: state for state in _STATES} | {"queued": "pending", "running": "processing"}


def words(name: str) -> str:
    """A name in small letters, its words with underscores between: `lockedAt` is `locked_at`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]+", "_", name).lower()


def roles_of(table: Table) -> dict[str, Column]:
    """The columns of a table by what they are for, as far as names and types tell."""
    found: dict[str, Column] = {}
    taken: set[str] = set()
    prefix = re.compile(rf"^{re.escape(words(table.name).rstrip('s'))}s?_")
    for role, known in ROLES.items():
        for column in sorted(table.columns, key=lambda c: not re.match(_SURE, words(c.name))):
            spelled, family = words(column.name), column.family
            short = _UNIT.sub("", spelled)
            if family == "int" and _EPOCH.search(short):
                spelled, family = short, "epoch"
            named = any(re.fullmatch(known.names, s) for s in (spelled, prefix.sub("", spelled)))
            free = column.name not in taken and column.parent is None and not column.key
            if named and free and family in known.types.split():
                found.setdefault(role, replace(column, family=family))
                taken = {one.name for one in found.values()}
    if "status" not in found and (status := _by_its_values(table, taken)):
        found = {"status": status, **found}
    return found


def _by_its_values(table: Table, taken: Collection[str]) -> Column | None:
    """The column whose values are states, whatever it is called."""
    for column in table.columns:
        free = column.name not in taken and column.family in {"enum", "text"}
        if free and {"running", "completed"} <= set(map(_state_of, values_of(column))):
            return column
    return None


def score(table: Table) -> int:
    """The likeness of a table to one of jobs."""
    roles = roles_of(table)
    named = 3 if _JOBS.search(words(table.name)) else 0
    return named + sum(ROLES[role].weight for role in roles)


def choose(tables: Iterable[Table], name: str | None) -> tuple[Table, list[Table]]:
    """The table of the jobs, as the user names it or by its looks, and the next likely ones."""
    ranked = sorted(tables, key=score, reverse=True)
    known = ", ".join(table.sql for table in ranked[:10]) or "none"
    if name is not None:
        meant = [table for table in ranked if name in {table.sql, table.name}]
        if not meant:
            raise QueueproofError(f"--table {name}: there is no such table; there are: {known}")
        return meant[0], []
    likely = [one for one in ranked if score(one) >= ENOUGH and roles_of(one).keys() & _LOCKS]
    if not likely:
        raise QueueproofError(
            "no table looks like one of jobs, with columns such as status, locked_at, attempts,"
            f" run_at; name it with --table. There are: {known}"
        )
    return likely[0], likely[1:]


@dataclass
class States:
    """The values of a status column, by what they mean here."""

    names: dict[str, str] = field(default_factory=dict)
    also: dict[str, str] = field(default_factory=dict)  # further values: what they count as
    unknown: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)
    null_waits: bool = False  # a job that waits has none


def states_of(table: Table, status: Column) -> States:
    """Read an enum's labels, a CHECK's values, a comment, and what indexes and DEFAULT name."""
    values, closed = values_of(status), True
    numbered = dict(_NUMBERED.findall(status.comment)) if status.family == "int" else {}
    default = re.match(r"'([^']*)'|(\d+)$", status.default)
    first = (default[1] or default[2] or "") if default else ""
    if not values:
        closed = status.family == "int" and bool(numbered)
        literal = re.compile(rf"{re.escape(status.sql)}\W[^']*?'([^']*)'")
        values = [value for index in table.indexes for value in literal.findall(index)]
        values = list(dict.fromkeys([*values, *([first] if first else []), *numbered]))
    found = States()
    for value in values:
        if state := _state_of(numbered.get(value, value)):
            found.also[value] = state
        else:
            found.unknown.append(value)
    for state, known in _STATES.items():
        mine = [value for value, its in found.also.items() if its == state]
        if mine:
            order = [_word(numbered.get(value, value), known) for value in mine]
            found.names[state] = mine[order.index(min(order, key=[*known, ""].index))]
    if "queued" not in found.names and status.nullable and not status.default:
        found.null_waits = closed or "null" in status.comment.lower()
    if status.family == "int" and not found.names:
        numbers = found.unknown if len(found.unknown) >= len(_STATES) else list("0123")
        found.names = dict(zip(_STATES, numbers, strict=False))
        found.guessed = list(_STATES)
    elif closed:
        # What is neither known nor left over has no name: another column tells it, or a row goes.
        left = sorted(found.unknown, key=lambda value: value != first)
        for state in ("queued", "running"):
            if state not in found.names and left and not (state == "queued" and found.null_waits):
                found.names[state] = left.pop(0)
                found.guessed.append(state)
    else:
        missing = [state for state in _STATES if state not in found.names]
        found.guessed = [s for s in missing if not (s == "queued" and found.null_waits)]
        found.names.update({state: _USUAL[state] for state in found.guessed})
    named = found.names.values()
    found.unknown = [value for value in found.unknown if value not in named]
    found.also = {v: s for v, s in found.also.items() if v not in named}
    return found


_NUMBERED = re.compile(r"(\d+)\s*(?:=>|[=:\-\u2013])?\s*([a-z_][^,;.\d]*)", re.IGNORECASE)
_AGAIN = re.compile(r"temporar|retr(y|ied)|again", re.IGNORECASE)


def _word(told: str, known: Sequence[str]) -> str:
    """The one of some known words that a state's name, or its comment, says; empty: none."""
    told = re.sub(r"\(.*", "", told).strip()
    spoken = [told, *told.split(" ")[:: max(1, told.count(" "))]]  # first and last word of a phrase
    return next((word for word in map(words, spoken) if word in known), "")


def _state_of(told: str) -> str:
    """The state that a value means, as `_word` takes it; empty where nobody knows."""
    if _AGAIN.search(told) and " " in told:
        return "queued"
    return next((state for state, known in _STATES.items() if _word(told, known)), "")


def values_of(column: Column) -> Sequence[str]:
    """The values that a column may have, where its type, a CHECK or its comment lists them."""
    if column.labels:
        return column.labels
    for check in column.checks:
        if column.family == "int":
            if listed := re.search(r"ARRAY\[([\d, ]+)\]", check):
                return re.findall(r"\d+", listed[1])
            if between := re.search(r">= (\d+)\).*<= (\d+)\)", check):
                return [str(n) for n in range(int(between[1]), int(between[2]) + 1)]
        elif "=" in check and (found := re.findall(r"'((?:[^']|'')*)'", check)):
            return found
    told = re.findall(r"'([^']+)'", column.comment) if column.family == "text" else []
    return told if len(set(filter(None, map(_state_of, told)))) > 1 else []
