"""The text of a queue file: its header's lines, its blocks, and where each begins."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import NoReturn, get_args

from queueproof import waits
from queueproof.errors import COPYING, OF_PSQL, FormatError, QueueError, Source
from queueproof.queues import sqltext
from queueproof.queues.block import (
    ARRAYS,
    ELSE,
    OF_A_JOB,
    Block,
    Mode,
    Statement,
    meant,
    no_parameter,
)
from queueproof.queues.model import NOW, OPERATIONS

OPERATION_OF = {"schema" if name == "install" else name: name for name in OPERATIONS}
_OF_A_BATCH = frozenset({"complete_many", "complete_and_claim"})
_MODES: Mapping[str, Mode] = {mode: mode for mode in get_args(Mode)}
_OF_SQLC = frozenset({":one", ":many", ":exec", ":execrows"})
_NEED_ROWS = frozenset({"enqueue", "claim", "complete_and_claim", "recover", "jobs"})
MARKER = re.compile(r"[ \t]*--[ \t]*name[ \t]*:(.*)")
_DECLARATION = re.compile(r"\s*([\w-]+)\s*(?:\(([^()]*)\))?\s*(\S*)\s*")
_EARLY_SUFFIX = re.compile(r"\s*([\w-]+)\s*([!#])\s*(\([^()]*\))\s*")
OTHERWISE = re.compile(r"[ \t]*--[ \t]*else[ \t]*", re.IGNORECASE)
FENCE = re.compile(r"[ \t]*--[ \t]*///[ \t]*(.*?)[ \t]*")


class QueueText:
    """The text of a queue file, and where its top-level comments stand.

    Args:
        path: The file, from which others that it names are looked for.
        sources: Where each line stands, where the text has been put together from several files.
    """

    def __init__(self, text: str, path: Path, sources: Sequence[Source] = ()) -> None:
        self.text = text
        self.path = path
        self._sources = sources
        self._ends = [-1, *(match.start() for match in re.finditer("\n", text)), len(text)]
        if text.startswith("\N{BYTE ORDER MARK}"):
            self.fail(0, "the file begins with a byte order mark; save it as UTF-8 without one")
        if (offset := text.find("\r")) >= 0:
            how = "save the file with LF line ends, and keep them: `*.sql text eol=lf` in"
            how += " .gitattributes, or git config core.autocrlf input"
            self.fail(offset, f"the line ends with CR; {how}")
        if (offset := text.find("\0")) >= 0:
            self.fail(offset, "a NUL character, which PostgreSQL takes in no statement")

    @property
    def paths(self) -> list[Path]:
        """The files that its lines stand in."""
        return list(dict.fromkeys([self.path, *(source.path for source in self._sources)]))

    def row(self, offset: int) -> int:
        """The number of the line of an offset, from 0."""
        return bisect_right(self._ends, offset - 1) - 1

    def source_of(self, row: int) -> Source:
        """The place of a line, by its number from 0."""
        return self._sources[row] if self._sources else Source(self.path, row + 1)

    def source(self, offset: int) -> Source:
        """The line of an offset."""
        return self.source_of(self.row(offset))

    def fail(self, offset: int, message: str) -> NoReturn:
        """Refuse the file."""
        raise FormatError(message, self.source(offset))

    def line_at(self, offset: int) -> tuple[int, str]:
        """The start of an offset's line, and the line."""
        row = self.row(offset)
        start = self._ends[row] + 1
        return start, self.text[start : self._ends[row + 1]]

    def above(self, start: int) -> int:
        """The offset of the comments that stand right above a line."""
        while start:
            before, line = self.line_at(start - 1)
            if not line.lstrip().startswith("--") or FENCE.fullmatch(line):
                break
            start = before
        return start

    def comments(self, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
        """The comments that fill a line and match: where the line begins, and the match."""
        return [(start, m) for start, line in self._comments if (m := pattern.fullmatch(line))]

    @cached_property
    def _comments(self) -> list[tuple[int, str]]:
        return [self.line_at(at) for at in sqltext.line_comments(self.text, self.tokens)]

    @cached_property
    def tokens(self) -> Sequence[sqltext.Token]:
        """Its tokens, found block by block: each block that files share is looked at once."""
        with suppress(sqltext.UnterminatedError):
            return [
                token for bounds in self._pieces() for token in sqltext.piece(self.text, *bounds)
            ]
        # A marker in a comment or a dollar quote is none.
        try:
            found = sqltext.tokens(self.text)
        except sqltext.UnterminatedError as error:
            self.fail_unterminated(error.offset)
        for token in found:
            # A marker inside a string: its quote is missing, and the next string's closes it.
            if token.kind in sqltext.QUOTED and _MARKER_LINE.search(token.raw):
                self.fail_unterminated(token.start)
        return found

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """The bounds of each block with the comments above it, without the space behind it."""
        markers = _MARKER_LINE.finditer(self.text)
        starts = [0, *(self.above(marker.start()) for marker in markers), len(self.text)]
        for start, end in pairwise(starts):
            yield start, start + len(self.text[start:end].rstrip())

    def fail_unterminated(self, offset: int) -> NoReturn:
        """Look for the culprit block by block: a missing quote shifts all that follow."""
        try:
            for bounds in self._pieces():
                sqltext.piece(self.text, *bounds)
        except sqltext.UnterminatedError as error:
            offset = error.offset
        line = self.line_at(offset)[1].strip()
        self.fail(offset, f"a string, quoted name, dollar quote or comment is never closed: {line}")


_UNMARKED = re.compile(r"[ \t]*--[ \t]*name[ \t]+(\w+)(?:[ \t]*[(!#].*)?[ \t]*")
_MARKER_LINE = re.compile(rf"^{MARKER.pattern}$", re.MULTILINE)


_NO_TEXT = {
    b"PGDMP": "this is pg_dump's custom format; make it SQL: pg_restore -f schema.sql FILE",
    b"\x1f\x8b": "this is compressed by gzip; make it SQL: gunzip -k FILE",
}


def read(path: Path) -> str:
    """The text of a file; QueueError where it cannot be read, or is not UTF-8."""
    try:
        content = waits.contents(path)
    except OSError as error:
        raise QueueError(f"{path}: {error.strerror or error}") from None
    for magic, message in _NO_TEXT.items():
        if content.startswith(magic):
            raise QueueError(message, Source(path, 1))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise QueueError("the file is not UTF-8; save it as UTF-8", Source(path, line)) from None


def blocks_of(file: QueueText) -> dict[str, Block]:
    """The blocks of a file by name, in its order."""
    markers = file.comments(MARKER)
    for start, unmarked in file.comments(_UNMARKED):
        if unmarked[1] in OPERATION_OF:
            file.fail(start, f"a colon is missing: `-- name: {unmarked[1]}`")
    found = file.tokens
    first = markers[0][0] if markers else len(file.text)
    if found and found[0].start < first:
        how = "text before the first block; begin it with `-- name: schema#`"
        if not markers:
            how = (
                "this is not a queue file: no `-- name:` line stands above this SQL. If it is your"
                f" schema: queueproof init jobs.sql --from-schema {quote(str(file.path))}"
            )
        if found[0].raw.startswith("\\"):
            how += f". {OF_PSQL}"
        file.fail(found[0].start, how)
    bounds = [*(start for start, _ in markers), len(file.text)]
    blocks: dict[str, Block] = {}
    for (start, end), (_, marker) in zip(pairwise(bounds), markers, strict=True):
        block = _block(file, start, marker, end)
        if (same := blocks.setdefault(block.name, block)) is not block:
            file.fail(start, f"block {block.name} stands already in line {same.source.line}")
    return blocks


def _block(file: QueueText, start: int, marker: re.Match[str], end: int) -> Block:
    match = _DECLARATION.fullmatch(marker[1])
    if match is None:
        if early := _EARLY_SUFFIX.fullmatch(marker[1]):
            name, suffix, listed = early.groups()
            how = f"`-- name: {name}{listed}{suffix}`"
            file.fail(start, f"{suffix} stands after the parameters: {how}")
        file.fail(start, "write a block's name as `-- name: claim(worker, limit)`")
    name, listed, suffix = match.groups()
    if name not in OPERATION_OF:
        near = meant(name, OPERATION_OF)
        rest = f" There are {', '.join(OPERATION_OF)}" if near.endswith("?") else ""
        file.fail(start, f"unknown block {name}; {near}{rest}")
    body = start + marker.end()
    found = sqltext.split(file.text, [token for token in file.tokens if body <= token.start < end])
    if not found:
        file.fail(start, f"block {name} is empty")
    if sqltext.chains(found[-1].tokens):
        file.fail(found[-1].offset, f"AND CHAIN leaves {name} in another transaction: drop it")
    instead = _instead(file, found, body, end)
    statements = tuple(
        replace(statement_at(file, one), otherwise=n in instead) for n, one in enumerate(found)
    )
    parameters = None if listed is None else _parameter_list(file, start, listed)
    mode = _mode(file, start, name, suffix)
    block = Block(name, file.source(start), mode, parameters, statements)
    check_parameters(file, start, block)
    return block


def _instead(
    file: QueueText, found: Sequence[sqltext.ScriptStatement], body: int, end: int
) -> set[int]:
    """Indices of a block's statements that stand behind a line `-- else`."""
    instead: set[int] = set()
    for line in (start for start, _ in file.comments(OTHERWISE) if body <= start < end):
        if any(one.offset < line < one.offset + len(one.text) for one in found):
            continue  # a remark within a statement
        before = sum(one.offset < line for one in found)
        if before in {0, len(found)}:
            file.fail(line, f"{ELSE} stands between two statements: the second is sent instead")
        instead.add(before)
    return instead


def _mode(file: QueueText, start: int, name: str, suffix: str) -> Mode:
    if suffix == "#" and name != "schema":
        file.fail(start, f"# marks the schema alone; drop it from {name}")
    if suffix == "!" and (name == "schema" or name in _NEED_ROWS):
        answer = "nothing" if name == "schema" else "rows"
        file.fail(start, f"{name} answers {answer}, not a count; drop the !")
    if suffix.startswith("("):
        file.fail(start, f"the list of {name}'s parameters is not closed: write ) at its end")
    if suffix not in _MODES:
        only = "only ! (count the rows affected) may stand there"
        sqlc = "; drop what sqlc needs" if suffix in _OF_SQLC else ""
        file.fail(start, f"{suffix} after {name}: {only}{sqlc}")
    return _MODES[suffix]


def statement_at(file: QueueText, found: sqltext.ScriptStatement) -> Statement:
    """One statement, found in the file."""
    if (place := sqltext.positional(found.tokens)) is not None:
        file.fail(place, "parameters have names here: write :worker or the like, not $1")
    if sqltext.copies(found.tokens):
        file.fail(found.offset, COPYING)
    uses = sqltext.parameters(found.tokens)
    parameters = {name: file.source(offset) for name, offset in uses.items()}
    return Statement(found.text, file.source(found.offset), parameters, found.offset)


def _parameter_list(file: QueueText, start: int, listed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listed.split(",")) if listed.strip() else ()
    for position, name in enumerate(names):
        if not name.isidentifier():
            file.fail(start, f"{name or 'nothing'!r} is no parameter name; write (worker, limit)")
        if name in names[:position]:
            file.fail(start, f"parameter {name} is declared twice")
    return names


def check_parameters(file: QueueText, start: int, block: Block) -> None:
    """Refuse what no caller gives to a block's statements, and a list that says another thing."""
    own = OPERATIONS[OPERATION_OF[block.name]] - {"job", "jobs"}
    own |= {NOW} if block.name != "schema" else frozenset()
    for step, statement in enumerate(block.statements):
        for name, source in statement.parameters.items():
            if message := _unknown(block.name, own, name, first=step == 0):
                raise FormatError(message, source)
    if block.parameters is None:
        return
    others = [used for used in block.used if used not in block.parameters]
    for name in (name for name in block.parameters if name not in block.used):
        wrong = [used for used in others if used not in own | {"id"}]
        if wrong and name in own | {"id"}:  # so it is the SQL that is mistaken
            message = no_parameter(block.name, wrong[0], block.parameters)
            raise FormatError(message, block.used[wrong[0]])
        near = f"; {meant(name, others)}" if others else "; drop it from the list"
        if foreign := _foreign(block, name):
            near = f"; write :{name} for {foreign}"
        file.fail(start, f"{block.name} declares {name} and never uses :{name}{near}")
    for name in others:
        message = f"{block.name} uses :{name}; add {name} to its parameter list"
        raise FormatError(message, block.used[name])


def _foreign(block: Block, name: str) -> str | None:
    """A parameter as psql and drivers write it, where a block has one."""
    named = (
        rf":'{name}'|:\"{name}\"|%\({name}\)s|[@$#]{name}\b|sqlc\.n?arg\('?{name}'?\)"
        rf"|\{{{name}\}}|%s|(?<![?@])\?(?![?|&])"
    )
    found = (re.search(named, statement.text) for statement in block.statements)
    return next((match[0] for match in found if match), None)


def _unknown(block: str, own: frozenset[str], name: str, *, first: bool) -> str:
    """The sentence on a name that can be no parameter, as far as the file tells; or nothing.

    Which columns a claim or an earlier step returns only the server knows.
    """
    is_array = name.endswith("s") and (not first or block in _OF_A_BATCH)
    if name in own or block in OF_A_JOB or is_array:
        return ""
    if block in _OF_A_BATCH:
        return f"{block} takes the claims' columns as arrays, {ARRAYS}: did you mean :{name}s?"
    if not own and first:
        return f"{block} takes no parameters, and uses :{name}; psql's variables are not filled in"
    near = get_close_matches(name.lower(), own, n=1)
    told = meant(name, near) if near else f"{block} may use {', '.join(sorted(own))}"
    if not near and not first:
        arrays = "columns that an earlier statement answered are arrays"
        told = f"{arrays}, {ARRAYS}: did you mean :{name}s?"
    return f"unknown parameter :{name} in {block}; {told}"


def reject_lease(blocks: Iterable[Block]) -> None:
    """Refuse `:lease` where the header declares none."""
    for block in blocks:
        if "lease" in OPERATIONS[OPERATION_OF[block.name]] and "lease" in block.used:
            message = (
                ":lease is used, but the header declares no lease; write"
                ' `-- lease = "30 seconds"` there,'
                " between `-- /// queue` and `-- ///` ahead of the first block"
            )
            raise FormatError(message, block.used["lease"])
