"""A story as JSON, and back: a card.json holds what its page needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from queueproof.report.story import Account, Story, Told

_WORD = "is"  # the key that says which of several forms something has
_hints = cache(get_type_hints)


def to_data(told: Any) -> Any:  # noqa: ANN401 - any part of a story
    """The data of a story for `json`: each object's fields, and what it is."""
    if is_dataclass(told) and not isinstance(told, type):
        values = {f.name: to_data(getattr(told, f.name)) for f in fields(told)}
        return {_WORD: type(told).__name__.lower(), **values}
    return [to_data(one) for one in told] if isinstance(told, tuple) else told


def from_data(data: object) -> Told:
    """The story that `to_data` wrote."""
    told: Told = read(Story | Account, data)
    return told


def read(kind: Any, data: Any) -> Any:  # noqa: ANN401 - types, and what JSON holds
    """A value of a type, from what `json` reads; keys that the type does not know are left out.

    The type is a dataclass, or what its fields are annotated with; ValueError: the data's is not.
    """
    parts = get_args(kind)
    match get_origin(kind):
        case origin if origin in {tuple, Sequence} and isinstance(data, list):
            many = len(parts) == 1 or parts[-1] is Ellipsis
            kinds = [parts[0]] * len(data) if many else parts
            return tuple(read(part, one) for part, one in zip(kinds, data, strict=True))
        case origin if origin is Mapping and isinstance(data, dict):
            return {read(parts[0], key): read(parts[1], one) for key, one in data.items()}
        case origin if origin is Literal and data in parts:
            return data
        case origin if origin in {Union, UnionType}:
            for part in parts:
                with suppress(ValueError):
                    return read(part, data)
    named = str(getattr(kind, "__name__", "")).lower()  # one of several forms says which it is
    is_it = isinstance(data, dict) and data.get(_WORD, named) == named
    if isinstance(kind, type) and is_dataclass(kind) and is_it:
        hints = _hints(kind)
        known = {name: read(hints[name], data[name]) for name in data.keys() & hints.keys()}
        needed = [one.name for one in fields(kind) if one.default is one.default_factory is MISSING]
        if lacking := [name for name in needed if name not in known]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        return kind(**known)
    if kind is float and type(data) is int:
        return float(data)
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise ValueError(f"unexpected {str(data)[:60]!r}")
