"""A queue from one SQL file: a TOML header and named blocks of statements."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, get_args

from queueproof.errors import COPYING, FormatError, QueueError, Source
from queueproof.queues import included, sqltext
from queueproof.queues.ids import IDS
from queueproof.queues.model import (
    OPERATIONS,
    VOID,
    Claim,
    JobRow,
    Operation,
    Order,
    Parameter,
    Queue,
    Result,
    State,
    Step,
    Value,
    Values,
    ids_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Mode: TypeAlias = Literal["", "!", "#"]

# Functions and views by which SQL learns which backends there are.
_BACKENDS = re.compile(r"\bpg_\w*(stat_|backend|locks|blocking)|\binet_client", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a block: one step of the operation.

    Attributes:
        text: As it stands in the file, with its `:name`s.
        source: Where it begins.
        parameters: Each parameter and where it is first used.
    """

    text: str
    source: Source
    parameters: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Block:
    """A named block.

    Attributes:
        name: As in the file: `schema`, `enqueue`, ...
        line: Line of `-- name:`.
        mode: `!` counts the rows affected, `#` marks the schema.
        parameters: The declared list, None where there is none.
        statements: At least one.
        path: The file that it stands in; that of a statement may be an included one.
    """

    name: str
    line: int
    mode: Mode
    parameters: tuple[str, ...] | None
    statements: tuple[Statement, ...]
    path: Path

    @property
    def used(self) -> dict[str, Source]:
        """Each parameter and where it is first used."""
        uses: dict[str, Source] = {}
        for statement in self.statements:
            uses = {**statement.parameters, **uses}
        return uses


def load(path: Path | str) -> SqlFileQueue:
    """Read a queue file.

    Args:
        path: The file; messages name it as it is given here.

    Raises:
        QueueError: It cannot be read or breaks the format; the message says where and what to do.
    """
    return load_text(_read(Path(path)), path)


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise QueueError(f"{path}: {error.strerror or error}") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = "the file is not UTF-8; save it as UTF-8"
        raise QueueError(message, Source(path, line)) from None


def load_text(text: str, path: Path | str) -> SqlFileQueue:
    """Read a queue from the text of its file.

    Args:
        text: What stands in the file.
        path: Its name in messages, and where the paths of included files begin.

    Raises:
        QueueError: The text breaks the format; the message says where and what to do.
    """
    file = _File(text, Path(path))
    keys = _header_lines(file)
    header = _header(keys)
    blocks = {block.name: block for block in _blocks(file)}
    files: list[_File] = []
    if patterns := header.pop("include", None):
        files = [one for pattern in patterns for one in _files(keys, pattern)]
        blocks["schema"] = _including(keys, files, blocks.get("schema"))
    for name in ("schema", "enqueue", "claim"):
        if name not in blocks:
            raise FormatError(f"there is no block {name}; write `-- name: {name}`", file.source(0))
    both = blocks.get("complete_and_claim")
    if both is not None and blocks.keys().isdisjoint({"complete", "complete_many"}):
        message = "complete_and_claim needs complete or complete_many, for a worker's last batch"
        raise FormatError(message, _source(both))
    if header.get("lease", "session") == "session":
        _reject_lease(blocks.values())
    # What is sent is the file's too: a token must not outlive a change of it.
    return SqlFileQueue(str(path), text, header, blocks, [one.text for one in files])


