"""The errors that a person at the keyboard meets, each with the exit code of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, TypeAlias


class Exit(IntEnum):
    """Exit codes of the command line; public and frozen."""

    HOLDS = 0
    BROKEN = 1
    INCONCLUSIVE = 2
    UNUSABLE = 4
    INTERNAL = 70
    INTERRUPTED = 130


def to_install(extra: str) -> str:
    """The command that installs an extra, for a message: queueproof is on no package index yet."""
    return f"pip install '.[{extra}]' in your clone of queueproof"


class QueueproofError(Exception):
    """A mistake or a missing piece that the user can mend; shown as one message, no traceback."""


class ServerUnavailableError(QueueproofError):
    """No PostgreSQL could be had from the requested source, or it cannot be used."""


@dataclass(frozen=True, slots=True)
class Source:
    """A place in a queue file.

    Attributes:
        path: The file as the user named it.
        line: Line, from 1.
    """

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class QueueError(QueueproofError):
    """The queue under test cannot be used: malformed file, rejected SQL, an operation that fails.

    Attributes:
        source: Where in the queue file, if it is known.
        reference: Where it is told how such a queue is written; empty where nowhere.
    """

    reference: ClassVar[str] = ""

    def __init__(self, message: str, source: Source | None = None) -> None:
        super().__init__(f"{source}: {message}" if source else message)
        self.source = source


class FormatError(QueueError):
    """A queue file breaks the format."""

    reference = "The format of a queue file: queueproof help file-format"


class ClassError(QueueError):
    """A queue's Python class, or what an operation of it yields or returns, is no good."""

    reference = "How such a class is written: queueproof help class"


class ServerError(Exception):
    """The server's answer instead of rows: SQLSTATE and message, as PostgreSQL sent them.

    Thrown into the operation's generator at the step that failed.
    """

    def __init__(
        self, sqlstate: str, message: str, position: int | None = None, more: str = ""
    ) -> None:
        super().__init__(sqlstate, message, position, more)  # so that it survives pickling
        self.sqlstate = sqlstate
        self.message = message
        self.position = position  # character of the step's SQL as sent, from 1
        self.more = more  # its detail and its hint, a line each

    def __str__(self) -> str:
        return f"{self.sqlstate}: {self.message}"


class RaisedError(ServerError):
    """One whose SQLSTATE a RAISE has chosen: it says nothing of the server."""


Aside: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Around what only advises, by its name: an error there is told, and what was judged stands."""

SERVERS: Mapping[str, str] = {
    "embedded[:16]": "comes with the package",
    "local[:/path/to/bin]": "is installed here",
    "container[:image]": "needs Docker",
}
"""Sources that `--postgres` takes beside a DSN, and what each is: we start a server there."""

*_FIRST, _LAST = (form.partition("[")[0] for form in SERVERS)
OWN_SERVERS = f"{', '.join(_FIRST)} or {_LAST}"
"""The same without what may follow, for a message."""

COPYING = (
    "COPY from or to the client is no step of a queue, whose values are bound as parameters and"
    " whose rows are answered: write INSERT or SELECT"
)
"""Why a statement is refused, in a file or when it runs."""

OF_PSQL = "Is it a command of psql? The server has none of them: leave the line out."
"""The message for a line that begins with a backslash."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name closest to a misspelt one, or nothing.

    Args:
        name: As it was written.
        known: The names that there are.
    """
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
