"""A queue from one SQL file: a TOML header and named blocks of statements."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from queueproof.errors import FormatError, QueueError, Source
from queueproof.queues import sqltext
from queueproof.queues.block import Block, StateNames, begin
from queueproof.queues.facts import HEADER_KEYS, duration
from queueproof.queues.filetext import FENCE, OPERATION_OF, QueueText, blocks_of, read, reject_lease
from queueproof.queues.header import facts_of, files_of, header_lines, including, whole
from queueproof.queues.model import NOW, OPERATIONS, Operation, Queue, State

_RANDOM = re.compile(r"\brandom(_normal)?\s*\(", re.IGNORECASE)
# Functions and views by which SQL learns which backends there are.
_BACKENDS = re.compile(r"\bpg_\w*(stat_|backend|locks|blocking)|\binet_client", re.IGNORECASE)
# What all databases of a server have in common; and functions that nobody here can read.
_CLUSTER = re.compile(
    rf"{_BACKENDS.pattern}|\bpg_(?!\w*advisory)\w*(xact|snapshot|wal|lsn|replica|prepared|control|postmaster|notif)"
    r"|\btxid_|\bxid8?\b|\bxmin\b|\bxmax\b|\bextension\b",
    re.IGNORECASE,
)
# What neither begins nor ends a transaction.
_JOINING = frozenset({"INSERT", "WITH", "SELECT", "UPDATE", "DELETE", "MERGE"})
# What a session keeps after its transaction, beside settings; limits of its own, which what empties
# it may run into; what a plan holds still though it is the time; and functions that nobody here can
# read.
_KEPT = re.compile(
    r"advisory|_timeout\b|\bextension\b|\b(pg_)?temp(orary)?\b|\b(currval|lastval)\b|\bcache\s+(?!1\b)\d"
    r"|\bwith\s+hold\b|\b(listen|prepare|deallocate|discard|role|authorization)\b"
    r"|\bimmutable\b|'\s*(now|today|tomorrow|yesterday)\b",
    re.IGNORECASE,
)

_BREAKS = re.compile(r"\s*\[\s*breaks\s*\]")
# What no span that stands there bounds: a power, months and years, ISO 8601.
_ENDLESS = re.compile(
    r"\^|<<|\b(?:d?pow(?:er)?|exp)\s*\(|\b(?:mons?|months?|yrs?|years?)\b|'P[\dT]", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e\d+)?(?![\w.])", re.IGNORECASE)
_LITERAL = re.compile(r"'([^']+)'")
_UNIT = re.compile(r"\b(?:weeks?|days?|hours?|mins?|minutes?)\b", re.IGNORECASE)
_OF_OTHERS = frozenset({"fail", "cleanup", "jobs"})  # who has failed, has ended, or is only listed


def load(path: Path | str) -> SqlFileQueue:
    """Read a queue file, which messages name as it is given here.

    Raises:
        QueueError: It cannot be read or breaks the format; the message says where and what to do.
    """
    return load_text(read(Path(path)), path)


def load_text(text: str, path: Path | str) -> SqlFileQueue:
    """Read a queue from the text of its file, as `load` does; its path leads to included ones."""
    file = whole(QueueText(text, Path(path)))
    keys = header_lines(file)
    header = facts_of(keys)
    blocks = blocks_of(file)
    # A glob after a name may match it again: ["first.sql", "*.sql"].
    files: dict[str, QueueText] = {}
    if patterns := header.pop("include", None):
        for pattern in patterns:
            for one in files_of(keys, pattern):
                files.setdefault(os.path.realpath(one.path), one)
        blocks["schema"] = including(keys, files.values(), blocks.get("schema"))
    hints = {"schema": '#`, or include = ["schema.sql"] in the header'}
    for name in ("schema", "enqueue", "claim"):
        if name not in blocks:
            hint = hints.get(name, "`")
            message = f"there is no block {name}; write `-- name: {name}{hint}"
            raise FormatError(message, file.source(0))
    both = blocks.get("complete_and_claim")
    if both is not None and blocks.keys().isdisjoint({"complete", "complete_many"}):
        message = "complete_and_claim needs complete or complete_many, for a worker's last batch"
        raise FormatError(message, both.source)
    for statement in blocks["jobs"].statements if "jobs" in blocks else ():
        if sqltext.changes_rows(statement.text):
            message = "jobs only reads: what somebody sees of the queue changes nothing in it"
            raise FormatError(message, statement.source)
    if header.get("lease", "session") == "session":
        reject_lease(blocks.values())
    # What is sent is the file's too: a token must not outlive a change of it.
    queue = SqlFileQueue(str(path), file, header, blocks, [one.text for one in files.values()])
    queue.own = text
    queue.files = [*file.paths, *(one.path for one in files.values())]
    return queue


def _declaring(file: QueueText, reasons: Mapping[str, str]) -> str:
    """A file's text with further breaks; comments, order and layout stay as they are."""
    header = header_lines(file)
    fences = [start for start, _ in file.comments(FENCE)]
    tables = [n for n, line in enumerate(header.lines) if _BREAKS.match(line)]
    known = load_text(file.text, file.path).breaks
    new = reasons if tables else {**known, **reasons}  # a table here goes before one elsewhere
    entries = [f"{name} = {json.dumps(why, ensure_ascii=False)}" for name, why in new.items()]
    if not fences:
        at, lines = 0, ["/// queue", "[breaks]", *entries, "///"]
    elif not tables:
        at, lines = file.text.rindex("\n", 0, fences[1]) + 1, ["[breaks]", *entries]
    else:
        after = range(tables[0] + 1, len(header.lines))
        end = next((n for n in after if header.lines[n].lstrip().startswith("[")), after.stop)
        written = [line.lstrip()[:1] not in {"", "#"} for line in header.lines]
        last = next(n for n in reversed(range(end)) if written[n])
        at, lines = file.text.index("\n", header.starts[last]) + 1, entries
    added = "".join(f"-- {line}\n" for line in lines) + ("" if fences else "\n")
    text = file.text[:at] + added + file.text[at:]
    wanted = {**known, **reasons}
    with suppress(QueueError):
        if load_text(text, file.path).breaks == wanted:
            return text
    how = "write it as a table, a line for each entry"
    raise QueueError(f"no entry can be added to [breaks]; {how}", file.source(at))