class SqlFileQueue(Queue):
    """A queue whose operations are the blocks of an SQL file.

    Attributes:
        blocks: The blocks by name, in the file's order.
    """

    def __init__(
        self,
        name: str,
        text: str,
        header: Mapping[str, Any],
        blocks: Mapping[str, Block],
        beside: Sequence[str] = (),
    ) -> None:
        """Take the parts of a file that `load` has checked."""
        self._states: Mapping[str, State] = header.get("states", {})
        for key, value in header.items():
            if key in HEADER_KEYS:
                setattr(self, key, value)
        self.blocks = blocks
        everything = "\0".join([text, *beside])
        self.sees_backends = bool(_BACKENDS.search(everything))
        self.digest = hashlib.sha256(everything.encode()).hexdigest()[:12]
        self._name = name
        self._text = text

    @property
    def name(self) -> str:
        """The path as it was given."""
        return self._name

    @cached_property
    def offers(self) -> frozenset[str]:
        """The operations that this queue has."""
        return frozenset(_OPERATION_OF[name] for name in self.blocks)

    def source_of(self, operation: str) -> Source | None:
        """Where the operation's block begins."""
        return _source(self._block(operation))

    def source_of_break(self, guarantee: str) -> Source | None:
        """The line of [breaks] that declares it."""
        file = _File(self._text, Path(self._name))
        header = _header_lines(file)
        return file.source(header.starts[_entry(header, guarantee)])

    def with_breaks(self, reasons: Mapping[str, str]) -> str:
        """The file with further breaks in its header, and nothing else changed."""
        return _declaring(_File(self._text, Path(self._name)), reasons)

    def takes(self, operation: str) -> frozenset[str]:
        """Which arguments of `OPERATIONS[operation]` the block uses."""
        used = self._block(operation).used.keys()
        job = OPERATIONS[operation] & {"job", "jobs"}
        own = OPERATIONS[operation] & used
        return own | job if used - own else own

    def begin(self, operation: str, **arguments: object) -> Operation[Any]:
        """Begin an operation with those of the arguments that it takes."""
        block = self._block(operation)
        own = {
            name: _bind(name, self._argument(name, arguments))
            for name in self.takes(operation) - {"job", "jobs"}
        }
        match operation, arguments:
            case "complete_many", {"jobs": list() | tuple() as jobs}:
                return _complete_many(block, own, jobs)
            case "complete_and_claim", {"jobs": list() | tuple() as jobs}:
                return _complete_and_claim(block, own, jobs)
            case "heartbeat", {"job": Claim() as job}:
                return _renewed(block, {**job.token, **own}, job)
            case "complete" | "fail", {"job": Claim() as job}:
                return _accepted(block, {**job.token, **own})
            case "jobs", _:
                return _job_rows(block, own, self._states)
            case _:
                return _ANSWERS.get(operation, _accepted)(block, own)

    def _block(self, operation: str) -> Block:
        return self.blocks["schema" if operation == "install" else operation]

    def _argument(self, name: str, arguments: Mapping[str, object]) -> object:
        declared = {"max_attempts": self.max_attempts, "lease": self.lease_time}
        # Where the header is silent the file's author counts on 3, whatever a caller has in mind.
        if name == "max_attempts" and self.max_attempts is None:
            return 3
        if name in declared and arguments.get(name) is None:
            return declared[name]
        return arguments[name]


_BOOL, _INT4, _TEXT, _INTERVAL, _JSONB = 16, 23, 25, 1186, 3802
_OIDS = {
    "limit": _INT4,
    "priority": _INT4,
    "max_attempts": _INT4,
    "payload": _JSONB,
    "delay": _INTERVAL,
    "lease": _INTERVAL,
    "age": _INTERVAL,
}
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})


def _bind(name: str, argument: object) -> Value:
    if isinstance(argument, timedelta):
        argument = f"{argument.total_seconds():.6f}".rstrip("0").rstrip(".") + " seconds"
    text = None if argument is None else str(argument).encode()
    return Value(text, _OIDS.get(name, _TEXT))


class _Outcome(NamedTuple):
    """What a block came to.

    Attributes:
        result: The answer of the last statement that has columns, if any has.
        cut: Whether a statement without rows undid or skipped others: the answer is empty.
        changed: Rows affected by the last statement that changes data, if any does.
    """

    result: Result | None
    cut: bool
    changed: int | None


def _run(block: Block, bindings: Mapping[str, Parameter]) -> Operation[_Outcome]:
    known = dict(bindings)
    answer: Result | None = None
    changed: int | None = None
    for statement in block.statements:
        params = {
            name: _lookup(name, known, block, source)
            for name, source in statement.parameters.items()
        }
        result = yield Step(statement.text, params, statement.source, block=block.name)
        if result.command in _CHANGES:
            changed = result.affected
        if not result.columns:
            continue
        answer = result
        if not result.rows:
            if result.in_transaction:
                yield Step("ROLLBACK", source=statement.source)
            skipped = statement is not block.statements[-1]
            return _Outcome(answer, skipped or result.in_transaction, changed)
        known |= _arrays(result.rows, zip(result.columns, result.oids, strict=True))
    return _Outcome(answer, cut=False, changed=changed)


def _lookup(name: str, known: Mapping[str, Parameter], block: Block, source: Source) -> Parameter:
    if name in known:
        return known[name]
    if not known:
        raise FormatError(f"{block.name} has no parameter :{name}", source)
    message = f"{block.name} has no parameter :{name}, only {_list(known)}; {_nearest(name, known)}"
    raise FormatError(message, source)


