"""A queue from a Python class that owns its connections, and the process that it lives in.

A library that opens its own connections and runs its own event loop cannot be stepped inside the
harness' process. It gets one of its own, `python -m queueproof.queues.client package.module:Class`,
which speaks the same JSON lines as any other worker (`queueproof.queues.worker`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import IO, Any, cast
from uuid import UUID

from queueproof.errors import Exit
from queueproof.queues.model import OPERATIONS, Facts, facts_as_json, taken
from queueproof.queues.processclock import moved

TRACEBACK = "QUEUEPROOF_TRACEBACK"
"""Environment variable: print the traceback of an exception to stderr, too."""

_DURATIONS = ("delay", "lease", "age")
_UNKNOWN = "XX000"  # internal_error: what failed did not tell its SQLSTATE


class Client(Facts):
    """A queue whose library owns its connections. Derive from it, and write what the queue has.

    Each worker is one instance in a process of its own. `install`, `enqueue` and `claim` are
    required; the others are offered by being there. Each is a method or an `async def`, and takes
    the arguments that its signature names.

        async def open(self) -> None                              # connect; not required
        def install(self) -> None                                 # the schema, once
        def enqueue(self, payload, priority, delay, max_attempts, queue) -> str
        def claim(self, worker, limit, lease, queue) -> list[dict]
        def complete(self, worker, job) -> bool
        def complete_many(self, worker, jobs) -> list[str] | None
        def complete_and_claim(self, worker, jobs, limit, lease, queue)
            -> tuple[list[str] | None, list[dict]]
        def fail(self, worker, job, error) -> bool
        def heartbeat(self, worker, job, lease) -> bool | dict
        def recover(self, lease) -> list[str]
        def jobs(self) -> list[dict]
        def cleanup(self, age) -> None
        def promote(self) -> None
        def start(self, worker) -> None   # register, for one
        def clock(self, ahead) -> None    # seconds; instead of the process' own clock; not required

    A claim returns a dict per job, with `id` and whatever the queue may check an owner by; `job` is
    that dict after a trip through JSON, so that a UUID or a datetime comes back as text. `payload`
    is a dict; `delay`, `lease` and `age` are timedeltas; ids may be anything with a `str`.
    `complete_many` returns the ids that it accepted, None where the library does not tell. `jobs`
    returns dicts of `id`, `state` (queued, running, completed, failed) and, if known, `attempts`.
    A heartbeat that changes what an owner is checked by returns a dict of what has changed.

    What goes wrong is raised: an exception with an `sqlstate`, as psycopg's and asyncpg's have,
    also as the cause of another, is the server's error to the harness. An event loop stands still
    between two operations, so background tasks of the library never run on their own account.

    Where `install` is what `open` cannot do without, it is called on an instance of its own, which
    was not opened.

    Attributes:
        dsn: Of the database, as a URI.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn


def describe(kind: type[Client]) -> dict[str, object]:
    """The answer to `init`: what a class, whose signatures and facts are right, has to offer."""
    offered = [name for name in OPERATIONS if callable(getattr(kind, name, None))]
    moves_clock = hasattr(kind, "clock") or find_spec("time_machine") is not None
    return {
        "operations": [*offered, *(["clock"] if moves_clock else [])],
        "takes": {name: sorted(taken(kind, name)) for name in offered},
        **facts_as_json(kind),
    }


