"""The header of a queue file: its keys, what it includes, and its [breaks]."""

from __future__ import annotations

import os.path
import re
import tomllib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from queueproof.errors import FormatError, QueueError
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
