"""What safe forms are made of: conditions and assignments, put where they belong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sqlglot import exp

from queueproof.mend.draft import HELD, Columns, Site, is_of
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltree import Edit, Span

Offer: TypeAlias = tuple[str, Sequence[Edit]]
"""What a form does, and the edits of the text that it was given."""


def moved(edit: Edit, start: int) -> Edit:
    """An edit of a statement as one of the file.

    Args:
        edit: Of the statement's text.
        start: Where in the file the statement begins.
    """
    return Edit(Span(start + edit.span.start, start + edit.span.end), edit.new)


def added(site: Site, node: exp.Expr, *asked: str) -> Edit | None:
    """What adds conditions to a query, laid out as those that it has.

    Args:
        site: Where it stands.
        node: A query or a change in it.
        asked: The conditions.
    """
    where = node.args.get("where")
    if where is None:
        return None
    parsed = site.parsed
    span = parsed.span(where)
    if isinstance(where.this, exp.Or):
        inner = parsed.source(parsed.span(where.this))
        return Edit(parsed.span(where.this), " AND ".join([f"({inner})", *asked]))
    line = parsed.text.rfind("\n", 0, span.start) + 1
    indent = re.match(r"\s*", parsed.text[line:])
    several = "\n" in parsed.text
    joint = f"\n{indent[0] if indent else ''}  AND " if several else " AND "
    return Edit(Span(span.end, span.end), "".join(joint + condition for condition in asked))


def assigned(site: Site, update: exp.Expr, column: str, value: str) -> Edit | None:
    """What has an UPDATE give a column this value; None where it does.

    Args:
        site: Where it stands.
        update: The UPDATE.
        column: The column.
        value: What it is given, or compared with.
    """
    parsed = site.parsed
    for part in update.expressions:
        if part.this.name == column:
            span = parsed.span(part)
            equals = parsed.outermost(span, frozenset({"="}))
            if equals is None or parsed.text[equals.end : span.end].split() == value.split():
                return None
            return Edit(Span(equals.end, span.end), f" {value}")
    end = parsed.span(update.expressions[-1]).end
    begin = parsed.span(update.expressions[0]).start
    joint = "\n" + " " * (begin - parsed.text.rfind("\n", 0, begin) - 1)
    joint = joint if "\n" in parsed.text else " "
    return Edit(Span(end, end), f",{joint}{column} = {value}")


def changes_of(site: Site, table: str) -> Iterator[exp.Expr]:
    """The UPDATEs and DELETEs of a table.

    Args:
        site: Where it stands.
        table: The table.
    """
    for node in site.parsed.tree.find_all(exp.Update, exp.Delete):
        if is_of(node, table):
            yield node


def reads_of(site: Site, table: str) -> Iterator[exp.Select]:
    """The queries of a table.

    Args:
        site: Where it stands.
        table: The table.
    """
    for node in site.parsed.tree.find_all(exp.Select):
        from_ = node.args.get("from_")
        if from_ is not None and from_.this.name == table:
            yield node


def prefix_of(node: exp.Expr) -> str:
    """What must stand before a column's name, where several tables have such a column."""
    if isinstance(node, exp.Select):
        source = node.args["from_"].this
        several = node.args.get("joins")
        alias = source.alias
        return f"{source.alias_or_name}." if several or alias else ""
    several = node.args.get("from_") or node.args.get("using")
    return f"{node.this.alias_or_name}." if several else ""


def mentions(part: exp.Expr, column: str) -> bool:
    """Whether a condition is about a column.

    Args:
        part: A condition.
        column: The column.
    """
    return any(one.name == column for one in part.find_all(exp.Column))


def is_test(part: exp.Expr, column: str, value: str) -> bool:
    """Whether a condition is that a column has just this value.

    Args:
        part: A condition.
        column: The column.
        value: What it is given, or compared with.
    """
    return (
        isinstance(part, exp.EQ)
        and part.this.name == column
        and part.expression.sql("postgres").strip("()") in {value, f"%({value[1:]})s"}
    )


def guards(site: Site, known: Columns, queue: SqlFileQueue) -> list[tuple[str, str]]:
    """What an operation must ask of the row that it changes: a column each, and its value.

    Args:
        site: Where it stands.
        known: What the columns are for.
        queue: The queue.
    """
    told = bool(known.status and known.running)
    if site.block == "claim":
        return [(known.status, known.free)] if told else []
    if site.block not in HELD | {"recover"}:
        return []
    guards: list[tuple[str, str]] = [(known.status, known.running)] if told else []
    if site.block in HELD and site.own and site.block != "complete_many":
        if known.worker:
            guards.append((known.worker, ":worker"))
        if known.token:
            guards.append((known.attempts, f":{known.token}"))
    return guards if queue.lease != "session" else guards[:1]


def run_out(site: Site, known: Columns, queue: SqlFileQueue) -> str:
    """The condition that a lease has run out; nothing for what does not take jobs back.

    Args:
        site: Where it is to stand.
        known: What the columns are for.
        queue: The queue.
    """
    if not known.lease or not site.own or site.block not in {"recover", "start"}:
        return ""
    if known.until:
        return f"{known.lease} < now()"
    if queue.lease_time is None:
        return ""
    # Who begins is told its name, and nothing else.
    length = f"interval '{queue.lease_time.total_seconds():g} seconds'"
    return f"{known.lease} < now() - {':lease' if site.block == 'recover' else length}"
