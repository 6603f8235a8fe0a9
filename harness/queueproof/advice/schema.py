"""Somebody's tables, as the catalogue of a real server has them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from importlib.resources import files
from itertools import groupby
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row
from psycopg.sql import Literal

from queueproof import waits
from queueproof.advice.roles import Column, Table
from queueproof.errors import QueueproofError
from queueproof.postgres.local import find_embedded
from queueproof.run.lab import Lab

_COLUMNS = files(__package__).joinpath("columns.sql").read_bytes()
_INDEXES = """
SELECT i.indrelid::int, pg_get_indexdef(i.indexrelid) FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace <> 'pg_catalog'::regnamespace
WHERE NOT i.indisprimary ORDER BY i.indexrelid
"""
_PATH = "SET search_path = public, pg_catalog"
_CONSTRAINT = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' AND conname = {}
"""
_TEXTS = (  # of the kinds that checks ask for
    *("x", "xxxxxxxx", "X", "1", "a.b", "a-b", "a/b", "/x", "GET", "POST", "EUR", "en", "0" * 64),
    *("https://example.org/x", "http://example.org/x", "a@example.org", "+15550100", "#000000"),
    *("00000000-0000-0000-0000-000000000000", "2000-01-01", "127.0.0.1", "{}", "x" * 32),
)


def tables_of(lab: Lab) -> dict[int, Table]:
    """The tables of an installed schema, by oid."""
    with psycopg.connect(lab.conninfo, connect_timeout=int(waits.CONNECT)) as connection:
        connection.execute(_PATH)
        cursor = connection.cursor(row_factory=class_row(Column))
        columns = [_sampled(connection, one) for one in cursor.execute(_COLUMNS).fetchall()]
        indexes = connection.execute(_INDEXES).fetchall()
    return {
        oid: Table(
            own[0].table, own[0].table_name, own, tuple(text for of, text in indexes if of == oid)
        )
        for oid, group in groupby(columns, key=lambda column: column.table_oid)
        if (own := tuple(group))
    }


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
    """The words of a CHECK, as the server tells it; empty where there is none of that name."""
    rows = lab.execute(_CONSTRAINT.format(Literal(name).as_string(None)))
    return str(rows[0][0]) if rows else ""


def dump(dsn: str) -> str:
    """The schema of a running server's database, as pg_dump writes it.

    The password of the DSN is in no process' list of arguments.
    """
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", None)
    parts.setdefault("connect_timeout", int(waits.CONNECT))
    program = str(find_embedded("").directory / "pg_dump")
    what = ("--schema-only", "--no-owner", "--no-privileges")
    try:
        dumped = subprocess.run(  # noqa: S603 - of the embedded server
            [program, *what, "--dbname", make_conninfo("", **parts)],
            env={**os.environ, **({"PGPASSWORD": str(password)} if password else {})},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=waits.BULK,
        )
    except subprocess.TimeoutExpired:
        raise QueueproofError(f"--from-schema: pg_dump took {waits.BULK:.0f} s") from None
    if dumped.returncode:
        raise QueueproofError(f"--from-schema: {dumped.stderr.strip()}")
    return dumped.stdout
