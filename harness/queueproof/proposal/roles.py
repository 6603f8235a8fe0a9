"""What the columns of a table are for, and what its states are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from queueproof.errors import QueueproofError
from queueproof.proposal.schema import Column, Table

_TEXT, _INT, _TIME = {"text"}, {"int"}, {"timestamptz", "timestamp"}
_HOLDING = "lock|claim|lease|take|reserve|pick|acquire"
_DOING = f"{_HOLDING}|process|run|start"
_DONE = "locked|claimed|leased|taken|reserved|picked|picked_up|acquired|processing|started"
_ROLES: Mapping[str, tuple[set[str], str]] = {
    "status": ({"enum", *_TEXT, *_INT}, "status|state|job_status|job_state|phase"),
    "until": (
        _TIME,
        (
            rf"({_DONE}|{_DOING})_(until|till|expires|expires_at|expiry|deadline|expires_on)"
            r"|lease_expiration|invisible_until|expires_at|vt"
        ),
    ),
    "beat": (_TIME, r"(last_)?heartbeat(_at|_on)?|last_seen_at|last_ping_at|pinged_at"),
    "since": (_TIME, rf"({_DONE})_(at|on|since)|({_HOLDING})_(at|time)|lease_start(ed_at)?"),
    "owner": (
        {"uuid", *_TEXT},
        (
            rf"({_DONE})_by(_id)?|({_DOING})_(owner|holder|token)|assigned_to|instance_id"
            r"|(worker|owner|runner|processor|consumer)(_id|_name|_uuid)?"
        ),
    ),
    "most": (_INT, r"max_(attempts?|tries|retries|retry|retry_count)|(attempt|retry)_limit"),
    "attempts": (
        _INT,
        (
            r"(num_|nb_|n_)?(attempts?|tries|retries)(_made|_count)?|(current_)?attempt(_number)?"
            r"|(attempt|try|retry|failure|error)s?_count|delivery_count|failures"
        ),
    ),
    "due": (
        _TIME,
        (
            r"(run|scheduled|available|due|execute|perform|process|visible|deliver|fire)_(at|on|time)"
            r"|(run|process|execute|start|available|visible|retry|not)_(after|from|before)"
            r"|next_(run|attempt|retry|try|execution)(_at|_time)?|scheduled_for|retry_at|eta"
        ),
    ),
    "priority": (_INT, "priority|prio"),
    "payload": (
        {"json", *_TEXT, "bytea"},
        "payload|args|arguments|params|parameters|job_data|data|body|message|input|handler",
    ),
    "error": (
        {*_TEXT, "json"},
        "last_err|last_error|last_error_message|error|error_message|error_text|failure_reason|last_failure",
    ),
    "queue": (_TEXT, "queue|queue_name|topic|channel"),
    "completed": (
        _TIME,
        "completed_at|completed_on|finished_at|done_at|processed_at|succeeded_at|ended_at",
    ),
    "failed": (_TIME, "failed_at|dead_at|discarded_at|errored_at"),
    "created": (_TIME, "created_at|created_on|created|inserted_at|enqueued_at|queued_at|added_at"),
}
_SURE = "lock|lease|claim"  # of two that tell since when, the one that says whose it is
_WEIGHT = {"status": 3, "until": 3, "beat": 1, "since": 3, "owner": 2, "attempts": 2, "due": 2}
_JOBS = re.compile(
    r"(^|_)(jobs?|tasks?|queues?|outbox|work|works|messages?|events?|deliver(y|ies))(_|$)"
)
ENOUGH = 7  # of a table's score: a status and a lock, and one thing more
_STATES: Mapping[str, Sequence[str]] = {
    state: names.split()
    for state, names in {
        "queued": "queued pending ready waiting new available enqueued created todo open idle"
        " scheduled retry retrying retryable delayed unprocessed",
        "running": "running processing in_progress inprogress active executing started working"
        " locked claimed reserved busy in_flight leased taken",
        "completed": "completed complete done succeeded success successful finished processed"
        " ok delivered sent published handled fulfilled resolved acked acknowledged",
        "failed": "failed dead error errored failure discarded exhausted aborted cancelled canceled"
        " killed dead_letter expired",
    }.items()
}
_USUAL = {
    "queued": "pending",
    "running": "processing",
    "completed": "completed",
    "failed": "failed",
}


def words(name: str) -> str:
    """A name in small letters, its words with underscores between: `lockedAt` is `locked_at`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]+", "_", name).lower()


