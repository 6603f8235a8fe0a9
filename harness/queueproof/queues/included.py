r"""The schema that a team keeps, as statements for the server: migrations, and pg_dump's output.

Both are written for psql (`\restrict`, data after `COPY ... FROM stdin`) and for a server with the
team's roles. Whoever owns a table here is one role, which may do everything: who may do what is
left out, and so is what belongs to a whole database or cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from queueproof.queues import sqltext
from queueproof.queues.sqltext import ScriptStatement, Token

Fail = Callable[[int, str], NoReturn]  # with an offset and what is wrong there

_MARK = re.compile(
    r"""
    ^ (?: \\ (?P<command> \S+ ) .*
        | (?P<copy> COPY \s+ (?P<table> [^;(]+? ) \s* (?P<columns> \( [^;]*? \) )? \s+
            FROM \s+ stdin \b [^;]* ; ) [^\n]*
        | --+ [ \t]* (?P<down> \+goose[ ]Down | \+migrate[ ]Down | migrate:down
            | create[ ]above[ ]/[ ]drop[ ]below ) .*
    ) $
    """,
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
# psql's own commands that change nothing of what is made; any other is refused.
_HARMLESS = frozenset({"restrict", "unrestrict", "connect", "c", "set", "pset", "echo", "encoding"})
_END_OF_DATA = re.compile(r"^\\\.$", re.MULTILINE)
_ROWS = 1000  # of an INSERT
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_CONTROLS = dict(zip("bfnrtv", "\b\f\n\r\t\v", strict=True))


def statements(text: str, fail: Fail) -> Iterator[ScriptStatement]:
    """The statements of an included file that make tables, functions and rows, in order.

    A migration that says how it is undone (goose, dbmate, sql-migrate, tern) ends there.
    """
    begin = position = 0
    while mark := _MARK.search(text, position):
        position = mark.end()
        if not sqltext.is_closed(text[begin : mark.start()]):
            continue  # in a string or a function's body
        yield from _kept(text, begin, mark.start())
        if mark["down"]:
            return
        if mark["copy"]:
            end = _END_OF_DATA.search(text, position)
            if end is None:
                fail(mark.start(), "the data of this COPY never ends; its last line is `\\.`")
            yield from _inserts(text, mark, end.start())
            position = end.end()
        elif mark["command"] not in _HARMLESS:
            does = "it is psql's, and not carried out; name a file's path in `include`"
            fail(mark.start(), f"\\{mark['command']}: {does}")
        begin = position
    yield from _kept(text, begin, len(text))


def _kept(text: str, begin: int, end: int) -> Iterator[ScriptStatement]:
    for statement in sqltext.split(text, sqltext.piece(text, begin, end)):
        if not _left_out(statement.tokens):
            yield statement._replace(text=_where_there_is_one(statement.tokens, statement.text))


_LEFT_OUT = re.compile(
    r"""
    GRANT | REVOKE | ALTER[ ]DEFAULT[ ]PRIVILEGES | SECURITY[ ]LABEL
    # A column's comment tells people, and `init --from-schema`, of its values.
    | COMMENT[ ]ON[ ](?!COLUMN\b)
    | (CREATE|ALTER|DROP)[ ]
        (DATABASE|ROLE|USER|GROUP|TABLESPACE|POLICY|PUBLICATION|SUBSCRIPTION)\b(?![ ]MAPPING\b)
    | ALTER[ ].*[ ](OWNER[ ]TO[ ]\S*|ROW[ ]LEVEL[ ]SECURITY)$
    | (CREATE|DROP)[ ]SCHEMA[ ](.*[ ])?PUBLIC$
    | (SET|RESET)[ ]((LOCAL|SESSION)[ ])?
        ( AUTHORIZATION | ROLE | ROW_SECURITY | XMLOPTION
        | CLIENT_ENCODING | CLIENT_MIN_MESSAGES | DEFAULT_TABLESPACE | DEFAULT_WITH_OIDS
        | (LOCK|STATEMENT|TRANSACTION|IDLE_SESSION|IDLE_IN_TRANSACTION_SESSION)_TIMEOUT )\b
    """,
    re.VERBOSE,
)
_STATISTICS = frozenset({"pg_restore_relation_stats", "pg_restore_attribute_stats"})


def _left_out(tokens: Sequence[Token]) -> bool:
    """True if a statement is about roles, rights, a whole database, or how psql reads a dump."""
    # A quoted name may have spaces; here it is one word, as the others.
    if _LEFT_OUT.match(" ".join("_".join(token.name.upper().split()) for token in tokens)):
        return True
    if tokens[0].word != "SELECT":
        return False
    # An empty search_path would hide the clock from the DEFAULTs: they say now() in a dump.
    empties = [token.value for token in tokens[3:8:2]] == ["set_config", "search_path", ""]
    return empties or any(token.name in _STATISTICS for token in tokens)


def _where_there_is_one(tokens: Sequence[Token], sql: str) -> str:
    """CREATE EXTENSION IF NOT EXISTS, as every dump has some, on a server that may lack it.

    Many extensions of a database are nothing to its queue. What needs one that is missing is
    rejected, and the message names it.
    """
    if [one.word for one in tokens[:5]] != ["CREATE", "EXTENSION", "IF", "NOT", "EXISTS"]:
        return sql
    name = tokens[5].name.replace("'", "''")
    return (
        f"DO $queueproof$ BEGIN IF EXISTS (SELECT FROM pg_catalog.pg_available_extension_versions"
        f" WHERE name = '{name}' AND (trusted OR NOT superuser"
        f" OR current_setting('is_superuser') = 'on')) THEN {sql}; END IF; END $queueproof$"
    )


def _inserts(text: str, copy: re.Match[str], end: int) -> Iterator[ScriptStatement]:
    """The rows behind a COPY as INSERTs, whose literals take the columns' types, as COPY's do."""
    into = f"INSERT INTO {copy['table']} {copy['columns'] or ''} OVERRIDING SYSTEM VALUE VALUES"
    rows = text[copy.end() + 1 : end].split("\n")[:-1]
    for first in range(0, len(rows), _ROWS):
        values = ",\n".join(
            f"({', '.join(map(_literal, row.split(chr(9))))})"
            for row in rows[first : first + _ROWS]
        )
        yield ScriptStatement(f"{into}\n{values}", copy.start(), ())


def _literal(field: str) -> str:
    r"""A field of COPY's text format (manual, COPY, File Formats) as a literal; \N is NULL."""
    if field == r"\N":
        return "NULL"
    plain = _ESCAPE.sub(lambda escape: _character(escape[1]), field).replace("'", "''")
    return f"'{plain}'"


def _character(escaped: str) -> str:
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    if escaped[0] == "x" and len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _CONTROLS.get(escaped, escaped)
