"""From somebody's tables, as a real server's catalogue has them, to a queue file that was tried."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row
from psycopg.sql import Literal

from queueproof import waits
from queueproof.advice.file import Proposal
from queueproof.advice.roles import Column, Table, choose
from queueproof.errors import FormatError, QueueError, QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.postgres import open_server
from queueproof.postgres.local import find_embedded
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab

_STUB = """\
-- /// queue
-- include = {include}
-- ///
-- name: enqueue
SELECT 1 AS id;
-- name: claim
SELECT 1 AS id;
"""
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


class Proposed(NamedTuple):
    """A queue file for somebody's tables."""

    text: str
    table: str  # whose jobs it is about
    rejected: QueueError | None  # what the server says, so that it cannot be judged; None: it can
    asks: str = ""  # what the CHECK asks that was violated, where one was


def propose(
    path: Path, schema: Sequence[Path], *, table: str | None, postgres: str | None, trust: bool
) -> Proposed:
    """Write a queue file for a schema's files, and use every operation of it once.

    Without a table it is the one that looks like jobs'; the server is as `open_server` takes it.
    QueueproofError: the schema cannot be installed, or no table in it is one of jobs.
    """
    include = json.dumps([Path(os.path.relpath(one, path.parent)).as_posix() for one in schema])
    try:
        stub = load_text(_STUB.format(include=include), path)
    except FormatError as error:
        if error.source and error.source.path == path:  # which nobody has written yet
            message = "there is no statement in it; give pg_dump's output, a migration or a DSN"
            raise QueueproofError(f"{schema[0]}: {message}") from error
        raise
    with open_server(postgres, trust=trust) as server:
        with open_lab(stub, server) as lab:
            tables = tables_of(lab)
        chosen, others = choose(tables.values(), table)
        text = Proposal(chosen, tables, others, include).text
        try:
            with open_lab(load_text(text, path), server) as lab:
                return _tried(lab, text, chosen.sql)
        except QueueError as error:
            return Proposed(text, chosen.sql, error)


def _tried(lab: Lab, text: str, table: str) -> Proposed:
    """A proposal, once every operation of it was used."""
    try:
        calibrate(lab)
    except QueueError as error:
        violated = re.search(r'violates check constraint "([^"]+)"', str(error))
        if violated is None:
            return Proposed(text, table, error)
        rows = lab.execute(_CONSTRAINT.format(Literal(violated[1]).as_string(None)))
        return Proposed(text, table, error, str(rows[0][0]) if rows else "")
    return Proposed(text, table, None)


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


def dump(dsn: str) -> str:
    """The schema of a running server's database, as pg_dump writes it."""
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", None)  # which is in no process' list of arguments
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
