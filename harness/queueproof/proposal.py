"""From somebody's tables to a queue file: `queueproof init --from-schema`.

The schema is installed on a real server and read from its catalogue, whoever wrote it in whatever
dialect. What a column is for is told by its name, its type and the values that it may have; what
cannot be known is marked with TODO, and no column is invented.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row

from queueproof import waits
from queueproof.errors import QueueError, QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.postgres import open_server
from queueproof.postgres.local import find_embedded
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab

_STUB = """\
-- /// queue
-- include = [{include}]
-- ///
-- name: enqueue
SELECT 1 AS id;
-- name: claim
SELECT 1 AS id;
"""


class Proposed(NamedTuple):
    """A queue file for somebody's tables.

    Attributes:
        text: The file.
        table: Whose jobs it is about.
        rejected: Why it cannot be judged as it is: what the server says; None: it can.
    """

    text: str
    table: str
    rejected: QueueError | None


def propose(
    path: Path, schema: Path, *, table: str | None, postgres: str | None, trust: bool
) -> Proposed:
    """Write a queue file for a schema, and use every operation of it once.

    Args:
        path: Where the file will stand.
        schema: The file with the schema.
        table: Of the jobs; None: that which looks like it.
        postgres: The server, as `open_server` takes it.
        trust: The same.

    Raises:
        QueueproofError: The schema cannot be installed, or no table in it is one of jobs.
    """
    include = Path(os.path.relpath(schema, path.parent)).as_posix()
    stub = load_text(_STUB.format(include=json.dumps(include)), path)
    with open_server(postgres, trust=trust) as server:
        with open_lab(stub, server) as lab:
            tables = tables_of(lab)
        chosen, others = choose(tables.values(), table)
        text = Proposal(chosen, tables, others, include).text
        try:
            with open_lab(load_text(text, path), server) as lab:
                calibrate(lab)
        except QueueError as error:
            return Proposed(text, chosen.sql, error)
    return Proposed(text, chosen.sql, None)


# --- the catalogue ------------------------------------------------------------------------------

_COLUMNS = r"""
SELECT c.oid::int AS table_oid, c.oid::regclass::text AS "table", c.relname AS table_name,
  a.attname AS name, quote_ident(a.attname) AS sql, format_type(a.atttypid, a.atttypmod) AS type,
  CASE
    WHEN t.typtype = 'e' THEN 'enum'
    WHEN t.oid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN 'int'
    WHEN t.oid IN ('json'::regtype, 'jsonb'::regtype) THEN 'json'
    WHEN t.typcategory = 'S' THEN 'text'
    ELSE t.typname
  END AS family,
  a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS needed,
  NOT a.attnotnull AS nullable,
  COALESCE(pg_get_expr(d.adbin, d.adrelid), '') AS "default",
  ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY enumsortorder)
    AS labels,
  ARRAY(
    SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k
    WHERE k.contype = 'c' AND (k.conrelid = c.oid AND k.conkey = ARRAY[a.attnum]
      OR k.contypid = a.atttypid)
  ) AS checks,
  (SELECT k.confrelid::int FROM pg_constraint k
   WHERE k.contype = 'f' AND k.conrelid = c.oid AND k.conkey = ARRAY[a.attnum] LIMIT 1) AS parent,
  COALESCE(a.attnum = ANY (p.conkey), false) AS "key",
  COALESCE(col_description(c.oid, a.attnum), '') AS comment
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type own ON own.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN own.typtype = 'd' THEN own.typbasetype ELSE own.oid END
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_constraint p ON p.conrelid = c.oid AND p.contype = 'p'
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attgenerated = ''
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'clock') AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.objid = c.oid AND e.deptype = 'e')
ORDER BY c.oid, a.attnum
"""
_INDEXES = """
SELECT i.indrelid::int, pg_get_indexdef(i.indexrelid) FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace <> 'pg_catalog'::regnamespace
WHERE NOT i.indisprimary ORDER BY i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalogue has it; `sql` and `table` are quoted where they must be."""

    table_oid: int
    table: str
    table_name: str
    name: str
    sql: str
    type: str
    family: str
    needed: bool
    nullable: bool
    default: str
    labels: list[str]
    checks: list[str]
    parent: int | None
    key: bool
    comment: str


class Table(NamedTuple):
    """A table, its columns, and its indexes but the primary key's."""

    sql: str
    name: str
    columns: tuple[Column, ...]
    indexes: tuple[str, ...]


