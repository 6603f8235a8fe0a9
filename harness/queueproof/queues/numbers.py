"""Numbers that stand in a queue file's SQL, where its header says others."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from queueproof.queues import sqltext
from queueproof.queues.facts import HEADER_KEYS

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from queueproof.errors import Source
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
    """
    yield from _held_for_another(queue)
    most = queue.max_attempts
    for name, source, text in _statements(queue, {"claim", "fail", "recover"}):
        if (
            name == "recover"
            and "lease" not in queue.blocks[name].used
            and queue.lease != "session"
        ):
            yield from _other_leases(queue, f"{source}: recover waits", _AGE.findall(text))
        counts = {int(count) for count in _COUNT.findall(text)}
        if most is not None and any(n > 1 and n not in {most - 1, most} for n in counts):
            yield (
                f"{source}: {name} counts attempts up to {max(counts)}, and the header's"
                f" max_attempts is {most}: let both say the same"
            )


def _held_for_another(queue: SqlFileQueue) -> Iterator[str]:
    """Say where a claim or a heartbeat has one lease of its own, and no block asks for :lease."""
    used = any("lease" in block.used for block in queue.blocks.values())
    if used or not isinstance(queue.lease, timedelta):
        return
    statements = _statements(queue, {"claim", "heartbeat"})
    begun = {column for _, _, text in statements for column in _SET.findall(text)}
    for name, source, text in statements:
        found = {*_UNTIL.findall(text)}
        found |= {age for column, age in _SINCE.findall(text) if column in begun}
        if len(found) == 1:
            yield from _other_leases(queue, f"{source}: {name} has a lease of", found)


def _other_leases(queue: SqlFileQueue, told: str, ages: Iterable[str]) -> Iterator[str]:
    for age in ages:
        if _duration(age) not in {None, queue.lease}:
            lease = "not declared" if queue.lease_seconds is None else f"{queue.lease_seconds:g} s"
            yield (
                f"{told} '{age}', and the header's lease is {lease}: let both say the same, or"
                " write :lease here"
            )


def _statements(queue: SqlFileQueue, blocks: Container[str]) -> list[tuple[str, Source, str]]:
    """Statements with their block and place, and with one space between their tokens."""
    return [
        (name, statement.source, _spaced(statement.text))
        for name, block in queue.blocks.items()
        if name in blocks
        for statement in block.statements
    ]


def _spaced(text: str) -> str:
    spaced = " ".join(token.raw for token in sqltext.tokens(text))
    return re.sub(r"([<>]) =", r"\1=", spaced)


def _duration(text: str) -> object:
    try:
        return HEADER_KEYS["lease"](text)
    except ValueError:
        return None
