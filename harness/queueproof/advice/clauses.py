"""Operators on the clauses of a statement: what takes one away or turns it, and what puts one in.

`mutate` plants defects with those that take away; `mend` puts in what a safe form has, and takes
away what stands in its way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlglot import exp

from queueproof.advice.maker import Clause
from queueproof.advice.roles import Column
from queueproof.queues.sqltext import Span
from queueproof.queues.sqltree import Edit, Parsed, quoted


class Change(NamedTuple):
    """One change of a statement."""

    what: str  # its name, such as `SKIP LOCKED dropped`
    edits: Sequence[Edit]  # apart from each other
    column: str = ""  # the column that is not assigned any more, where that is the change


def changes(parsed: Parsed) -> Iterator[Change]:
    """Every mutation of one statement."""
    for operator in (_locks, _orders, conditions, comparisons, assignments):
        yield from operator(parsed)
    for limit in parsed.tree.find_all(exp.Limit, exp.Fetch):
        yield Change("LIMIT dropped", (parsed.clause(parsed.span(limit)),))
    for cte in parsed.tree.find_all(exp.CTE):
        word = parsed.outermost(parsed.span(cte), frozenset({"MATERIALIZED"}))
        if cte.args["materialized"] and word is not None:
            yield Change("MATERIALIZED dropped", (parsed.clause(word),))
    yield from _limits_in_place(parsed)


def _locks(parsed: Parsed) -> Iterator[Change]:
    for lock in parsed.tree.find_all(exp.Lock):
        span = parsed.span(lock)
        ending = parsed.tokens(span)
        if lock.args["wait"] is False:
            yield Change("SKIP LOCKED dropped", (parsed.clause(Span(ending[-2].start, span.end)),))
        elif lock.args["wait"] is True:
            yield Change("NOWAIT dropped", (parsed.clause(ending[-1]),))
        yield Change(f"{quoted(parsed.source(span))} dropped", (parsed.clause(span),))


def _orders(parsed: Parsed) -> Iterator[Change]:
    for order in parsed.tree.find_all(exp.Order):
        yield Change("ORDER BY dropped", (parsed.clause(parsed.span(order)),))
        for key in order.expressions:
            where = parsed.span(key)
            what = f"ORDER BY {quoted(parsed.source(where))} turned"
            yield Change(what, (_turned(parsed, where),))


def _turned(parsed: Parsed, key: Span) -> Edit:
    tokens, words = parsed.tokens(key), parsed.words(key)
    if words[-2:-1] == ["NULLS"]:
        tokens, words = tokens[:-2], words[:-2]
    if words[-1] in {"ASC", "DESC"}:
        return Edit(tokens[-1], "ASC" if words[-1] == "DESC" else "DESC")
    return Edit(Span(tokens[-1].end, tokens[-1].end), " DESC")


def conditions(parsed: Parsed) -> Iterator[Change]:
    """A condition less, or an alternative."""
    for chain in parsed.tree.find_all(exp.And, exp.Or):
        if type(chain.parent) is type(chain):
            continue  # a part of the longer one
        parts = sorted(chain.flatten(unnest=False), key=parsed.span)
        for index, part in enumerate(parts):
            what = f"condition {quoted(parsed.source(parsed.span(part)))} dropped"
            yield Change(what, (parsed.without(parts, index),))
    for where in parsed.tree.find_all(exp.Where):
        if not isinstance(where.this, exp.And | exp.Or):
            what = f"condition {quoted(parsed.source(parsed.span(where.this)))} dropped"
            yield Change(what, (parsed.clause(parsed.span(where)),))


def listed(parsed: Parsed) -> Iterator[Change]:
    """A value less in a list of them."""
    for among in parsed.tree.find_all(exp.In):
        span = parsed.span(among)
        several = len(among.expressions) > 1
        if not several or not all(isinstance(one, exp.Literal) for one in among.expressions):
            continue
        values = parsed.tokens(span)[-2 * len(among.expressions) : -1 : 2]
        for value in values:
            left = ", ".join(parsed.source(one) for one in values if one != value)
            what = f"{parsed.source(value)} dropped from {quoted(parsed.source(span))}"
            yield Change(what, (Edit(Span(values[0].start, values[-1].end), left),))


_COMPARISONS = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<=")}


def comparisons(parsed: Parsed) -> Iterator[Change]:
    """A comparison one off, or turned."""
    for comparison in parsed.tree.find_all(exp.LT, exp.LTE, exp.GT, exp.GTE):
        span = parsed.span(comparison)
        operator = parsed.outermost(span, frozenset(_COMPARISONS))
        if operator is not None:
            for other in _COMPARISONS[parsed.source(operator)]:
                what = f"{quoted(parsed.source(span))} with {other}"
                yield Change(what, (Edit(operator, other),))


def assignments(parsed: Parsed) -> Iterator[Change]:
    """A column that keeps its value."""
    for setter in parsed.tree.find_all(exp.Update, exp.OnConflict):
        parts = setter.expressions
        for index, part in enumerate(parts):
            span = parsed.span(part)
            equals = parsed.outermost(span, frozenset({"="}))
            what = f"SET {part.this.name or quoted(parsed.source(span))} dropped"
            if len(parts) > 1:
                yield Change(what, (parsed.without(parts, index),), part.this.name)
            elif equals is not None and isinstance(setter, exp.Update):
                # SET needs one: the column keeps its value.
                column = parsed.text[span.start : equals.start].rstrip()
                edit = Edit(Span(equals.end, span.end), f" {column}")
                yield Change(what, (edit,), part.this.name)


def _limits_in_place(parsed: Parsed) -> Iterator[Change]:
    """`= ANY (ARRAY(… LIMIT n))`, `= (… LIMIT 1)` and `FROM picked` as `IN (SELECT … LIMIT n)`.

    A planner may run the sub-select of an IN once per outer row.
    """
    what = "LIMIT moved into IN"
    for equality in parsed.tree.find_all(exp.EQ):
        if not any(_limited(select) for select in equality.expression.find_all(exp.Select)):
            continue
        span = parsed.span(equality)
        equals = parsed.outermost(span, frozenset({"="}))
        if equals is None:
            continue
        right = parsed.tokens(Span(equals.end, span.end))
        words = parsed.words(Span(equals.end, span.end))
        if words[:4] == ["ANY", "(", "ARRAY", "("] and words[-2:] == [")", ")"]:
            yield Change(what, (Edit(Span(equals.start, right[3].end), "IN ("), Edit(right[-1])))
        elif words[:2] == ["(", "SELECT"] and words[-1] == ")":
            yield Change(what, (Edit(equals, "IN"),))
    for update in parsed.tree.find_all(exp.Update):
        yield from (Change(what, edits) for edits in _picked_in_place(parsed, update))


def _limited(node: exp.Expr) -> bool:
    return isinstance(node, exp.Select) and node.args.get("limit") is not None


def _picked_in_place(parsed: Parsed, update: exp.Update) -> Iterator[tuple[Edit, ...]]:
    """`WITH picked AS (SELECT id … LIMIT n) UPDATE … FROM picked WHERE x = picked.id`."""
    with_, from_, where = (update.args.get(part) for part in ("with_", "from_", "where"))
    if with_ is None or from_ is None or where is None or len(with_.expressions) != 1:
        return
    cte = with_.expressions[0]
    table = from_.this
    if not _limited(cte.this) or len(cte.this.expressions) != 1 or table.name != cte.alias:
        return
    uses = [c for c in update.find_all(exp.Column) if c.table == table.alias_or_name]
    equality = uses[0].parent if len(uses) == 1 else None
    if not isinstance(equality, exp.EQ) or equality.find_ancestor(exp.Where) is not where:
        return
    span, prefix = parsed.span(equality), parsed.span(with_)
    equals = parsed.outermost(span, frozenset({"="}))
    if equals is None:
        return
    sides = (Span(equals.end, span.end), Span(span.start, equals.start))
    kept = parsed.source(sides[equality.expression is uses[0]]).strip()
    body = parsed.tokens(parsed.span(cte))
    opening = next(token for token in body if parsed.source(token) == "(")
    select = parsed.source(Span(opening.start, body[-1].end))
    verb = parsed.tokens(Span(prefix.end, len(parsed.text)))[0]
    yield (
        Edit(Span(prefix.start, verb.start)),
        parsed.clause(parsed.span(from_)),
        Edit(span, f"{kept} IN {select}"),
    )


# --- what puts a clause in ------------------------------------------------------------------------


def prefix_of(node: exp.Expr) -> str:
    """The prefix of a column's name, where several tables have such a column."""
    if isinstance(node, exp.Select):
        source = node.args["from_"].this
        several = node.args.get("joins") or source.alias
    else:
        source, several = node.this, node.args.get("from_") or node.args.get("using")
    return f"{source.alias_or_name}." if several else ""


