"""Numbers that stand in a queue file's SQL, where its header says others."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from queueproof.queues import sqltext
from queueproof.queues.facts import HEADER_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queueproof.queues.block import Statement
    from queueproof.queues.sqlfile import SqlFileQueue

_AGE = re.compile(r"- (?:interval )?'([^']+)'(?! \*)", re.IGNORECASE)
_NOW = (
    r"\(? ?(?:(?:now|\w+_timestamp) \( \)|(?:current|local)_?timestamp)(?: at time zone '\w+' \))?"
)
_SET = re.compile(rf"(\w+)\"? = {_NOW}(?! ?[-+])", re.IGNORECASE)
_UNTIL = re.compile(rf"\w+\"? = {_NOW} \+ (?:interval )?'([^']+)'(?! \*)", re.IGNORECASE)
_SINCE = re.compile(rf"(\w+)\"? <=? {_NOW} - (?:interval )?'([^']+)'(?! \*)", re.IGNORECASE)
_COUNT = re.compile(r"\b(?!max)\w*attempts?(?: \+ 1)? [<>]=? (\d+)\b", re.IGNORECASE)


def others_than_declared(queue: SqlFileQueue) -> Iterator[str]:
    """Say where a block has a lease or a number of attempts of its own that is not the header's.

    Such a file breaks `stale-recovery` or `retry-bound` though its queue may keep both.

    Args:
        queue: From an SQL file.
    """
    yield from _held_for_another(queue)
    for name, block in queue.blocks.items():
        for statement in block.statements if name in {"claim", "fail", "recover"} else ():
            text = _spaced(statement)
            if name == "recover" and "lease" not in block.used and queue.lease != "session":
                for age in _AGE.findall(text):
                    if _duration(age) not in {None, queue.lease}:
                        yield (
                            f"{statement.source}: recover waits '{age}', and the header's lease is"
                            f" {_told(queue.lease)}: let both say the same, or write :lease here"
                        )
            most = queue.max_attempts
            counts = {int(count) for count in _COUNT.findall(text)}
            if most is not None and any(n > 1 and n not in {most - 1, most} for n in counts):
                yield (
                    f"{statement.source}: {name} counts attempts up to {max(counts)}, and the"
                    f" header's max_attempts is {most}: let both say the same"
                )


def _held_for_another(queue: SqlFileQueue) -> Iterator[str]:
    """Say where a claim or a heartbeat has one lease of its own, and no block asks for :lease."""
    blocks = [queue.blocks[name] for name in ("claim", "heartbeat") if name in queue.blocks]
    used = any("lease" in block.used for block in queue.blocks.values())
    if used or not isinstance(queue.lease, timedelta):
        return
    texts = {
        (block.name, statement.source): _spaced(statement)
        for block in blocks
        for statement in block.statements
    }
    begun = {column for text in texts.values() for column in _SET.findall(text)}
    for (name, source), text in texts.items():
        found = {*_UNTIL.findall(text)}
        found |= {age for column, age in _SINCE.findall(text) if column in begun}
        for age in found if len(found) == 1 else ():
            if _duration(age) not in {None, queue.lease}:
                yield (
                    f"{source}: {name} has a lease of '{age}', and the header's is"
                    f" {_told(queue.lease)}: let both say the same, or write :lease here"
                )


def _spaced(statement: Statement) -> str:
    """A statement with one space between its tokens."""
    text = " ".join(token.raw for token in sqltext.tokens(statement.text))
    return re.sub(r"([<>]) =", r"\1=", text)


def _duration(text: str) -> object:
    try:
        return HEADER_KEYS["lease"](text)
    except ValueError:
        return None


def _told(lease: object) -> str:
    return f"{lease.total_seconds():g} s" if isinstance(lease, timedelta) else "not declared"
