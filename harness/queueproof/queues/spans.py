"""The time for which a queue file's SQL may put off a job: the spans that stand in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from queueproof.queues.block import Block
from queueproof.queues.facts import duration

# What no span that stands there bounds: a power, months and years, ISO 8601.
_ENDLESS = re.compile(
    r"\^|<<|\b(?:d?pow(?:er)?|exp)\s*\(|\b(?:mons?|months?|yrs?|years?)\b|'P[\dT]", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e\d+)?(?![\w.])", re.IGNORECASE)
_LITERAL = re.compile(r"'([^']+)'")
_UNIT = re.compile(r"\b(?:weeks?|days?|hours?|mins?|minutes?)\b", re.IGNORECASE)
_OF_OTHERS = frozenset({"fail", "cleanup", "jobs"})  # who has failed, has ended, or is only listed


def longest_span(blocks: Iterable[Block]) -> float | None:
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
