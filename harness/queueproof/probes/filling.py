"""Many jobs out of few: the rows that some jobs left are multiplied in SQL, under new keys.

A queue's own operations would need minutes for a million jobs. So a few are made with them, and
what the tables then hold of them is copied: keys get new values, the same everywhere for the same
old value, and everything else stays. The queue is asked afterwards whether it agrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from queueproof import waits
from queueproof.errors import ServerError
from queueproof.probes.probe import reported
from queueproof.queues.model import Step
from queueproof.run.lab import Lab
from queueproof.run.session import Session, execute
from queueproof.run.tables import QUIET
from queueproof.schedule.moments import PRECISION

SEEDS = 64  # jobs that are made with the operations
TRIAL = 9  # copies of each after which the queue is asked; all jobs cross the wire then

_COLUMNS = """
SELECT c.oid::regclass::text, c.relkind = 'p', quote_ident(a.attname),
  CASE
    WHEN t.typname IN ('int2', 'int4', 'int8') THEN 'integer'
    WHEN t.typname IN ('text', 'varchar', 'bpchar') THEN 'text'
    WHEN t.typname IN ('timestamp', 'timestamptz')
      THEN CASE WHEN a.atttypmod BETWEEN 0 AND 3 THEN 'coarse time' ELSE 'time' END
    ELSE t.typname
  END,
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary AND attnum = ANY (indkey)),
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisunique AND attnum = ANY (indkey))
    OR EXISTS (SELECT FROM pg_constraint
               WHERE conrelid = c.oid AND contype = 'f' AND attnum = ANY (conkey))
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
JOIN pg_type own ON own.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN own.typtype = 'd' THEN own.typbasetype ELSE own.oid END
WHERE c.oid::regclass::text = ANY (ARRAY[{tables}]) AND NOT c.relispartition
ORDER BY c.oid, attnum
"""
_ADVANCE = """
SELECT setval(seqrelid::regclass, at + by)
FROM pg_sequence
JOIN pg_class c ON c.oid = seqrelid AND c.relpersistence <> 't'
JOIN pg_namespace n ON n.oid = c.relnamespace AND nspname <> 'clock' AND nspname !~ '^pg_',
LATERAL (SELECT COALESCE(pg_sequence_last_value(seqrelid), seqstart), {count} * seqincrement)
  AS room (at, by)
