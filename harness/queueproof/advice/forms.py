"""Safe forms of one query or change: each with the guarantees that it may mend.

Each form looks at what a file says, and offers edits of it, by what the maker writes for the same
columns. Whether one mends anything is for the search to find out: a form that does not fit costs a
moment, and one that is missing costs a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from sqlglot import exp

from queueproof.advice.clauses import (
    Change,
    added,
    assigned,
    assignments,
    comparisons,
    conditions,
    is_test,
    listed,
    mentions,
    prefix_of,
    rewritten,
)
from queueproof.advice.maker import Clause
from queueproof.advice.reading import HELD, OTHER, OWN, Draft, Site, is_of, quoted
from queueproof.queues.sqltext import Span
from queueproof.queues.sqltree import Edit, Parsed

_PARAMETER = re.compile(r"(?<!:):[a-z_]")
_JSON = re.compile(r"(?i)(?:\((?:[^()]|\([^()]*\))*\)|:error)\s*::\s*(jsonb?)\b")
_OF_SECONDS = {  # what `extract` gives one field of: the minutes of an hour are 0
    "microsecond": " * 1000000",
    "millisecond": " * 1000",
    "second": "",
    "minute": " / 60",
    "hour": " / 3600",
    "day": " / 86400",
}
_AS_ARRAY = "= ANY (ARRAY(…)) instead of IN"
FITS = 200  # characters that any column for an error holds
_PLAIN = ("priority", "queue", "max_attempts", "payload")


def _locked(site: Site, draft: Draft) -> Iterator[Change]:
    """The rows to be changed are locked as they are read, past those that others hold."""
    parsed, table = site.parsed, draft.jobs.table.name
    made = {cte.alias for cte in parsed.tree.find_all(exp.CTE)}
    for select in parsed.tree.find_all(exp.Select):
        source = select.args.get("from_")
        if source is None or select.find_ancestor(exp.Exists):
            continue
        if not isinstance(source.this, exp.Table):
            continue
        # A sub-select that is run again locks, past what it has locked, a job more each time.
        among = select.find_ancestor(exp.Predicate)
        once = _as_array(parsed, among) if isinstance(among, exp.In) else []
        also = f", {_AS_ARRAY}" if once else ""
        for lock in select.args.get("locks") or ():
            span = parsed.span(lock)
            if not lock.args["update"]:
                stronger = re.sub(r"(?i)(KEY\s+)?SHARE", "UPDATE", parsed.source(span), count=1)
                yield Change("FOR UPDATE instead of a shared lock", [Edit(span, stronger)])
                continue
            if lock.args["wait"] is None:
                yield Change(f"SKIP LOCKED added{also}", [Edit.at(span.end, " SKIP LOCKED"), *once])
            elif lock.args["wait"] is True:
                last = parsed.tokens(span)[-1]
                yield Change("SKIP LOCKED instead of NOWAIT", [Edit(last, "SKIP LOCKED"), *once])
            if source.this.name != table:
                continue
            mine = source.this.alias_or_name
            if select.args.get("joins") and not lock.expressions:
                begin = parsed.text.index("UPDATE", span.start) + len("UPDATE")
                yield Change(f"locks {mine} alone", [Edit.at(begin, f" OF {mine}")])
            if lock.expressions and all(one.name != mine for one in lock.expressions):
                others = r"\bOF\s+[\w.,\s]+?(?=\s*(SKIP|NOWAIT|$))"
                wanted = re.sub(others, f"OF {mine}", parsed.source(span))
                yield Change(f"{wanted} instead", [Edit(span, wanted)])
        # Others' rows, too, by which the jobs are chosen, as the workers that have gone.
        free = not select.args.get("locks") and source.this.name not in made
        if free and select.args.get("where") is not None:
            parts = (select.args.get(one) for one in ("limit", "order", "where"))
            end = max(parsed.span(part).end for part in parts if part is not None)
            wanted = ("\n  " if "\n" in parsed.text else " ") + "FOR UPDATE SKIP LOCKED"
            yield Change(f"FOR UPDATE SKIP LOCKED added{also}", [Edit.at(end, wanted), *once])


def _read_first(site: Site, draft: Draft) -> Iterator[Change]:
    """Rows that are free are read and locked in one order, past the others, and then changed."""
    parsed, key = site.parsed, draft.jobs.key
    for node in site.changes(draft.jobs.table.name):
        where = node.args.get("where")
        if where is None or node.args.get("from_") or node.args.get("using") or node.this.alias:
            continue
        if where.find(exp.Select):
            continue
        span = parsed.span(where)
        deeper = f"\n{parsed.indent(span.start)}  "
        asked = parsed.source(span).replace("\n", "\n  ")
        lines = [f"SELECT {key}", f"FROM {node.this.sql('postgres')}", asked, f"ORDER BY {key}"]
        chosen = "".join(deeper + line for line in (*lines, "FOR UPDATE SKIP LOCKED"))
        edit = Edit(span, f"WHERE {key} = ANY (ARRAY({chosen}{deeper[:-2]}))")
        yield Change("chooses rows FOR UPDATE SKIP LOCKED first", [edit])


def _as_others(site: Site, draft: Draft) -> Iterator[Change]:
    """A row is asked what the block asks of one elsewhere, or another operation on a held job."""
    # A row that the statement has locked is as it was when it was asked.
    locked = {rows.table for rows in site.rows() if rows.node.args.get("locks")}
    of_several = site.block in {"complete_many", "recover"}  # which have several tokens, or none
    for rows in site.rows() if site.own else ():
        if rows.table in locked and not isinstance(rows.node, exp.Select):
            continue
        # A recovery takes what a claim that takes over would.
        kinds = ("recover", "claim", "held") if site.block == "recover" else (site.block,)
        kinds = ("held",) if site.block in HELD else kinds
        pool = {one: None for kind in kinds for one in draft.asked.get((kind, rows.table), ())}
        mine = {site.told(rows, part) for part in site.where(rows.node)}
        for asked in (one for one in pool if one not in mine):
            if of_several and _PARAMETER.search(asked):
                continue
            yield from _asking(site, rows.node, *filter(None, [rows.here(asked)]))


def _beaten(site: Site, draft: Draft) -> Iterator[Change]:
    """A recovery asks how old the last sign of life is, and not another time of the job's."""
    for rows in site.rows():
        beats = draft.written_to.get(("heartbeat", rows.table), {})
        for part in site.where(rows.node):
            told = site.told(rows, part) if isinstance(part, exp.LT | exp.LTE) else ""
            column = part.this.name if told and isinstance(part.this, exp.Column) else ""
            for beat in beats if column and column not in beats else ():
                _, sign, rest = re.split(r"(<=?)", told, maxsplit=1)
                asked = rows.here(f"{OWN}{quoted(beat)} {sign}{rest}")
                yield Change(f"{asked} asked instead", [Edit(site.parsed.span(part), asked)])


