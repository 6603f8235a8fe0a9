"""The header of a queue file: its keys, what it includes, and the file that it extends."""

from __future__ import annotations

import json
import os.path
import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from queueproof.errors import FormatError, QueueError, Source
from queueproof.queues import included, sqltext
from queueproof.queues.block import Block, Statement, meant
from queueproof.queues.facts import FILE_KEYS, EntryError
from queueproof.queues.filetext import (
    FENCE,
    MARKER,
    QueueText,
    check_parameters,
    read,
    statement_at,
)


class Header(NamedTuple):
    """The header's lines and where they stand."""

    file: QueueText
    starts: tuple[int, ...]
    lines: tuple[str, ...]

    def offset(self, word: str, table: str = "") -> int:
        """The offset of the line that has a word as its key, or else anywhere.

        With a table it belongs to that key, and stands at or below its line.
        """
        return self.starts[self._row(word, self._row(table) if table else 0)]

    def _row(self, word: str, first: int = 0) -> int:
        anywhere = rf"(?<![\w-]){re.escape(word)}(?![\w-])"
        for pattern in (rf"\s*[\[\"']?{anywhere}", rf".*{anywhere}"):
            for row in range(first, len(self.lines)):
                if re.match(pattern, self.lines[row]):
                    return row
        return first


def facts_of(header: Header) -> dict[str, Any]:
    """The facts that a header declares, by its keys."""
    try:
        values = tomllib.loads("\n".join(header.lines))
    except (ValueError, RecursionError) as error:
        number = re.search(r"at line (\d+)", str(error))
        index = int(number[1]) - 1 if number else -1
        # Where in the header is said already, by the line of the file.
        told = re.sub(r" \(at (line \d+, column \d+|end of document)\)$", "", str(error))
        how = 'text stands in quotes, as in lease = "30 seconds"'
        if "overwrite" in told:
            how = "this key, or its table, stands there twice"
        if not header.lines[index].partition("=")[0].isascii():
            how += ", and so does a key with other letters than a to z"
        header.file.fail(header.starts[index], f"the header is not TOML: {told}; {how}")
    return {key: _header_value(header, key, value) for key, value in values.items()}


def header_lines(file: QueueText) -> Header:
    """The header of a file."""
    first_block = next((start for start, _ in file.comments(MARKER)), len(file.text))
    fences = [(start, fence[1]) for start, fence in file.comments(FENCE)]
    late = [start for start, kind in fences if start > first_block and kind == "queue"]
    fences = [(start, kind) for start, kind in fences if start < first_block]
    if late:
        file.fail(late[0], "the header stands before the first block")
    if not fences:
        return Header(file, (), ())
    (opening, kind), *rest = fences
    if kind != "queue":
        file.fail(opening, f"unknown header {kind!r}; did you mean `-- /// queue`?")
    if not rest or rest[0][1]:
        file.fail(opening, "the header is never closed; end it with a line `-- ///`")
    if len(rest) > 1:
        file.fail(rest[1][0], "a second header; there is one")
    return _between(file, opening, rest[0][0])


def _between(file: QueueText, opening: int, closing: int) -> Header:
    lines = file.text[opening:closing].split("\n")[1:-1]
    starts: list[int] = []
    position = file.text.index("\n", opening) + 1
    for line in lines:
        if not line.lstrip().startswith("--"):
            file.fail(position, "every line of the header begins with `-- `")
        starts.append(position)
        position += len(line) + 1
    contents = (line.lstrip().removeprefix("--").removeprefix(" ") for line in lines)
    return Header(file, tuple(starts), tuple(contents))


def _header_value(header: Header, key: str, value: object) -> object:
    if key not in FILE_KEYS:
        header.file.fail(header.offset(key), f"unknown key {key!a}; {meant(key, FILE_KEYS)}")
    try:
        return FILE_KEYS[key](value)
    except ValueError as error:
        entry = (error.entry, key) if isinstance(error, EntryError) else (key,)
        header.file.fail(header.offset(*entry), f"{key}: {error}")


def files_of(header: Header, pattern: str) -> list[QueueText]:
    """The files that a path or a glob in `include` names, 2_b before 10_a."""
    path = header.file.path.parent / pattern
    at = header.offset("include")
    if not re.search(r"[*?\[]", pattern):
        paths = [path]
    else:
        paths = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))), key=_place)
    if not paths:
        header.file.fail(at, f"include: no file is named {path}")
    files: list[QueueText] = []
    for path in paths:
        if os.path.realpath(path) == os.path.realpath(header.file.path):
            header.file.fail(at, f"include: {path} is this file; name those that it includes")
        text = read_named(header, "include", path)
        # What stands there is not ours: line ends of Windows, and its byte order mark, go.
        plain = text.removeprefix("\N{BYTE ORDER MARK}").replace("\r\n", "\n")
        files.append(QueueText(plain, path))
    return files


def read_named(header: Header, key: str, path: Path) -> str:
    """The text of a file that a key names; QueueError where it cannot be read, or is not UTF-8."""
    try:
        return read(path)
    except QueueError as error:
        if error.source is not None:
            raise
        how = "" if os.path.lexists(path) else "; a path begins at the folder of this file"
        header.file.fail(header.offset(key), f"{key}: {error}{how}")


def _place(path: Path) -> tuple[object, ...]:
    """The place of a file among others: by name, with numbers in their order."""
    parts = re.split(r"([0-9]+)", str(path))
    return tuple(int(one) if n % 2 else one for n, one in enumerate(parts))