WHERE {room}
"""
_UP = "seqincrement > 0 AND at + by < seqmax / 2"
_DOWN = "seqincrement < 0 AND at + by > seqmin / 2"


class NotMultipliedError(Exception):
    """The rows of jobs cannot be multiplied; the message says why."""


@dataclass(slots=True)
class _Column:
    name: str  # quoted
    kind: str
    primary: bool
    constrained: bool  # in a unique index or a foreign key
    values: list[str] = field(default_factory=list)  # of the seeds
    rows: int = SEEDS  # that they left in its table

    @property
    def distinguishes(self) -> bool:
        """True when the seeds differ in it, as they do in a key."""
        return len(set(self.values)) * 2 >= min(self.rows, SEEDS)


@dataclass(slots=True)
class _Table:
    number: int
    name: str
    partitioned: bool
    columns: list[_Column]

    @property
    def rows(self) -> str:
        """The source of its rows in SQL, those of tables that inherit from it left out."""
        return f"{self.name} AS t" if self.partitioned else f"ONLY {self.name} AS t"

    @property
    def identity(self) -> str:
        """An expression that stays the same while a row is updated."""
        primary = [column.name for column in self.columns if column.primary]
        names = primary or [column.name for column in self.columns]
        return f"ROW({', '.join(f't.{name}' for name in names)})::text"


class Filling:
    """Some jobs of a queue, and as many copies of them as are wanted."""

    def __init__(self, lab: Lab, make: Callable[[int], Iterable[str]], most: int) -> None:
        """Make the jobs that are copied later.

        Args:
            make: Makes so many jobs with the queue's operations; their ids.
            most: How many jobs there will be at most.
        """
        self._lab = lab
        self._copies = 0
        # The copies get smaller numbers, as older jobs have, or later ones where these go down.
        lab.execute(_ADVANCE.format(count=3 * most, room=_UP), waits.BULK)
        try:
            self._reported = [reported(lab)]
            self._remember()
            self._ids = set(make(SEEDS))
            lab.execute(_ADVANCE.format(count=3 * most, room=_DOWN), waits.BULK)
            self._reported.append(reported(lab))
            self._tables = [table for table in self._all if self._plant(table)]
        except ServerError as error:
            raise NotMultipliedError(str(error)) from error

    @property
    def _session(self) -> Session:
        """The session that makes copies, without the queue's triggers and foreign keys acting."""
        session = self._lab.own_session("filler")
        session.patience = waits.BULK
        if self._lab.server.superuser:
            session.run(QUIET)
        return session

    @cached_property
    def _all(self) -> Sequence[_Table]:
        tables: dict[str, _Table] = {}
        names = ", ".join(f"$${name}$$" for name in self._lab.tables.names)
        rows = self._lab.execute(_COLUMNS.format(tables=names)) if names else ()
        for name, partitioned, column, kind, primary, constrained in rows:
            table = _Table(len(tables), str(name), bool(partitioned), [])
            tables.setdefault(str(name), table).columns.append(
                _Column(str(column), str(kind), bool(primary), bool(constrained))
            )
        return list(tables.values())

    def _remember(self) -> None:
        """Note which rows are there, so that those of the seeds can be told from them."""
        for table in self._all:
            self._session.run(
                f"DROP TABLE IF EXISTS before_{table.number}, seeds_{table.number}; "
                f"CREATE TEMP TABLE before_{table.number} AS "
                f"SELECT {table.identity} AS known FROM {table.rows}"
            )

    def _plant(self, table: _Table) -> bool:
        """Set a table's new rows aside; True when there are about as many as new jobs."""
        columns = ", ".join(column.name for column in table.columns)
        known = f"SELECT FROM before_{table.number} WHERE known = {table.identity}"
        self._session.run(
            f"CREATE TEMP TABLE seeds_{table.number} AS "
            f"SELECT {columns} FROM {table.rows} WHERE NOT EXISTS ({known})"
        )
        rows = execute(self._session, Step(f"SELECT * FROM seeds_{table.number}")).rows
        for column in table.columns:
            column.rows = len(rows)
        for row in rows:
            for column, value in zip(table.columns, row.values(), strict=True):
                if value.text is not None:
                    column.values.append(value.text.decode())
        return len(rows) * 10 >= SEEDS

    # --- growing --------------------------------------------------------------------------------

    @property
    def leaves_rows(self) -> bool:
        """True when there is anything to copy: a queue may delete what is finished."""
        return bool(self._tables)

    def grow(self, jobs: int) -> None:
        """Copy until there are so many jobs, and ask the queue on the way whether it agrees.

        Raises:
            NotMultipliedError: It does not, or its tables refuse the copies.
        """
        wanted = -(-jobs // SEEDS) - 1
        try:
            if not self._copies and wanted > TRIAL:
                self._copy(TRIAL)
                self._verify()
            self._copy(wanted)
        except ServerError as error:
            raise NotMultipliedError(str(error)) from error

    def _copy(self, copies: int) -> None:
        for table in self._tables:
            names = ", ".join(column.name for column in table.columns)
            values = ", ".join(self._copied(column) for column in table.columns)
            self._session.run(
                f"INSERT INTO {table.name} ({names}) OVERRIDING SYSTEM VALUE "
                f"SELECT {values} FROM seeds_{table.number} AS s, "
                f"generate_series({self._copies + 1}::bigint, {copies}) AS copy (k) ORDER BY k DESC"
            )
        self._copies = copies

    def _copied(self, column: _Column) -> str:
        """A column's value in copy number k."""
        value = f"s.{column.name}"
        if column.kind == "time":
            return f"{value} - k * interval '1 microsecond'"  # few jobs are due at one moment
        if column.kind == "coarse time":  # nor where such times are cut to milliseconds
            return f"{value} - k * interval '{PRECISION} seconds'"
        if not self._is_key(column):
            return value
        match column.kind:
            case "integer":
                return f"{value} - k * {self._span}"
            case "uuid":
                # The first six bytes stay: where they are the time, the copy is as old.
                return (
                    f"(left({value}::text, 13) || right(md5({value}::text || k)::uuid::text, 23))"
                    "::uuid"
                )
            case "jsonb":
                return f"jsonb_set({value}, '{{~}}', to_jsonb(k))"
            case "json":
                return f"jsonb_set({value}::jsonb, '{{~}}', to_jsonb(k))::json"
            case "bytea":
                return f"{value} || int8send(k)"
            case _ if all(known.isdecimal() for known in column.values):
                return f"({value}::bigint - k * {self._span})::text"
            case _:
                return f"{value} || '~' || k"

    def _is_key(self, column: _Column) -> bool:
        """True if a column holds keys: declared ones, or values that are keys elsewhere."""
        if not column.distinguishes:
            return False
        if column.kind in {"json", "jsonb"}:
            return all(value.startswith("{") for value in column.values)  # a payload may be a key
        if column.kind not in {"integer", "uuid", "text", "bytea"}:
            return False
        return column.constrained or self._known.issuperset(column.values)

    @cached_property
    def _known(self) -> set[str]:
        """Every value of a declared key among the seeds."""
        columns = [column for table in self._tables for column in table.columns]
        declared = [c for c in columns if c.constrained and c.distinguishes]
        return self._ids.union(*(column.values for column in declared))

    @cached_property
    def _span(self) -> int:
        """A distance that no two integer keys of the seeds reach."""
        columns = [column for table in self._tables for column in table.columns]
        keys = [c for c in columns if c.kind == "integer" and self._is_key(c)]
        values = [int(value) for column in keys for value in column.values]
        return max(values) - min(values) + 1 if values else 0

    # --- the queue's opinion --------------------------------------------------------------------

    def _verify(self) -> None:
        before, seeded = self._reported
        seeds = seeded - before
        expected = seeded + Counter({state: n * self._copies for state, n in seeds.items()})
        now = reported(self._lab)
        if now != expected:
            raise NotMultipliedError(
                f"after {self._copies} copies of {dict(seeds)} jobs the queue reports "
                f"{dict(now)}, not {dict(expected)}"
            )
