"""The tables of a queue: which there are, and SQL that brings them back to the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from psycopg.sql import Literal

from queueproof import waits

TABLES = """
SELECT c.oid::regclass::text, c.relkind, c.relispartition
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('clock', 'pg_catalog', 'information_schema') AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.oid
"""
"""Each with its kind, and whether it is a partition."""

NEW = """
SELECT format('DROP %%s IF EXISTS %%s CASCADE', CASE c.relkind WHEN 'v' THEN 'VIEW'
              WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
              c.oid::regclass)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid > %s AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('clock', 'pg_catalog', 'information_schema') AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relkind = 'S', c.oid
"""
"""What drops each relation that came later; last come sequences, which go with their tables."""

QUIET = "SELECT clock.quiet()"
"""Keeps triggers and foreign keys from acting for the rest of a session: see rights.sql."""

_SEQUENCES = """
SELECT c.oid::regclass::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND n.nspname !~ '^pg_' AND n.nspname <> 'clock'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.oid
"""
_COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum)
FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
_ACTING = """
SELECT tgrelid::regclass::text, 'TRIGGER ' || quote_ident(tgname), tgenabled::text
FROM pg_trigger WHERE NOT tgisinternal AND tgparentid = 0
UNION ALL
SELECT ev_class::regclass::text, 'RULE ' || quote_ident(rulename), ev_enabled::text
FROM pg_rewrite WHERE rulename <> '_RETURN'
ORDER BY 1, 2
"""
_HIDING = "SELECT oid::regclass::text FROM pg_class WHERE relforcerowsecurity"
_FOREIGN_KEYS = """
SELECT DISTINCT conrelid::regclass::text, confrelid::regclass::text
FROM pg_constraint WHERE contype = 'f' AND conrelid <> confrelid
"""


def columns_of(admin: waits.LimitedConnection, table: str) -> str:
    """The columns that hold data of their own, as SQL.

    Args:
        admin: A connection.
        table: As regclass text.
    """
    row = admin.execute(_COLUMNS, [table]).fetchone()
    return str(row[0]) if row and row[0] else ""  # of a table that is only locked, for example


class Calm(NamedTuple):
    """Statements between which no trigger, rule or policy of the queue's acts on its tables."""

    begin: Sequence[str]
    end: Sequence[str]


def calm(admin: waits.LimitedConnection, tables: Sequence[str], *, superuser: bool) -> Calm:
    """What has to be switched off where the harness changes the tables itself, and on again.

    Args:
        admin: A connection.
        tables: All of them, as regclass text.
        superuser: Whether the harness does so after `QUIET`.
    """
    begin, end = [], []
    firing = "AR" if superuser else "OAR"  # pg_trigger.tgenabled, pg_rewrite.ev_enabled
    for table, what, enabled in admin.execute(_ACTING).fetchall():
        if table in tables and enabled in firing:
            how = {"O": "", "A": "ALWAYS ", "R": "REPLICA "}[enabled]
            begin.append(f"ALTER TABLE {table} DISABLE {what}")
            end.append(f"ALTER TABLE {table} ENABLE {how}{what}")
    for (table,) in admin.execute(_HIDING).fetchall():  # rows, from the owner too
        if table in tables:
            begin.append(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
            end.append(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    return Calm(begin, end)


# A sequence that may count beyond an int4, as the column that it fills can.
_FAR = """
SELECT seqrelid::regclass::text
FROM pg_sequence
JOIN pg_depend ON objid = seqrelid AND classid = 'pg_class'::regclass AND deptype IN ('a', 'i')
JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid AND atttypid = 'int8'::regtype
WHERE seqmax > %s AND seqincrement > 0 AND refobjid::regclass::text = ANY (%s)
"""
LAST_NEAR = 2**31 - 3  # two more are an int4 yet


def far_sequences(admin: waits.LimitedConnection, tables: Sequence[str]) -> str:
    """SQL that has the tables' sequences go on where an int4 ends; empty where none can.

    Args:
        admin: A connection.
        tables: As regclass text.
    """
    found = admin.execute(_FAR, [2 * LAST_NEAR, list(tables)]).fetchall()
    return "; ".join(
        f"SELECT setval({Literal(sequence).as_string()}::regclass, {LAST_NEAR})"
        for (sequence,) in found
    )


def back_to_the_beginning(
    admin: waits.LimitedConnection, tables: Sequence[str], calm: Calm, *, superuser: bool
) -> tuple[str, str]:
    """SQL that brings every table and sequence back to what they hold now.

    Args:
        admin: A connection that may read them; what they hold is kept in the schema `clock`.
        tables: All of them, as regclass text.
        calm: Of these tables.
        superuser: Whether the harness brings them back after `QUIET`.

    Returns:
        The statements that take least time, and those that make the tables as small as new ones.
    """
    run = admin.execute
    restore = []
    run("; ".join(["BEGIN", *calm.begin]))
    for number, table in enumerate(_parents_first(admin, tables)):
        if run(
            "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [table]
        ).fetchone() == (True,):
            continue
        if run(f"SELECT EXISTS (SELECT FROM ONLY {table})").fetchone() != (True,):
            continue
        columns = columns_of(admin, table)
        run(f"CREATE TABLE clock.saved_{number} AS SELECT {columns} FROM ONLY {table}")
        into = f"{table} ({columns})" if columns else table
        restore.append(
            f"INSERT INTO {into} OVERRIDING SYSTEM VALUE SELECT {columns} FROM clock.saved_{number}"
        )
    run("; ".join([*calm.end, "COMMIT"]))
    for (sequence,) in run(_SEQUENCES).fetchall():
        row = run(f"SELECT last_value, is_called FROM {sequence}").fetchone()
        if row:
            restore.append(
                f"SELECT setval({Literal(sequence).as_string()}::regclass, {row[0]}, {row[1]})"
            )
    truncate = [f"TRUNCATE {', '.join(tables)}"] if tables else []
    # Without superuser rights foreign keys fire: only one TRUNCATE of all tables is sure.
    empty = [f"DELETE FROM {table}" for table in tables]
    delete = empty if superuser else truncate
    renewed = ["BEGIN", *calm.begin, *truncate, *restore, *calm.end, "COMMIT"]
    swift = ["BEGIN", *calm.begin, *delete, *restore, *calm.end, "COMMIT"]
    return "; ".join(swift), "; ".join(renewed)


def _parents_first(admin: waits.LimitedConnection, tables: Sequence[str]) -> Sequence[str]:
    """The tables in an order in which foreign keys let their rows be put in."""
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(tables, ()))
    for child, parent in admin.execute(_FOREIGN_KEYS).fetchall():
        if child in tables and parent in tables:
            sorter.add(child, parent)
    try:
        return list(sorter.static_order())
    except CycleError:
        return tables
