"""The values that stand in a queue's own SQL: what it treats unlike others is near one of them."""

from __future__ import annotations

import re
from typing import NamedTuple

_UNITS = {
    "second": 1.0,
    "sec": 1.0,
    "minute": 60.0,
    "min": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
    "month": 2592000.0,
    "year": 31557600.0,
}
_COMMENT = re.compile(r"--.*|/\*(?s:.*?)\*/")
_WHOLE = re.compile(r"(?<![\w.$])\d{1,7}(?![\w.])")
_SPAN = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})s?\b", re.IGNORECASE)
_UNIT_SPAN = re.compile(rf"\b({'|'.join(_UNITS)})s?\s*=>\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_CLOCK = re.compile(r"'(\d+):(\d\d)(?::(\d\d))?'")
_WORD = re.compile(r"'([A-Za-z][\w.:-]{0,62})'")
SHORTEST, LONGEST = 1.0, 3 * 366 * 86400.0  # seconds of a span that somebody waits for


class Constants(NamedTuple):
    """The values that stand in some SQL, each once, in order."""

    numbers: tuple[int, ...] = ()
    spans: tuple[float, ...] = ()  # seconds: of intervals, and of numbers that may be some
    words: tuple[str, ...] = ()  # literals that could be a name


def constants_in(text: str) -> Constants:
    """The values in SQL, or in a program that has some in it, whose other numbers do no harm."""
    text = _COMMENT.sub("", text)
    numbers = sorted({int(one) for one in _WHOLE.findall(text)})
    spans = {float(n) * _UNITS[unit.lower()] for n, unit in _SPAN.findall(text)}
    spans |= {float(n) * _UNITS[unit.lower()] for unit, n in _UNIT_SPAN.findall(text)}
    spans |= {
        int(hours) * 3600.0 + int(minutes) * 60.0 + int(seconds or 0)
        for hours, minutes, seconds in _CLOCK.findall(text)
    }
    waited = sorted(span for span in spans | set(map(float, numbers)) if SHORTEST < span <= LONGEST)
    return Constants(tuple(numbers), tuple(waited), tuple(sorted(set(_WORD.findall(text)))))
