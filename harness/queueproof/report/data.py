"""A story as JSON, and back: a card.json holds what its page needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from queueproof.report.story import Account, Story, Told

_WORD = "is"  # the key that says which of several forms something has


def to_data(told: Any) -> Any:  # noqa: ANN401 - any part of a story
    """What `json` can write of a story: each object's fields, and what it is."""
    if is_dataclass(told) and not isinstance(told, type):
        values = {f.name: to_data(getattr(told, f.name)) for f in fields(told)}
        return {_WORD: type(told).__name__.lower(), **values}
    return [to_data(one) for one in told] if isinstance(told, tuple) else told


def from_data(data: object) -> Told:
    """The story that `to_data` wrote.

    Raises:
        ValueError: It is something else.
    """
    told = _read(Story | Account, data)
    assert isinstance(told, Story | Account)
    return told


def _read(kind: Any, data: Any) -> Any:  # noqa: ANN401 - types, and what JSON holds
    """A value of a type, from its data."""
    parts = get_args(kind)
    match get_origin(kind):
        case origin if origin is tuple and isinstance(data, Sequence) and not isinstance(data, str):
            if parts[-1] is Ellipsis:
                return tuple(_read(parts[0], one) for one in data)
            return tuple(_read(part, one) for part, one in zip(parts, data, strict=True))
        case origin if origin is Literal and data in parts:
            return data
        case origin if origin in {Union, UnionType}:
            for part in parts:
                if _is(part, data):
                    return _read(part, data)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(data, Mapping):
        hints = _hints(kind)
        known = {name: value for name, value in data.items() if name in hints}
        try:
            return kind(**{name: _read(hints[name], value) for name, value in known.items()})
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from None
    if kind is float and type(data) is int:
        return float(data)
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise ValueError(f"{str(data)[:60]!r} is no part of a story")


def _is(kind: Any, data: Any) -> bool:  # noqa: ANN401 - the same
    """Whether data are of one of several forms."""
    if isinstance(kind, type) and is_dataclass(kind):
        return isinstance(data, Mapping) and data.get(_WORD) == kind.__name__.lower()
    if get_origin(kind) is Literal:
        return data in get_args(kind)
    return type(data) is kind


@cache
def _hints(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a class
    return get_type_hints(kind)
