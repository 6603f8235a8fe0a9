"""Does green mean something? Defects planted one by one in a queue's own SQL.

A mutant is the queue with one change: a lock, a condition, an ordering, an assignment or a limit
less, a comparison turned. Each that no guarantee kills is either equivalent, or a defect that a
check of this queue would not have found (https://en.wikipedia.org/wiki/Mutation_testing).
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.errors import QueueError, QueueproofError, Source, nearest
from queueproof.examine.check import first_flaw
from queueproof.examine.processes import lent_server, processes
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.postgres import open_server
from queueproof.queues import sqltext
from queueproof.queues.block import Block, Statement
from queueproof.queues.model import Queue
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltree import Edit, Parsed, Span, applied, quoted, sites
from queueproof.report.card import Card, MutantJudgement
from queueproof.run.open import open_lab
from queueproof.schedule.programs import DoKind


class Change(NamedTuple):
    """One mutation of a statement.

    Attributes:
        what: Its name, such as `SKIP LOCKED dropped`.
        edits: Apart from each other, in order.
        column: The column that is not assigned any more, where that is the mutation.
    """

    what: str
    edits: tuple[Edit, ...]
    column: str = ""

    def apply(self, text: str) -> str:
        """The statement with the change made."""
        return applied(text, self.edits)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A queue with one defect.

    Attributes:
        name: Stable: `claim: SKIP LOCKED dropped`.
        queue: Named like the original.
        diff: The lines that differ, each with its sign.
        unused: Why it cannot matter: it only touches what nothing in the file reads; or nothing.
        through: The operation by which alone it can show; None: any run may do what it changes.
    """

    name: str
    queue: SqlFileQueue
    diff: str
    unused: str = ""
    through: DoKind | None = None


@dataclass(frozen=True, slots=True)
class Mutants:
    """What can be planted in a queue.

    Attributes:
        mutants: Each with a name of its own and SQL of its own.
        unread: Sentences on SQL that was left as it is, and why.
        equivalents: What the file beside the queue's declares: name to reason.
    """

    mutants: Sequence[Mutant]
    unread: Sequence[str]
    equivalents: Mapping[str, str]


# --- mutants of a queue -------------------------------------------------------------------------


class MutatedQueue(SqlFileQueue):
    """A queue with one block changed, which still takes what the original takes.

    Otherwise a mutant that has lost `AND queue = :queue` would not offer queues any more, and
    nothing would be asked of them.
    """

    def __init__(self, original: SqlFileQueue, block: Block) -> None:
        vars(self).update(vars(original))
        self._original = original
        self.blocks = {**original.blocks, block.name: block}
        texts = (statement.text for one in self.blocks.values() for statement in one.statements)
        self.digest = hashlib.sha256(";\n".join(texts).encode()).hexdigest()[:12]

    def takes(self, operation: str) -> frozenset[str]:
        """Which arguments the original takes."""
        return self._original.takes(operation)


def mutants_of(queue: Queue) -> Mutants:
    """Plant every defect that there is an operator for, one at a time.

    Args:
        queue: From an SQL file.

    Raises:
        QueueproofError: It is not, or the file with its equivalent mutants is no good.
    """
    if not isinstance(queue, SqlFileQueue):
        raise QueueproofError(f"{queue.name}: --mutate changes SQL, and this is no SQL file")
    mutants: list[Mutant] = []
    unread: list[str] = []
    names: Counter[str] = Counter()
    digests = {MutatedQueue(queue, queue.blocks["claim"]).digest}
    unused = _written_only(queue)
    for block in queue.blocks.values():
        found = [*_changed(block, unread), *_shortened(block)]
        for what, statements, column in found:
            mutated = MutatedQueue(queue, replace(block, statements=statements))
            if mutated.digest in digests:
                continue
            digests.add(mutated.digest)
            names[what] += 1
            name = what if names[what] == 1 else f"{what} ({names[what]})"
            reason = f"nothing reads {column}" if column in unused else ""
            diff = _diff(block.statements, statements)
            mutants.append(Mutant(name, mutated, diff, reason, _through(queue, block)))
    return Mutants(mutants, unread, _equivalents(queue, [mutant.name for mutant in mutants]))