def roles_of(table: Table) -> dict[str, Column]:
    """What the columns of a table are for, as far as names and types tell."""
    found: dict[str, Column] = {}
    prefix = re.compile(rf"^{re.escape(words(table.name).rstrip('s'))}s?_")
    for role, (families, names) in _ROLES.items():
        for column in sorted(table.columns, key=lambda c: not re.match(_SURE, words(c.name))):
            spelled = words(column.name)
            named = re.fullmatch(names, spelled) or re.fullmatch(names, prefix.sub("", spelled))
            free = column not in found.values() and column.parent is None and not column.key
            if named and free and column.family in families:
                found.setdefault(role, column)
    return found


def score(table: Table) -> int:
    """How much a table looks like one of jobs."""
    roles = roles_of(table)
    named = 3 if _JOBS.search(words(table.name)) else 0
    return named + sum(_WEIGHT.get(role, 1) for role in roles if role != "created")


def choose(tables: Iterable[Table], name: str | None) -> tuple[Table, list[Table]]:
    """The table of the jobs, and those that it might be as well, the likeliest first.

    Args:
        tables: All that there are.
        name: Which one the user says; None: that which looks like it most.

    Raises:
        QueueproofError: There is none, or none that looks like it.
    """
    ranked = sorted(tables, key=score, reverse=True)
    known = ", ".join(table.sql for table in ranked[:10]) or "none"
    if name is not None:
        meant = [table for table in ranked if name in {table.sql, table.name}]
        if not meant:
            raise QueueproofError(f"--table {name}: there is no such table; there are: {known}")
        return meant[0], []
    likely = [
        table
        for table in ranked
        if score(table) >= ENOUGH and roles_of(table).keys() & {"status", "since", "until", "owner"}
    ]
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


def states_of(table: Table, status: Column) -> States:
    """Read an enum's labels, a CHECK's values, a comment, and what indexes and DEFAULT name.

    Args:
        table: Of the jobs.
        status: Its column for their states.
    """
    values, closed = values_of(status), True
    numbered = dict(
        re.findall(r"(\d+)\s*(?:=>|[=:\-\u2013])?\s*([a-z_]+)", status.comment, re.IGNORECASE)
    )
    if not values:
        closed = status.family == "int" and bool(numbered)
        literal = re.compile(rf"{re.escape(status.sql)}\W[^']*?'([^']*)'")
        values = [value for index in table.indexes for value in literal.findall(index)]
        values += re.findall(r"^'([^']*)'|^(\d+)$", status.default)[:1] and [
            re.sub(r"^'([^']*)'.*", r"\1", status.default)
        ]
        values = list(dict.fromkeys([*values, *numbered]))
    found = States()
    for value in values:
        word = words(numbered.get(value, value))
        state = next((state for state, known in _STATES.items() if word in known), None)
        if state is None:
            found.unknown.append(value)
        else:
            found.also[value] = state
    for state, known in _STATES.items():
        mine = [value for value, its in found.also.items() if its == state]
        by_word = {words(numbered.get(value, value)): value for value in mine}
        if first := next((word for word in known if word in by_word), None):
            found.names[state] = by_word[first]
    if status.family == "int" and not found.names:
        numbers = found.unknown if len(found.unknown) >= len(_STATES) else list("0123")
        found.names = dict(zip(_STATES, numbers, strict=False))
        found.guessed = list(_STATES)
        found.unknown = [value for value in found.unknown if value not in found.names.values()]
    elif not closed:
        missing = [state for state in _STATES if state not in found.names]
        found.names.update({state: _USUAL[state] for state in missing})
        found.guessed = missing
    found.also = {v: s for v, s in found.also.items() if v not in found.names.values()}
    return found


def values_of(column: Column) -> list[str]:
    """The values that a column may have, where its type or a CHECK lists them."""
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
    return []
