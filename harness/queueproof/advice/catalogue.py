"""The catalogue of safe forms: what may be changed in a queue's own SQL, and what that mends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import unified_diff
from typing import NamedTuple

from sqlglot.errors import SqlglotError

from queueproof.advice.blocks import WHOLE
from queueproof.advice.clauses import Change
from queueproof.advice.forms import FORMS
from queueproof.advice.reading import Draft
from queueproof.errors import QueueError
from queueproof.queues import sqltext
from queueproof.queues.sqltree import applied


class Fix(NamedTuple):
    """A safe form, put into a queue's file."""

    what: str  # what it does, such as `recover: SKIP LOCKED added`
    block: str  # the block that it changes
    text: str  # the file with it
    size: int  # how many lines it changes
    last: bool  # whether it takes something away, and so comes after what adds


def fixes(draft: Draft, guarantee: str) -> list[Fix]:
    """Every safe form that differs from what stands in a file, and still takes what that takes."""
    found: dict[str, Fix] = {}
    for block, change, last in _offers(draft, guarantee):
        text = _relisted(applied(draft.text, change.edits), block)
        if text != draft.text and text not in found and _takes_as_much(draft, text):
            size = changed(draft.text, text)
            found[text] = Fix(f"{block}: {change.what}", block, text, size, last)
    return list(found.values())


def changed(before: str, after: str) -> int:
    """The number of lines that differ, one that was edited counted once."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    signs = [line[0] for line in lines]
    return max(signs.count("+"), signs.count("-"))


def _offers(draft: Draft, guarantee: str) -> Iterator[tuple[str, Change, bool]]:
    parts = [
        *((FORMS, site, site.block, site.start) for site in draft.sites),
        *((WHOLE, whole, whole.name, 0) for whole in draft.wholes),
    ]
    for forms, part, block, start in parts:
        for form in (form for form in forms if form.fits(guarantee, block)):
            with suppress(SqlglotError):  # a position that the parser did not note
                for change in list(form.make(part, draft)):
                    edits = [edit.moved(start) for edit in change.edits]
                    yield block, change._replace(edits=edits), form.last


def _takes_as_much(draft: Draft, text: str) -> bool:
    """True where it is a queue file, and every block takes what it took, but for the time."""
    try:
        blocks = Draft(text, draft.path).queue.blocks
    except QueueError:
        return False
    return all(
        blocks[name].used.keys() >= one.used.keys() - {"now"}
        for name, one in draft.queue.blocks.items()
    )


def _relisted(text: str, block: str) -> str:
    """The file with the parameters that the block uses now in its list, where it has one."""
    pattern = rf"^([ \t]*--[ \t]*name[ \t]*:[ \t]*{block}[ \t]*)\(([^()]*)\)(.*\n)"
    marker = re.search(pattern, text, re.MULTILINE)
    if marker is None:
        return text
    rest = text[marker.end() :]
    end = re.search(r"^[ \t]*--[ \t]*name[ \t]*:", rest, re.MULTILINE)
    body = rest[: end.start()] if end else rest
    used = list(sqltext.compile_statement(body, move_clock=False).names)
    listed = [name.strip() for name in marker[2].split(",")]
    if set(used) == set(listed):
        return text
    kept = [name for name in listed if name in used]
    names = ", ".join([*kept, *(name for name in used if name not in kept)])
    return text[: marker.start()] + f"{marker[1]}({names}){marker[3]}" + rest