def _arrays(
    rows: Sequence[Mapping[str, Value]], columns: Iterable[tuple[str, int]]
) -> dict[str, Values]:
    return {
        f"{column}s": Values(tuple(row[column].text for row in rows), oid)
        for column, oid in columns
        if oid != VOID
    }


def _rows(
    block: Block, outcome: _Outcome, required: Sequence[str]
) -> Sequence[Mapping[str, Value]]:
    """The rows of a block's answer, which must have some columns."""
    if outcome.cut:
        return ()
    columns = outcome.result.columns if outcome.result else ()
    for column in required:
        if column not in columns:
            returned = f"returned {_list(columns)}" if columns else "returned no columns"
            message = f"{block.name} must return a column {column}; it {returned}"
            raise FormatError(message, _source(block))
    return outcome.result.rows if outcome.result else ()


def _source(block: Block) -> Source:
    return Source(block.path, block.line)


def _ids(block: Block, bindings: Mapping[str, Parameter]) -> Operation[list[str]]:
    return ids_of((yield from _claims(block, bindings)))


def _claims(block: Block, bindings: Mapping[str, Parameter]) -> Operation[list[Claim]]:
    rows = _rows(block, (yield from _run(block, bindings)), ["id"])
    return [_claimed(block, row) for row in rows]


def _claimed(block: Block, row: Mapping[str, Value]) -> Claim:
    if row["id"].text is None:
        raise FormatError(f"{block.name} returned a row whose id is NULL", _source(block))
    return Claim(str(row["id"]), dict(row))


def _job_rows(
    block: Block, bindings: Mapping[str, Parameter], states: Mapping[str, State]
) -> Operation[list[JobRow]]:
    rows = _rows(block, (yield from _run(block, bindings)), ["id", "state"])
    return [_job_row(block, row, states) for row in rows]


def _job_row(block: Block, row: Mapping[str, Value], states: Mapping[str, State]) -> JobRow:
    if row["id"].text is None:
        raise FormatError(f"{block.name} returned a row whose id is NULL", _source(block))
    found = str(row["state"])
    state = states.get(found) or next((s for s in get_args(State) if s == found), None)
    if state is None:
        known = _list(get_args(State))
        how = "; a name of your own stands in the header, below [states]"
        raise FormatError(
            f"{block.name} returned the state {found}; use {known}{how}", _source(block)
        )
    attempts = row.get("attempts", Value(None, _INT4))
    try:
        return JobRow(str(row["id"]), state, None if attempts.text is None else int(attempts))
    except ValueError:
        message = f"{block.name} returned the attempts {attempts}, not a whole number"
        raise FormatError(message, _source(block)) from None


def _nothing(block: Block, bindings: Mapping[str, Parameter]) -> Operation[None]:
    yield from _run(block, bindings)


def _changed(block: Block, outcome: _Outcome) -> int:
    """The count of a block with `!`."""
    if outcome.cut:
        return 0
    if outcome.changed is None:
        message = f"{block.name}! changed no data; write INSERT, UPDATE, DELETE or MERGE, or drop !"
        raise FormatError(message, _source(block))
    return outcome.changed


def _promoted(block: Block, bindings: Mapping[str, Parameter]) -> Operation[int | None]:
    outcome = yield from _run(block, bindings)
    return outcome.changed  # a function does not tell


def _accepted(block: Block, bindings: Mapping[str, Parameter]) -> Operation[bool]:
    return _is_accepted(block, (yield from _run(block, bindings)))


def _renewed(
    block: Block, bindings: Mapping[str, Parameter], job: Claim
) -> Operation[bool | Claim]:
    """Whether a heartbeat was accepted; the claim with what replaces its columns, where it did."""
    outcome = yield from _run(block, bindings)
    accepted = _is_accepted(block, outcome)
    if not accepted or outcome.result is None or block.mode == "!":
        return accepted
    rows = outcome.result.rows
    same = [row for row in rows if "id" not in row or str(row["id"]) == job.id]
    new = {name: value for row in same[:1] for name, value in row.items() if name in job.token}
    return replace(job, token={**job.token, **new}) if new else True


