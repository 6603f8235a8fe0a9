"""Stubs for what a schema names and its server lacks, such as what a host brings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from queueproof.errors import ServerError
from queueproof.queues.model import Operation, Step
from queueproof.queues.sqltext import BEGINS, first_keyword
from queueproof.run.session import LibpqSession, execute

_LACKS = re.compile(
    r"(?P<kind>schema|relation|type|column|function) "
    r'(?:"(?P<quoted>[^"]+)"|(?P<called>[\w."]+)\((?P<takes>[^)]*)\))'
)
_STATES = frozenset({"3F000", "42P01", "42704", "42703", "42883"})
_BEFORE = r"(?:[(,]|ADD|COLUMN)"  # what stands before a column that is made
MOST = 40  # stubs; more is another database


_KINDS = ("schema", "type", "relation", "function")  # in the order in which they are written


def stubs(
    installer: LibpqSession,
    steps: Operation[None],
    ran: Sequence[Step],
    step: Step,
    error: ServerError,
) -> str:
    """The stubs to write ahead of a schema so that it can be installed, as far as that helps.

    Each stub is made, and the installation goes on: the database is good for nothing else then.
    """
    made, ran, undone = _Stubs(), list(ran), tuple[Step, ...]()
    with suppress(StopIteration):
        while len(made) < MOST:
            made.text += f"\n{step.sql}"
            try:
                undone = _roll_back(installer, ran) or undone
                installer.run(made.add(step, error))
                for one in undone:
                    execute(installer, one)
                undone = ()
                while True:
                    result = execute(installer, step)
                    ran.append(step)
                    step = steps.send(result)
                    made.text += f"\n{step.sql}"
            except ServerError as again:
                if str(again) == str(error):
                    break
                error = again
    if not len(made):
        return ""
    lines = "".join(f"\n    {sql};" for sql in made.written())
    return (
        "\nWhat a host or another part of the program makes is not there. If the queue can do with"
        f" empty ones, write first in `schema#`, with the types as they are there:{lines}"
    )


def _roll_back(installer: LibpqSession, ran: Sequence[Step]) -> tuple[Step, ...]:
    """End the transaction that a statement has failed in; the statements that are undone so."""
    if not installer.in_transaction:
        return ()
    installer.run("ROLLBACK")
    begins = (n for n, step in enumerate(ran) if first_keyword(step.sql) in BEGINS)
    return tuple(ran[max(begins, default=len(ran)) :])


class _Stubs:
    """Stubs for what is lacking."""

    def __init__(self) -> None:
        self.text = ""  # the schema's SQL, as far as it is known
        self._made: dict[tuple[int, str], str] = {}
        self._tables: dict[str, dict[str, str]] = {}  # their columns, with type and constraint

    def __len__(self) -> int:
        return len(self._made)

    def written(self) -> list[str]:
        """The statements that make them."""
        return [self._made[one] for one in sorted(self._made, key=lambda one: one[0])]

    def add(self, step: Step, error: ServerError) -> str:
        """Make what a statement lacks; what to run for it, or the same error for nothing."""
        lacks = _LACKS.search(error.message) if error.sqlstate in _STATES else None
        if lacks is None:
            raise error
        name, kind = lacks["quoted"] or lacks["called"], lacks["kind"]
        if kind == "column":
            return self._add_column(step, name, error)
        match kind:
            case "schema":
                stub = f"CREATE SCHEMA {name}"
            case "type":
                stub = f"CREATE DOMAIN {name} AS text"
            case "function":
                stub = self._function(name, lacks["takes"].replace("unknown", "text"))
            case _:
                self._tables[name] = self._columns(name)
                stub = self._table(name)
        self._made[_KINDS.index(kind), name] = stub
        return stub

    def _add_column(self, step: Step, column: str, error: ServerError) -> str:
        for name, columns in self._tables.items():
            if column not in columns and re.search(_named(name), step.sql):
                columns[column] = self._columns(name).get(column, "text")
                self._made[_KINDS.index("relation"), name] = self._table(name)
                return f"ALTER TABLE {name} ADD COLUMN {column} {columns[column]}"
        raise error

    def _columns(self, table: str) -> dict[str, str]:
        """The columns to which others' keys refer, with the types of these."""
        refers = rf"REFERENCES\s+{_named(table)}(?:\s*\(\s*\"?(\w+)\"?\s*\))?"
        own = rf'{_BEFORE}\s*(?!FOREIGN|CONSTRAINT)"?(\w+)"?\s+\w[^,;]*?\b{refers}'
        key = rf'FOREIGN\s+KEY\s*\(\s*"?(\w+)"?\s*\)\s*{refers}'
        found: dict[str, str] = {}
        pairs = (pair for sql in (own, key) for pair in re.findall(sql, self.text, re.IGNORECASE))
        for mine, theirs in pairs:
            unique = "UNIQUE" if found else "PRIMARY KEY"
            found.setdefault(theirs or "id", f"{self._type_of(mine)} {unique}")
        return found

    def _type_of(self, column: str) -> str:
        found = self._find(rf'{_BEFORE}\s*"?{column}"?\s+(\w+)')
        return found[1] if found else "text"

    def _find(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.text, re.IGNORECASE)

    def _function(self, name: str, takes: str) -> str:
        call = rf"{_named(name)}\s*\([^)]*\)"
        if self._find(rf"EXECUTE\s+(?:FUNCTION|PROCEDURE)\s+{call}"):
            body = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
            return f"CREATE FUNCTION {name}({takes}) {body}"
        cast = self._find(rf"{call}\s*\)*\s*::\s*(\w+)")
        default = self._find(rf"(\w+)(?:\s+NOT\s+NULL)?\s+DEFAULT\s+{call}")
        left = self._find(rf'(\w+)"?\s*=\s*(?:\(\s*SELECT\s+)?{call}')
        compared = left or self._find(rf'{call}\s*\)?\s*=\s*(?:\w+\.)?"?(\w+)')
        if found := cast or default:
            kind = found[1]
        else:
            kind = self._type_of(compared[1]) if compared else "text"
        value = "gen_random_uuid()" if default and kind == "uuid" else f"NULL::{kind}"
        return f"CREATE FUNCTION {name}({takes}) RETURNS {kind} LANGUAGE sql AS 'SELECT {value}'"

    def _table(self, name: str) -> str:
        columns = ", ".join(f"{column} {kind}" for column, kind in self._tables[name].items())
        return f"CREATE TABLE {name} ({columns})"


def _named(name: str) -> str:
    """A regular expression for a name as SQL writes it."""
    return r"\s*\.\s*".join(f'"?{re.escape(part)}"?' for part in name.split("."))
