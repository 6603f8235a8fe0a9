"""Safe forms of one query or change: each with the guarantees that it may mend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.mend.draft import HELD, Columns, Name, Site, is_of
from queueproof.mend.edits import (
    Offer,
    added,
    assigned,
    changes_of,
    guards,
    is_test,
    mentions,
    prefix_of,
    reads_of,
    run_out,
)
from queueproof.mutate.mutations import assignments, comparisons, conditions
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltree import Edit, Parsed, Span

_BACK = frozenset({"recover", "fail", "heartbeat"})  # what may put a job back, or keep it
_JSON = re.compile(r"::\s*jsonb?\s*$", re.IGNORECASE)
FITS = 200  # characters that any column for an error holds
_PLAIN = ("priority", "queue", "max_attempts", "payload")


def _locked(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """What is to be changed is locked as it is read, past what others hold."""
    for select in reads_of(site, known.table):
        parsed = site.parsed
        for lock in select.args.get("locks") or ():
            span = parsed.span(lock)
            if lock.args["wait"] is None:
                yield "SKIP LOCKED added", [Edit(Span(span.end, span.end), " SKIP LOCKED")]
            elif lock.args["wait"] is True:
                last = parsed.tokens(span)[-1]
                yield "SKIP LOCKED instead of NOWAIT", [Edit(last, "SKIP LOCKED")]
            mine = select.args["from_"].this.alias_or_name
            of = [one for one in lock.expressions if one.name != mine]
            if select.args.get("joins") and not lock.expressions:
                begin = parsed.text.index("UPDATE", span.start) + len("UPDATE")
                yield f"locks {mine} alone", [Edit(Span(begin, begin), f" OF {mine}")]
            if of and len(of) == len(lock.expressions):  # it locks rows of other tables alone
                wanted = re.sub(r"\bOF\s+[\w.,\s]+?(?=\s*(SKIP|NOWAIT|$))", f"OF {mine}",
                                parsed.source(span))  # fmt: skip
                yield f"{wanted} instead", [Edit(span, wanted)]
        if not select.args.get("locks") and select.args.get("where") is not None:
            parts = (select.args.get(one) for one in ("limit", "order", "where"))
            end = max(parsed.span(part).end for part in parts if part is not None)
            wanted = (
                "\n  FOR UPDATE SKIP LOCKED" if "\n" in parsed.text else " FOR UPDATE SKIP LOCKED"
            )
            yield "FOR UPDATE SKIP LOCKED added", [Edit(Span(end, end), wanted)]


def _read_first(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """Rows that are free are read and locked in one order, past the others, and then changed."""
    if site.block not in {"claim", "recover", "promote", "cleanup"}:
        return
    parsed = site.parsed
    for node in changes_of(site, known.table):
        where = node.args.get("where")
        if where is None or node.args.get("from_") or node.args.get("using") or node.this.alias:
            continue
        if where.find(exp.Select):
            continue
        span = parsed.span(where)
        start = parsed.text.rfind("\n", 0, span.start) + 1
        indent = re.match(r"\s*", parsed.text[start:])
        deeper = "\n" + (indent[0] if indent else "") + "  "
        asked = parsed.source(span).replace("\n", "\n  ")
        table = node.this.sql("postgres")
        key = known.key
        rows = f"SELECT {key}{deeper}FROM {table}{deeper}{asked}{deeper}ORDER BY {key}"
        chosen = f"{deeper}{rows}{deeper}FOR UPDATE SKIP LOCKED{deeper[:-2]}"
        yield (
            "chooses rows FOR UPDATE SKIP LOCKED first",
            [Edit(span, f"WHERE {key} = ANY (ARRAY({chosen}))")],
        )


def _as_others(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """The row is asked what the block asks of it elsewhere, or another operation on a held job."""
    if not site.own:
        return
    pool = known.asked.get("held" if site.block in HELD else site.block, ())
    read = list(reads_of(site, known.table))
    # A row that the statement has locked is as it was when it was asked.
    locked = any(one.args.get("locks") for one in read)
    for node in (*(() if locked else changes_of(site, known.table)), *read):
        prefix = prefix_of(node)
        parts = (site.parsed.source(site.parsed.span(part)) for part in site.where(node))
        mine = {" ".join(part.split()).removeprefix(prefix) for part in parts}
        for asked in pool:
            if site.block == "complete_many" and ":" in asked:  # it takes several of each
                continue
            if asked not in mine and (edit := added(site, node, f"{prefix}{asked}")) is not None:
                yield f"asks for {prefix}{asked}", [edit]


def _asked_again(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[Offer]:
    """The statement that changes or locks a row asks again what was asked when it was read."""
    wanted = [f"{column} = {value}" for column, value in guards(site, known, queue) if column]
    if stale := run_out(site, known, queue):
        wanted.append(stale)
    for node in (*changes_of(site, known.table), *reads_of(site, known.table)):
        parts = site.where(node)
        lacking = [
            (column, text)
            for text in wanted
            for column, _, value in [text.partition(" = ")]
            if not any(is_test(part, column.strip('"'), value) for part in parts)
            and not any(
                " < " in text and mentions(part, text.split()[0].strip('"')) for part in parts
            )
        ]
        groups = [lacking] if len(lacking) < 2 else [lacking, *([one] for one in lacking)]  # noqa: PLR2004
        for group in groups:
            asked = [f"{prefix_of(node)}{text}" for _, text in group]
            edit = added(site, node, *asked) if group else None
            if edit is not None:
                yield f"asks for {' AND '.join(asked)}", [edit]


def _narrowed(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[Offer]:
    """A condition on the state that says more than it should, or on whose job it is."""
    values = dict(guards(site, known, queue)[:1])
    if site.block == "cleanup" and known.done and known.failed:
        values = {known.status: f"IN ({known.done}, {known.failed})"}
    if site.block == "claim" and site.own:
        if known.due:
            values[known.due] = "<= now()"
        if known.queue and "queue" in queue.takes("claim"):
            values[known.queue] = ":queue"
    if site.block in HELD - {"complete_many"} and site.own:
        values[known.key] = ":id"
    if stale := run_out(site, known, queue):
        values[known.lease] = stale.removeprefix(f"{known.lease}").strip()
    for node in (*changes_of(site, known.table), *reads_of(site, known.table)):
        for part in site.where(node):
            for column, value in values.items():
                if not mentions(part, column) or is_test(part, column, value):
                    continue
                # Which job is free at all may stand there too.
                if column != known.status and known.status and mentions(part, known.status):
                    continue
                if part.find(exp.Select) and column != known.key:
                    continue
                test = f"{column} {'' if value[:2] in {'<=', '< ', 'IN'} else '= '}{value}"
                span = site.parsed.span(part)
                wanted = f"{prefix_of(node)}{test}"
                if site.parsed.source(span).split() != wanted.split():
                    yield f"{wanted} asked instead", [Edit(span, wanted)]


def _with_the_job(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """What is changed beside the job is changed only where the job was."""
    with_ = site.parsed.tree.args.get("with_")
    ctes = with_.expressions if with_ is not None else []
    job = [one.alias for one in ctes if is_of(one.this, known.table)]
    if site.block not in HELD or len(job) != 1:
        return
    for change in site.parsed.tree.find_all(exp.Update, exp.Delete):
        read = {table.name for table in change.find_all(exp.Table)}
        if not is_of(change, known.table) and change.this and job[0] not in read:
            edit = added(site, change, f"EXISTS (SELECT FROM {job[0]})")
            if edit is not None:
                yield f"{change.this.name} changed only where {job[0]} has the job", [edit]


def _in_pairs(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """A batch's jobs are compared each with its own token, where both were compared with any."""
    for node in site.parsed.tree.find_all(exp.Select, exp.Update, exp.Delete):
        anys = [
            (part, part.this.name, site.parsed.source(site.parsed.span(part)))
            for part in site.where(node)
            if isinstance(part, exp.EQ) and isinstance(part.expression, exp.Any)
        ]
        if site.block != "complete_many" or len(anys) != 2:  # noqa: PLR2004
            continue
        given = [re.search(r"(?<!:):\w+", text) for _, _, text in anys]  # and no cast's type
        kinds = [known.types.get(column, "text") for _, column, _ in anys]
        columns = ", ".join(text.partition("=")[0].strip() for _, _, text in anys)
        lists = ", ".join(
            f"{one and one[0]}::{kind}[]" for one, kind in zip(given, kinds, strict=True)
        )
        spans = [site.parsed.span(part) for part, _, _ in anys]
        before = re.search(r"\s+AND\s+\Z", site.parsed.text[: spans[1].start], re.IGNORECASE)
        if before is not None and all(given):
            pairs = f"({columns}) IN (SELECT * FROM unnest({lists}))"
            edits = [Edit(spans[0], pairs), Edit(Span(before.start(), spans[1].end))]
            yield "id and token compared in pairs", edits