def _asking(site: Site, node: exp.Expr, *asked: str) -> Iterator[Change]:
    """A query or a change that asks more."""
    if asked and (edit := added(site.parsed, node, *asked)):
        yield Change(f"asks for {' AND '.join(asked)}", [edit])


def _guards(site: Site, draft: Draft) -> list[Clause]:
    """The conditions that an operation must ask of the row that it changes."""
    known, guards = draft.jobs, list[Clause]()
    if site.block not in HELD | {"claim", "recover"}:
        return []
    if known["status"] and known.states.get("running"):
        guards = known.is_in("queued" if site.block == "claim" else "running")
    if site.block in HELD - {"complete_many"} and site.own:
        guards += known.tokens()
    return guards if site.block == "claim" or draft.queue.lease != "session" else guards[:1]


def _run_out(site: Site, draft: Draft) -> list[Clause]:
    """The condition that a lease has run out; none of what does not take jobs back."""
    length = draft.queue.lease_time
    if not draft.jobs.clock or not site.own or site.block not in {"recover", "start"}:
        return []
    if draft.jobs.clock == "until":
        return [draft.jobs.is_stale()]
    if length is None:
        return []
    # Who begins is told its name, and nothing else.
    told = ":lease" if site.block == "recover" else f"interval '{length.total_seconds():g} seconds'"
    return [draft.jobs.is_stale(told)]


def _asked_again(site: Site, draft: Draft) -> Iterator[Change]:
    """The statement that changes or locks a row asks again what was asked when it was read."""
    wanted = _guards(site, draft) + _run_out(site, draft)
    for node in site.both(draft.jobs.table.name):
        lacking = [one for one in wanted if not any(_asks(part, one) for part in site.where(node))]
        groups = [lacking] if len(lacking) < 2 else [lacking, *([one] for one in lacking)]  # noqa: PLR2004
        for group in groups:
            yield from _asking(site, node, *(f"{prefix_of(node)}{one}" for one in group))


def _asks(part: exp.Expr, clause: Clause) -> bool:
    """True where a condition is a clause; of a time any that is about its column will do."""
    return mentions(part, clause.column) if clause.sign == "<" else is_test(part, clause)


