"""A queue's file, read for what its columns are for and for what may be changed in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.queues import sqltext
from queueproof.queues.block import Block, Statement
from queueproof.queues.sqlfile import SqlFileQueue, load_text
from queueproof.queues.sqltree import Parsed, sites

_ENDS = ("completed", "failed")
HELD = frozenset({"complete", "complete_many", "fail", "heartbeat"})  # operations on a claimed job
NOW = exp.CurrentTimestamp | exp.CurrentTime | exp.Localtimestamp


class Name(str):
    """A table's or column's name: bare where it is compared, as SQL has it where it is written."""

    __slots__ = ("sql",)
    sql: str

    def __new__(cls, *parts: str) -> Self:
        """A name, behind that of its schema where it has one."""
        self = super().__new__(cls, parts[-1] if parts else "")
        self.sql = ".".join(
            one if re.fullmatch(r"[a-z_][a-z0-9_$]*", one) else '"' + one.replace('"', '""') + '"'
            for one in parts
        )
        return self

    def __format__(self, spec: str) -> str:
        """As SQL has it."""
        return format(self.sql, spec)


_NONE, _ID = Name(), Name("id")


@dataclass(frozen=True, slots=True)
class Site:
    """A query or a change, in a block of its own or in a function that the block calls.

    Attributes:
        block: The block.
        start: Where in the file it begins.
        parsed: Its tree.
        own: Whether it stands in the block itself, where the block's parameters are known.
    """

    block: str
    start: int
    parsed: Parsed
    own: bool

    def where(self, node: exp.Expr) -> list[exp.Expr]:
        """The conditions of a query that all must hold."""
        where = node.args.get("where")
        if where is None:
            return []
        this = where.this
        return list(this.flatten(unnest=False)) if isinstance(this, exp.And) else [this]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the jobs' table by what they are for; nothing where the file does not tell.

    Attributes:
        table: The table.
        key: The column that the claim answers as `id`.
        status: The job's state.
        running: Its value while the job is claimed, quoted.
        free: Its value while the job waits, quoted.
        done: Its value once the job is completed, quoted.
        failed: Its value once the job has failed for good, quoted.
        worker: Who holds the job.
        attempts: How often it was claimed.
        token: The column of the claim's answer with that count.
        bound: How often it may be.
        due: From when on.
        queue: Of which queue.
        priority: How urgent.
        lease: When the lease began, or ends.
        until: Whether that is its end.
        asked: What each block asks of the job's row, in the words of the file; of the operations on
            a claimed job, what any of them asks.
        failing: What a failed attempt writes into the row, without what it is told.
        types: The type of each column, as the schema has it.
    """

    table: Name = _NONE
    key: Name = _ID
    status: Name = _NONE
    running: str = ""
    free: str = ""
    done: str = ""
    failed: str = ""
    worker: Name = _NONE
    attempts: Name = _NONE
    token: str = ""
    bound: Name = _NONE
    due: Name = _NONE
    queue: Name = _NONE
    priority: Name = _NONE
    lease: Name = _NONE
    until: bool = False
    asked: Mapping[str, Collection[str]] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


