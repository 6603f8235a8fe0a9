"""Data that somebody else has written, as JSON gives it, read as what the types say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from queueproof.errors import QueueproofError

MOST = 20_000  # parts of one list
LONGEST = 1_000  # characters of one string
LARGEST = 2**63  # of whole numbers: what a bigint holds
SECONDS = 1e10  # of other numbers, which are all seconds: three hundred years
_SHOWN = 60  # characters of what is wrong


def read(kind: Any, data: object, field: str) -> Any:  # noqa: ANN401 - types, and what they make
    """A value of a type: a dataclass and a NamedTuple by keys, or the latter by its list.

    Args:
        kind: The type; `Annotated` with what it is one of, where that is fewer.
        data: As `json` reads it.

    Raises:
        QueueproofError: It is of another type, too large, or too much; the message has the field.
    """
    parts = get_args(kind)
    match get_origin(kind):
        case origin if origin is Literal:
            return _known(read(str, data, field), parts, field)
        case origin if origin is Annotated:
            return _known(read(parts[0], data, field), parts[1], field)
        case origin if origin in {Union, UnionType}:
            if data is None and NoneType in parts:
                return None
            return read(_rest(parts), data, field)
        case origin if origin is tuple and parts[-1] is Ellipsis:
            found = _listed(data, field, 0, MOST)
            return tuple(read(parts[0], one, f"{field}[{at}]") for at, one in enumerate(found))
        case origin if origin is tuple:
            found = _listed(data, field, len(parts), len(parts))
            each = zip(parts, found, strict=True)
            return tuple(read(part, one, f"{field}[{at}]") for at, (part, one) in enumerate(each))
    if is_dataclass(kind) or (isinstance(data, Mapping) and issubclass(kind, tuple)):
        return _by_key(kind, data, field)
    if issubclass(kind, tuple):
        return _by_place(kind, data, field)
    return _plain(kind, data, field)


def _known(value: object, known: Any, field: str) -> Any:  # noqa: ANN401 - names, or a range
    if value in known:
        return value
    within = f"from {known[0]} to {known[-1]:,}" if isinstance(known, range) else ", ".join(known)
    return refuse(field, value, f"one of: {within}")


def refuse(field: str, data: object, wanted: str) -> Any:  # noqa: ANN401 - it returns nothing
    """Say which field is no good."""
    shown = json.dumps(data, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    raise QueueproofError(
        f"this is no replay token of this queueproof: {field} is {shown}, and not {wanted}. Copy it"
        " whole from a story, or check the queue anew"
    )


def _rest(parts: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a type
    """The type that is not None; several that are names are one."""
    rest = [part for part in parts if part is not NoneType]
    if len(rest) == 1:
        return rest[0]
    return Literal[tuple(name for part in rest for name in get_args(part))]


def _listed(data: object, field: str, least: int, most: int) -> list[Any]:
    if isinstance(data, list) and least <= len(data) <= most:
        return data
    many = f"{least}" if least == most else f"{least} to {most:,}"
    return list(refuse(field, data, f"a list of {many}"))


def _by_key(kind: Any, data: object, field: str) -> Any:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind, include_extras=True)
    if not isinstance(data, Mapping) or not data.keys() <= hints.keys():
        return refuse(field, data, f"keys of {', '.join(hints)}")
    return kind(**{key: read(hints[key], one, f"{field}.{key}") for key, one in data.items()})


def _by_place(kind: Any, data: object, field: str) -> Any:  # noqa: ANN401 - a NamedTuple
    hints = get_type_hints(kind, include_extras=True)
    least = len(hints) - len(kind._field_defaults)
    found = _listed(data, field, least, len(hints))
    each = zip(hints.items(), found, strict=False)
    return kind(*(read(of, one, f"{field}.{name}") for (name, of), one in each))


def _plain(kind: Any, data: object, field: str) -> Any:  # noqa: ANN401 - a type
    if kind is float and type(data) in {int, float}:
        number = float(min(max(data, -LARGEST), LARGEST))  # type: ignore[call-overload]
        if math.isfinite(number) and abs(number) <= SECONDS:
            return data
        return refuse(field, data, f"a number up to {SECONDS:g}")
    if type(data) is not kind:
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        return refuse(field, data, wanted[kind])
    if kind is int and not -LARGEST <= data < LARGEST:  # type: ignore[operator]
        return refuse(field, data, "a whole number of 64 bits")
    if kind is str and len(data) > LONGEST:  # type: ignore[arg-type]
        return refuse(field, data, f"a string of at most {LONGEST:,} characters")
    return data