def _narrowed(site: Site, draft: Draft) -> Iterator[Change]:
    """A condition on the state that says more than it should, or on whose job it is."""
    known = draft.jobs
    wanted = _guards(site, draft)[:1]
    ended = [known.states[one] for one in ("completed", "failed") if known.states.get(one)]
    if site.block == "cleanup" and ended:
        wanted = [Clause(known["status"], f"({', '.join(ended)})", "IN")]
    if site.block == "claim" and site.own:
        wanted += [known.is_due()] if known["due"] else []
        if known["queue"] and "queue" in draft.queue.takes("claim"):
            wanted.append(known.of_queue())
    if site.block in HELD - {"complete_many"} and site.own:
        wanted.append(Clause(known.key, ":id"))
    wanted += _run_out(site, draft)
    for node in site.both(known.table.name):
        for part in site.where(node):
            for clause in wanted:
                if not mentions(part, clause.column) or is_test(part, clause):
                    continue
                # Which job is free at all may stand there too.
                about = clause.column == known["status"] or not known["status"]
                if not about and mentions(part, known["status"]):
                    continue
                if part.find(exp.Select) and clause.column != known.key:
                    continue
                test = f"{prefix_of(node)}{clause}"
                if site.text(part).split() != test.split():
                    yield Change(f"{test} asked instead", [Edit(site.parsed.span(part), test)])


def _with_the_job(site: Site, _: Draft) -> Iterator[Change]:
    """A statement's other changes are made only where its first one had a row."""
    with_ = site.parsed.tree.args.get("with_")
    ctes = with_.expressions if with_ else ()
    made = next((one for one in ctes if isinstance(one.this, exp.Update | exp.Delete)), None)
    if made is None:
        return
    for change in site.parsed.tree.find_all(exp.Update, exp.Delete):
        within = change.find_ancestor(exp.CTE)
        tables = change.find_all(exp.Table)
        read = {one.name for one in tables if one.find_ancestor(exp.CTE) is within}
        if within is made or not change.this or made.alias in read:
            continue
        if edit := added(site.parsed, change, f"EXISTS (SELECT FROM {made.alias})"):
            yield Change(f"{change.this.name} changed only where {made.alias} has a row", [edit])


def _in_pairs(site: Site, draft: Draft) -> Iterator[Change]:
    """A batch's jobs are compared each with its own token, where both were compared with any."""
    for node in site.parsed.tree.find_all(exp.Select, exp.Update, exp.Delete):
        anys = [
            part
            for part in site.where(node)
            if isinstance(part, exp.EQ) and isinstance(part.expression, exp.Any)
        ]
        if len(anys) != 2:  # noqa: PLR2004
            continue
        given = [re.search(r"(?<!:):\w+", site.text(part)) for part in anys]  # and no cast's type
        kinds = [draft.types.get(part.this.name, "text") for part in anys]
        columns = ", ".join(site.text(part).partition("=")[0].strip() for part in anys)
        lists = ", ".join(f"{n and n[0]}::{kind}[]" for n, kind in zip(given, kinds, strict=True))
        spans = [site.parsed.span(part) for part in anys]
        before = re.search(r"\s+AND\s+\Z", site.parsed.text[: spans[1].start], re.IGNORECASE)
        if before is not None and all(given):
            pairs = f"({columns}) IN (SELECT * FROM unnest({lists}))"
            edits = [Edit(spans[0], pairs), Edit(Span(before.start(), spans[1].end))]
            yield Change("id and token compared in pairs", edits)


def _moved_whole(site: Site, draft: Draft) -> Iterator[Change]:
    """A row that moves into a table takes the columns along that it takes elsewhere."""
    for insert in site.parsed.tree.find_all(exp.Insert):
        select, into = insert.expression, insert.this
        source = select.args.get("from_") if isinstance(select, exp.Select) else None
        if source is None or not isinstance(into, exp.Schema):
            continue
        named = [one.name for one in into.expressions]
        begin = site.parsed.span(source).start
        listed = site.parsed.tokens(Span(0, begin))[-1].end
        for column in draft.inserted.get(into.this.name, ()):
            if column not in named:
                there = into.expressions[-1].meta["end"] + 1
                edits = [Edit.at(at, f", {quoted(column)}") for at in (there, listed)]
                yield Change(f"takes {column} along", edits)


def _renewed(site: Site, _: Draft) -> Iterator[Change]:
    """A row that is there already gets what was to be inserted."""
    for insert in site.parsed.tree.find_all(exp.Insert):
        conflict = insert.args.get("conflict")
        keyed = conflict.args.get("conflict_keys") if conflict is not None else None
        if not keyed or not isinstance(insert.this, exp.Schema):
            continue
        keys = {column.name for one in keyed for column in one.find_all(exp.Column)}
        new = [quoted(one.name) for one in insert.this.expressions if one.name not in keys]
        update = f"UPDATE SET {', '.join(f'{one} = EXCLUDED.{one}' for one in new)}"
        if edits := rewritten(site.parsed.text, r"(?i)(?<=\bDO )NOTHING\b", update) if new else []:
            yield Change(f"sets {', '.join(new)} of a row that is there", edits)