class Draft:
    """A queue's file, read for its columns and for what may be changed.

    Raises:
        QueueError: The text is no queue file.
    """

    def __init__(self, text: str, path: Path | str) -> None:
        self.text = text
        self.path = path
        self.queue: SqlFileQueue = load_text(text, path)

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks, with those of their statements that stand in the file itself."""
        kept = (
            replace(block, statements=tuple(one for one in block.statements if self._has(one)))
            for block in self.queue.blocks.values()
        )
        return [block for block in kept if block.statements]

    def _has(self, statement: Statement) -> bool:
        return statement.source.path == Path(self.path)

    @cached_property
    def sites(self) -> list[Site]:
        """Every query and change that can be parsed."""
        found = []
        for block in self.blocks:
            for index, statement in enumerate(block.statements):
                start = self.start(block, index)
                for label, span in sites(block, statement.text):
                    try:
                        parsed = Parsed(statement.text[span.start : span.end])
                    except SqlglotError:
                        continue
                    by = block.name if label == block.name else self._caller(label[:-2])
                    found.append(Site(by, start + span.start, parsed, block.name != "schema"))
        return found

    def start(self, block: Block, index: int) -> int:
        """Where in the file a statement begins.

        Args:
            block: The block.
            index: Which of its statements, from 0.
        """
        statement = block.statements[index]
        lines = self.text.splitlines(keepends=True)
        return self.text.index(statement.text, sum(map(len, lines[: statement.source.line - 1])))

    def _caller(self, function: str) -> str:
        name = function.rpartition(".")[2].strip('"').lower()
        for block in self.queue.blocks.values():
            if block.name != "schema" and any(
                token.name == name
                for statement in block.statements
                for token in sqltext.tokens(statement.text)
            ):
                return block.name
        return "schema"

    @cached_property
    def columns(self) -> Columns:
        """What the columns are for, as the claim, the enqueue and the recovery use them."""
        found: dict[str, str] = {}
        until = False
        for site in self.sites:
            if site.block == "enqueue":
                for insert in site.parsed.tree.find_all(exp.Insert):
                    found = _enqueued(insert) | found
        for site in (one for one in self.sites if one.block == "claim"):
            for update in site.parsed.tree.find_all(exp.Update):
                written = _claimed(update, update.find_ancestor(exp.Merge) or update)
                if "status" in written:
                    found |= written
                elif written.get("table") == found.get("table"):
                    found = written | found
            for less in site.parsed.tree.find_all(exp.LT, exp.LTE):
                column = less.this
                if isinstance(column, exp.Column) and less.expression.find(NOW):
                    found.setdefault("due", column.name)
                if isinstance(column, exp.Column) and column.name == found.get("attempts"):
                    found.setdefault("bound", less.expression.name)
        if "attempts" not in found:
            found |= self._counted_later()
        if "due" not in found and (due := self._awaited()):
            found["due"] = due
        for site in (one for one in self.sites if one.block == "recover"):
            for less in site.parsed.tree.find_all(exp.LT, exp.LTE):
                column, now = less.this, less.expression.find(NOW)
                if isinstance(column, exp.Column) and now and column.name != found.get("due"):
                    found["lease"] = column.name
                    until = now is less.expression
        if "lease" not in found and (given := self._given()):
            found["lease"], until = given, True
        found.setdefault("lease", self._beaten(found.get("due", "")))
        flag = found.pop("flag", "")
        if flag and "status" not in found:
            found |= {"status": flag, "running": "true", "free": "false"}
        else:
            found |= self._states(found.get("status", ""))
        known: dict[str, Any] = {
            role: value if role in _VALUES or isinstance(value, Name) else Name(value)
            for role, value in found.items()
            if role in Columns.__slots__
        }
        table = found.get("table", "")
        known |= {"asked": self._asked(table), "failing": self._failing(table)}
        return Columns(**known, until=until, types=self._types())

    def _failing(self, table: str) -> dict[str, str]:
        return {
            part.this.name: site.parsed.source(site.parsed.span(part)).partition("=")[2].strip()
            for site in self.sites
            if site.own and site.block == "fail"
            for change in site.parsed.tree.find_all(exp.Update)
            if is_of(change, table)
            for part in change.expressions
            if not part.find(exp.Placeholder)
        }

    def _asked(self, table: str) -> dict[str, dict[str, None]]:
        """The conditions that blocks have of a table's rows alone: of the held ones as of one."""
        asked: dict[str, dict[str, None]] = {}
        for site in self.sites:
            if not site.own or site.block == "complete_many":
                continue
            of = asked.setdefault("held" if site.block in HELD else site.block, {})
            for node in site.parsed.tree.find_all(exp.Update, exp.Delete, exp.Select):
                source = node.args.get("from_") if isinstance(node, exp.Select) else node
                if source is None or not is_of(source, table) or node.args.get("joins"):
                    continue
                for part in site.where(node):
                    alone = all(
                        one.table in {"", source.this.alias_or_name}
                        for one in part.find_all(exp.Column)
                    )
                    if alone and not part.find(exp.Select) and "span" in part.meta:
                        text = " ".join(site.parsed.source(site.parsed.span(part)).split())
                        alias = re.escape(source.this.alias_or_name)
                        of[re.sub(rf"\b{alias}\.", "", text)] = None
        return asked

    def _types(self) -> dict[str, str]:
        """The columns' types by their names; of two tables' columns of one name, the first's."""
        found: dict[str, str] = {}
        for statement in self.queue.blocks["schema"].statements:
            for name, kind in _COLUMN.findall(statement.text):
                found.setdefault(name, _SERIAL.get(kind.lower(), kind))
        return found

    def _counted_later(self) -> dict[str, str]:
        """The count of attempts that `fail` or the recovery raises, and the claim does not."""
        for site in (one for one in self.sites if one.block in {"fail", "recover"}):
            for update in site.parsed.tree.find_all(exp.Update):
                for part in update.expressions:
                    for add in part.expression.find_all(exp.Add):
                        if add.this.name == part.this.name and add.expression.is_int:
                            return {"attempts": str(part.this.name)}
        return {}

    def _awaited(self) -> str:
        """The column that `fail` sets to a time to come."""
        for site in (one for one in self.sites if one.block == "fail"):
            for update in site.parsed.tree.find_all(exp.Update):
                for part in update.expressions:
                    if part.expression.find(NOW) and part.expression.find(exp.Interval):
                        return str(part.this.name)
        return ""

    def _given(self) -> str:
        """The column that the heartbeat, else the claim computes from `:lease`."""
        for block in ("heartbeat", "claim"):
            for site in (one for one in self.sites if one.block == block):
                for update in site.parsed.tree.find_all(exp.Update):
                    for part in update.expressions:
                        if any(one.this == "lease" for one in part.find_all(exp.Placeholder)):
                            return str(part.this.name)
        return ""

    def _beaten(self, due: str) -> str:
        """The column that the heartbeat, else that the claim sets to now."""
        for block in ("heartbeat", "claim"):
            for site in (one for one in self.sites if one.block == block):
                for update in site.parsed.tree.find_all(exp.Update):
                    for part in update.expressions:
                        name = part.this.name
                        if part.expression.find(NOW) and not re.search(r"updated|seen", name):
                            return str(name) if name != due else ""
        return ""

    def _states(self, status: str) -> dict[str, str]:
        if not status:
            return {}
        schema = " ".join(one.text for one in self.queue.blocks["schema"].statements)
        line = re.search(rf'\b{re.escape(status)}"?\s+[\w.]+[^,]*?DEFAULT\s+(\'\w+\')', schema)
        ends = {name: f"'{name}'" for name in _ENDS if f"'{name}'" in self.text}
        free = line[1] if line else next(iter(self._literals(status, "enqueue")), "'queued'")
        done = self._literals(status, "complete")
        failed = [one for one in self._literals(status, "fail") if one not in {free, *done}]
        found = {
            "free": free,
            "done": next(iter(done), ends.get("completed", "")),
            "failed": next(iter(failed[-1:]), ends.get("failed", "")),
        }
        kinds = {"queued": "free", "completed": "done", "failed": "failed"}
        named = self.queue.states.items()
        return found | {kinds[of]: f"'{own}'" for own, of in named if of in kinds}

    def _literals(self, status: str, block: str) -> list[str]:
        """The literals that a block writes into the status, as they stand there."""
        return [
            literal.sql("postgres")
            for site in self.sites
            if site.block == block
            for update in site.parsed.tree.find_all(exp.Update)
            for part in update.expressions
            if part.this.name == status
            for literal in part.expression.find_all(exp.Literal)
            if literal.is_string
        ]


