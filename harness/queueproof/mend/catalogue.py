"""The catalogue of safe forms: what may be changed in a queue's own SQL, and what that mends.

Each form looks at what the file says, and offers edits of its text. Whether one mends anything is
for the search to find out: a form that does not fit costs a moment, and one that is missing costs
a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import NamedTuple

from sqlglot.errors import SqlglotError

from queueproof.errors import QueueError
from queueproof.mend.blocks import WHOLE
from queueproof.mend.draft import Draft
from queueproof.mend.edits import moved
from queueproof.mend.statements import FORMS
from queueproof.queues import sqltext
from queueproof.queues.sqltree import Edit, applied


class Fix(NamedTuple):
    """A safe form, put into a queue's file.

    Attributes:
        what: What it does, such as `recover: SKIP LOCKED added`.
        block: The block that it changes.
        text: The file with it.
        size: How many lines it changes.
        last: Whether it takes something away, and so comes after what adds.
    """

    what: str
    block: str
    text: str
    size: int
    last: bool


def fixes(draft: Draft, guarantee: str) -> list[Fix]:
    """Every safe form that differs from what stands in a file, and still takes what that takes.

    Args:
        draft: The file.
        guarantee: What is to be mended.
    """
    found: dict[str, Fix] = {}
    for what, block, edits, last in _offers(draft, guarantee):
        text = _relisted(applied(draft.text, edits), block)
        if text != draft.text and text not in found and _takes_as_much(draft, text):
            size = changed(draft.text, text)
            name = f"{block}: {what}"
            found[text] = Fix(name, block, text, size, last)
    return list(found.values())


def changed(before: str, after: str) -> int:
    """How many lines differ, one that was edited counted once.

    Args:
        before: The text of the file.
        after: The text of the mended file.
    """
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    signs = [line[0] for line in lines]
    return max(signs.count("+"), signs.count("-"))


def _offers(draft: Draft, guarantee: str) -> Iterator[tuple[str, str, list[Edit], bool]]:
    forms = [(form, last) for form, mends, last in FORMS if guarantee in mends.split()]
    wholes = [(whole, last) for whole, mends, last in WHOLE if guarantee in mends.split()]
    for site in draft.sites:
        for form, last in forms:
            try:
                offered = list(form(site, draft.columns, draft.queue))
            except SqlglotError:  # a position that the parser did not note
                continue
            for what, edits in offered:
                yield what, site.block, [moved(edit, site.start) for edit in edits], last
    for block in draft.blocks:
        starts = [draft.start(block, index) for index in range(len(block.statements))]
        for whole, last in wholes:
            try:
                offered = list(whole(block, starts, draft))
            except SqlglotError:
                continue
            for what, edits in offered:
                yield what, block.name, list(edits), last


def _takes_as_much(draft: Draft, text: str) -> bool:
    """Whether it is a queue file, and every block takes what it took."""
    try:
        blocks = Draft(text, draft.path).queue.blocks
    except QueueError:
        return False
    return all(
        blocks[name].used.keys() >= one.used.keys() for name, one in draft.queue.blocks.items()
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