def mentions(part: exp.Expr, column: Column) -> bool:
    """True where a condition is about a column."""
    return any(one.name == column.name for one in part.find_all(exp.Column))


def is_test(part: exp.Expr, clause: Clause) -> bool:
    """True where a condition is just that a column has a value."""
    return (
        clause.sign == "="
        and isinstance(part, exp.EQ)
        and part.this.name == clause.column.name
        and part.expression.sql("postgres").strip("()") in {clause.value, f"%({clause.value[1:]})s"}
    )


def added(parsed: Parsed, node: exp.Expr, *asked: str) -> Edit | None:
    """The edit that adds conditions to a query or a change in it, laid out as those it has."""
    where = node.args.get("where")
    if where is None:
        return None
    span = parsed.span(where)
    if isinstance(where.this, exp.Or):
        inner = parsed.source(parsed.span(where.this))
        return Edit(parsed.span(where.this), " AND ".join([f"({inner})", *asked]))
    joint = f"\n{parsed.indent(span.start)}  AND " if "\n" in parsed.text else " AND "
    return Edit.at(span.end, "".join(joint + condition for condition in asked))


def assigned(parsed: Parsed, update: exp.Expr, clause: Clause) -> Edit | None:
    """The edit by which an UPDATE gives a column a value; None where it does."""
    for part in update.expressions:
        if part.this.name == clause.column.name:
            span = parsed.span(part)
            equals = parsed.outermost(span, frozenset({"="}))
            if equals is None or parsed.text[equals.end : span.end].split() == clause.value.split():
                return None
            return Edit(Span(equals.end, span.end), f" {clause.value}")
    end = parsed.span(update.expressions[-1]).end
    begin = parsed.span(update.expressions[0]).start
    joint = "\n" + " " * (begin - parsed.text.rfind("\n", 0, begin) - 1)
    joint = joint if "\n" in parsed.text else " "
    return Edit.at(end, f",{joint}{clause}")


def rewritten(text: str, pattern: str, new: str, start: int = 0) -> list[Edit]:
    """The edits that put one text, which may name the pattern's groups, in for another."""
    found = re.finditer(pattern, text)
    return [Edit(Span(*m.span()), m.expand(new)).moved(start) for m in found]
