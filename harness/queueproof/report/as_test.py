"""A story as a pytest test, which asks whether a mended queue still tells it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from queueproof.schedule.programs import Do, JobSpec, Program


def to_test(
    story: str, data: Mapping[str, Any], *, guarantee: str, queue: str, command: str
) -> str:
    """A story as a pytest test that fails while the queue tells it.

    A mended queue sends other statements, for which the story's schedule means nothing: the test
    holds the program, and asks for all its interleavings.

    Args:
        story: As `replay` tells it.
        data: What its token holds.
        guarantee: The guarantee that it counts under.
        queue: The queue as a Python expression, `Path(__file__)` at hand.
        command: What replays the story.
    """
    told = f"{story}\n\nTold by: {command}\n".replace("\\", "\\\\").replace('"""', r"\"\"\"")
    imported = "from pathlib import Path\n\n" if "Path(" in queue else ""
    names = "must_hold"
    arguments = [_python(guarantee), "QUEUE"]
    if "probe" in data:
        arguments.append(f"probe={_python(data['probe'])}")
    else:
        names = "Do, JobSpec, Program, must_hold"
        arguments.append(f"program={_program(Program.from_data(data['program']))}")
        arguments.append(f"schedule={_python(data['schedule'])}")
        if data["under"]:
            arguments.append(f"under={_python(data['under'])}")
        if data["broken"] != guarantee:
            arguments.append(f"broken={_python(data['broken'])}")
    return (
        f'"""{told}"""\n\n{imported}'
        f"from queueproof.testing import {names}\n\nQUEUE = {queue}\n\n\n"
        f"def test_{guarantee.replace('-', '_')}() -> None:\n"
        f'    """{guarantee} holds where it was once broken."""\n'
        "    must_hold(\n"
        + "".join(textwrap.indent(f"{argument},\n", " " * 8) for argument in arguments)
        + "    )\n"
    )


def _program(program: Program) -> str:
    """A program as Python, with a line for each script."""
    lines = ["Program(", f"    jobs={_row(program.jobs)},", "    stages=("]
    for stage in program.stages:
        lines.append("        (")
        lines += [f"            ({_python(actor)}, {_row(dos)})," for actor, dos in stage]
        lines.append("        ),")
    lines.append("    ),")
    if program.reserve:
        lines.append(f"    reserve={_row(program.reserve)},")
    return "\n".join([*lines, ")"])


def _row(calls: Sequence[Do | JobSpec]) -> str:
    """A tuple of them, without what is their default."""
    made = []
    for call in calls:
        plain = call._field_defaults
        given = [
            _python(value) if name == "kind" else f"{name}={_python(value)}"
            for name, value in call._asdict().items()
            if name not in plain or plain[name] != value
        ]
        made.append(f"{type(call).__name__}({', '.join(given)})")
    return f"({', '.join(made)}{',' if len(made) == 1 else ''})"


def _python(value: object) -> str:
    """A value as Python, its strings in double quotes."""
    match value:
        case str():
            return json.dumps(value)
        case list() | tuple():
            return f"[{', '.join(map(_python, value))}]"
        case dict():
            return "{" + ", ".join(f"{_python(k)}: {_python(v)}" for k, v in value.items()) + "}"
        case _:
            return repr(value)