def _met(site: Site, _: Draft) -> Iterator[Change]:
    """A row that is there already does not end the statement."""
    whole = Span(0, len(site.parsed.text))
    tokens, words = site.parsed.tokens(whole), site.parsed.words(whole)
    for begin in (n for n, word in enumerate(words) if word == "INSERT"):
        depth, end = 0, begin
        for end in range(begin, len(words)):
            depth += {"(": 1, ")": -1}.get(words[end], 0)
            if depth < 0 or (not depth and words[end] in {"RETURNING", "ON", ";"}):
                break
        else:
            end = len(words)
        if site.block != "enqueue" and words[end : end + 2] != ["ON", "CONFLICT"]:
            there = Edit.at(tokens[end - 1].end, " ON CONFLICT DO NOTHING")
            yield Change("ON CONFLICT DO NOTHING", [there])


def _upserted(site: Site, draft: Draft) -> Iterator[Change]:
    """An enqueue that meets a job leaves alone what is in somebody's hands."""
    known, table = draft.jobs, quoted(draft.jobs.table.name)
    for insert in site.parsed.tree.find_all(exp.Insert):
        conflict = insert.args.get("conflict")
        if conflict is None:
            continue
        free = [f"{table}.{known['status']} = {known.states['queued']}"] if known["status"] else []
        free += [
            f"{table}.{given[1]} IS NULL"
            for asked in draft.asked.get(("held", known.table.name), ())
            if (given := re.match(rf"{OWN}(\w+) = :(?!id\b)", asked))
        ]
        for part in conflict.expressions:
            column, value = map(str.strip, site.text(part).split("=", 1))
            for test in free:
                kept = f"{column} = CASE WHEN {test} THEN {value} ELSE {table}.{column} END"
                edit = Edit(site.parsed.span(part), kept)
                yield Change(f"{column} of what is held stays", [edit])


def _row_by_row(site: Site, draft: Draft) -> Iterator[Change]:
    """A batch's jobs are compared each with its own token, not with all of them."""
    known = draft.jobs
    named = re.search(r"\bAS\s+\w+\s*\(([^()]*)\)", site.parsed.text)
    if named is None or known.token not in named[1]:
        return
    for select in site.parsed.tree.find_all(exp.Select):
        for part in site.where(select):
            of_any = isinstance(part.args.get("expression"), exp.Any)
            if of_any and mentions(part, known["attempts"]):
                column = site.text(part).partition("=")[0].strip()
                wanted = f"{column} = {select.args['from_'].alias_or_name}.{known.token}"
                yield Change(f"{wanted} asked instead", [Edit(site.parsed.span(part), wanted)])


def _due(site: Site, draft: Draft) -> Iterator[Change]:
    """A claim asks whether the job is due, may be tried again, and is of the worker's queue."""
    known = draft.jobs
    wanted = [known.is_due()] if known["due"] else []
    wanted += [known.may] if known["attempts"] and known["most"] else []
    if site.own and known["queue"] and "queue" in draft.queue.takes("enqueue"):
        wanted.append(known.of_queue())
    for node in site.reads(known.table.name):
        for clause in wanted:
            asked = (one for one in site.where(node) if not one.find(exp.Or))
            if not any(mentions(part, clause.column) for part in asked):
                test = f"{prefix_of(node)}{clause}"
                # Of a job that never failed nobody may have said when it is due.
                yield from _asking(site, node, test)
                late = f"({prefix_of(node)}{clause.column} IS NULL OR {test})"
                yield from _asking(site, node, late)


_ENDS = ("complete", "complete_many", "fail", "recover")  # operations that end an attempt
_SAME = {"recover": "fail", "complete_many": "complete", "complete": "complete_many"}
"""Those of them that leave the row as another one does."""


def _as_siblings(site: Site, draft: Draft) -> Iterator[Change]:
    """An attempt's end writes what another end writes, or clears what that clears.

    A crash counts as a failed attempt does, but nobody waits after it. A heartbeat sets what the
    claim sets, and as that does.
    """
    updates = [one for one in site.rows() if isinstance(one.node, exp.Update)]
    for update in updates if site.block == "heartbeat" else ():
        claimed = draft.written_to.get(("claim", update.table), {})
        for part in update.node.expressions:
            span, value = site.parsed.span(part), claimed.get(part.this.name, "")
            if value and value != site.told(update, part).partition("=")[2].strip():
                new = f"{quoted(part.this.name)} = {update.here(value)}"
                yield Change(f"sets {new}", [Edit(span, new)])
    for update, other in product(updates, _ENDS if site.block in _ENDS else ()):
        written = {part.this.name for part in update.node.expressions} | {draft.jobs["due"].name}
        lacking = {
            name: update.here(value)
            for name, value in draft.written_to.get((other, update.table), {}).items()
            if name not in written and (value == "NULL" or other == _SAME.get(site.block))
            if not _PARAMETER.search(value)
            if update.here(value)
        }
        if lacking:
            end = site.parsed.span(update.node.expressions[-1]).end
            more = "".join(f", {quoted(name)} = {value}" for name, value in lacking.items())
            yield Change(f"sets {', '.join(lacking)} as {other} does", [Edit.at(end, more)])