def _is_accepted(block: Block, outcome: _Outcome) -> bool:
    if block.mode == "!":
        return _changed(block, outcome) > 0
    if outcome.result is None:
        # Taken literally this rejects every job; the author forgot to say what accepts one.
        message = f"{block.name} returned no columns; add RETURNING, or write {block.name}!"
        raise FormatError(message, _source(block))
    if outcome.cut:
        return False
    if "accepted" in outcome.result.columns:
        return any(_truth(block, "accepted", row) for row in outcome.result.rows)
    return bool(outcome.result.rows)


def _truth(block: Block, column: str, row: Mapping[str, Value]) -> bool:
    """What a column says: a boolean, or a count; NULL is neither yes nor a job."""
    told = row[column]
    if told.text is None or told.oid == _BOOL:
        return told.text == b"t"
    try:
        return int(told) > 0
    except ValueError:
        message = f"{block.name} returned {column} = {told}, neither a boolean nor a count"
        raise FormatError(message, _source(block)) from None


def _complete_many(
    block: Block, own: Mapping[str, Parameter], jobs: Sequence[Claim]
) -> Operation[frozenset[str] | None]:
    if not jobs:
        return frozenset()
    bindings = {**_tokens(jobs), **own}
    if block.mode != "!":
        return frozenset((yield from _ids(block, bindings)))
    count = _changed(block, (yield from _run(block, bindings)))
    whole = {0: frozenset[str](), len(jobs): frozenset(ids_of(jobs))}
    return whole.get(count)


def _tokens(jobs: Sequence[Claim]) -> dict[str, Values]:
    """The columns of some claims as arrays."""
    columns = [(column, value.oid) for column, value in jobs[0].token.items()]
    return _arrays([job.token for job in jobs], columns)


def _complete_and_claim(
    block: Block, own: Mapping[str, Parameter], jobs: Sequence[Claim]
) -> Operation[tuple[frozenset[str], list[Claim]]]:
    bindings = {**_tokens(jobs), **own}
    rows = _rows(block, (yield from _run(block, bindings)), ["id", "completed"])
    accepted: set[str] = set()
    claims: list[Claim] = []
    for row in rows:
        job = _claimed(block, {k: v for k, v in row.items() if k != "completed"})
        if _truth(block, "completed", row):
            accepted.add(job.id)
        else:
            claims.append(job)
    return frozenset(accepted), claims


_ANSWERS: Mapping[str, Callable[[Block, Mapping[str, Parameter]], Operation[Any]]] = {
    "install": _nothing,
    "enqueue": _ids,
    "claim": _claims,
    "recover": _ids,
    "cleanup": _nothing,
    "promote": _promoted,
    "start": _nothing,
}


_OPERATION_OF = {"schema" if name == "install" else name: name for name in OPERATIONS}
_OF_A_JOB = frozenset({"complete", "fail", "heartbeat"})
_OF_A_BATCH = frozenset({"complete_many", "complete_and_claim"})
_MODES: Mapping[str, Mode] = {mode: mode for mode in get_args(Mode)}
_NEED_ROWS = frozenset({"enqueue", "claim", "complete_and_claim", "recover", "jobs"})
_MARKER = re.compile(r"[ \t]*--[ \t]*name[ \t]*:(.*)")
_DECLARATION = re.compile(r"\s*([\w-]+)\s*(?:\(([^()]*)\))?\s*(\S*)\s*")
_FENCE = re.compile(r"[ \t]*--[ \t]*///[ \t]*(.*?)[ \t]*")


