"""The facts that a queue declares of itself, as its file or its worker writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeAlias, get_args

from queueproof.queues.block import meant
from queueproof.queues.ids import IDS
from queueproof.queues.model import Delivery, Order, Stale, State

Reader: TypeAlias = Callable[[object], timedelta]


class EntryError(ValueError):
    """An entry of a list or table is wrong; the message belongs to its own line."""

    def __init__(self, entry: str, message: str) -> None:
        super().__init__(message)
        self.entry = entry


_UNITS = {
    word: length
    for words, length in (
        ("us microsecond microseconds", timedelta(microseconds=1)),
        ("ms msec msecs millisecond milliseconds", timedelta(milliseconds=1)),
        ("s sec secs second seconds", timedelta(seconds=1)),
        ("m min mins minute minutes", timedelta(minutes=1)),
        ("h hr hrs hour hours", timedelta(hours=1)),
        ("d day days", timedelta(days=1)),
        ("w week weeks", timedelta(weeks=1)),
    )
    for word in words.split()
}
LONGEST = timedelta(days=36525)
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)


def duration(value: object) -> timedelta:
    """Read a duration as PostgreSQL writes an interval, without months and years.

    So are "30 seconds", "1 hour 30 minutes", "500 ms", "00:00:30", "1 day". Else a ValueError.
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    total = timedelta()
    position = 0
    try:
        while quantity := _QUANTITY.match(text, position):
            total += float(quantity[1]) * _UNITS[quantity[2]]
            position = quantity.end()
        if clock := _CLOCK.fullmatch(text, position):
            hours, minutes, seconds = (float(part) for part in clock.groups())
            total += timedelta(hours=hours, minutes=minutes, seconds=seconds)
            position = clock.end()
    except KeyError:
        position = -1
    except OverflowError:
        return within_reach(timedelta.max)
    if not text or position != len(text):
        raise ValueError(f'{value!r} is no duration; write "30 seconds", "5 min" or "00:00:30"')
    return within_reach(total)


def within_reach(span: timedelta) -> timedelta:
    """A duration by which a clock can be moved; ValueError where it is longer."""
    if span > LONGEST:
        raise ValueError(f"it is longer than {LONGEST.days:,} days; no clock is moved as far")
    return span


def _lease(read: Reader, example: str, value: object) -> object:
    if isinstance(value, str) and value.strip().lower() == "session":
        return "session"
    if (length := read(value)) <= timedelta(0):
        raise ValueError(f"it must be longer than zero; leave it out, or write {example}")
    return length


def _backoff(read: Reader, value: object) -> timedelta:
    if (wait := read(value)) < timedelta(0):
        raise ValueError("it cannot be less than zero")
    return wait


def _only(allowed: object, value: object) -> object:
    """Check a key that has one possible value, or is left out."""
    if value != allowed or type(value) is not type(allowed):
        raise ValueError(f"{value!r} is not known; write {json.dumps(allowed)}, or leave it out")
    return value


def _truth_value(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004 - as every wrong value
    return value


def _count(value: object) -> int:
    # The upper end is int4's: it is bound to `:max_attempts`.
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{value!r} is no whole number from 1 to {2**31 - 1}; write 3")
    return value


def _fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a number from 0 to 1; write 0.1")
    return float(value)


def _one_of(spellings: Sequence[str], value: object) -> str:
    """One of some spellings, whatever its case and spaces."""
    words = re.findall(r"[^\s,]+|,", value.lower()) if isinstance(value, str) else []
    spelled = " ".join(words).replace(" ,", ",")
    if spelled not in spellings:
        raise ValueError(f"{value!r} is none of {', '.join(map(repr, spellings))}")
    return spelled


def _path(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f'{value!r} is not a path; write "../queue.sql"')
    if "\0" in value:
        raise ValueError("no name of a file has a NUL character")
    return value


def _paths(value: object) -> list[str]:
    return [_path(one) if one else one for one in _strings(value)]


def _strings(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'{value!r} is not a list of strings; write ["...", "..."]')
    return value


def _sqlstates(value: object) -> frozenset[str]:
    for state in _strings(value):
        if not re.fullmatch("[0-9A-Z]{5}", state):
            raise ValueError(f'{state!r} is no SQLSTATE, five of 0-9 and A-Z; write ["55P03"]')
    return frozenset(_strings(value))


def _guarantees(value: object) -> frozenset[str]:
    for identifier in _strings(value):
        if identifier not in IDS:
            message = f"unknown guarantee {identifier}; {meant(identifier, IDS)}"
            raise EntryError(identifier, message)
    return frozenset(_strings(value))


def _states(value: object) -> dict[str, State]:
    if not isinstance(value, dict):
        how = 'write [states] and `done = "completed"` below it'
        raise ValueError(f"{value!r} is not a table; {how}")  # noqa: TRY004 - as every wrong value
    for name, state in value.items():
        if state not in get_args(State):
            message = f"{name} = {json.dumps(state)}: use {', '.join(get_args(State))}"
            raise EntryError(name, message)
    return value


def _breaks(example: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table; write {example}")  # noqa: TRY004 - one kind of error for every wrong value
    for identifier, why in value.items():
        _guarantees([identifier])
        if not isinstance(why, str) or not why.strip():
            message = f"{identifier}: {why!r} says no reason; write it as a string"
            raise EntryError(identifier, message)
    return value


def readers(read: Reader, lease: str, breaks: str) -> Mapping[str, Callable[[object], object]]:
    """The reader of each fact that any queue may declare; a ValueError says what is wrong.

    A file, a worker and a class differ in how they write a duration, as `read` reads it and `lease`
    shows one, and a table, as `breaks` shows it.
    """
    return {
        "lease": partial(_lease, read, lease),
        "max_attempts": _count,
        "backoff": partial(_backoff, read),
        "jitter": _fraction,
        "order": partial(_one_of, get_args(Order)),
        "concurrency_limit": _count,
        "isolation": partial(_one_of, ("read committed", "repeatable read", "serializable")),
        "promises": _guarantees,
        "retry_on": _sqlstates,
        "breaks": partial(_breaks, breaks),
        "delivery": partial(_one_of, get_args(Delivery)),
        "leader": _truth_value,
        "jobs_per_worker": partial(_only, 1),
        "stale": partial(_one_of, get_args(Stale)),
    }


HEADER_KEYS = readers(duration, '"30 seconds"', '[breaks] and `order = "why"` below it')
"""The facts of a queue file."""
FILE_KEYS: Mapping[str, Callable[[object], object]] = {
    **HEADER_KEYS,
    "extends": _path,
    "include": _paths,
    "states": _states,
}
"""The same, and what only a file needs to say."""