def tables_of(lab: Lab) -> dict[int, Table]:
    """The tables of an installed schema, by oid."""
    with psycopg.connect(lab.conninfo, connect_timeout=int(waits.CONNECT)) as connection:
        connection.execute("SET search_path = queue, public, pg_catalog")
        cursor = connection.cursor(row_factory=class_row(Column))
        columns = cursor.execute(_COLUMNS).fetchall()
        indexes = connection.execute(_INDEXES).fetchall()
    tables: dict[int, Table] = {}
    for oid in dict.fromkeys(column.table_oid for column in columns):
        own = tuple(column for column in columns if column.table_oid == oid)
        tables[oid] = Table(
            own[0].table, own[0].table_name, own, tuple(text for of, text in indexes if of == oid)
        )
    return tables


def dump(dsn: str) -> str:
    """The schema of a running server's database, as pg_dump writes it.

    Args:
        dsn: Of the database. Its password is in no process' list of arguments.

    Raises:
        QueueproofError: pg_dump says why it cannot.
    """
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", None)
    parts.setdefault("connect_timeout", int(waits.CONNECT))
    program = find_embedded("").directory / "pg_dump"
    try:
        dumped = _pg_dump(program, parts, password)
    except subprocess.TimeoutExpired:
        raise QueueproofError(f"--from-schema: pg_dump took {waits.BULK:.0f} s") from None
    if dumped.returncode:
        raise QueueproofError(f"--from-schema: {dumped.stderr.strip()}")
    return dumped.stdout


