"""A queue's file, read for what its columns are for and for what may be changed in it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.advice.clauses import prefix_of
from queueproof.advice.maker import Jobs
from queueproof.advice.roles import Column, Table
from queueproof.queues import sqltext
from queueproof.queues.block import Block
from queueproof.queues.sqlfile import SqlFileQueue, load_text
from queueproof.queues.sqltext import Span
from queueproof.queues.sqltree import Edit, Parsed, applied, sites

OWN, OTHER = "\1", "\2"  # before a column's name: of the row itself, of what it is joined with
HELD = frozenset({"complete", "complete_many", "fail", "heartbeat"})  # operations on a claimed job
_NOW = (exp.CurrentTimestamp, exp.CurrentTime, exp.Localtimestamp)
_ENDS = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Site:
    """A query or a change, in a block of its own or in a function that the block calls."""

    block: str
    start: int  # where in the file it begins
    parsed: Parsed
    own: bool  # whether it stands in the block itself, where the block's parameters are known

    def text(self, node: exp.Expr) -> str:
        """The text of a node, as it stands in the file."""
        return self.parsed.source(self.parsed.span(node))

    def changes(self, table: str) -> list[exp.Expr]:
        """The UPDATEs and DELETEs of a table."""
        nodes = self.parsed.tree.find_all(exp.Update, exp.Delete)
        return [node for node in nodes if is_of(node, table)]

    def reads(self, table: str) -> list[exp.Expr]:
        """The queries of a table."""
        sources = ((node, node.args.get("from_")) for node in self.parsed.tree.find_all(exp.Select))
        return [node for node, one in sources if one is not None and one.this.name == table]

    def both(self, table: str) -> list[exp.Expr]:
        """The nodes that change a table, and then those that read it."""
        return self.changes(table) + self.reads(table)

    def rows(self) -> Iterator[Rows]:
        """The rows that are changed or read, by tables."""
        for node in self.parsed.tree.find_all(exp.Update, exp.Delete, exp.Select):
            source = node.args.get("from_") if isinstance(node, exp.Select) else node
            joins = node.args.get("joins") or ()
            for table in (one.this for one in (source, *joins) if one is not None):
                if isinstance(table, exp.Table):
                    yield Rows(node, table.name, table.alias_or_name, alone=not joins)

    def told(self, rows: Rows, part: exp.Expr) -> str:
        """A condition or a value in the file's words, with OWN or OTHER before the columns' names.

        Empty where it has a query, or columns of more.
        """
        names = {rows.other: OTHER, "": OWN} if rows.alone else {}
        names[rows.alias] = OWN
        columns = list(part.find_all(exp.Column))
        known = all(one.table in names and "start" in one.this.meta for one in columns)
        if not known or part.find(exp.Select) or "span" not in part.meta:
            return ""
        span = self.parsed.span(part)
        prefixes = (Span(one.parts[0].meta["start"], one.this.meta["start"]) for one in columns)
        edits = [
            Edit(prefix, names[one.table]).moved(-span.start)
            for one, prefix in zip(columns, prefixes, strict=True)
        ]
        return " ".join(applied(self.parsed.source(span), edits).split())

    def where(self, node: exp.Expr) -> list[exp.Expr]:
        """The conditions of a query that all must hold."""
        where = node.args.get("where")
        if where is None:
            return []
        this = where.this
        return list(this.flatten(unnest=False)) if isinstance(this, exp.And) else [this]


class Rows(NamedTuple):
    """The rows of one table, as an UPDATE, a DELETE or a query has them."""

    node: exp.Expr
    table: str
    alias: str
    alone: bool  # False for a query that joins them with others

    @property
    def other(self) -> str:
        """The name of the one table or query that a change joins its rows with; or nothing."""
        using = self.node.args.get("using") or [getattr(self.node.args.get("from_"), "this", None)]
        joined = using[0] if not isinstance(self.node, exp.Select) else None
        return "" if joined is None or joined.args.get("joins") else str(joined.alias_or_name)

    def here(self, told: str) -> str:
        """A condition or value of other rows of the table, said of these; empty where it cannot."""
        if OTHER in told and not self.other:
            return ""
        own = prefix_of(self.node) if self.alone else f"{self.alias}."
        return told.replace(OWN, own).replace(OTHER, f"{self.other}.")


class Draft:
    """A queue's file, read for its columns and for what may be changed; or a QueueError."""

    def __init__(self, text: str, path: Path | str) -> None:
        self.text = text
        self.path = path
        self.queue: SqlFileQueue = load_text(text, path)

    @cached_property
    def wholes(self) -> list[Block]:
        """The blocks, with those of their statements that stand in the file itself."""
        path = Path(self.path)
        return [
            replace(block, statements=own)
            for block in self.queue.blocks.values()
            if (own := tuple(one for one in block.statements if one.source.path == path))
        ]

    @cached_property
    def sites(self) -> list[Site]:
        """Every query and change that can be parsed."""
        found = []
        for block in self.wholes:
            for statement in block.statements:
                for label, start, text in sites(block, statement.text):
                    own = block.name != "schema"
                    by = block.name if own else self._caller(label[:-2])
                    with suppress(SqlglotError):
                        found.append(Site(by, statement.start + start, Parsed(text), own))
        return found

    def _caller(self, function: str) -> str:
        name = function.rpartition(".")[2].strip('"').lower()
        for block in self.queue.blocks.values():
            tokens = (one for s in block.statements for one in sqltext.tokens(s.text))
            if block.name != "schema" and any(one.name == name for one in tokens):
                return block.name
        return "schema"

    def _of(self, block: str, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
        """The nodes of some kinds in a block's own statements, and in functions that it calls."""
        for site in self.sites:
            if site.block == block:
                yield from site.parsed.tree.find_all(*kinds)

    def written(self, *blocks: str) -> Iterator[tuple[str, exp.Expr]]:
        """The assignments of blocks, one after the other: a column's name and the value."""
        for block in blocks:
            for update in self._of(block, exp.Update):
                yield from ((part.this.name, part.expression) for part in update.expressions)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs' table, as the claim, the enqueue and the recovery use its columns."""
        found: dict[str, str] = {}
        table: exp.Table | None = None
        for insert in self._of("enqueue", exp.Insert):
            if isinstance(insert.expression, exp.Values) and isinstance(insert.this, exp.Schema):
                found = _enqueued(insert) | found
                table = insert.this.this if table is None else table
        for update in self._of("claim", exp.Update):
            whole = update.find_ancestor(exp.Merge) or update
            set_here = _claimed(update, whole)
            if "status" in set_here:
                found, table = found | set_here, whole.this
            elif table is not None and is_of(whole, table.name):
                found = set_here | found
        for less in self._of("claim", exp.LT, exp.LTE):
            if isinstance(less.this, exp.Column) and less.expression.find(*_NOW):
                found.setdefault("due", less.this.name)
            bound = less.expression.find(exp.Column)
            counts = isinstance(less.this, exp.Column) and less.this.name == found.get("attempts")
            if counts and bound is not None:
                found.setdefault("most", bound.name)
        for role, name in self._failed():
            found.setdefault(role, name)
        if "left" in found and found["left"] == found.get("most"):
            del found["most"]  # what is counted down is no bound
        found |= self._leased(found.get("due", ""))
        flag, states = found.pop("flag", ""), {"running": found.pop("running", "")}
        if "status" in found:
            states |= self._states(found["status"])
        elif flag:
            found["status"], states = flag, {"running": "true", "queued": "false"}
        key, token = found.pop("key", "id"), found.pop("token", "")
        return Jobs(
            Table(quoted(*(part.name for part in table.parts)), table.name) if table else Table(),
            Column(key, quoted(key), family="int"),
            {role: Column(name, quoted(name)) for role, name in found.items()},
            {state: literal for state, literal in states.items() if literal},
            token,
            self.queue.max_attempts or Jobs.number,
        )

    def _leased(self, due: str) -> dict[str, str]:
        """The column that tells until or since when a job runs, if any does."""
        found: dict[str, str] = {}
        for less in self._of("recover", exp.LT, exp.LTE):
            column, now = less.this, less.expression.find(*_NOW)
            if isinstance(column, exp.Column) and now and column.name != due:
                found = {"until" if now is less.expression else "since": column.name}
        if found:
            return found
        for name, value in self.written("heartbeat", "claim"):
            if any(one.this == "lease" for one in value.find_all(exp.Placeholder)):
                return {"until": name}
        # Else the one that is set to now.
        beats = (name for name, value in self.written("heartbeat", "claim") if value.find(*_NOW))
        beaten = next((name for name in beats if not re.search(r"updated|seen", name)), "")
        return {"since": beaten} if beaten not in {"", due} else {}

    def _failed(self) -> Iterator[tuple[str, str]]:
        """A count that `fail` or the recovery raises, and a time to come that `fail` sets."""
        for name, value in self.written("fail", "recover"):
            adds = value.find_all(exp.Add)
            if any(add.this.name == name and add.expression.is_int for add in adds):
                yield "attempts", name
        for name, value in self.written("fail"):
            if value.find(*_NOW) and value.find(exp.Interval):
                yield "due", name

    @cached_property
    def written_to(self) -> dict[tuple[str, str], dict[str, str]]:
        """The values that each block gives a table's columns; see `told`."""
        found = defaultdict[tuple[str, str], dict[str, str]](dict)
        for site in self.sites:
            for rows in site.rows() if site.own else ():
                for part in rows.node.expressions if isinstance(rows.node, exp.Update) else ():
                    value = site.told(rows, part).partition("=")[2].strip()
                    if value:
                        found[site.block, rows.table][part.this.name] = value
        return found

    @cached_property
    def inserted(self) -> dict[str, dict[str, None]]:
        """The columns that are named where rows are put into a table, by tables."""
        found = defaultdict[str, dict[str, None]](dict)
        for site in self.sites:
            for insert in site.parsed.tree.find_all(exp.Insert):
                if isinstance(insert.this, exp.Schema):
                    columns = (one.name for one in insert.this.expressions)
                    found[insert.this.this.name] |= dict.fromkeys(columns)
        return found

    @cached_property
    def asked(self) -> dict[tuple[str, str], dict[str, None]]:
        """The conditions that each block has of a table's rows, in the file's words; see `told`.

        Of the operations on a claimed job it is what any of them asks, under `held`.
        """
        asked = defaultdict[tuple[str, str], dict[str, None]](dict)
        for site in self.sites:
            for rows in site.rows() if site.own and site.block != "complete_many" else ():
                of = asked["held" if site.block in HELD else site.block, rows.table]
                told = (site.told(rows, part) for part in site.where(rows.node))
                of |= dict.fromkeys(one for one in told if OWN in one)
        return asked

    @cached_property
    def types(self) -> dict[str, str]:
        """The columns' types by their names; of two tables' columns of one name, the first's."""
        statements = self.queue.blocks["schema"].statements
        found = [pair for one in statements for pair in _COLUMN.findall(one.text)]
        return {name: _SERIAL.get(kind.lower(), kind) for name, kind in reversed(found)}

    def _states(self, status: str) -> dict[str, str]:
        """The literals of the states in SQL, but of the running one."""
        schema = " ".join(one.text for one in self.queue.blocks["schema"].statements)
        line = re.search(rf'\b{re.escape(status)}"?\s+[\w.]+[^,]*?DEFAULT\s+(\'\w+\')', schema)
        free = line[1] if line else next(self._literals(status, "enqueue"), "'queued'")
        done = list(self._literals(status, "complete"))
        failed = [one for one in self._literals(status, "fail") if one not in {free, *done}]
        failed = [one for one in failed if self.counts_as(one) in {"failed", ""}]
        usual = {one: f"'{one}'" if f"'{one}'" in self.text else "" for one in _ENDS}
        found = {
            "queued": free,
            "completed": next(iter(done), usual["completed"]),
            "failed": next(iter(failed[-1:]), usual["failed"]),
        }
        return found | {of: f"'{own}'" for own, of in self.queue.states.items() if of != "running"}

    @cached_property
    def _listed(self) -> dict[str, str]:
        """The states that the list of jobs makes of literals by a CASE; under "" that of others."""
        found: dict[str, str] = {}
        for case in self._of("jobs", exp.Case):
            for arm in case.args["ifs"]:
                told = arm.args["true"].name
                found |= {one.sql("postgres"): told for one in arm.this.find_all(exp.Literal)}
            if default := case.args.get("default"):
                found[""] = default.name
        return found if {"queued", "running"} & set(found.values()) else {}

    def counts_as(self, literal: str) -> str:
        """The state that a literal of the status stands for; empty where no CASE tells it."""
        return self._listed.get(literal, self._listed.get("", ""))

    @cached_property
    def running(self) -> list[str]:
        """The literals of a job that runs: what the claim writes, and what counts as the same."""
        first, status = self.jobs.states.get("running", ""), self.jobs["status"].name
        written = [one for block in HELD for one in self._literals(status, block)]
        also = [one for one in written if self.counts_as(one) == "running"]
        return list(dict.fromkeys([first, *sorted(also)])) if first else []

    def _literals(self, status: str, block: str) -> Iterator[str]:
        """The literals that a block writes into the status, as they stand there."""
        for name, value in self.written(block):
            for result in _results(value) if name == status else ():
                strings = (one for one in result.find_all(exp.Literal) if one.is_string)
                yield from (one.sql("postgres") for one in strings)


_COLUMN = re.compile(r'(?:^|[(,])\s*"?(\w+)"?\s+(\w+)', re.MULTILINE)
_SERIAL = {"bigserial": "bigint", "serial": "int"}


def quoted(*parts: str) -> str:
    """A name as SQL has it, behind that of its schema where it has one."""
    return ".".join(
        one if re.fullmatch(r"[a-z_][a-z0-9_$]*", one) else '"' + one.replace('"', '""') + '"'
        for one in parts
    )


def is_of(node: exp.Expr, table: str) -> bool:
    """True where a change, or a query's FROM, is a table's; the UPDATE of a MERGE names none."""
    return isinstance(node.this, exp.Table) and node.this.name == table


def _results(value: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions that a value may come from: of a CASE its arms, and not what these ask."""
    if isinstance(value, exp.Paren | exp.Cast):
        yield from _results(value.this)
    elif isinstance(value, exp.Case):
        arms = [arm.args["true"] for arm in value.args["ifs"]]
        for arm in filter(None, [*arms, value.args.get("default")]):
            yield from _results(arm)
    else:
        yield value


def _enqueued(insert: exp.Expr) -> dict[str, str]:
    """The columns that an INSERT fills from parameters."""
    found: dict[str, str] = {}
    names = {"priority": "priority", "queue": "queue", "max_attempts": "most"}
    row = insert.expression.expressions[0].expressions
    for column, value in zip(insert.this.expressions, row, strict=False):
        used = {str(one.this) for one in value.find_all(exp.Placeholder)}
        found |= {names[one]: str(column.name) for one in used & names.keys()}
        if "delay" in used and value.find(*_NOW):
            found["due"] = str(column.name)
    return found


def _claimed(update: exp.Expr, whole: exp.Expr) -> dict[str, str]:
    """The columns that a claim writes, by what it writes there.

    The whole names the table and answers: the UPDATE, or the MERGE round it.
    """
    found: dict[str, str] = {}
    for part in update.expressions:
        name, value = str(part.this.name), part.expression
        if isinstance(value, exp.Literal) and value.is_string:
            if value.this in _ENDS or "error" in name:  # of a job that the claim buries
                continue
            found |= {"status": name, "running": value.sql("postgres")}
        elif isinstance(value, exp.Boolean) and value.this:
            found.setdefault("flag", name)
        elif isinstance(value, exp.Placeholder) and value.this == "worker":
            found["owner"] = name
        elif isinstance(value, exp.Add | exp.Sub) and value.this.name == name:
            found["attempts" if isinstance(value, exp.Add) else "left"] = name
    for one in getattr(whole.args.get("returning"), "expressions", ()):
        column = one.find(exp.Column)
        if column is not None and one.alias_or_name == "id":
            found["key"] = str(column.name)
        if column is not None and column.name == found.get("attempts"):
            found["token"] = str(one.alias_or_name)
    return found