def including(header: Header, files: Collection[QueueText], own: Block | None) -> Block:
    """The schema's block with what is included ahead of its own statements; it has at least one."""
    statements: list[Statement] = []
    for file in files:
        try:
            found = list(included.statements(file.text, file.fail))
        except sqltext.UnterminatedError as error:
            file.fail_unterminated(error.offset)
        statements += [statement_at(file, statement) for statement in found]
    place = header.file.source(header.offset("include"))
    block = own or Block("schema", place, "#", None, ())
    block = replace(block, statements=(*statements, *block.statements))
    if not block.statements:
        raise FormatError("include: nothing in these files makes a table", place)
    check_parameters(header.file, 0, block)
    return block


EXTENDS = "extends"
INCLUDE = "include"
_NAME = re.compile(r"\s*([\w-]*)")
_TABLE = re.compile(r"[\s-]*\[")  # of a header's line, with its mark or without
REQUIRED = ("enqueue", "claim")  # a schema may come by `include`
DEEPEST = 50  # files, of which each extends the next


class _Line(NamedTuple):
    text: str
    source: Source


class _Parts(NamedTuple):
    """A file's lines, by what they are about."""

    ahead: list[_Line]  # of its header
    entries: dict[str, list[_Line]]  # of the header: keys, and tables whole
    blocks: dict[str, list[_Line]]  # each with the comments right above it


def whole(file: QueueText, beneath: frozenset[str] = frozenset()) -> QueueText:
    """A file with what it extends, each line with the place where it stands.

    Its keys and blocks go before those of the other file. A block that is empty here goes. What it
    extends must be there, and not extend it.
    """
    header = header_lines(file)
    pattern = facts_of(header).get(EXTENDS)
    if pattern is None:
        return file
    path, at = Path(os.path.normpath(file.path.parent / pattern)), header.offset(EXTENDS)
    beneath |= {os.path.realpath(file.path)}
    if os.path.realpath(path) in beneath:
        file.fail(at, f"{EXTENDS}: {path} is this file, or extends it")
    if len(beneath) > DEEPEST:
        file.fail(at, f"{EXTENDS}: more than {DEEPEST} files extend one another")
    base = whole(QueueText(read_named(header, EXTENDS, path), path), beneath)
    own, other = _parts(file), _parts(base)
    if not other.blocks and not other.entries:
        file.fail(at, f"{EXTENDS}: {path} is no queue file: it has neither a header nor a block")
    for name, block in own.blocks.items():
        if name in REQUIRED and _is_empty(block):
            message = f"an empty block takes away what {path} has, and no queue is without {name}"
            raise FormatError(message, block[0].source)
    if INCLUDE in other.entries:
        other.entries[INCLUDE] = _moved(other.entries[INCLUDE], path.parent, file.path.parent)
    fence = own.entries.pop(EXTENDS)[0].source
    entries = {**other.entries, **own.entries}
    blocks = {**other.blocks, **own.blocks}
    # A key below a table would be its own.
    ordered = sorted(entries.values(), key=lambda entry: bool(_TABLE.match(entry[0].text)))
    lines = [
        *own.ahead,
        _Line("-- /// queue", fence),
        *(line for entry in ordered for line in entry),
        _Line("-- ///", fence),
        _Line("", fence),
        *(line for block in blocks.values() if not _is_empty(block) for line in block),
    ]
    text = "\n".join(line.text for line in lines)
    return QueueText(text, file.path, [line.source for line in lines])


def _parts(file: QueueText) -> _Parts:
    lines = [_Line(text, file.source_of(n)) for n, text in enumerate(file.text.split("\n"))]
    header = header_lines(file)
    markers = file.comments(MARKER)
    places = [file.row(file.above(start)) for start, _ in markers]
    blocks: dict[str, list[_Line]] = {}
    for (_, marker), (start, end) in zip(markers, pairwise([*places, len(lines)]), strict=True):
        name = _NAME.match(marker[1])
        blocks.setdefault(name[1] if name else "", []).extend(lines[start:end])
    first = file.row(header.starts[0]) - 1 if header.starts else 0
    entries = {
        about: [lines[file.row(header.starts[n])] for n in numbers]
        for about, numbers in _entries(header)
    }
    return _Parts(lines[:first], entries, blocks)


def _entries(header: Header) -> Iterable[tuple[str, list[int]]]:
    """The entries of a header: its keys, and its tables whole, each with the numbers of its lines.

    The header has been read as TOML: a line after which the ones since the last entry are TOML
    ends the next one.
    """
    found: list[int] = []
    table = ""
    for n, line in enumerate(header.lines):
        if _TABLE.match(line) and _read(header, found) is not None:
            if table:
                yield table, found
            found, (table,) = [n], tomllib.loads(line)
            continue
        found.append(n)
        entry = None if table else _read(header, found)
        if entry:
            yield next(iter(entry)), found
            found = []
    if table:
        yield table, found


def _read(header: Header, lines: Iterable[int]) -> dict[str, object] | None:
    """Lines of a header as TOML; None where something is not closed yet."""
    try:
        return tomllib.loads("\n".join(header.lines[n] for n in lines))
    except tomllib.TOMLDecodeError:
        return None


def _is_empty(block: list[_Line]) -> bool:
    return not sqltext.split("\n".join(line.text for line in block).rstrip())


def _moved(include: list[_Line], place: Path, to: Path) -> list[_Line]:
    """The files that another file includes, as they are called from here."""
    text = "\n".join(line.text.lstrip().removeprefix("--") for line in include)
    paths = [os.path.relpath(place / one, to) for one in tomllib.loads(text)[INCLUDE]]
    return [_Line(f"-- {INCLUDE} = {json.dumps(paths)}", include[0].source)]