def _pg_dump(
    program: Path, parts: Mapping[str, Any], password: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - of the embedded server
        [
            str(program),
            *("--schema-only", "--no-owner", "--no-privileges"),
            *("--dbname", make_conninfo("", **parts)),
        ],
        env={**os.environ, **({"PGPASSWORD": str(password)} if password else {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=waits.BULK,
    )


# --- what a column is for -----------------------------------------------------------------------

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
        "last_error|last_error_message|error|error_message|error_text|failure_reason|last_failure",
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
        "completed": "completed complete done succeeded success finished processed ok",
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


# --- what its states are called -----------------------------------------------------------------


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
    values, closed = _values(status), True
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


def _values(column: Column) -> list[str]:
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


# --- the file -----------------------------------------------------------------------------------


class Proposal:
    """A queue file for a table.

    Args:
        table: Of the jobs.
        tables: All, by oid.
        others: That it might be as well.
        include: The schema's file, from where the queue file will stand.

    Attributes:
        text: The file.
    """

    def __init__(
        self, table: Table, tables: Mapping[int, Table], others: Sequence[Table], include: str
    ) -> None:
        self._table = table
        self._tables = tables
        self._c = {role: column.sql for role, column in roles_of(table).items()}
        self._columns = roles_of(table)
        status = self._columns.get("status")
        self._states = states_of(table, status) if status else States()
        self._parents: dict[int, str] = {}
        self._notes: list[str] = []
        self._most = self._c.get("most", "3") if "attempts" in self._c else None
        self._clock = next((r for r in ("until", "beat", "since") if r in self._c), None)
        self._id = self._identity()
        blocks = [
            self._enqueue(),
            self._claim(),
            self._complete(),
            self._fail(),
            *self._leases(),
            self._jobs(),
        ]
        head = self._head(others, include)
        self.text = "\n\n".join([head, *self._schema(), *blocks]) + "\n"

    # --- pieces of SQL

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

    # --- blocks

    def _enqueue(self) -> str:
        values: dict[str, str] = {}
        takes = []
        if self._key.needed or self._key.parent:
            values[self._id] = self._filler(self._key, frozenset())
        for role, parameter in (
            ("queue", "queue"),
            ("payload", "payload"),
            ("priority", "priority"),
            ("due", "delay"),
            ("most", "max_attempts"),
        ):
            if role in self._c and not (role == "most" and self._most is None):
                values[self._c[role]] = self._given(role, parameter)
                takes.append(parameter)
        status = self._columns.get("status")
        if status is not None and status.default.partition("::")[0] != self._state("queued"):
            values[status.sql] = self._state("queued")
        fillers = []
        for column in self._table.columns:
            if column.needed and column.sql not in values:
                values[column.sql] = self._filler(column, frozenset({column.table_oid}))
                fillers.append(column.sql)
        todo = ""
        if fillers:
            todo = f"-- TODO: values as your jobs have them, for {', '.join(fillers)}.\n"
        into = f"INSERT INTO {self._table.sql}"
        if values:
            into += f" ({', '.join(values)})\nVALUES ({', '.join(values.values())})"
        else:
            into += " DEFAULT VALUES"
        head = f"{todo}-- name: enqueue({', '.join(takes)})"
        return f"{head}\n{into}\nRETURNING {self._as(self._id, 'id')};"

    def _given(self, role: str, parameter: str) -> str:
        family = self._columns[role].family
        if role == "due":
            return f"{self._now(role)} + :delay"
        if role == "payload" and family == "text":
            return ":payload::text"
        if role == "payload" and family == "bytea":
            return "convert_to(:payload::text, 'UTF8')"
        return f":{parameter}"

    def _filler(self, column: Column, seen: frozenset[int]) -> str:
        """A value for a column that must have one and that no parameter is for."""
        if (
            column.parent is not None
            and column.parent not in seen
            and column.parent in self._tables
        ):
            parent = self._tables[column.parent]
            self._parent(column.parent, parent, seen | {column.parent})
            key = next((c.sql for c in parent.columns if c.key), parent.columns[0].sql)
            return f"(SELECT {key} FROM {parent.sql} LIMIT 1)"
        if values := _values(column):
            return values[0] if column.family == "int" else f"'{values[0]}'"
        known = {
            "int": "1",
            "text": "gen_random_uuid()" if column.key else "'x'",
            "uuid": "gen_random_uuid()",
            "json": "'{}'",
            "bool": "false",
            "bytea": "''",
            "timestamptz": "now()",
            "timestamp": "now()",
            "date": "now()",
            "interval": "'0'",
        }
        return known.get(column.family, "'0'" if column.family in _NUMBERS else "'{}'")

    def _parent(self, oid: int, parent: Table, seen: frozenset[int]) -> None:
        """A row that a job refers to."""
        needed = [column for column in parent.columns if column.needed]
        values = [self._filler(column, seen) for column in needed]
        names = f" ({', '.join(column.sql for column in needed)}) VALUES ({', '.join(values)})"
        self._parents[oid] = f"INSERT INTO {parent.sql}{names if needed else ' DEFAULT VALUES'};"

    def _claim(self) -> str:
        ready = [*self._is("queued")]
        order = []
        takes = [
            *(["worker"] if "owner" in self._c else []),
            "limit",
            *(["lease"] if "until" in self._c else []),
        ]
        if "queue" in self._c:
            ready.append(f"{self._c['queue']} = :queue")
            takes.append("queue")
        if "due" in self._c:
            due = f"{self._c['due']} <= {self._now('due')}"
            nullable = self._columns["due"].nullable
            ready.append(f"({self._c['due']} IS NULL OR {due})" if nullable else due)
        if self._most is not None:
            ready.append(f"{self._c['attempts']} < {self._most}")
        order = self._order()
        sets = [f"{self._c['status']} = {self._state('running')}"] if "status" in self._c else []
        if "owner" in self._c:
            sets.append(f"{self._c['owner']} = {self._worker}")
        sets += self._lease_begins()
        if "attempts" in self._c:
            sets.append(f"{self._c['attempts']} = {self._c['attempts']} + 1")
        answer = [self._as(self._id, "id")]
        if "attempts" in self._c:
            answer.append(self._as(self._c["attempts"], "attempt"))
        elif self._clock:
            answer.append(self._as(self._c[self._clock], "claimed_at"))
        comments = [
            "Have you a claim of your own? Put its SQL here: that is what is to be judged. The",
            "parameters are yours to use, and what it returns are parameters of the blocks below.",
        ]
        if self._c.get("attempts", "").strip('"').startswith("retr"):
            counts = f"{self._c['attempts']} is 1 while a job runs for the first time"
            comments.append(f"TODO: counted here, so that a crash counts: {counts}.")
        sorted_by = f"\n  ORDER BY {', '.join(order)}" if order else ""
        return (
            f"{_commented(comments)}\n-- name: claim({', '.join(takes)})\n"
            f"UPDATE {self._table.sql}\nSET {_listed(sets)}\n"
            f"WHERE {self._id} = ANY (ARRAY(\n"
            f"  SELECT {self._id}\n  FROM {self._table.sql}\n  WHERE {_all(ready, 4)}{sorted_by}\n"
            f"  LIMIT :limit\n  FOR UPDATE SKIP LOCKED\n))\nRETURNING {', '.join(answer)};"
        )

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

    def _complete(self) -> str:
        sets = [*self._ended("completed")]
        if "status" in self._c and "completed" in self._states.names:
            sets.insert(0, f"{self._c['status']} = {self._state('completed')}")
        head = f"-- name: complete({self._takes})!"
        where = f"WHERE {_all(self._mine(), 2)};"
        if not sets or ("status" in self._c and "completed" not in self._states.names):
            todo = "-- TODO: nothing says that a job is done: is it deleted?"
            return f"{todo}\n{head}\nDELETE FROM {self._table.sql}\n{where}"
        sets += self._released() if "status" in self._c else []
        return f"{head}\nUPDATE {self._table.sql}\nSET {_listed(sets)}\n{where}"

    def _fail(self) -> str:
        sets = self._tried_again()
        takes = self._takes
        if "due" in self._c and self._most is not None:
            pause = f"interval '5 seconds' * 2 ^ LEAST({self._c['attempts']} - 1, 10)"
            sets.append(f"{self._c['due']} = {self._now('due')} + {pause}")
        if "error" in self._c:
            json = self._columns["error"].family == "json"
            sets.append(f"{self._c['error']} = {'to_jsonb(:error::text)' if json else ':error'}")
            takes += ", error"
        where = f"WHERE {_all(self._mine(), 2)};"
        todo = ""
        if "due" in self._c and self._most is not None:
            todo = "-- TODO: your pauses between attempts; these double, from 5 seconds on.\n"
        return (
            f"{todo}-- name: fail({takes})!\nUPDATE {self._table.sql}\nSET {_listed(sets)}\n{where}"
        )

    def _leases(self) -> Iterator[str]:
        """Heartbeat and recovery, where a column tells since when a job runs."""
        if self._clock is None:
            return
        column, now = self._c[self._clock], self._now(self._clock)
        until = self._clock == "until"
        beats = f"{column} = {now}{' + :lease' if until else ''}"
        answers = "" if "attempts" in self._c else f"\nRETURNING {self._as(column, 'claimed_at')}"
        takes = f"{self._takes}{', lease' if until else ''}){'' if answers else '!'}"
        where = _all(self._mine(), 2)
        yield (
            f"-- name: heartbeat({takes}\nUPDATE {self._table.sql}\nSET {beats}\n"
            f"WHERE {where}{answers};"
        )
        stale = [*self._is("running"), f"{column} < {now}{'' if until else ' - :lease'}"]
        yield (
            f"-- name: recover{'' if until else '(lease)'}\nUPDATE {self._table.sql}\n"
            f"SET {_listed(self._tried_again())}\nWHERE {self._id} = ANY (ARRAY(\n"
            f"  SELECT {self._id}\n  FROM {self._table.sql}\n  WHERE {_all(stale, 4)}\n"
            f"  FOR UPDATE SKIP LOCKED\n))\nRETURNING {self._as(self._id, 'id')};"
        )

    def _jobs(self) -> str:
        cases = []
        spent = f"{self._c.get('attempts')} >= {self._most}" if self._most else ""
        if "status" not in self._c:
            ends = [("completed", "completed"), ("failed", "failed")]
            cases = [f"WHEN {self._c[r]} IS NOT NULL THEN '{s}'" for r, s in ends if r in self._c]
            cases.append(f"WHEN {self._lock} IS NOT NULL THEN 'running'")
            cases += [f"WHEN {spent} THEN 'failed'"] if spent and "failed" not in self._c else []
            state = "\n  ".join(["CASE", *cases, "ELSE 'queued'"]) + "\n  END AS state"
        elif "failed" not in self._states.names and spent:
            queued = f"{self._is('queued')[0]} AND {spent}"
            status = self._c["status"]
            state = f"CASE WHEN {queued} THEN 'failed' ELSE {status}::text END AS state"
        else:
            state = self._as(self._c["status"], "state")
        attempts = f", {self._as(self._c['attempts'], 'attempts')}" if "attempts" in self._c else ""
        return (
            "-- Not part of your queue: it lets the check see what became of every job.\n"
            f"-- name: jobs\nSELECT {self._as(self._id, 'id')}, {state}{attempts}\n"
            f"FROM {self._table.sql};"
        )

    # --- what stands above them

    def _schema(self) -> Iterator[str]:
        rows = "\n".join(
            ["-- Rows that jobs refer to.", "-- name: schema#", *self._parents.values()]
        )
        if self._parents:
            yield rows
        order = self._order()
        leading = ", ".join(order[:-1] if len(order) > 1 and order[-1] == self._id else order)
        if not order or any(leading in index for index in self._table.indexes):
            return
        queue = [self._c["queue"]] if "queue" in self._c else []
        index = f"ON {self._table.sql} ({', '.join([*queue, *order])})"
        yield (
            "-- TODO: no index has the claim's order: a claim may read all jobs (steady-cost).\n"
            f"{'' if self._parents else '-- -- name: schema#' + chr(10)}"
            f"-- CREATE INDEX {index} WHERE {' AND '.join(self._is('queued'))};"
        )

    def _head(self, others: Sequence[Table], include: str) -> str:
        told = [f"A queue in the table {self._table.sql}, as its columns' names and types tell it."]
        if others:
            also = ", ".join(table.sql for table in others[:3])
            told.append(f"Other tables look like one of jobs, too: {also} (--table NAME).")
        told += ["What each column was taken for:"]
        told.append(f"  {self._id:<16} its name (sure: the primary key)")
        told += [
            f"  {column.sql:<16} {_MEANING[role]} ({self._certainty(role, column)})"
            for role, column in self._columns.items()
        ]
        told += [
            "Whatever is wrong here, correct it: what counts is the SQL that your workers send.",
            "The format of this file: queueproof help file-format",
        ]
        missing = [*self._notes, *self._missing()]
        told += [f"TODO: {one}" for one in missing]
        return f"{_commented(told)}\n\n{self._header(include)}"

    def _certainty(self, role: str, column: Column) -> str:
        if role == "status":
            return "guessed: its values" if self._states.guessed else "sure: its values say so"
        vague = re.fullmatch(_VAGUE, words(column.name))
        return "likely: its name may mean something else" if vague else "sure: name and type"

    def _missing(self) -> Iterator[str]:
        states = self._states
        if states.guessed:
            named = ", ".join(f"{states.names[state]} = {state}" for state in states.guessed)
            yield f"the values of {self._c['status']} could not be known: {named}. Are they so?"
        if states.unknown:
            yield f"what do these states mean? {', '.join(states.unknown)}"
        if self._clock is None:
            yield (
                "no column tells since when a job runs (such as locked_at timestamptz): what a"
                " crashed worker held stays running for ever."
            )
        if "attempts" not in self._c:
            yield (
                "no column counts attempts (such as attempts int NOT NULL DEFAULT 0): a job that"
                " always fails or crashes its worker has no end."
            )
        if "attempts" not in self._c and self._clock is None:
            yield "nothing tells one claim of a job from a later one: a late worker may end it."
        if self._most == "3":
            yield "no column says how many attempts a job has: 3 stands for your number."

    def _header(self, include: str) -> str:
        lines = ["/// queue", f"include = [{json.dumps(include)}]"]
        if self._clock:
            lines.append('lease = "30 seconds"  # TODO: after how long is a worker given up?')
        if self._most is not None:
            default = self._columns["most"].default if "most" in self._columns else "3"
            lines.append(f"max_attempts = {default if default.isdigit() else 3}")
            if "due" in self._c:
                lines.append('backoff = "5 seconds"')
        order = self._order()
        if order:
            promise = "priority, fifo" if "priority" in self._c else "fifo"
            asked = "  # TODO: does the greatest number go first?" if "priority" in self._c else ""
            lines.append(f'order = "{promise}"{asked}')
        named = {**{v: k for k, v in self._states.names.items()}, **self._states.also}
        if own := {value: state for value, state in named.items() if value != state}:
            lines.append("[states]")
            for value, state in own.items():
                key = value if re.fullmatch(r"[\w-]+", value, re.ASCII) else f"'{value}'"
                lines.append(f'{key} = "{state}"')
        return "\n".join(f"-- {line}" for line in [*lines, "///"])


_VAGUE = (
    "worker|owner|runner|processor|consumer|instance_id|data|body|message|input|handler|error|topic"
    "|channel|expires_at|vt|started_at|scheduled_at|processed_at|failures|.*retr.*|eta"
)
_UUID = "00000000-0000-0000-0000-000000000000"
_NUMBERS = {"numeric", "float4", "float8", "money", "oid"}
_MEANING = {
    "status": "its state",
    "until": "until when its worker has it: the lease ends",
    "beat": "when its worker was heard of last: the lease begins",
    "since": "since when its worker has it: the lease begins",
    "owner": "which worker has it",
    "most": "how many attempts it has",
    "attempts": "its attempts, counted at the claim",
    "due": "not before",
    "priority": "its priority",
    "payload": "what to do",
    "error": "what went wrong last",
    "queue": "which queue it is in",
    "completed": "when it was done",
    "failed": "when it was given up",
    "created": "when it was enqueued",
}


def _commented(lines: Iterable[str]) -> str:
    wrapped = (
        [line] if line.startswith(" ") else textwrap.wrap(line, 96, subsequent_indent="  ")
        for line in lines
    )
    return "\n".join(f"-- {line}" for one in wrapped for line in one)


def _listed(assignments: Sequence[str]) -> str:
    return ",\n    ".join(assignments)


def _all(conditions: Sequence[str], indent: int) -> str:
    return f"\n{' ' * indent}AND ".join(conditions)
