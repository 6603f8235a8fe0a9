"""Somebody's tables, as the catalogue of a real server has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row

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