_COLUMN = re.compile(r'(?:^|[(,])\s*"?(\w+)"?\s+(\w+)', re.MULTILINE)
_SERIAL = {"bigserial": "bigint", "serial": "int"}
_VALUES = frozenset({"running", "free", "done", "failed", "token"})  # of the columns


def is_of(node: exp.Expr, table: str) -> bool:
    """Whether a change, or what a query reads, is a table's; the UPDATE of a MERGE names none.

    Args:
        node: An UPDATE or a DELETE, or a query's FROM.
        table: The table.
    """
    return isinstance(node.this, exp.Table) and node.this.name == table


def _table(node: exp.Table) -> Name:
    return Name(*(part.name for part in node.parts))


def _enqueued(insert: exp.Expr) -> dict[str, str]:
    """The columns that an INSERT fills from parameters."""
    values = insert.expression
    row = values.expressions[0] if isinstance(values, exp.Values) else None
    if row is None or not isinstance(insert.this, exp.Schema):
        return {}
    found: dict[str, str] = {"table": _table(insert.this.this)}
    names = {"priority": "priority", "queue": "queue", "max_attempts": "bound"}
    for column, value in zip(insert.this.expressions, row.expressions, strict=False):
        used = {str(one.this) for one in value.find_all(exp.Placeholder)}
        found |= {names[one]: str(column.name) for one in used & names.keys()}
        if "delay" in used and value.find(NOW):
            found["due"] = str(column.name)
    return found


def _claimed(update: exp.Expr, whole: exp.Expr) -> dict[str, str]:
    """What a claim writes into which column.

    Args:
        update: What it sets.
        whole: The statement that names the table and answers: the UPDATE, or the MERGE round it.
    """
    found: dict[str, str] = {"table": _table(whole.this)}
    for part in update.expressions:
        name, value = str(part.this.name), part.expression
        if isinstance(value, exp.Literal) and value.is_string:
            if value.this in _ENDS or "error" in name:  # of a job that the claim buries
                continue
            found |= {"status": name, "running": value.sql("postgres")}
        elif isinstance(value, exp.Boolean) and value.this:
            found.setdefault("flag", name)
        elif isinstance(value, exp.Placeholder) and value.this == "worker":
            found["worker"] = name
        elif isinstance(value, exp.Add | exp.Sub) and value.this.name == name:
            found["attempts"] = name
    for one in getattr(whole.args.get("returning"), "expressions", ()):
        column = one.find(exp.Column)
        if column is not None and one.alias_or_name == "id":
            found["key"] = str(column.name)
        if column is not None and column.name == found.get("attempts"):
            found["token"] = str(one.alias_or_name)
    return found
