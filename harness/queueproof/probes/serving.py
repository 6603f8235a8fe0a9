"""The index that would serve a claim: read off its own SQL, in its own names."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.queues.sqltree import Parsed

_GIVEN = exp.Placeholder | exp.Parameter
_SAME = exp.EQ, exp.Is, exp.In  # with a literal, what they say does not change from claim to claim


def serving_index(sql: str) -> str | None:
    """What `CREATE INDEX` would say for the query of a claim that has an order and a limit.

    Columns that must equal a parameter come first, then those of the ORDER BY; conditions on a
    column that mean the same in every claim say which rows the index holds.

    Args:
        sql: The claim's statement.

    Returns:
        The statement, None where no such query is seen in it, or where it orders by more than
        columns of one table.
    """
    try:
        tree = Parsed(sql).tree
    except SqlglotError:
        return None
    for select in tree.find_all(exp.Select):
        if select.args.get("order") and select.args.get("limit"):
            return _serving(select)
    return None


def _serving(select: exp.Select) -> str | None:
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
    return f"CREATE INDEX ON {table} ({columns})" + (f" WHERE {' AND '.join(fixed)}" * bool(fixed))


def _is_fixed(condition: exp.Expr) -> bool:
    """Whether it compares a column with literals alone."""
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
