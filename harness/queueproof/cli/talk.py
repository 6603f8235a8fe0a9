"""Messages on stderr, and what a command is doing meanwhile."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from queueproof.cli.files import STDOUT
from queueproof.ending import is_first_to_tell, signal_that_came
from queueproof.errors import Exit

if TYPE_CHECKING:
    from queueproof.examine.plan import Progress
    from queueproof.report.terminal import Output


PREFIX = "queueproof: "  # of what is said on stderr, but for what begins with a place in a file
WIDEST = 120  # characters of a line of prose
# What moves a cursor or cannot be seen, but for tabs and line ends.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0\u200b-\u200f\u2028-\u202f\u2060-\u2064\ufeff]")
QUIET_SECONDS = 30.0  # after which a line says what is being done, where there is no terminal


def columns(otherwise: int) -> int:
    """The width of prose: the terminal's, within reason; where there is no terminal, as given."""
    return min(get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else otherwise


def output(*reports: Path | None) -> Output:
    """The output to talk to: not stdout, where that is a report."""
    from queueproof.report.terminal import Output

    return Output(sys.stderr if STDOUT in reports else None)


@contextmanager
def now_and_then(doing: str) -> Iterator[Progress]:
    """Say what is being done, if it takes long; what is yielded is told of something else."""
    began, done = time.monotonic(), threading.Event()
    now = doing

    def note(what: str, fraction: float | None) -> None:
        nonlocal now
        now = what if fraction is None else f"{what}, {fraction:.0%} done"

    def speak() -> None:
        while not done.wait(QUIET_SECONDS):
            say(f"after {time.monotonic() - began:.0f} s: {now}", Exit.HOLDS)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield note
    finally:
        done.set()
        speaker.join(QUIET_SECONDS)  # a line that it is about to say comes before what is said next


@contextmanager
def progress_bar(first: str = "trying every operation once") -> Iterator[Progress]:
    """A bar on a terminal, and a line now and then elsewhere; None: nobody knows the end."""
    if not sys.stderr.isatty():
        with now_and_then(first) as note:
            yield note
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None, left="")

        def note(what: str, done: float | None) -> None:
            known = done is not None and done < 1.0  # else nobody knows how long it takes
            bar.tasks[0].total = 1.0 if known else None  # update() takes None for no change
            left = "left:" if known else ""
            bar.update(task, description=what.ljust(16), completed=done or 0.0, left=left)

        yield note


def say(message: str, code: int, *, prefix: str = PREFIX) -> int:
    """Say one message on stderr, and give its exit code back.

    What somebody's SQL or program holds does not move the cursor of who reads it, and is seen.
    """
    shown = _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], message)
    print(f"{prefix}{shown}", file=sys.stderr)  # noqa: T201 - where errors go
    return code


def say_once(message: str, code: int) -> int:
    """Say that a signal ends the run, unless who waits for this end has lost his patience."""
    return say(message, code) if signal_that_came() is None or is_first_to_tell() else code
