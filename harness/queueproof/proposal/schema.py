"""Somebody's tables, as the catalogue of a real server has them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row
from psycopg.sql import Literal

from queueproof import waits
from queueproof.errors import QueueproofError
from queueproof.postgres.local import find_embedded
from queueproof.run.lab import Lab

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
_PATH = "SET search_path = queue, public, pg_catalog"
_CONSTRAINT = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' AND conname = {}
"""
_TEXTS = (  # of the kinds that checks ask for
    *("x", "xxxxxxxx", "X", "1", "a.b", "a-b", "a/b", "/x", "GET", "POST", "EUR", "en", "0" * 64),
    *("https://example.org/x", "http://example.org/x", "a@example.org", "+15550100", "#000000"),
    *("00000000-0000-0000-0000-000000000000", "2000-01-01", "127.0.0.1", "{}", "x" * 32),
)


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
    sample: str = ""  # a text that its checks take


class Table(NamedTuple):
    """A table, its columns, and its indexes but the primary key's."""

    sql: str
    name: str
    columns: tuple[Column, ...]
    indexes: tuple[str, ...]


def tables_of(lab: Lab) -> dict[int, Table]:
    """The tables of an installed schema, by oid."""
    with psycopg.connect(lab.conninfo, connect_timeout=int(waits.CONNECT)) as connection:
        connection.execute(_PATH)
        cursor = connection.cursor(row_factory=class_row(Column))
        columns = [_sampled(connection, one) for one in cursor.execute(_COLUMNS).fetchall()]
        indexes = connection.execute(_INDEXES).fetchall()
    tables: dict[int, Table] = {}
    for oid in dict.fromkeys(column.table_oid for column in columns):
        own = tuple(column for column in columns if column.table_oid == oid)
        tables[oid] = Table(
            own[0].table, own[0].table_name, own, tuple(text for of, text in indexes if of == oid)
        )
    return tables


def _sampled(connection: psycopg.Connection[Any], column: Column) -> Column:
    """The column with a text that each of its checks takes, where one of the usual ones does."""
    if column.family != "text" or not column.needed or not column.checks:
        return column
    prefixes = re.findall(r"~~ '([^'%_]+)%", " ".join(column.checks))
    taken = " AND ".join(re.sub(r"^CHECK | NOT VALID$", "", check) for check in column.checks)
    # A domain's check calls the value VALUE.
    names = column.sql if column.sql == "value" else f"{column.sql}, v AS value"
    texts = ", ".join(
        f"({Literal(text).as_string(None)})" for text in (*_TEXTS, *(f"{one}x" for one in prefixes))
    )
    asked = f"SELECT v FROM (VALUES {texts}) AS one(v), LATERAL (SELECT v AS {names}) AS t"
    try:
        found = connection.execute(f"{asked} WHERE {taken}".encode()).fetchone()
    except psycopg.Error:  # it asks for more than the column
        connection.rollback()
        connection.execute(_PATH)
        return column
    return replace(column, sample=found[0] if found else "")


def constraint_of(lab: Lab, name: str) -> str:
    """What a CHECK asks, as the server tells it; empty where there is none of that name.

    Args:
        lab: Where the schema is installed.
        name: Of the constraint.
    """
    rows = lab.execute(_CONSTRAINT.format(Literal(name).as_string(None)))
    return str(rows[0][0]) if rows else ""


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
