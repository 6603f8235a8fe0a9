"""The user's error for SQL that the server rejected, and what may help."""

from __future__ import annotations

import re
from collections.abc import Iterable

from queueproof import waits
from queueproof.errors import OF_PSQL, QueueError, ServerError
from queueproof.postgres import Server
from queueproof.queues.model import Step
from queueproof.queues.sqltext import compile_statement, position_in

_NO_SCHEMA = "3F000"  # invalid_schema_name
_FORBIDDEN = "42501"  # insufficient_privilege
_UNTRUSTED = (
    "\nHere the queue's SQL runs without a superuser's rights. If it needs them, as CREATE"
    " EXTENSION does for some: --trust"
)
# Of functions, types, operators, schemas, tables, extensions (58P01 in older servers).
_MISSING = frozenset({"42883", "42704", "3F000", "42P01", "0A000", "58P01"})
_EXTENSION = re.compile(r'CREATE EXTENSION (?:IF NOT EXISTS )?"?([\w-]+)', re.IGNORECASE)
_TEMPORARY = re.compile(
    r'CREATE (?:GLOBAL |LOCAL )?TEMP(?:ORARY)? TABLE (?:IF NOT EXISTS )?"?(\w+)', re.IGNORECASE
)
_SETS_PATH = re.compile(r"SET (?:SESSION )?search_path\b", re.IGNORECASE)
_LACKING = """
SELECT asked, asked IN (SELECT name FROM pg_available_extensions)
FROM unnest(%s::text[]) AS asked WHERE asked NOT IN (SELECT extname FROM pg_extension) ORDER BY 1
"""
SHOWN = 200  # characters of a line
TOLD = 2_000  # characters of what a server says: a queue's own RAISE may say any number


def hint(
    error: ServerError, schema: Iterable[Step], admin: waits.LimitedConnection, server: Server
) -> str:
    """The hint for an error that a superuser, or another server, would not have met."""
    if error.sqlstate == _FORBIDDEN and not server.trusted:
        return _UNTRUSTED
    if error.sqlstate not in _MISSING:
        return ""
    if error.message.startswith('role "'):
        return "\nA role is the whole server's, and no check asks for one: leave this line out."
    steps = [step.sql for step in schema]
    for name in (name for sql in steps for name in _TEMPORARY.findall(sql)):
        if f'"{name}"' in error.message:
            return f"\nThe schema makes {name} a temporary table, which no other connection sees."
    if error.sqlstate == "42P01" and any(map(_SETS_PATH.match, steps)):
        return "\nThe schema's SET search_path ends with its connection: name the table's schema."
    asked = {name.lower() for sql in steps for name in _EXTENSION.findall(sql)}
    missing: dict[str, bool] = dict(admin.execute(_LACKING, [sorted(asked)]).fetchall())
    if not missing:
        return ""
    where = "name a server that has it: --postgres local, container:IMAGE or a DSN"
    if any(missing.values()):
        where = "here it needs a superuser's rights: --trust"
    names = ", ".join(missing)
    return f"\nIs it of an extension that the schema asks for and has not got? {names}: {where}"


def rejected(step: Step, error: ServerError, hint: str) -> QueueError:
    """The user's error for SQL that the server rejected, with its place, and a hint at the end."""
    where = ""
    source = step.source
    if error.position is not None:
        offset = position_in(compile_statement(step.sql), error.position)
        before = step.sql[:offset]
        line = before.count("\n")
        column = offset - (before.rfind("\n") + 1) + 1
        if source is not None:
            source = type(source)(source.path, source.line + line)
        text = step.sql.split("\n")[line]
        first = max(0, column - 1 - SHOWN // 2)  # a line may have thousands of characters
        where = f"\n  {text[first : first + SHOWN]}\n  {' ' * (column - 1 - first)}^"
        if text[column - 1 :].startswith("\\"):
            where += f"\n{OF_PSQL}"
    if error.sqlstate == _NO_SCHEMA and '"' not in error.message:  # which would name one
        where += "\nHas the role a search_path of its own? ALTER ROLE ... RESET search_path"
    said = (error.message, error.more)
    told, more = (text if len(text) <= TOLD else f"{text[:TOLD]} …" for text in said)
    message = f"PostgreSQL rejected this SQL: {told} ({error.sqlstate}){where}{more}{hint}"
    return QueueError(message, source)
