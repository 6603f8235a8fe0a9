"""A queue file that extends another one: what it leaves out stands there."""

from __future__ import annotations

import json
import os.path
import re
import tomllib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from queueproof.errors import FormatError, Source
from queueproof.queues import sqltext
from queueproof.queues.filetext import MARKER, QueueText
from queueproof.queues.header import Header, facts_of, header_lines, read_named

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
    lines = [
        *own.ahead,
        _Line("-- /// queue", fence),
        # A key below a table would be its own.
        *(line for entry in sorted(entries.values(), key=_is_table) for line in entry),
        _Line("-- ///", fence),
        _Line("", fence),
        *(line for block in blocks.values() if not _is_empty(block) for line in block),
    ]
    text = "\n".join(line.text for line in lines)
    return QueueText(text, file.path, [line.source for line in lines])


def _is_table(entry: list[_Line]) -> bool:
    return any(_TABLE.match(line.text) for line in entry[:1])


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
