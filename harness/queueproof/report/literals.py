"""SQL as a spec of isolationtester takes it: values in their places, no braces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from sqlglot import TokenType

from queueproof.errors import QueueproofError
from queueproof.queues.model import Parameter, Value, Values, interval
from queueproof.queues.sqltext import Token, tokens

INT4 = 23  # pg_type.oid
_INTEGERS = frozenset({20, 21, INT4})


def cannot(why: str) -> QueueproofError:
    """The error to raise for a story that no spec can tell."""
    return QueueproofError(f"a spec cannot tell this story: {why}; export it as a test, FILE.py")


def literal(value: Parameter, types: Mapping[int, str]) -> str:
    """A bound parameter as SQL of the same value and type."""
    match value:
        case Value(text=None, oid=oid):
            return f"NULL::{types[oid]}" if oid else "NULL"
        case Value(text=bytes(text), oid=oid):
            cast = f"::{types[oid]}" if oid else ""
            return _value(text, oid) + ("" if oid == INT4 and text.isdigit() else cast)
        case Values(texts=texts, oid=oid):
            listed = ("NULL" if text is None else _value(text, oid) for text in texts)
            return f"ARRAY[{', '.join(listed)}]::{types[oid]}[]"
        case list():
            return f"ARRAY[{', '.join(literal(one, types) for one in value)}]" if value else "'{}'"
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case int():
            return f"({value})" if value < 0 else str(value)
        case float():
            return f"'{value!r}'::float8"
        case timedelta():
            return f"'{interval(value)}'::interval"
        case _:
            return _quoted(str(value))


def _value(text: bytes, oid: int) -> str:
    """A value without its type: a number as it is, all else as a string."""
    return text.decode() if oid in _INTEGERS and text.isdigit() else _quoted(text.decode())


def _quoted(text: str) -> str:
    """A text as an SQL string; isolationtester takes every `}` for the end of a block."""
    doubled = text.replace("'", "''")
    if "}" not in text:
        return f"'{doubled}'"
    return "E'" + doubled.replace("\\", "\\\\").replace("}", r"\x7D") + "'"


def with_count(sql: str) -> str:
    """A statement that shows how many rows it changed."""
    found = tokens(sql)
    plain = found and found[0].word in {"UPDATE", "DELETE", "INSERT"}
    if not plain or any(token.word == "RETURNING" for token in found):
        return sql
    return f"{sql}\nRETURNING true AS affected"


def braced(sql: str) -> str:
    """A block of a spec, with no brace in it but its own."""
    stripped = _braceless(sql.strip())
    end = "\n" if "--" in stripped.rpartition("\n")[2] else ""
    return "{\n" + stripped + (f"{end};" if not stripped.endswith(";") else "") + "\n}"


def _braceless(sql: str) -> str:
    """The same SQL without closing braces."""
    if "}" not in sql:
        return sql
    pieces: list[str] = []
    position = 0
    for token in tokens(sql):
        pieces += [sql[position : token.start].replace("}", ")"), _without_brace(sql, token)]
        position = token.end
    return "".join([*pieces, sql[position:].replace("}", ")")])  # what is left are comments


def _without_brace(sql: str, token: Token) -> str:
    if "}" not in token.raw:
        return token.raw
    gap = " " if sql[: token.start][-1:].isalnum() else ""  # AS$$...$$ must not become ASE'...'
    if token.kind is TokenType.HEREDOC_STRING:
        tag = token.raw.index("$", 1) + 1
        return gap + _quoted(token.raw[tag:-tag])
    if token.kind is TokenType.STRING and token.raw.startswith("'"):
        return gap + _quoted(token.raw[1:-1].replace("''", "'"))
    if token.kind is TokenType.BYTE_STRING and token.raw[:1] in "eE":
        return re.sub(r"\\?(\})|\\.", lambda one: r"\x7D" if one[1] else one[0], token.raw)
    raise cannot(f"a closing brace cannot stand in {token.raw}")