class SqlFileQueue(Queue):
    """A queue whose operations are the blocks of an SQL file."""

    name: str = ""  # the path as it was given
    files: Sequence[Path] = ()  # the file, and those that it extends or includes
    own: str  # the text of the file itself

    def __init__(
        self,
        name: str,
        file: QueueText,
        header: Mapping[str, Any],
        blocks: Mapping[str, Block],
        beside: Sequence[str],
    ) -> None:
        """Take the parts of a file that `load` has checked."""
        # The queue's own names, and what each stands for.
        self.states: Mapping[str, State] = header.get("states", {})
        for key, value in header.items():
            if key in HEADER_KEYS:
                setattr(self, key, value)
        self.blocks = blocks  # by name, in the file's order
        everything = "\0".join([file.text, *beside])
        self.sees_backends = bool(_BACKENDS.search(everything))
        self.sees_cluster = bool(_CLUSTER.search(everything))
        self.keeps_state = bool(_KEPT.search(everything))
        self.draws_lots = bool(_RANDOM.search(everything))
        self.sends_time = any(NOW in block.used for block in blocks.values())
        self.longest_span = _longest_span(blocks.values())
        self.joins_transactions = _JOINING.issuperset(
            one.word for one in blocks["enqueue"].statements
        )
        self.written = everything
        self.name = name
        self.file = file  # with what it extends in its place
        self.whole = file.text

    @cached_property
    def offers(self) -> frozenset[str]:
        """The operations that this queue has."""
        return frozenset(OPERATION_OF[name] for name in self.blocks)

    def source_of(self, operation: str) -> Source | None:
        """The place where the operation's block begins."""
        return self._block(operation).source

    def source_of_break(self, guarantee: str) -> Source | None:
        """The line of [breaks] that declares it."""
        return self._source_in("breaks", guarantee)

    def _source_in(self, table: str, key: str) -> Source:
        return self.file.source(header_lines(self.file).offset(key, table))

    def with_breaks(self, reasons: Mapping[str, str]) -> str:
        """The file with further breaks in its header, and nothing else changed."""
        return _declaring(QueueText(self.own, Path(self.name)), reasons)

    def takes(self, operation: str) -> frozenset[str]:
        """Arguments of `OPERATIONS[operation]` that the block uses; none without a block."""
        if operation != "install" and operation not in self.blocks:
            return frozenset()
        used = self._block(operation).used.keys()
        job = OPERATIONS[operation] & {"job", "jobs"}
        own = (OPERATIONS[operation] | {NOW}) & used
        return own | job if used - own else own

    def begin(self, operation: str, **arguments: object) -> Operation[Any]:
        """Begin an operation with those of the arguments that it takes."""
        takes = self.takes(operation) - {"job", "jobs"}
        own = {name: self._argument(name, arguments) for name in takes}
        states = StateNames(self.states, partial(self._source_in, "states"))
        return begin(self._block(operation), operation, own, arguments, states)

    def _block(self, operation: str) -> Block:
        return self.blocks["schema" if operation == "install" else operation]

    def _argument(self, name: str, arguments: Mapping[str, object]) -> object:
        if name == NOW and name not in arguments:
            return datetime.now(UTC)  # where nobody moves a clock
        # Where the header is silent the file's author counts on 3, whatever a caller has in mind.
        if name == "max_attempts" and self.max_attempts is None:
            return 3
        declared = {"max_attempts": self.max_attempts, "lease": self.lease_time}
        if name in declared and arguments.get(name) is None:
            return declared[name]
        return arguments[name]


def _longest_span(blocks: Iterable[Block]) -> float | None:
    """Seconds of the longest span for which SQL may put off a dead worker's job.

    That is the longest interval as often as the largest number says: which of them belong together
    nobody can tell, and a setting may stand in a table. None where no span there bounds it.
    """
    own = [block for block in blocks if block.name not in _OF_OTHERS]
    text = "\n".join(statement.text for block in own for statement in block.statements)
    if _ENDLESS.search(text):
        return None
    units = [f"1 {unit}" for unit in _UNIT.findall(text)]  # `days => n`, `n || ' days'`
    spans = [1.0]
    for span in (*_LITERAL.findall(text), *units):
        with suppress(ValueError):
            spans.append(duration(span).total_seconds())
            text = text.replace(f"'{span}'", "")  # its number counts once
    return max(spans) * max([1.0, *map(float, _NUMBER.findall(text))])