class _File:
    """The text of a queue file, and where its top-level comments stand."""

    def __init__(self, text: str, path: Path) -> None:
        self.text = text
        self.path = path
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        if text.startswith("\N{BYTE ORDER MARK}"):
            self.fail(0, "the file begins with a byte order mark; save it as UTF-8 without one")
        if (offset := text.find("\r")) >= 0:
            self.fail(offset, "the line ends with CR; save the file with LF line ends")
        if (offset := text.find("\0")) >= 0:
            self.fail(offset, "a NUL character, which PostgreSQL takes in no statement")

    def source(self, offset: int) -> Source:
        return Source(self.path, bisect_right(self._breaks, offset - 1) + 1)

    def fail(self, offset: int, message: str) -> NoReturn:
        raise FormatError(message, self.source(offset))

    def line_at(self, offset: int) -> tuple[int, str]:
        """Where the line of an offset begins, and the line."""
        start = self.text.rfind("\n", 0, offset) + 1
        return start, self.text[start:].partition("\n")[0]

    def comments(self, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
        """The comments that fill a line and match: where the line begins, and the match."""
        lines = [self.line_at(offset) for offset in self._comments]
        return [(start, m) for start, line in lines if (m := pattern.fullmatch(line))]

    @cached_property
    def _comments(self) -> list[int]:
        try:
            comments = list(sqltext.line_comments(self.text))
        except sqltext.UnterminatedError as error:
            self.fail_unterminated(error.offset)
        for token in sqltext.tokens(self.text):
            # A marker inside a string: its quote is missing, and the next string's closes it.
            if token.kind in sqltext.QUOTED and _MARKER_LINE.search(token.raw):
                self.fail_unterminated(token.start)
        return comments

    def fail_unterminated(self, offset: int) -> NoReturn:
        """Look for the culprit block by block: a missing quote shifts all that follow."""
        starts = [0, *(m.start() for m in _MARKER_LINE.finditer(self.text)), len(self.text)]
        for start, end in pairwise(starts):
            try:
                sqltext.tokens(self.text[start:end])
            except sqltext.UnterminatedError as error:
                offset = start + error.offset
                break
        line = self.line_at(offset)[1].strip()
        self.fail(offset, f"a string, quoted name, dollar quote or comment is never closed: {line}")


_MARKER_LINE = re.compile(rf"^{_MARKER.pattern}$", re.MULTILINE)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _nearest(name: str, names: Iterable[str]) -> str:
    return f"did you mean {get_close_matches(name.lower(), list(names), n=1, cutoff=0)[0]}?"


def _blocks(file: _File) -> list[Block]:
    markers = file.comments(_MARKER)
    found = sqltext.tokens(file.text)
    first = markers[0][0] if markers else len(file.text)
    if found and found[0].start < first:
        file.fail(found[0].start, "text before the first block; begin it with `-- name: schema#`")
    bounds = [*(start for start, _ in markers), len(file.text)]
    blocks: list[Block] = []
    for (start, end), (_, marker) in zip(pairwise(bounds), markers, strict=True):
        block = _block(file, start, marker, end)
        if (same := next((b for b in blocks if b.name == block.name), None)) is not None:
            file.fail(start, f"block {block.name} stands already in line {same.line}")
        blocks.append(block)
    return blocks


def _block(file: _File, start: int, marker: re.Match[str], end: int) -> Block:
    match = _DECLARATION.fullmatch(marker[1])
    if match is None:
        file.fail(start, "write a block's name as `-- name: claim(worker, limit)`")
    name, listed, suffix = match.groups()
    if name not in _OPERATION_OF:
        file.fail(start, f"unknown block {name}; {_nearest(name, _OPERATION_OF)}")
    body = start + marker.end()
    statements = tuple(
        _statement(file, statement.text, body + statement.offset)
        for statement in sqltext.split(file.text[body:end])
    )
    if not statements:
        file.fail(start, f"block {name} is empty")
    parameters = None if listed is None else _parameter_list(file, start, listed)
    line, mode = file.source(start).line, _mode(file, start, name, suffix)
    block = Block(name, line, mode, parameters, statements, file.path)
    _check_parameters(file, start, block)
    return block


def _mode(file: _File, start: int, name: str, suffix: str) -> Mode:
    if suffix == "#" and name != "schema":
        file.fail(start, f"# marks the schema alone; drop it from {name}")
    if suffix == "!" and (name == "schema" or name in _NEED_ROWS):
        answer = "nothing" if name == "schema" else "rows"
        file.fail(start, f"{name} answers {answer}, not a count; drop the !")
    if suffix not in _MODES:
        file.fail(start, f"{suffix} after {name}: only ! (count the rows affected) may stand there")
    return _MODES[suffix]


def _statement(file: _File, text: str, offset: int) -> Statement:
    compiled = sqltext.compile_statement(text, move_clock=False)
    if (place := sqltext.positional(text)) is not None:
        file.fail(offset + place, "parameters have names here: write :limit, not $1")
    if sqltext.copies(text):
        file.fail(offset, COPYING)
    uses = zip(compiled.names, compiled.offsets, strict=True)
    parameters = {name: file.source(offset + use) for name, use in uses}
    return Statement(text, file.source(offset), parameters)


def _parameter_list(file: _File, start: int, listed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listed.split(",")) if listed.strip() else ()
    for position, name in enumerate(names):
        if not name.isidentifier():
            file.fail(start, f"{name or 'nothing'!r} is no parameter name; write (worker, limit)")
        if name in names[:position]:
            file.fail(start, f"parameter {name} is declared twice")
    return names


def _check_parameters(file: _File, start: int, block: Block) -> None:
    own = OPERATIONS[_OPERATION_OF[block.name]] - {"job", "jobs"}
    for step, statement in enumerate(block.statements):
        for name, source in statement.parameters.items():
            if not _may_use(block.name, own, name, first=step == 0):
                raise FormatError(_unknown_parameter(block.name, own, name), source)
    if block.parameters is None:
        return
    for name in block.parameters:
        if name not in block.used:
            others = [used for used in block.used if used not in block.parameters]
            near = f"; {_nearest(name, others)}" if others else "; drop it from the list"
            file.fail(start, f"{block.name} declares {name} and never uses :{name}{near}")
    for name, source in block.used.items():
        if name not in block.parameters:
            message = f"{block.name} uses :{name}; add {name} to its parameter list"
            raise FormatError(message, source)


def _may_use(block: str, own: frozenset[str], name: str, *, first: bool) -> bool:
    """Whether a name can be a parameter as far as the file tells.

    Which columns a claim or an earlier step returns only the server knows.
    """
    if name in own or block in _OF_A_JOB:
        return True
    return name.endswith("s") and (not first or block in _OF_A_BATCH)


def _unknown_parameter(block: str, own: frozenset[str], name: str) -> str:
    if block in _OF_A_BATCH:
        return f"{block} takes the claims' columns as arrays: did you mean :{name}s?"
    if not own:
        return f"{block} takes no parameters, and uses :{name}"
    return f"unknown parameter :{name} in {block}; {_nearest(name, sorted(own))}"


def _reject_lease(blocks: Iterable[Block]) -> None:
    for block in blocks:
        if "lease" in OPERATIONS[_OPERATION_OF[block.name]] and "lease" in block.used:
            message = ':lease without a lease in the header; write `-- lease = "30 seconds"` there'
            raise FormatError(message, block.used["lease"])


class _Header(NamedTuple):
    """The header's lines and where they stand."""

    file: _File
    starts: tuple[int, ...]
    lines: tuple[str, ...]

    def offset(self, word: str) -> int:
        """Where the line begins that has a word as its key, or else anywhere."""
        anywhere = rf"(?<![\w-]){re.escape(word)}(?![\w-])"
        for pattern in (rf"\s*[\[\"']?{anywhere}", rf".*{anywhere}", ""):
            for start, line in zip(self.starts, self.lines, strict=True):
                if re.match(pattern, line):
                    return start
        return 0


def _header(header: _Header) -> dict[str, Any]:
    try:
        values = tomllib.loads("\n".join(header.lines))
    except (ValueError, RecursionError) as error:
        number = re.search(r"at line (\d+)", str(error))
        index = int(number[1]) - 1 if number else -1
        header.file.fail(header.starts[index], f"the header is not TOML: {error}")
    return {key: _header_value(header, key, value) for key, value in values.items()}


def _header_lines(file: _File) -> _Header:
    first_block = next((start for start, _ in file.comments(_MARKER)), len(file.text))
    fences = [(start, fence[1]) for start, fence in file.comments(_FENCE)]
    late = [start for start, kind in fences if start > first_block and kind == "queue"]
    fences = [(start, kind) for start, kind in fences if start < first_block]
    if late:
        file.fail(late[0], "the header stands before the first block")
    if not fences:
        return _Header(file, (), ())
    (opening, kind), *rest = fences
    if kind != "queue":
        file.fail(opening, f"unknown header {kind!r}; did you mean `-- /// queue`?")
    if not rest or rest[0][1]:
        file.fail(opening, "the header is never closed; end it with a line `-- ///`")
    if len(rest) > 1:
        file.fail(rest[1][0], "a second header; there is one")
    return _between(file, opening, rest[0][0])


def _between(file: _File, opening: int, closing: int) -> _Header:
    lines = file.text[opening:closing].split("\n")[1:-1]
    starts: list[int] = []
    position = file.text.index("\n", opening) + 1
    for line in lines:
        if not line.lstrip().startswith("--"):
            file.fail(position, "every line of the header begins with `-- `")
        starts.append(position)
        position += len(line) + 1
    contents = (line.lstrip().removeprefix("--").removeprefix(" ") for line in lines)
    return _Header(file, tuple(starts), tuple(contents))


_BREAKS = re.compile(r"\s*\[\s*breaks\s*\]")


def _entry(header: _Header, guarantee: str) -> int:
    """The line of an entry of [breaks]; that of the table where it has none of its own."""
    table = next((n for n, line in enumerate(header.lines) if _BREAKS.match(line)), 0)
    entry = re.compile(rf"\s*[\"']?{re.escape(guarantee)}[\"']?\s*=")
    lines = range(table, len(header.lines))
    return next((n for n in lines if entry.match(header.lines[n])), table)


def _declaring(file: _File, reasons: Mapping[str, str]) -> str:
    """A file's text with further breaks; comments, order and layout stay as they are."""
    entries = [f"{name} = {json.dumps(why, ensure_ascii=False)}" for name, why in reasons.items()]
    header = _header_lines(file)
    fences = [start for start, _ in file.comments(_FENCE)]
    tables = [n for n, line in enumerate(header.lines) if _BREAKS.match(line)]
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
    wanted = {**load_text(file.text, file.path).breaks, **reasons}
    with suppress(QueueError):
        if load_text(text, file.path).breaks == wanted:
            return text
    message = "no entry can be added to [breaks]; write it as a table, a line for each entry"
    raise QueueError(message, file.source(at))


def _header_value(header: _Header, key: str, value: object) -> object:
    if key not in _FILE_KEYS:
        message = f"unknown key {key}; {_nearest(key, _FILE_KEYS)}"
        header.file.fail(header.offset(key), message)
    try:
        return _FILE_KEYS[key](value)
    except _EntryError as error:
        header.file.fail(header.offset(error.entry), f"{key}: {error}")
    except ValueError as error:
        header.file.fail(header.offset(key), f"{key}: {error}")


def _files(header: _Header, pattern: str) -> list[_File]:
    """The files that a path or a glob in `include` names, 2_b before 10_a."""
    path = header.file.path.parent / pattern
    at = header.offset("include")
    if not re.search(r"[*?\[]", pattern):
        paths = [path]
    elif not (paths := sorted(_glob(path), key=_place)):
        header.file.fail(at, f"include: no file is named {path}")
    files: list[_File] = []
    for path in paths:
        try:
            text = _read(path)
        except QueueError as error:
            if error.source is not None:
                raise
            header.file.fail(at, f"include: {error}")
        # What stands there is not ours: line ends of Windows, and its byte order mark, go.
        plain = text.removeprefix("\N{BYTE ORDER MARK}").replace("\r\n", "\n")
        files.append(_File(plain, path))
    return files


def _glob(path: Path) -> Iterable[Path]:
    return Path(path.anchor).glob(str(path.relative_to(path.anchor)))


def _place(path: Path) -> tuple[object, ...]:
    """Where a file stands among others: by name, with numbers in their order."""
    parts = re.split(r"([0-9]+)", str(path))
    return tuple(int(one) if n % 2 else one for n, one in enumerate(parts))


def _including(header: _Header, files: Sequence[_File], own: Block | None) -> Block:
    """The schema's block with what is included ahead of its own statements."""
    statements = [
        _statement(file, statement.text, statement.offset)
        for file in files
        for statement in _script(file)
    ]
    place = header.file.source(header.offset("include"))
    block = own or Block("schema", place.line, "#", None, (), place.path)
    block = replace(block, statements=(*statements, *block.statements))
    if not block.statements:
        raise FormatError("include: nothing in these files makes a table", place)
    _check_parameters(header.file, 0, block)
    return block


def _script(file: _File) -> list[sqltext.Statement]:
    try:
        return list(included.statements(file.text, file.fail))
    except sqltext.UnterminatedError as error:
        file.fail_unterminated(error.offset)


class _EntryError(ValueError):
    """An entry of a list or table is wrong; the message belongs to its own line."""

    def __init__(self, entry: str, message: str) -> None:
        super().__init__(message)
        self.entry = entry


_UNITS = {
    "us|microseconds?": timedelta(microseconds=1),
    "ms|msecs?|milliseconds?": timedelta(milliseconds=1),
    "s|secs?|seconds?": timedelta(seconds=1),
    "m|mins?|minutes?": timedelta(minutes=1),
    "h|hrs?|hours?": timedelta(hours=1),
    "d|days?": timedelta(days=1),
    "w|weeks?": timedelta(weeks=1),
}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)


