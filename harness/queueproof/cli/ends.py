"""The end of a command: the message and the exit code of each error and signal."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, cast

import typer

from queueproof.cli.options import DEBUG_OPTION
from queueproof.cli.talk import PREFIX, say, say_once
from queueproof.ending import ended_by, signal_that_came
from queueproof.errors import Exit, QueueError, QueueproofError, RaisedError, ServerError

if TYPE_CHECKING:
    from queueproof.queues.model import Queue


# Of a DSN, in both of its forms.
_PASSWORD = re.compile(r"(?<=://)[^@/\s]*(?=@)|(?<=password=)('[^']*'|[^\s']+)", re.IGNORECASE)
_REFUSED = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk's quota is used up",
    errno.EFBIG: "no file may become that large (ulimit -f)",
    errno.ENAMETOOLONG: "no file may have so long a name",
    errno.EMFILE: "no more files may be open (ulimit -n)",
    errno.ENFILE: "no more files may be open on this machine",
    errno.ENOMEM: "there is no memory left",
    errno.EAGAIN: "no more processes may run (ulimit -u)",
}
"""The things that a machine may refuse, whatever the queue."""


# click's, of which newer typers bring a copy of their own
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


class SignalledError(KeyboardInterrupt):
    """A signal asks for an orderly end. Hypothesis would take a SystemExit for a finding."""

    def __init__(self, number: int) -> None:
        super().__init__(ended_by(number))
        self.number = number


def stop(number: int) -> NoReturn:
    """End the command for a signal, in order."""
    raise KeyboardInterrupt if number == signal.SIGINT else SignalledError(number)


@contextmanager
def on_behalf_of(queue: Queue) -> Iterator[None]:
    """Give errors of a queue's own the queue's name, or its line."""
    from queueproof.queues.resolve import blame

    try:
        yield
    except QueueError as error:
        if error.source is not None or str(error).startswith(queue.name):
            raise
        raise QueueError(f"{queue.name}: {error}") from error
    except QueueproofError:
        raise
    except (Exception, SystemExit) as error:
        culprit = next((b for e in causes(error) if (b := blame(e, queue))), None)
        if culprit is not None:
            raise culprit from error
        raise


def exit_code_of(error: BaseException, arguments: Sequence[str]) -> int:
    """Say what ended a command of these arguments, and with which exit code that is."""
    found = causes(error)
    for cause in found:
        if isinstance(cause, KeyboardInterrupt):
            number = cause.number if isinstance(cause, SignalledError) else signal.SIGINT
            return say_once(str(cause) or ended_by(number), 128 + number)
    if (came := signal_that_came()) is not None:
        return say_once(ended_by(came), 128 + came)
    if (known := _mistake(found)) is not None:
        told, prefix = known
        return say(told, Exit.UNUSABLE, prefix=prefix)
    return say(_bug(error, arguments), Exit.INTERNAL)


@contextmanager
def beside_the_verdict(what: str) -> Iterator[None]:
    """Tell an error of what only advises where it would stand, and let what was judged stand."""
    try:
        yield
    except Exception as error:
        if signal_that_came() is not None:
            raise
        known = _mistake(causes(error))
        told = _bug(error, sys.argv[1:]) if known is None else known[0]
        say(f"{what}: {told}\nThe verdict stands without it.", Exit.HOLDS)


def _mistake(found: Sequence[BaseException]) -> tuple[str, str] | None:
    """The message for an error that somebody can mend, and its prefix; None for a bug of ours."""
    if told := next(filter(None, map(_outage, found)), None):
        return told, PREFIX
    for cause in found:
        if isinstance(cause, QueueError):
            return f"{cause}\n{cause.reference}".rstrip("\n"), ""
        if isinstance(cause, QueueproofError):
            return str(cause), PREFIX
    answered = (one for one in found if isinstance(getattr(one, "sqlstate", None), str))
    if refused := next(answered, None):
        detail = " ".join(str(refused).split())
        told = (
            f"PostgreSQL refused a statement of queueproof's own: {detail}\n"
            "Does the queue's SQL change the schema clock, or settings of its role or database? If"
            " not, please report it with the queue."
        )
        return told, PREFIX
    return None


def _bug(error: BaseException, arguments: Sequence[str]) -> str:
    """The message for a bug of ours."""
    told = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}\n"
    told += "This is a bug of queueproof's. Please report it with the queue and what "
    if DEBUG_OPTION in arguments or os.environ.get("QUEUEPROOF_DEBUG"):
        traceback.print_exception(error)
        return told + "is printed above."
    again = _PASSWORD.sub("***", shlex.join(["queueproof", *arguments]))
    return f"{told}this prints:\n  QUEUEPROOF_DEBUG=1 {again}"


def causes(error: BaseException) -> list[BaseException]:
    """An error and all that it came from; Hypothesis reports what did not repeat as a group."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or one in found:
            continue
        found.append(one)
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
        todo += [one.__cause__, None if one.__suppress_context__ else one.__context__]
    return found


def _outage(error: BaseException) -> str | None:
    """The message where the ground under the run has gone: the disk or the server."""
    import psycopg

    from queueproof.run.session import ConnectionLostError

    from_server = isinstance(error, ServerError | psycopg.Error)
    from_server = from_server and not isinstance(error, RaisedError)
    state = getattr(error, "sqlstate", None) if from_server else None
    detail = " ".join(str(error).split())
    if state == "53100":
        return f"the disk of the PostgreSQL server is full: {detail}"
    if isinstance(error, MemoryError) or "can't start new thread" in detail:
        return "there is no memory left, or no more threads may run (ulimit -v, ulimit -u)"
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return f"{_REFUSED[error.errno]}: {detail}"
    lost = isinstance(error, ConnectionLostError | psycopg.OperationalError)
    if lost or (state or "").startswith(("57P0", "53", "58")):
        return (
            "PostgreSQL went away or gave up in the middle of the run, so there is no verdict: "
            f"{detail}"
        )
    return None