def _through(queue: SqlFileQueue, block: Block) -> DoKind | None:
    """A block's operation, where no run does it to bring its jobs to their end."""
    apart: list[DoKind] = ["fail", "heartbeat", "cleanup", "complete_and_claim"]
    if "complete" in queue.offers:
        apart.append("complete_many")
    return next((kind for kind in apart if kind == block.name), None)


_Mutation: TypeAlias = tuple[str, tuple[Statement, ...], str]
"""A mutant's name, its block's statements, and the column that they no longer assign, if any."""


def _changed(block: Block, unread: list[str]) -> Iterator[_Mutation]:
    """The mutations inside a block's statements; what cannot be read is noted."""
    for index, statement in enumerate(block.statements):
        for label, site in sites(block, statement.text):
            text = statement.text[site.start : site.end]
            try:
                found = list(changes(Parsed(text)))
            except SqlglotError:
                unread.append(f"{label}: {quoted(text)} was not mutated: it cannot be parsed")
                continue
            for change in found:
                mutated = change.apply(text)
                whole = statement.text[: site.start] + mutated + statement.text[site.end :]
                statements = (
                    *block.statements[:index],
                    _rewritten(statement, whole),
                    *block.statements[index + 1 :],
                )
                yield f"{label}: {change.what}", statements, change.column


def _rewritten(statement: Statement, text: str) -> Statement:
    names = sqltext.compile_statement(text, move_clock=False).names
    return replace(
        statement, text=text, parameters={name: statement.parameters[name] for name in names}
    )


def _shortened(block: Block) -> Iterator[_Mutation]:
    """The block without one of its statements; BEGIN and its COMMIT go together."""
    if block.name == "schema" or len(block.statements) == 1:
        return
    words = [sqltext.first_keyword(statement.text) for statement in block.statements]
    opened: int | None = None
    dropped: list[tuple[str, frozenset[int]]] = []
    for index, word in enumerate(words):
        if word in {"BEGIN", "START"}:
            opened = index
        elif word in {"COMMIT", "END"} and opened is not None:
            dropped.append((f"{words[opened]} and {word}", frozenset({opened, index})))
            opened = None
        else:
            dropped.append((quoted(block.statements[index].text), frozenset({index})))
    if opened is not None:
        dropped.append((words[opened], frozenset({opened})))
    for what, gone in dropped:
        kept = tuple(s for index, s in enumerate(block.statements) if index not in gone)
        if kept:
            yield f"{block.name}: {what} dropped", kept, ""


def _diff(before: Sequence[Statement], after: Sequence[Statement]) -> str:
    one, other = (
        [line.rstrip() for statement in side for line in f"{statement.text};".splitlines()]
        for side in (before, after)
    )
    found = unified_diff(one, other, n=0, lineterm="")
    return "\n".join(line for line in found if not line.startswith(("---", "+++", "@@")))


def _written_only(queue: SqlFileQueue) -> frozenset[str]:
    """The columns that the file defines once and sets, and never reads.

    Where a whole row is read (`*`, OLD, NEW) no column is taken for unread.
    """
    uses: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    for block in queue.blocks.values():
        for statement in block.statements:
            before = ""
            for token in sqltext.tokens(statement.text):
                if token.raw == "*" and before in {"SELECT", "RETURNING", "DISTINCT", ",", "."}:
                    return frozenset()
                before = token.raw.upper()
                uses.update([token.name] if token.name else re.findall(r"\w+", token.raw.lower()))
            for _, site in sites(block, statement.text):
                targets.update(_targets(statement.text[site.start : site.end]))
    if uses.keys() & {"old", "new"}:
        return frozenset()
    return frozenset(column for column, n in targets.items() if uses[column] == n + 1)