def _written(site: Site, draft: Draft) -> Iterator[Change]:
    """The assignments that an operation must make to the row: lease, count, state, next time."""
    for update in site.changes(draft.jobs.table.name):
        for clause in _values(site.block, draft) if isinstance(update, exp.Update) else ():
            if edit := assigned(site.parsed, update, clause):
                yield Change(f"sets {clause}", [edit])


def _values(block: str, draft: Draft) -> Iterator[Clause]:
    known, backoff = draft.jobs, draft.queue.backoff
    bounded = known["attempts"] and (known["most"] or draft.queue.max_attempts)
    if block in {"claim", "heartbeat"} and (
        known.clock == "since" or "lease" in draft.queue.takes(block)
    ):
        yield from known.begins(known.clock)
    if block == "claim" and known["attempts"]:
        yield known.counted()
    if block in {"recover", "fail"} and bounded and known.states.get("failed"):
        yield known.becomes("failed", if_spent=True)[0]
    if block == "fail" and known["due"] and known["attempts"] and backoff is not None:
        wait = known.wait(f"interval '{backoff.total_seconds():g} seconds'")
        yield Clause(known["due"], f"clock_timestamp() + LEAST(interval '1 hour', {wait})")


def _counted(site: Site, draft: Draft) -> Iterator[Change]:
    """Every comparison of the count with its bound, in the one right form."""
    count, most = draft.jobs["attempts"], draft.jobs["most"]
    if not count or not (most or draft.queue.max_attempts):
        return
    edits = []
    for node in site.parsed.tree.find_all(exp.LT, exp.LTE, exp.GT, exp.GTE):
        other = node.expression
        if mentions(node.this, count) and (isinstance(other, exp.Literal) or mentions(other, most)):
            table = next(iter(node.this.find_all(exp.Column))).table
            of = f"{table}." if table else ""
            bound = f"{of}{most}" if most else f"{draft.jobs.number}"
            operator = "<" if isinstance(node, exp.LT | exp.LTE) else ">="
            edits.append(Edit(site.parsed.span(node), f"{of}{count} {operator} {bound}"))
    kept = [e for e in edits if site.parsed.source(e.span).split() != e.new.split()]
    if kept:
        yield Change(f"compares {count} with {most or draft.jobs.number}", kept)


def _once(site: Site, _: Draft) -> Iterator[Change]:
    """`= ANY (ARRAY(… LIMIT n))` or a CTE instead of a sub-select that may be run again."""
    parsed = site.parsed
    for node in parsed.tree.find_all(exp.In):
        if edits := _as_array(parsed, node):
            yield Change(_AS_ARRAY, edits)
    from_ = parsed.tree.args.get("from_")
    if not isinstance(parsed.tree, exp.Update) or from_ is None:
        return
    inner = from_.this
    if not isinstance(inner, exp.Subquery) or not inner.alias:
        return
    span = parsed.span(from_)
    tokens, words = parsed.tokens(span), parsed.words(span)
    closing = tokens[len(words) - 1 - words[::-1].index(")")]
    cte = f"WITH {inner.alias} AS MATERIALIZED {parsed.text[tokens[1].start : closing.end]}\n"
    named = Edit(Span(tokens[1].start, span.end), inner.alias)
    yield Change("a CTE instead of FROM (SELECT …)", [Edit.at(0, cte), named])


def _as_array(parsed: Parsed, node: exp.In) -> list[Edit]:
    """The edits that have the sub-select of an IN run once; none where it has no LIMIT."""
    query = node.args.get("query")
    select = query.this if query is not None else None
    if not isinstance(select, exp.Select) or not select.args.get("limit"):
        return []
    tokens, words = parsed.tokens(parsed.span(node)), parsed.words(parsed.span(node))
    at = words.index("IN")
    opening = Edit(Span(tokens[at].start, tokens[at + 1].end), "= ANY (ARRAY(")
    return [opening, Edit(tokens[-1], "))")]


