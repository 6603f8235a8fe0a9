"""A check of several queues, one after the other."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from queueproof.cli.ends import exit_code_of
from queueproof.cli.files import STDOUT, streams
from queueproof.errors import Exit, QueueproofError

_WORST = (Exit.UNUSABLE, Exit.BROKEN, Exit.INCONCLUSIVE, Exit.HOLDS)
_WRITE = 'queues = ["jobs.sql"]'


def configured() -> list[str]:
    """The queues of `[tool.queueproof]` in the nearest pyproject.toml; files as seen from here.

    Raises:
        QueueproofError: There are none.
    """
    here = Path.cwd()
    for place in (here, *here.parents):
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
        except (OSError, ValueError) as error:
            raise QueueproofError(f"{path}: {error}") from None
        match found.get("queueproof", {}):
            case {"queues": [*queues]} if queues and all(isinstance(one, str) for one in queues):
                files = {one: place / one for one in queues}
                return [
                    os.path.relpath(file) if file.is_file() else one for one, file in files.items()
                ]
            case {"queues": _}:
                raise QueueproofError(f"{path}: write {_WRITE} below [tool.queueproof]")
        break
    raise QueueproofError(
        f"name a queue, or write {_WRITE} below [tool.queueproof] in pyproject.toml"
    )


def each(queues: Sequence[str], check: Callable[..., int], options: Mapping[str, Any]) -> int:
    """Check each of several queues; what one of them lacks keeps nobody from the others.

    Args:
        queues: Which.
        check: Checks one, with its options.
        options: The same for all, but that each queue has reports of its own.

    Returns:
        The worst exit code: 4, then 1, then 2, then 0.
    """
    from queueproof.waits import StoppedError

    if "exec:" in queues:
        raise typer.BadParameter("a command stands in quotes")
    codes = set[int]()
    for queue in queues:
        own = {name: _own(value, queue) for name, value in options.items()}
        try:
            codes.add(check([queue], **own))
        except StoppedError:
            raise
        except QueueproofError as error:
            codes.add(exit_code_of(error, ()))
    return next(code for code in _WORST if code in codes)


def _own(value: object, queue: str) -> object:
    """A report's name with the queue's in it; any other option as it is."""
    if not isinstance(value, Path) or value == STDOUT or streams(value):
        return value
    name = re.sub(r"[^\w.-]+", "-", queue.removesuffix(".sql")).strip("-.")
    return value.with_stem(f"{value.stem}-{name}")