def _targets(text: str) -> list[str]:
    try:
        tree = Parsed(text).tree
    except SqlglotError:
        return []
    return [part.this.name for one in tree.find_all(exp.Update) for part in one.expressions]


# --- mutations ----------------------------------------------------------------------------------


def changes(parsed: Parsed) -> Iterator[Change]:
    """Every mutation of one statement."""
    for operator in _OPERATORS:
        yield from operator(parsed)


def _locks(parsed: Parsed) -> Iterator[Change]:
    for lock in parsed.tree.find_all(exp.Lock):
        span = parsed.span(lock)
        ending = parsed.tokens(span)
        if lock.args["wait"] is False:
            skip = Span(ending[-2].start, span.end)
            yield Change("SKIP LOCKED dropped", (parsed.clause(skip),))
        elif lock.args["wait"] is True:
            yield Change("NOWAIT dropped", (parsed.clause(ending[-1]),))
        yield Change(f"{quoted(parsed.source(span))} dropped", (parsed.clause(span),))


def _orders(parsed: Parsed) -> Iterator[Change]:
    for order in parsed.tree.find_all(exp.Order):
        span = parsed.span(order)
        yield Change("ORDER BY dropped", (parsed.clause(span),))
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
            target = part.this.name or quoted(parsed.source(span))
            what = f"SET {target} dropped"
            if len(parts) > 1:
                yield Change(what, (parsed.without(parts, index),), part.this.name)
            elif equals is not None and isinstance(setter, exp.Update):
                # SET needs one: the column keeps its value.
                column = parsed.text[span.start : equals.start].rstrip()
                edit = Edit(Span(equals.end, span.end), f" {column}")
                yield Change(what, (edit,), part.this.name)


def _limits(parsed: Parsed) -> Iterator[Change]:
    for limit in parsed.tree.find_all(exp.Limit, exp.Fetch):
        yield Change("LIMIT dropped", (parsed.clause(parsed.span(limit)),))


def _materialized(parsed: Parsed) -> Iterator[Change]:
    for cte in parsed.tree.find_all(exp.CTE):
        word = parsed.outermost(parsed.span(cte), frozenset({"MATERIALIZED"}))
        if cte.args["materialized"] and word is not None:
            yield Change("MATERIALIZED dropped", (parsed.clause(word),))


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
            opening = Edit(Span(equals.start, right[3].end), "IN (")
            yield Change(what, (opening, Edit(right[-1])))
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


_OPERATORS = (
    _locks,
    _orders,
    conditions,
    comparisons,
    assignments,
    _limits,
    _materialized,
    _limits_in_place,
)


# --- verdicts -----------------------------------------------------------------------------------


def _equivalents(queue: SqlFileQueue, names: Sequence[str]) -> dict[str, str]:
    """The mutants that are known to be no defects, from the file beside the queue's.

    `my_queue.equivalent.toml` maps mutants' names to the reason that they cannot matter.

    Raises:
        QueueError: The file is malformed, or names a mutant that there is none.
    """
    path = _equivalents_path(queue)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise QueueError(f"{path} cannot be read: {error}") from None
    try:
        found = tomllib.loads(text)
    except ValueError as error:
        raise QueueError(f"{path} is not TOML: {error}") from None
    for name, reason in found.items():
        if name not in names:
            message = f"no mutant is named {name!r}{nearest(name, names)}"
            raise QueueError(message, _entry(path, text, name))
        if not isinstance(reason, str) or not reason.strip():
            message = f"{name!r} has no reason; write why it cannot matter"
            raise QueueError(message, _entry(path, text, name))
    return found


def _equivalents_path(queue: SqlFileQueue) -> Path:
    return Path(queue.name).with_suffix(".equivalent.toml")


def _entry(path: Path, text: str, name: str) -> Source:
    lines = (number for number, line in enumerate(text.splitlines(), 1) if name in line)
    return Source(path, next(lines, 1))