def _met(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
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
            at = tokens[end - 1].end
            yield "ON CONFLICT DO NOTHING", [Edit(Span(at, at), " ON CONFLICT DO NOTHING")]


def _upserted(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """An enqueue that meets a job leaves alone what is in somebody's hands."""
    for insert in site.parsed.tree.find_all(exp.Insert):
        conflict = insert.args.get("conflict")
        if site.block != "enqueue" or conflict is None:
            continue
        table = format(Name(known.table))
        free = [f"{table}.{known.status} = {known.free}"] if known.status else []
        free += [
            f"{table}.{given[1]} IS NULL"
            for asked in known.asked.get("held", ())
            if (given := re.match(r"(\w+) = :(?!id\b)", asked))
        ]
        for part in conflict.expressions:
            span = site.parsed.span(part)
            column, value = map(str.strip, site.parsed.source(span).split("=", 1))
            for test in free:
                kept = f"{column} = CASE WHEN {test} THEN {value} ELSE {table}.{column} END"
                yield f"{column} of what is held stays", [Edit(span, kept)]


def _row_by_row(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """A batch's jobs are compared each with its own token, not with all of them."""
    named = re.search(r"\bAS\s+\w+\s*\(([^()]*)\)", site.parsed.text)
    if site.block != "complete_many" or named is None or known.token not in named[1]:
        return
    for select in site.parsed.tree.find_all(exp.Select):
        for part in site.where(select):
            if mentions(part, known.attempts) and isinstance(part.args.get("expression"), exp.Any):
                column = site.parsed.source(site.parsed.span(part)).partition("=")[0].strip()
                wanted = f"{column} = {select.args['from_'].alias_or_name}.{known.token}"
                yield f"{wanted} asked instead", [Edit(site.parsed.span(part), wanted)]


def _due(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[Offer]:
    """A claim asks whether the job is due, may be tried again, and is of the worker's queue."""
    if site.block != "claim":
        return
    wanted = {known.due: f"{known.due} <= now()"}
    if known.attempts and known.bound:
        wanted[known.attempts] = f"{known.attempts} < {known.bound}"
    if site.own and known.queue and "queue" in queue.takes("enqueue"):
        wanted[known.queue] = f"{known.queue} = :queue"
    for node in reads_of(site, known.table):
        for column, text in wanted.items():
            asked = (one for one in site.where(node) if not one.find(exp.Or))
            if column and not any(mentions(part, column) for part in asked):
                test = f"{prefix_of(node)}{text}"
                # Of a job that never failed nobody may have said when it is due.
                for wish in (test, f"({test.split(' ', 1)[0]} IS NULL OR {test})"):
                    if (edit := added(site, node, wish)) is not None:
                        yield f"asks for {wish}", [edit]


def _as_failed(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """A crash counts as a failed attempt does: recover writes what `fail` writes."""
    for update in changes_of(site, known.table):
        if site.block != "recover" or not isinstance(update, exp.Update) or not update.expressions:
            continue
        written = {part.this.name for part in update.expressions}
        lacking = {name: text for name, text in known.failing.items() if name not in written}
        if lacking:
            end = site.parsed.span(update.expressions[-1]).end
            more = "".join(f", {name} = {text}" for name, text in lacking.items())
            yield f"sets {', '.join(lacking)} as fail does", [Edit(Span(end, end), more)]


def _written(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[Offer]:
    """What an operation must write into the row: lease, count, state, next time."""
    for update in changes_of(site, known.table):
        if isinstance(update, exp.Update):
            for column, value in _values(site, known, queue):
                edit = assigned(site, update, column, value)
                if column and edit is not None:
                    yield f"sets {column} = {value}", [edit]


def _values(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[tuple[str, str]]:
    again = ""
    if known.attempts and known.bound and known.failed:
        less = f"{known.attempts} < {known.bound}"
        again = f"CASE WHEN {less} THEN {known.free} ELSE {known.failed} END"
    takes = "lease" in queue.takes(site.block)
    begun = "now() + :lease" if known.until and takes else "" if known.until else "now()"
    match site.block:
        case "claim":
            yield from ((known.lease, begun),) if begun else ()
            if known.attempts:
                yield known.attempts, f"{known.attempts} + 1"
        case "heartbeat":
            yield from ((known.lease, begun),) if begun else ()
        case "recover" if again:
            yield known.status, again
        case "fail":
            if again:
                yield known.status, again
            if known.due and known.attempts and queue.backoff is not None:
                least = f"interval '{queue.backoff.total_seconds():g} seconds'"
                wait = f"{least} * 2 ^ LEAST({known.attempts} - 1, 10)"
                most = "interval '1 hour'"
                yield known.due, f"clock_timestamp() + LEAST({most}, {wait})"
        case _:
            pass


def _counted(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """Every comparison of the count with its bound, in the one right form."""
    if not known.attempts or not known.bound:
        return
    edits = []
    for node in site.parsed.tree.find_all(exp.LT, exp.LTE, exp.GT, exp.GTE):
        if mentions(node.this, known.attempts) and mentions(node.expression, known.bound):
            table = next(iter(node.this.find_all(exp.Column))).table
            operator = "<" if isinstance(node, exp.LT | exp.LTE) else ">="
            one, other = (
                f"{table}.{name}" if table else name for name in (known.attempts, known.bound)
            )
            edits.append(Edit(site.parsed.span(node), f"{one} {operator} {other}"))
    kept = [e for e in edits if site.parsed.source(e.span).split() != e.new.split()]
    if kept:
        yield f"compares {known.attempts} with {known.bound}", kept


def _once(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """`= ANY (ARRAY(… LIMIT n))` or a CTE instead of a sub-select that may be run again."""
    parsed = site.parsed
    for node in parsed.tree.find_all(exp.In):
        query = node.args.get("query")
        if (
            query is not None
            and isinstance(query.this, exp.Select)
            and query.this.args.get("limit")
        ):
            tokens = parsed.tokens(parsed.span(node))
            words = parsed.words(parsed.span(node))
            at = words.index("IN")
            opening = Edit(Span(tokens[at].start, tokens[at + 1].end), "= ANY (ARRAY(")
            yield "= ANY (ARRAY(…)) instead of IN", [opening, Edit(tokens[-1], "))")]
    for update in parsed.tree.find_all(exp.Update):
        from_ = update.args.get("from_")
        if from_ is None or update is not parsed.tree:
            continue
        inner = from_.this
        if not isinstance(inner, exp.Subquery) or not inner.alias:
            continue
        span = parsed.span(from_)
        tokens = parsed.tokens(span)
        closing = next(
            token
            for token, word in zip(tokens[::-1], parsed.words(span)[::-1], strict=True)
            if word == ")"
        )
        body = parsed.text[tokens[1].start : closing.end]
        cte = f"WITH {inner.alias} AS MATERIALIZED {body}\n"
        named = Edit(Span(tokens[1].start, span.end), inner.alias)
        yield "a CTE instead of FROM (SELECT …)", [Edit(Span(0, 0), cte), named]


def _ordered(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[Offer]:
    """The claim's query is in the declared order."""
    if site.block != "claim" or queue.order == "none":
        return
    by = [f"{known.priority} DESC"] if "priority" in queue.order and known.priority else []
    by += [known.due] if known.due else []
    parsed = site.parsed
    for select in reads_of(site, known.table):
        limit, where = select.args.get("limit"), select.args.get("where")
        if limit is None or where is None:
            continue
        keys = ", ".join(f"{prefix_of(select)}{key}" for key in [*by, f"{known.key}"])
        if (order := select.args.get("order")) is not None:
            span = parsed.span(order)
            if parsed.source(span).split() != f"ORDER BY {keys}".split():
                yield f"ORDER BY {keys}", [Edit(span, f"ORDER BY {keys}")]
        else:
            begin = parsed.span(limit).start
            line = parsed.text.rfind("\n", 0, begin)
            joint = parsed.text[line:begin] if parsed.text[line:begin].isspace() else " "
            yield f"ORDER BY {keys}", [Edit(Span(begin, begin), f"ORDER BY {keys}{joint}")]


def _in_one_order(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """A batch is locked in the order of its ids."""
    if site.block not in {"complete_many", "cleanup", "recover"}:
        return
    for select in site.parsed.tree.find_all(exp.Select):
        source, where = select.args.get("from_"), select.args.get("where")
        if source is None or select.args.get("order") or select.args.get("limit"):
            continue
        last = where if where is not None else source
        if any(one.find(exp.Column) and one.name == known.key for one in select.expressions):
            end = site.parsed.span(last).end
            order = f"ORDER BY {prefix_of(select)}{known.key}"
            yield f"{order} added", [Edit(Span(end, end), f" {order}")]


def _capped(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """An exponent stays within what an interval can hold."""
    parsed = site.parsed
    for power in parsed.tree.find_all(exp.Pow):
        assigned = power.find_ancestor(exp.EQ)
        if isinstance(power.expression, exp.Least) or assigned is None:
            continue
        span = parsed.span(assigned)
        tokens, words = parsed.tokens(span), parsed.words(span)
        if "^" not in words:
            continue
        begin = tokens[words.index("^") + 1]
        end = _closing(parsed, span, begin)
        inner = parsed.text[begin.end : end.start] if end != begin else parsed.source(begin)
        new = f"LEAST({inner.strip()}, 10)"
        yield "exponent capped", [Edit(Span(begin.start, end.end), new)]


def _short(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """What was caught fits its column, and is JSON where it must be, whatever stands in it."""
    parsed = site.parsed
    for part in (part for one in parsed.tree.find_all(exp.Update) for part in one.expressions):
        span = parsed.span(part)
        equals = parsed.outermost(span, frozenset({"="}))
        told = any(one.name == "error" for one in part.find_all(exp.Placeholder))
        if site.block != "fail" or equals is None or not told:
            continue
        place = Span(equals.end, span.end)
        if cast := _JSON.search(parsed.source(place)):
            new = f"jsonb_build_object('error', :error::text){cast[0]}"
            yield "jsonb_build_object(...) instead of text put together", [Edit(place, f" {new}")]
        else:
            yield f"error cut to {FITS} characters", [Edit(place, f" left(:error, {FITS})")]


def _closing(parsed: Parsed, span: Span, opening: Span) -> Span:
    """The parenthesis that closes one; a token that opens nothing is its own end."""
    depth = 0
    for token in parsed.tokens(Span(opening.start, span.end)):
        depth += {"(": 1, ")": -1}.get(parsed.source(token), 0)
        if not depth:
            return token
    raise SqlglotError("parentheses")


def _exact(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """A time in full precision, and the real one instead of a transaction's."""
    parsed = site.parsed
    for cut in parsed.tree.find_all(exp.TimestampTrunc, exp.DateTrunc):
        span = parsed.span(cut)
        tokens = parsed.tokens(span)
        comma = parsed.text.index(",", span.start)
        inner = parsed.text[comma + 1 : tokens[-1].start].strip()
        yield "date_trunc dropped", [Edit(span, inner)]
    if site.block == "fail":
        edits = [
            Edit(Span(match.start(), match.end()), "clock_timestamp()")
            for match in re.finditer(r"\bnow\(\)", parsed.text)
        ]
        if edits:
            yield "clock_timestamp() instead of now()", edits


def _inserted(site: Site, known: Columns, queue: SqlFileQueue) -> Iterator[Offer]:
    """An enqueued job has its due time, and what was asked for, from the beginning."""
    if site.block != "enqueue" or not site.own:
        return
    parsed = site.parsed
    for insert in parsed.tree.find_all(exp.Insert):
        values = insert.expression
        if not isinstance(values, exp.Values) or not isinstance(insert.this, exp.Schema):
            continue
        row = values.expressions[0].expressions
        names = [column.name for column in insert.this.expressions]
        for name, value in zip(names, row, strict=False):
            used = [str(one.this) for one in value.find_all(exp.Placeholder)]
            wanted = f":{used[0]}" if used and used[0] in _PLAIN else ""
            wanted = "now() + :delay" if name == known.due and "delay" in used else wanted
            if wanted and parsed.source(parsed.span(value)).split() != wanted.split():
                yield f"{name} is {wanted}", [Edit(parsed.span(value), wanted)]
        if known.due and known.due not in names and "delay" in queue.takes("enqueue"):
            words = parsed.words(Span(0, len(parsed.text)))
            tokens = parsed.tokens(Span(0, len(parsed.text)))
            first = tokens[words.index(")")].start
            end = parsed.span(row[-1]).end
            added = [
                Edit(Span(first, first), f", {known.due}"),
                Edit(Span(end, end), ", now() + :delay"),
            ]
            yield f"{known.due} is inserted", added


def _unlocked(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """Locks and settings that end with their transaction, and wait for nobody."""
    parsed = site.parsed
    if re.fullmatch(r"(?is)SELECT\s+pg_advisory(_xact)?_lock\s*\(.*\)", parsed.text):
        key = parsed.text[parsed.text.index("(") :]
        new = f"SELECT 1 AS alone WHERE pg_try_advisory_xact_lock{key}"
        yield "pg_try_advisory_xact_lock", [Edit(Span(0, len(parsed.text)), new)]
    if site.own:
        edits = [
            Edit(Span(match.start(), match.end()), ":worker")
            for match in re.finditer(r"current_setting\('[^']*worker[^']*'\)", parsed.text)
        ]
        if edits:
            yield ":worker instead of a setting", edits


def _without_cte(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
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
            yield f"{cte.alias} dropped", [parsed.without(with_.expressions, index)]
        else:
            span = parsed.span(with_)
            verb = next(token for token in parsed.tokens(Span(span.end, len(parsed.text))))
            yield f"{cte.alias} dropped", [Edit(Span(span.start, verb.start))]


def _null_safe(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """Of what a row must not be among, a NULL says nothing: with one in it nothing is ever free."""
    for node in site.parsed.tree.find_all(exp.Not):
        query = node.this.args.get("query") if isinstance(node.this, exp.In) else None
        inner = query.this if query is not None else None
        if not isinstance(inner, exp.Select) or len(inner.expressions) != 1:
            continue
        where = inner.args.get("where")
        end = site.parsed.span(where if where is not None else inner.args["from_"]).end
        column = site.parsed.source(site.parsed.span(inner.expressions[0]))
        word = "WHERE" if where is None else "AND"
        yield (
            f"{column} IS NOT NULL in NOT IN",
            [Edit(Span(end, end), f" {word} {column} IS NOT NULL")],
        )


def _dropped(site: Site, known: Columns, _: SqlFileQueue) -> Iterator[Offer]:
    """A condition less, but for those that every such operation needs."""
    if site.block not in {"claim", "recover", *HELD}:
        return
    needed = [known.due, known.worker, known.status, known.key]
    if site.block == "claim":
        needed.append(known.queue)
    if site.block != "recover":  # which ends what has no attempt left, too
        needed.append(known.attempts)
    plain = re.compile(rf"`(\w+\.)?({'|'.join(filter(None, needed))}) (=|<|<=) [^ ]+`")
    for change in conditions(site.parsed):
        if not plain.search(change.what):
            yield change.what, change.edits


def _kept(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """An assignment less."""
    if site.block in _BACK:
        yield from ((change.what, change.edits) for change in assignments(site.parsed))


def _turned(site: Site, _: Columns, __: SqlFileQueue) -> Iterator[Offer]:
    """A comparison the other way."""
    if site.block in {"cleanup", "claim", "recover"}:
        yield from ((change.what, change.edits) for change in comparisons(site.parsed))


_LOST = "stale-recovery no-starvation no-lost-job retry-given"
TWICE = "single-claim fencing live-lease final-state crash-safe retry-given concurrency-limit"

FORMS: Sequence[tuple[Callable[[Site, Columns, SqlFileQueue], Iterator[Offer]], str, bool]] = (
    (_locked, f"{TWICE} non-blocking no-deadlock no-starvation isolation", False),
    (_read_first, "non-blocking no-deadlock", False),
    (_as_others, f"{TWICE} stale-recovery backoff no-lost-job", False),
    (_asked_again, f"{TWICE} no-lost-job stale-recovery backoff retry-bound", False),
    (_narrowed, f"{TWICE} not-early routing no-starvation no-lost-job backoff", False),
    (_row_by_row, "fencing", False),
    (_in_pairs, "fencing", False),
    (_with_the_job, f"{TWICE} no-lost-job", False),
    (_met, f"{TWICE} stale-recovery no-lost-job no-starvation", False),
    (_upserted, f"{TWICE} order", False),
    (_due, "not-early routing retry-bound no-starvation backoff", False),
    (
        _written,
        "live-lease stale-recovery retry-bound retry-given backoff no-lost-job not-early fencing",
        False,
    ),
    (_as_failed, "retry-bound stale-recovery no-lost-job", False),
    (_counted, "retry-bound retry-given stale-recovery no-lost-job", False),
    (_null_safe, _LOST, False),
    (_once, "claim-limit order no-starvation", False),
    (_ordered, "order steady-cost no-starvation", False),
    (_in_one_order, "no-deadlock", False),
    (_capped, "backoff no-lost-job", False),
    (_short, "backoff", False),
    (_exact, "not-early backoff live-lease stale-recovery server-clock", False),
    (_inserted, "not-early order routing retry-bound retry-given", False),
    (_unlocked, "non-blocking pooler-safe no-deadlock", False),
    (_without_cte, "backoff non-blocking no-deadlock no-lost-job stale-recovery", True),
    (
        _dropped,
        f"{_LOST} order fencing live-lease not-early routing steady-cost",
        True,
    ),
    (_kept, "backoff retry-bound retry-given final-state fencing stale-recovery", True),
    (_turned, "no-lost-job retry-bound retry-given not-early live-lease", True),
)
"""Each form with the guarantees that it may mend, and whether it takes something away."""