def _duration(value: object) -> timedelta:
    """Read a duration as PostgreSQL writes an interval, without months and years.

    Args:
        value: "30 seconds", "1 hour 30 minutes", "500 ms", "00:00:30", "1 day".

    Raises:
        ValueError: It is none.
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    total = timedelta()
    position = 0
    try:
        while quantity := _QUANTITY.match(text, position):
            total += float(quantity[1]) * _unit(quantity[2])
            position = quantity.end()
        if clock := _CLOCK.fullmatch(text, position):
            hours, minutes, seconds = (float(part) for part in clock.groups())
            total += timedelta(hours=hours, minutes=minutes, seconds=seconds)
            position = clock.end()
    except (KeyError, OverflowError):
        position = -1
    if not text or position != len(text):
        raise ValueError(f'{value!r} is no duration; write "30 seconds", "5 min" or "00:00:30"')
    return total


def _unit(word: str) -> timedelta:
    for names, length in _UNITS.items():
        if re.fullmatch(names, word):
            return length
    raise KeyError(word)


def _positive_duration(value: object) -> timedelta:
    duration = _duration(value)
    if not duration:
        raise ValueError('it must be longer than zero; leave it out, or write "30 seconds"')
    return duration


def _lease(value: object) -> timedelta | str:
    if isinstance(value, str) and value.strip().lower() == "session":
        return "session"
    return _positive_duration(value)


def _only(allowed: object, value: object) -> object:
    """Check a key that has one possible value, or is left out."""
    if value != allowed or type(value) is not type(allowed):
        raise ValueError(f"{value!r} is not known; write {json.dumps(allowed)}, or leave it out")
    return value


def _truth_value(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004 - as every wrong value
    return value


def _count(value: object) -> int:
    # The upper end is int4's: it is bound to `:max_attempts`.
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{value!r} is not a whole number from 1 on; write 3")
    return value


def _fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a number from 0 to 1; write 0.1")
    return float(value)


def _one_of(spellings: Sequence[str], value: object) -> str:
    """One of some spellings, whatever its case and spaces."""
    words = re.findall(r"[^\s,]+|,", value.lower()) if isinstance(value, str) else []
    spelled = " ".join(words).replace(" ,", ",")
    if spelled not in spellings:
        raise ValueError(f"{value!r} is none of {', '.join(map(repr, spellings))}")
    return spelled


def _strings(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'{value!r} is not a list of strings; write ["...", "..."]')
    return value


def _sqlstates(value: object) -> frozenset[str]:
    for state in _strings(value):
        if not re.fullmatch("[0-9A-Z]{5}", state):
            raise ValueError(f'{state!r} is no SQLSTATE, five of 0-9 and A-Z; write ["55P03"]')
    return frozenset(_strings(value))


def _guarantees(value: object) -> frozenset[str]:
    for identifier in _strings(value):
        if identifier not in IDS:
            message = f"unknown guarantee {identifier}; {_nearest(identifier, IDS)}"
            raise _EntryError(identifier, message)
    return frozenset(_strings(value))


def _states(value: object) -> dict[str, State]:
    if not isinstance(value, dict):
        how = 'write [states] and `done = "completed"` below it'
        raise ValueError(f"{value!r} is not a table; {how}")  # noqa: TRY004 - as every wrong value
    known = get_args(State)
    for name, state in value.items():
        if state not in known:
            raise _EntryError(name, f"{name} = {json.dumps(state)}: use {_list(known)}")
    return value


def _breaks(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'{value!r} is not a table; write [breaks] and `order = "why"` below it')  # noqa: TRY004 - one kind of error for every wrong value
    for identifier, why in value.items():
        _guarantees([identifier])
        if not isinstance(why, str) or not why.strip():
            message = f"{identifier}: {why!r} says no reason; write it as a string"
            raise _EntryError(identifier, message)
    return value


HEADER_KEYS: Mapping[str, Callable[[object], object]] = {
    "lease": _lease,
    "max_attempts": _count,
    "backoff": _duration,
    "jitter": _fraction,
    "order": partial(_one_of, get_args(Order)),
    "concurrency_limit": _count,
    "isolation": partial(_one_of, ("read committed", "repeatable read", "serializable")),
    "promises": _guarantees,
    "retry_on": _sqlstates,
    "breaks": _breaks,
    "delivery": partial(_only, "at-least-once"),
    "leader": _truth_value,
    "jobs_per_worker": partial(_only, 1),
    "stale": partial(_only, "fails"),
}
"""The facts that any queue may declare."""

_FILE_KEYS: Mapping[str, Callable[[object], object]] = {
    **HEADER_KEYS,
    "include": _strings,
    "states": _states,
}
"""The same, and what only a file needs to say."""