def judge(
    mutants: Mutants,
    card: Card,
    *,
    postgres: str | None,
    trust: bool = False,
    profile: str,
) -> Generator[Card]:
    """See which mutants are found by a check of the guarantees that the queue itself keeps.

    Args:
        mutants: Of the queue.
        card: The queue's own.
        postgres: As for `open_server`.
        trust: The same.
        profile: As for `check_queue`.

    Yields:
        The card without a mutant, and then each time with one more on it.

    Raises:
        QueueError: A mutant that is declared equivalent was killed.
    """
    wanted = [judgement.id for judgement in card.guarantees if judgement.verdict == "holds"]
    if not wanted:
        unread = [*mutants.unread, "No guarantee holds, so none could find a mutant."]
        yield replace(card, mutants=[], not_mutated=unread)
        return
    found: list[MutantJudgement] = []
    yield replace(card, mutants=[], not_mutated=mutants.unread)
    unseen = _unseen(card)
    enough = "mutants" if profile == "quick" else profile
    look = partial(_look, wanted=wanted, seed=card.seed, profile=enough)
    with open_server(postgres, trust=trust) as server, processes(server) as pool:
        for mutant, killer in zip(mutants.mutants, pool.map(look, mutants.mutants), strict=True):
            known = mutants.equivalents.get(mutant.name)
            found.append(_verdict(mutant, killer, known, unseen))
            yield replace(card, mutants=[*found], not_mutated=mutants.unread)


class _Unseen(NamedTuple):
    """What to say of a mutant that nothing finds."""

    verdict: Literal["survived", "unjudged"]
    reason: str


def _unseen(card: Card) -> _Unseen:
    """A mutant that nothing found, which only a check of everything can say."""
    asked = {judgement.id: judgement.verdict for judgement in card.guarantees}
    if len(asked) < len(CATALOGUE):
        left_out = f"{len(CATALOGUE) - len(asked)} of {len(CATALOGUE)} guarantees were not asked"
        return _Unseen("unjudged", f"not found by what was asked; {left_out}")
    reason = "every guarantee that holds still does"
    if missing := [name for name, verdict in asked.items() if verdict == "not-offered"]:
        reason += f"; not offered: {', '.join(missing)}"
    silent = [name for name, verdict in asked.items() if verdict not in {"holds", "not-offered"}]
    if silent:
        reason += f"; did not hold to begin with: {', '.join(silent)}"
    return _Unseen("survived", reason)


def _verdict(
    mutant: Mutant, killer: Killer | None, known: str | None, unseen: _Unseen
) -> MutantJudgement:
    if killer is None:
        reason = known or mutant.unused
        if reason:
            return MutantJudgement(mutant.name, "equivalent", None, reason, mutant.diff)
        return MutantJudgement(mutant.name, unseen.verdict, None, unseen.reason, mutant.diff)
    if known:
        path = _equivalents_path(mutant.queue)
        why = f"{killer.by}: {killer.reason}" if killer.by else killer.reason
        message = f"{mutant.name!r} is not equivalent, so take it out: {why}"
        raise QueueError(message, _entry(path, path.read_text(encoding="utf-8"), mutant.name))
    return MutantJudgement(mutant.name, "killed", killer.by, killer.reason, mutant.diff)


class Killer(NamedTuple):
    """What a check finds wrong with a mutant.

    Attributes:
        by: The guarantee; None where the mutant does not work at all.
        reason: One sentence.
    """

    by: str | None
    reason: str


def _look(
    mutant: Mutant,
    *,
    wanted: Sequence[str],
    seed: int,
    profile: str,
) -> Killer | None:
    if mutant.unused:
        return None
    try:
        with open_lab(mutant.queue, lent_server()) as lab:
            flaw = first_flaw(
                lab, select(wanted), seed=seed, profile=profile, through=mutant.through
            )
    except QueueError as error:
        return Killer(None, f"it does not work: {error}")
    if flaw is None:
        return None
    doubt = "inconclusive: " if flaw.verdict == "inconclusive" else ""
    return Killer(flaw.id, doubt + flaw.reason)