class Responder:
    """Answers messages with the help of one instance of a class."""

    def __init__(self, kind: type[Client]) -> None:
        self._kind = kind
        self._client: Client | None = None
        self._runner = asyncio.Runner()
        self._traveller: Any = None

    def close(self) -> None:
        """End the event loop with its tasks, and set the clock right."""
        self._runner.close()
        if self._traveller is not None:
            self._traveller.stop()

    def answer(self, line: bytes) -> dict[str, object]:
        """The answer to one message."""
        try:
            message = json.loads(line)
            return self._perform(str(message["op"]), message)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever the library raises
            return {"error": self._told(error)}

    def _perform(self, operation: str, message: Mapping[str, Any]) -> dict[str, object]:
        call = partial(self._call, operation)
        match operation:
            case "init":
                self._client = self._kind(message["dsn"])
                if hasattr(self._client, "open"):
                    self._call("open")
                return describe(self._kind)
            case "install":
                self._client = self._client or self._kind(message["dsn"])
                call()
            case "clock":
                self._set_clock(message["ahead"])
            case "enqueue":
                return {"ids": [_id(operation, call(**_given(job))) for job in message["jobs"]]}
            case "claim" | "jobs":
                return {"jobs": [_job(operation, job) for job in call(**_given(message)) or ()]}
            case "complete" | "fail" | "heartbeat":
                accepted = call(**_given(message))
                if operation == "heartbeat" and isinstance(accepted, dict):
                    return {"accepted": True, "job": accepted}
                if not isinstance(accepted, bool):
                    raise TypeError(
                        f"{operation} returned {accepted!r}; return True where the queue accepted"
                        " it, False where the worker has lost the job"
                    )
                return {"accepted": accepted}
            case "complete_and_claim":
                done, jobs = call(**_given(message))
                ids = None if done is None else [_id(operation, one) for one in done]
                return {"ids": ids, "jobs": [_job(operation, job) for job in jobs or ()]}
            case "complete_many" | "recover":
                ids = call(**_given(message))
                if ids is None and operation == "complete_many":
                    return {"ids": None}
                return {"ids": [_id(operation, one) for one in ids or ()]}
            case _:
                call(**_given(message))
        return {}

    def _call(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - what the user's own method answers
        if self._client is None:
            raise RuntimeError(f"{operation} before init")
        method = getattr(self._client, operation)
        taken = inspect.signature(method).parameters.keys()
        result = method(**{k: v for k, v in arguments.items() if k in taken})
        return self._runner.run(_awaited(result)) if inspect.isawaitable(result) else result

    def _set_clock(self, ahead: float) -> None:
        """Set the process' clock, but for `time.monotonic`, by which event loops wait."""
        if hasattr(self._kind, "clock"):
            self._call("clock", ahead=ahead)
            return
        if self._traveller is not None:
            self._traveller.stop()
        self._traveller = moved(ahead)

    def _told(self, error: BaseException) -> dict[str, str]:
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
        text = " ".join(str(error).split())
        sqlstate = _sqlstate(error)
        if sqlstate is None:
            text = f"{type(error).__name__}: {text}{self._place(error)}"
            sys.stderr.write(f"{text}\n")
        return {"sqlstate": sqlstate or _UNKNOWN, "message": text}

    def _place(self, error: BaseException) -> str:
        """The line of the class' own file that an exception came through."""
        source = inspect.getsourcefile(self._kind)
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename == source:
                return f" ({os.path.relpath(frame.filename)}:{frame.lineno})"
        return ""


async def _awaited(result: Awaitable[Any]) -> Any:  # noqa: ANN401 - the same
    return await result


def _given(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: timedelta(seconds=value) if name in _DURATIONS else value
        for name, value in message.items()
        if name != "op"
    }


def _id(operation: str, value: object) -> str:
    if isinstance(value, list | tuple) and len(value) == 1:
        (value,) = value  # of a call that takes several jobs
    if value is None or isinstance(value, list | tuple | dict):
        raise TypeError(f"{operation} returned {value!r} where a job's id belongs")
    return str(value)


def _job(operation: str, job: Any) -> dict[str, object]:  # noqa: ANN401 - a row of any driver
    row = dict(job)
    if "id" not in row:
        raise TypeError(f"{operation} returned {row!r}: a job needs an 'id'")
    return {**row, "id": _id(operation, row["id"])}


def _sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an exception, or of one that led to it."""
    pending: list[object] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        state = getattr(one, "sqlstate", None)
        if isinstance(state, str) and len(state) == 5:  # noqa: PLR2004 - by the standard
            return state
        # SQLAlchemy keeps the driver's exception in `orig`.
        pending += [getattr(one, "orig", None), one.__cause__]
        pending += [] if one.__suppress_context__ else [one.__context__]
    return None


def _plain(value: object) -> str:
    """Text for what a job's columns may be and JSON has no word for."""
    if isinstance(value, UUID | datetime | date | timedelta | Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON: {value!r}; return its parts")


def serve(responder: Responder, messages: Iterable[bytes], answers: IO[bytes]) -> None:
    """Answer messages until there are no more.

    Args:
        responder: Who knows the answers.
        messages: Lines.
        answers: Where the answers go, a line each.
    """
    for message in messages:
        answer = responder.answer(message)
        try:
            line = json.dumps(answer, default=_plain)
        except (TypeError, ValueError) as error:
            line = json.dumps({"error": {"sqlstate": _UNKNOWN, "message": str(error)}})
        answers.write(line.encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve the class that the command line names, until stdin ends."""
    # What the library prints is its log; the answers keep the real stdout for themselves.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        kind = cast("type[Client]", resolve_name(sys.argv[1]))  # `queues.resolve` has checked it
        serve(Responder(kind), sys.stdin.buffer, answers)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        name = sys.argv[1:2] or ["package.module:Class"]
        sys.stderr.write(f"{name[0]}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(Exit.UNUSABLE)
    except KeyboardInterrupt:
        os._exit(Exit.INTERRUPTED)
    # At once: whoever closed stdin waits for nothing, and a library's threads might.
    sys.stderr.flush()
    os._exit(Exit.HOLDS)


if __name__ == "__main__":
    # The classes derive from `queueproof.queues.client.Client`, not from a copy in `__main__`.
    from queueproof.queues.client import main as hosted

    hosted()
