"""A story as a pytest test, which asks whether a mended queue still tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from queueproof.report.forms import filled_in
from queueproof.schedule.programs import Do, JobSpec, Program


def to_test(
    story: str, data: Mapping[str, Any], *, guarantee: str, queue: str, command: str
) -> str:
    """A story as a pytest test that fails while the queue tells it.

    A mended queue sends other statements, for which the story's schedule means nothing: the test
    holds the program, and asks for all its interleavings. The queue is a Python expression.
    """
    told = f"{story}\n\nTold by: {command}\n".replace("\\", "\\\\").replace('"""', r"\"\"\"")
    program = {"program": Program.from_data(data["program"])} if "program" in data else {}
    facts = {"probe": None, **data, **program}
    return filled_in(
        "test.py.j2", **facts, told=told, guarantee=guarantee, queue=queue, python=_python
    )


def _python(value: object) -> str:
    """A value as Python: its strings in double quotes, of a call's facts what is no default."""
    match value:
        case str():
            return json.dumps(value)
        case Do() | JobSpec():
            plain = value._field_defaults
            given = [
                _python(one) if name == "kind" else f"{name}={_python(one)}"
                for name, one in value._asdict().items()
                if name not in plain or plain[name] != one
            ]
            return f"{type(value).__name__}({', '.join(given)})"
        case tuple():
            return f"({', '.join(map(_python, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(_python, value))}]"
        case dict():
            return "{" + ", ".join(f"{_python(k)}: {_python(v)}" for k, v in value.items()) + "}"
        case _:
            return repr(value)