def _ordered(site: Site, draft: Draft) -> Iterator[Change]:
    """The claim's query is in the declared order."""
    parsed, known = site.parsed, draft.jobs
    for select in site.reads(known.table.name) if draft.queue.order != "none" else ():
        limit, where = select.args.get("limit"), select.args.get("where")
        if limit is None or where is None:
            continue
        keys = known.order(urgent="priority" in draft.queue.order)
        order = f"ORDER BY {', '.join(prefix_of(select) + key for key in keys)}"
        if (own := select.args.get("order")) is not None:
            if site.text(own).split() != order.split():
                yield Change(order, [Edit(parsed.span(own), order)])
            parts = [site.text(key) for key in own.expressions]
            for first in parts[1:]:
                wanted = f"ORDER BY {', '.join([first, *(one for one in parts if one != first)])}"
                yield Change(wanted, [Edit(parsed.span(own), wanted)])
        else:
            begin = parsed.span(limit).start
            line = parsed.text.rfind("\n", 0, begin)
            joint = parsed.text[line:begin] if parsed.text[line:begin].isspace() else " "
            yield Change(order, [Edit.at(begin, f"{order}{joint}")])


def _in_one_order(site: Site, draft: Draft) -> Iterator[Change]:
    """A batch is locked in the order of its ids."""
    key = draft.jobs.key
    for select in site.parsed.tree.find_all(exp.Select):
        source, where = select.args.get("from_"), select.args.get("where")
        if source is None or select.args.get("order") or select.args.get("limit"):
            continue
        if any(one.find(exp.Column) and one.name == key.name for one in select.expressions):
            end = site.parsed.span(where if where is not None else source).end
            order = f"ORDER BY {prefix_of(select)}{key}"
            yield Change(f"{order} added", [Edit.at(end, f" {order}")])


def _short(site: Site, _: Draft) -> Iterator[Change]:
    """The error that was caught fits its column, and is JSON where it must be."""
    parsed = site.parsed
    for part in (part for one in parsed.tree.find_all(exp.Update) for part in one.expressions):
        span = parsed.span(part)
        equals = parsed.outermost(span, frozenset({"="}))
        if equals is None or all(one.name != "error" for one in part.find_all(exp.Placeholder)):
            continue
        place = Span(equals.end, span.end)
        casts = _JSON.finditer(parsed.source(place))
        if made := next((cast for cast in casts if ":error" in cast[0]), None):
            key = re.search(r'"(\w+)"\s*:', made[0])
            new = f"jsonb_build_object('{key[1] if key else 'error'}', :error::text)::{made[1]}"
            edit = Edit(Span(*made.span()), new).moved(place.start)
            yield Change("jsonb_build_object(...) instead of text put together", [edit])
        else:
            yield Change(f"error cut to {FITS} characters", [Edit(place, f" left(:error, {FITS})")])


def _exact(site: Site, _: Draft) -> Iterator[Change]:
    """A time in full precision, and the real one instead of a transaction's."""
    parsed = site.parsed
    for cut in parsed.tree.find_all(exp.TimestampTrunc, exp.DateTrunc):
        span = parsed.span(cut)
        comma = parsed.text.index(",", span.start)
        inner = parsed.text[comma + 1 : parsed.tokens(span)[-1].start].strip()
        yield Change("date_trunc dropped", [Edit(span, inner)])
    for field, times in _OF_SECONDS.items():
        field_of = rf"(?i)\bextract\(\s*{field}s?\s+FROM\s+(:\w+)\s*\)"
        if whole := rewritten(parsed.text, field_of, rf"(extract(epoch FROM \1){times})"):
            yield Change(f"all of the time instead of its {field}s alone", whole)
    real = rewritten(parsed.text, r"\bnow\(\)", "clock_timestamp()")
    if site.block == "fail" and real:
        yield Change("clock_timestamp() instead of now()", real)


def _zoned(site: Site, _: Draft) -> Iterator[Change]:
    """A point in time keeps its zone."""
    cast = r"(?i)::\s*timestamp\b(?!\s*(\(\d\)\s*)?with\b)(\s*\(\d\))?(\s+without\s+time\s+zone)?"
    if dropped := rewritten(site.parsed.text, cast, ""):
        yield Change("::timestamp dropped", dropped)


