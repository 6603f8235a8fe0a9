"""A check of several queues, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from queueproof.cli.ends import exit_code_of
from queueproof.cli.files import STDOUT, streams
from queueproof.errors import Exit, QueueproofError

_WORST = (Exit.UNUSABLE, Exit.BROKEN, Exit.INCONCLUSIVE, Exit.HOLDS)


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
    if again := next((one for n, one in enumerate(queues) if one in queues[:n]), None):
        raise QueueproofError(f"{again} is named twice: its reports would have the same names")
    if STDOUT in options.values():
        raise QueueproofError(
            "stdout has room for one report, and each queue has its own: name a file"
        )
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
    if not isinstance(value, Path) or streams(value):
        return value
    name = re.sub(r"[^\w.-]+", "-", queue.removesuffix(".sql")).strip("-.")
    return value.with_stem(f"{value.stem}-{name}")
