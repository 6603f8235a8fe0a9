"""A queue's own SQL with one change each."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import NamedTuple, TypeAlias

from sqlglot import exp
from sqlglot.errors import SqlglotError

from queueproof.advice.clauses import changes
from queueproof.errors import QueueError, QueueproofError, Source, nearest
from queueproof.queues import sqltext
from queueproof.queues.block import Block, Statement
from queueproof.queues.model import Queue
from queueproof.queues.resolve import equivalents
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltree import Parsed, applied, quoted, sites
from queueproof.schedule.programs import DoKind


@dataclass(frozen=True, slots=True)
class Mutant:
    """A queue with one defect."""

    name: str  # stable: `claim: SKIP LOCKED dropped`
    queue: SqlFileQueue  # named like the original
    diff: str  # the lines that differ, each with its sign
    unused: str = ""  # why it cannot matter: it only touches what nothing reads; or nothing
    through: DoKind | None = None  # the operation by which alone it can show; None: any run


class Equivalent(NamedTuple):
    """The reason why a mutant cannot matter, and where it stands."""

    reason: str
    source: Source


@dataclass(frozen=True, slots=True)
class Mutants:
    """The defects that can be planted in a queue."""

    mutants: Sequence[Mutant]  # each with a name of its own and SQL of its own
    unread: Sequence[str]  # sentences on SQL that was left as it is, and why
    equivalents: Mapping[str, Equivalent]  # what the file beside it declares, by mutants' names


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
        """The arguments that the original takes."""
        return self._original.takes(operation)


def mutants_of(queue: Queue) -> Mutants:
    """Plant every defect that there is an operator for, one at a time, in a queue file."""
    if not isinstance(queue, SqlFileQueue):
        raise QueueproofError(f"mutate takes a queue file (.sql): {queue.name} is none")
    mutants: list[Mutant] = []
    unread: list[str] = []
    names: Counter[str] = Counter()
    digests = {MutatedQueue(queue, queue.blocks["claim"]).digest}
    unused = _written_only(queue)
    # What no run does to bring its jobs to their end.
    apart: list[DoKind] = ["fail", "heartbeat", "cleanup", "complete_and_claim"]
    apart += ["complete_many"] if "complete" in queue.offers else []
    for block in queue.blocks.values():
        through = next((kind for kind in apart if kind == block.name), None)
        for what, statements, column in (*_changed(block, unread), *_shortened(block)):
            mutated = MutatedQueue(queue, replace(block, statements=statements))
            if mutated.digest in digests:
                continue
            digests.add(mutated.digest)
            names[what] += 1
            name = what if names[what] == 1 else f"{what} ({names[what]})"
            reason = f"nothing reads {column}" if column in unused else ""
            diff = _diff(block.statements, statements)
            mutants.append(Mutant(name, mutated, diff, reason, through))
    return Mutants(mutants, unread, _equivalents(queue, [mutant.name for mutant in mutants]))


_Mutation: TypeAlias = tuple[str, tuple[Statement, ...], str]
"""A mutant's name, its block's statements, and the column that they no longer assign, if any."""


def _changed(block: Block, unread: list[str]) -> Iterator[_Mutation]:
    """The mutations inside a block's statements; what cannot be read is noted."""
    for index, statement in enumerate(block.statements):
        for label, start, text in sites(block, statement.text):
            try:
                found = list(changes(Parsed(text)))
            except SqlglotError:
                unread.append(f"{label}: {quoted(text)} was not mutated: it cannot be parsed")
                continue
            for change in found:
                new = applied(statement.text, [edit.moved(start) for edit in change.edits])
                names = sqltext.parameters(sqltext.tokens(new))
                left = {name: statement.parameters[name] for name in names}
                statements = list(block.statements)
                statements[index] = replace(statement, text=new, parameters=left)
                yield f"{label}: {change.what}", tuple(statements), change.column


def _shortened(block: Block) -> Iterator[_Mutation]:
    """The block without one of its statements; BEGIN and its COMMIT go together."""
    if block.name == "schema" or len(block.statements) == 1:
        return
    words = [statement.word for statement in block.statements]
    opened: int | None = None
    dropped: list[tuple[str, frozenset[int]]] = []
    for index, word in enumerate(words):
        if word in sqltext.BEGINS:
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
            for _, _, text in sites(block, statement.text):
                with suppress(SqlglotError):
                    for update in Parsed(text).tree.find_all(exp.Update):
                        targets.update(part.this.name for part in update.expressions)
    if uses.keys() & {"old", "new"}:
        return frozenset()
    return frozenset(column for column, n in targets.items() if uses[column] == n + 1)


def _equivalents(queue: SqlFileQueue, names: Sequence[str]) -> dict[str, Equivalent]:
    """The mutants that are known to be no defects, from the file beside the queue's.

    `jobs.equivalent.toml` maps mutants' names to the reason that they cannot matter.
    """
    path = equivalents(queue)
    try:
        text = path.read_text(encoding="utf-8")
        known = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise QueueError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise QueueError(f"{path} is not TOML: {error}") from None
    found: dict[str, Equivalent] = {}
    for name, reason in known.items():
        lines = (number for number, line in enumerate(text.splitlines(), 1) if name in line)
        source = Source(path, next(lines, 1))
        if name not in names:
            raise QueueError(f"no mutant is named {name!r}{nearest(name, names)}", source)
        if not isinstance(reason, str) or not reason.strip():
            raise QueueError(f"{name!r} has no reason; write why it cannot matter", source)
        found[name] = Equivalent(reason, source)
    return found