def _inserted(site: Site, draft: Draft) -> Iterator[Change]:
    """An enqueued job has its due time, and what was asked for, from the beginning."""
    parsed, due, most = site.parsed, draft.jobs["due"], draft.jobs["most"]
    lacking = [(due, "now() + :delay")] if "delay" in draft.queue.takes("enqueue") else []
    lacking += [(most, ":max_attempts")] if draft.queue.max_attempts else []
    for insert in parsed.tree.find_all(exp.Insert) if site.own else ():
        values = insert.expression
        if not isinstance(values, exp.Values) or not isinstance(insert.this, exp.Schema):
            continue
        row = values.expressions[0].expressions
        names = [column.name for column in insert.this.expressions]
        for name, value in zip(names, row, strict=False):
            used = [str(one.this) for one in value.find_all(exp.Placeholder)]
            wanted = f":{used[0]}" if used and used[0] in _PLAIN else ""
            wanted = "now() + :delay" if name == due.name and "delay" in used else wanted
            if name == most.name and isinstance(value, exp.Literal) and draft.queue.max_attempts:
                wanted = ":max_attempts"
            if wanted and site.text(value).split() != wanted.split():
                yield Change(f"{name} is {wanted}", [Edit(parsed.span(value), wanted)])
        for column, given in lacking:
            if column and column.name not in names:
                whole = Span(0, len(parsed.text))
                first = parsed.tokens(whole)[parsed.words(whole).index(")")].start
                end = parsed.span(row[-1]).end
                edits = [Edit.at(first, f", {column}"), Edit.at(end, f", {given}")]
                yield Change(f"{column} is inserted", edits)


def _unlocked(site: Site, _: Draft) -> Iterator[Change]:
    """Locks and settings that end with their transaction, and wait for nobody."""
    text = site.parsed.text
    if re.fullmatch(r"(?is)SELECT\s+pg_advisory(_xact)?_lock\s*\(.*\)", text):
        new = f"SELECT 1 AS alone WHERE pg_try_advisory_xact_lock{text[text.index('(') :]}"
        yield Change("pg_try_advisory_xact_lock", [Edit(Span(0, len(text)), new)])
    told = rewritten(text, r"current_setting\('[^']*worker[^']*'\)", ":worker")
    if site.own and told:
        yield Change(":worker instead of a setting", told)


def _inside(site: Site, _: Draft) -> Iterator[Change]:
    """A condition stands before the LIMIT: rows that are left out behind it have taken room."""
    for rows in site.rows():
        parts = site.where(rows.node)
        within = [one for part in parts for one in part.find_all(exp.Select)]
        if rows.other:
            ctes = site.parsed.tree.find_all(exp.CTE)
            within = [one.this for one in ctes if one.alias == rows.other]
        limited = [one for one in within if one.args.get("limit") and _reads(one, rows.table)]
        for select, (index, part) in product(limited, enumerate(parts)):
            told = site.told(rows, part)
            if not told or OTHER in told:
                continue
            where, source = select.args.get("where"), site.parsed.span(select.args["from_"])
            own = told.replace(OWN, prefix_of(select))
            line = f"\n{site.parsed.indent(source.start)}" if "\n" in site.parsed.text else " "
            asked = f"{line}WHERE {own}" if where is None else f" AND {own}"
            end = source.end if where is None else site.parsed.span(where).end
            what = f"asks for {site.text(part)} before the LIMIT"
            yield Change(what, [site.parsed.without(parts, index), Edit.at(end, asked)])


def _reads(select: exp.Expr, table: str) -> bool:
    return isinstance(select.args.get("from_"), exp.From) and is_of(select.args["from_"], table)


def _without_cte(site: Site, _: Draft) -> Iterator[Change]:
    """A change on the side, that nothing else in the statement reads, is left out."""
    parsed = site.parsed
    with_ = parsed.tree.args.get("with_")
    if with_ is None:
        return
    rest = {table.name for table in parsed.tree.find_all(exp.Table)}
    for index, cte in enumerate(with_.expressions):
        if cte.alias in rest:
            continue
        if len(with_.expressions) > 1:
            yield Change(f"{cte.alias} dropped", [parsed.without(with_.expressions, index)])
        else:
            span = parsed.span(with_)
            verb = parsed.tokens(Span(span.end, len(parsed.text)))[0]
            yield Change(f"{cte.alias} dropped", [Edit(Span(span.start, verb.start))])


def _null_safe(site: Site, _: Draft) -> Iterator[Change]:
    """Of what a row must not be among, a NULL says nothing: with one in it nothing is ever free."""
    for node in site.parsed.tree.find_all(exp.Not):
        query = node.this.args.get("query") if isinstance(node.this, exp.In) else None
        inner = query.this if query is not None else None
        if not isinstance(inner, exp.Select) or len(inner.expressions) != 1:
            continue
        where = inner.args.get("where")
        end = site.parsed.span(where if where is not None else inner.args["from_"]).end
        asked = f"{site.text(inner.expressions[0])} IS NOT NULL"
        there = Edit.at(end, f" {'WHERE' if where is None else 'AND'} {asked}")
        yield Change(f"{asked} in NOT IN", [there])


