"""The index that would serve a claim: read off its own SQL and its plan, in its own names."""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.queues.sqltree import Parsed

_GIVEN = exp.Placeholder | exp.Parameter
_ARROW = re.compile(r"^( *)->  (.*)$")
_JOIN = re.compile(r"(?:Hash|Merge) (?:\w+ )?Join$")
# What may stand between a join and what it reads.
_BETWEEN = ("Hash", "Sort", "Materialize", "Append")
_SAME = exp.EQ, exp.Is, exp.In  # with a literal, what they say does not change from claim to claim


class ServingIndex(NamedTuple):
    """An index that would serve a claim."""

    sql: str  # what `CREATE INDEX` would say
    # Its condition, where the claim says that by an OR of states alone; or nothing.
    states: str = ""


def serving_indexes(sql: str) -> list[ServingIndex]:
    """The indexes for the queries of a claim that have an order and a limit.

    Columns that must equal a parameter come first, then those of the ORDER BY; conditions on a
    column that mean the same in every claim say which rows the index holds.

    A query that orders by more than columns of one table has none.
    """
    try:
        selects = list(Parsed(sql).tree.find_all(exp.Select))
    except SqlglotError:
        return []
    found = (_serving(one) for one in selects if one.args.get("order") and one.args.get("limit"))
    return [index for index in found if index]


def _serving(select: exp.Select) -> ServingIndex | None:
    source, order, where = (select.args.get(part) for part in ("from_", "order", "where"))
    if not source or not isinstance(source.this, exp.Table) or select.args.get("joins"):
        return None
    if not order or any(not isinstance(one.this, exp.Column) for one in order.expressions):
        return None
    this = where.this if where else exp.true()
    conditions = list(this.flatten(unnest=False)) if isinstance(this, exp.And) else [this]
    given = [
        _column(one.this)
        for one in conditions
        if isinstance(one, exp.EQ)
        and isinstance(one.this, exp.Column)
        and isinstance(one.expression, _GIVEN)
    ]
    columns = ", ".join(dict.fromkeys([*given, *map(_sorted, order.expressions)]))
    fixed = [_unqualified(one) for one in conditions if _is_fixed(one)]
    table = ".".join(part.sql("postgres") for part in source.this.parts)
    states = "" if fixed else next(filter(None, map(_states, conditions)), "")
    held = " AND ".join(fixed) or states
    return ServingIndex(
        f"CREATE INDEX ON {table} ({columns})" + f" WHERE {held}" * bool(held), states
    )


def _states(condition: exp.Expr) -> str:
    """The values of one column, as SQL, where each alternative of a condition compares that one."""
    either = condition.unnest()
    if not isinstance(either, exp.Or):
        return ""
    alternatives = [one.unnest() for one in either.flatten()]
    values: dict[str, list[str]] = {}
    for one in alternatives:
        parts = list(one.flatten()) if isinstance(one, exp.And) else [one]
        for part in (each.unnest() for each in parts):
            if isinstance(part, exp.EQ | exp.In) and _is_fixed(part):
                listed = part.expressions if isinstance(part, exp.In) else [part.expression]
                told = ", ".join(value.sql("postgres") for value in listed)
                values.setdefault(_column(part.this), []).append(told)
    for name, found in values.items():
        if len(found) == len(alternatives):
            return f"{name} IN ({', '.join(dict.fromkeys(found))})"
    return ""


class Join(NamedTuple):
    """A join that reads every row of a table, to find some that a list names."""

    table: str
    listed: tuple[str, ...]  # the list: a CTE or several, or a temporary table
    key: str  # the column of the table that is compared
    other: str  # that of the list
    elsewhere: bool  # whether the table is read as a whole by another part of the plan, too


def join_of_all(plan: str) -> Join | None:
    """The join by which a change reads every row of its table, whatever index that has."""
    changed = re.match(r" *(?:Update|Delete) on (\S+)(?: (\S+))?$", plan, re.MULTILINE)
    if changed is None:
        return None
    table, alias = changed[1], changed[2] or changed[1]
    # Or its partitions, whose aliases are numbered.
    read = re.compile(rf"Seq Scan on (?:{re.escape(table)}(?: \S+)?|\S+ {re.escape(alias)}_\d+)$")
    above: list[tuple[int, str, str]] = []  # indent, node, condition
    joined: tuple[int, str, str] | None = None
    scans = set[tuple[int, str, str] | None]()  # what stands over each
    lists: dict[tuple[int, str, str] | None, list[str]] = {}
    lines = plan.splitlines()
    for number, line in enumerate(lines):
        if (arrow := _ARROW.match(line)) is None:
            continue
        indent, node = len(arrow[1]), arrow[2]
        above = [one for one in above if one[0] < indent]
        over = next((one for one in reversed(above) if one[1] not in _BETWEEN), None)
        if scanned := re.match(r"CTE Scan on (\S+)", node):
            lists.setdefault(over, []).append(scanned[1])
        if read.match(node):
            scans.add(over)
            if over and _JOIN.match(over[1]):
                joined = over
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        above.append((indent, node, following))
    sides = re.search(r"Cond: \((\S+)\.(\S+) = (\S+)\.(\S+)\)$", joined[2] if joined else "")
    if sides is None or alias not in {sides[1], sides[3]}:
        return None
    (_, key), (first, other) = sorted(
        [(sides[1], sides[2]), (sides[3], sides[4])], key=lambda side: side[0] != alias
    )
    listed = tuple(lists.get(joined, [])) or (first,)
    return Join(table, listed, key, other, len(scans) > 1)


def _is_fixed(condition: exp.Expr) -> bool:
    """True if a condition compares a column with literals alone."""
    known = exp.Column | exp.Identifier | exp.Literal | exp.Null | exp.Boolean | exp.Not | exp.Cast
    said = all(isinstance(node, (known, exp.DataType, *_SAME)) for node in condition.walk())
    return said and len(list(condition.find_all(exp.Column))) == 1


def _sorted(ordered: exp.Expr) -> str:
    descending, nulls_first = bool(ordered.args.get("desc")), bool(ordered.args.get("nulls_first"))
    nulls = f" NULLS {'FIRST' if nulls_first else 'LAST'}" if nulls_first != descending else ""
    return _column(ordered.this) + (" DESC" if descending else "") + nulls


def _column(column: exp.Expr) -> str:
    return str(column.this.sql("postgres"))


def _unqualified(condition: exp.Expr) -> str:
    bare = condition.copy()
    for column in bare.find_all(exp.Column):
        for part in ("table", "db", "catalog"):
            column.set(part, None)
    return bare.sql("postgres")