def _dropped(site: Site, draft: Draft) -> Iterator[Change]:
    """A condition less, but for those that every such operation needs."""
    known = draft.jobs
    needed = [known["due"], known["owner"], known["status"], known.key]
    if site.block == "claim":
        needed.append(known["queue"])
    if site.block != "recover":  # which ends what has no attempt left, too
        needed.append(known["attempts"])
    names = "|".join(one.name for one in needed if one)
    ended = (known.states.get(state, "") for state in ("completed", "failed"))
    over = "|".join(re.escape(state) for state in ended if state) or "$"
    plain = re.compile(rf"`(\w+\.)?({names}) (=|<|<=) (?!{over})[^ ]+`")
    yield from (change for change in conditions(site.parsed) if not plain.search(change.what))


class Form(NamedTuple):
    """A safe form."""

    make: Callable[..., Iterator[Change]]
    mends: str  # the guarantees that it may mend
    blocks: str = ""  # those that it is for; nothing: any
    last: bool = False  # whether it takes something away, and so comes after what adds

    def fits(self, guarantee: str, block: str) -> bool:
        """True where it may mend a guarantee in a block."""
        return guarantee in self.mends.split() and (not self.blocks or block in self.blocks.split())


_ON_HELD = " ".join(sorted(HELD))
_LOST = "stale-recovery no-starvation no-lost-job retry-given"
TWICE = "single-claim fencing live-lease final-state crash-safe retry-given concurrency-limit"

FORMS: Sequence[Form] = (
    # Who ends a job that it holds does not pass by it.
    Form(
        _locked,
        f"{TWICE} non-blocking no-deadlock no-starvation isolation",
        "claim complete_and_claim recover promote cleanup",
    ),
    Form(_read_first, "non-blocking no-deadlock", "claim recover promote cleanup"),
    Form(_as_others, f"{TWICE} stale-recovery backoff no-lost-job"),
    Form(_beaten, "live-lease stale-recovery", "recover claim"),
    Form(_asked_again, f"{TWICE} no-lost-job stale-recovery backoff retry-bound"),
    Form(_narrowed, f"{TWICE} stale-recovery not-early routing no-starvation no-lost-job backoff"),
    Form(_row_by_row, "fencing", "complete_many"),
    Form(_in_pairs, "fencing", "complete_many"),
    Form(_with_the_job, f"{TWICE} {_LOST}", _ON_HELD),
    Form(_moved_whole, "routing order retry-bound retry-given not-early no-lost-job backoff"),
    Form(_renewed, "live-lease stale-recovery single-claim"),
    # Whom it keeps from an error may go on with half of what it was to do.
    Form(_met, f"{TWICE} stale-recovery no-lost-job no-starvation", last=True),
    Form(_upserted, f"{TWICE} order", "enqueue"),
    Form(_due, "not-early routing retry-bound no-starvation backoff", "claim"),
    Form(
        _written,
        "live-lease stale-recovery retry-bound retry-given backoff no-lost-job not-early fencing",
        "claim heartbeat recover fail",
    ),
    Form(
        _as_siblings,
        f"{TWICE} retry-bound stale-recovery no-lost-job no-starvation server-clock",
        f"heartbeat {' '.join(_ENDS)}",
    ),
    Form(_counted, "retry-bound retry-given stale-recovery no-lost-job"),
    Form(_null_safe, _LOST),
    Form(_inside, f"{_LOST} order claim-limit not-early routing"),
    Form(_once, "claim-limit order no-starvation"),
    Form(_ordered, "order steady-cost no-starvation", "claim"),
    Form(_in_one_order, "no-deadlock", "complete_many cleanup recover"),
    Form(_short, "backoff", "fail"),
    Form(_zoned, "server-clock backoff not-early live-lease stale-recovery"),
    Form(_exact, "not-early backoff live-lease stale-recovery server-clock"),
    Form(_inserted, "not-early order routing retry-bound retry-given", "enqueue"),
    Form(_unlocked, "non-blocking pooler-safe no-deadlock"),
    Form(_without_cte, "backoff non-blocking no-deadlock no-lost-job stale-recovery", last=True),
    Form(
        _dropped,
        f"{_LOST} {TWICE} order not-early routing steady-cost",
        last=True,
    ),
    Form(
        lambda site, _: listed(site.parsed),
        f"{_LOST} retry-bound final-state live-lease concurrency-limit order",
        last=True,
    ),
    Form(
        lambda site, _: assignments(site.parsed),
        "backoff retry-bound retry-given final-state fencing stale-recovery",
        "recover fail heartbeat",  # what may put a job back, or keep it
        last=True,
    ),
    Form(
        lambda site, _: comparisons(site.parsed),
        "no-lost-job retry-bound retry-given not-early live-lease",
        "cleanup claim recover",
        last=True,
    ),
)
