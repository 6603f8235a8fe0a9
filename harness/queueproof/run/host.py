"""`python -m queueproof.run.host QUEUE`: a queue of SQL steps as a worker that speaks JSON lines.

With it the workers of an SQL file, or of a Python class of `queueproof.Queue`, are processes like
any other worker (`queueproof.queues.worker`): they can run freely, be stopped and be
killed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import psycopg

from queueproof import waits
from queueproof.errors import Exit, QueueproofError, ServerError
from queueproof.queues import sqlfile
from queueproof.queues.model import (
    NOW,
    OPERATIONS,
    Claim,
    JobRow,
    Operation,
    Queue,
    Step,
    T,
    Value,
    facts_as_json,
)
from queueproof.run import wallclock
from queueproof.run.session import ARRAYS, ConnectionLostError, LibpqSession, execute

_DURATIONS = ("delay", "lease", "age")
_LOST = "08006"  # connection_failure


def describe(queue: Queue) -> dict[str, object]:
    """The answer to `init`: what a queue offers and promises.

    Args:
        queue: The queue.
    """
    takes = {name: set(queue.takes(name)) for name in queue.offers}
    for name in ("complete", "complete_many", "complete_and_claim", "fail"):
        if name in takes:
            takes[name] |= OPERATIONS[name] & {"job", "jobs"}
    written = isinstance(queue, sqlfile.SqlFileQueue)
    own_clock = queue.sends_time if written else wallclock.MOVABLE
    answer: dict[str, object] = {
        "operations": [*sorted(queue.offers), *(["clock"] if own_clock else [])],
        "takes": {name: sorted(taken) for name, taken in sorted(takes.items())},
    }
    return answer | facts_as_json(queue)


class Host:
    """Answers messages by running a queue's operations on a connection of its own.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._dsn = ""
        self._arrays: dict[int, int] | None = None
        self._session: LibpqSession | None = None
        self._second: LibpqSession | None = None  # for heartbeats beside an open transaction
        self._ahead = 0.0

    def answer(self, message: Mapping[str, Any]) -> dict[str, object]:
        """The answer to one message.

        Args:
            message: As `templates/README.md` describes it.

        Raises:
            QueueproofError: The queue did something that no queue may.
        """
        try:
            return self._perform(message["op"], message)
        except ServerError as error:
            return _error(error.sqlstate, error.message)
        except (ConnectionLostError, psycopg.OperationalError) as error:
            self.close()
            return _error(_LOST, " ".join(str(error).split()))

    def _perform(self, operation: str, message: Mapping[str, Any]) -> dict[str, object]:
        run = partial(self._run, operation)
        match operation:
            case "init":
                self._dsn = message["dsn"]
                self._connected()
                return describe(self._queue)
            case "clock":
                self._ahead = message["ahead"]
                return {}
            case "install":
                self._dsn = message["dsn"]
                run()
                self.close()  # what types there are is asked anew
                return {}
            case "enqueue":
                return {"ids": [one for job in message["jobs"] for one in run(**_given(job))]}
            case "claim":
                return {"jobs": [_job(claim) for claim in run(**_given(message))]}
            case "complete" | "fail" | "heartbeat":
                answer = run(**_given(message))
                renewed = {"job": _job(answer)} if isinstance(answer, Claim) else {}
                return {"accepted": bool(answer), **renewed}
            case "complete_and_claim":
                accepted, claims = run(**_given(message))
                ids = None if accepted is None else sorted(accepted)
                return {"ids": ids, "jobs": [_job(claim) for claim in claims]}
            case "complete_many":
                accepted = run(**_given(message))
                return {"ids": None if accepted is None else sorted(accepted)}
            case "recover":
                return {"ids": list(run(**_given(message)))}
            case "jobs":
                return {"jobs": [_row(row) for row in run(**_given(message))]}
            case _:
                run(**_given(message))
                return {}

    # --- connections ----------------------------------------------------------------------------

    def _connected(self, *, beside: bool = False) -> LibpqSession:
        """The connection, opened where there is none.

        Args:
            beside: Whether it is the one for what happens beside an open transaction.
        """
        if self._arrays is None:
            session = LibpqSession(self._dsn, "the host")
            rows = execute(session, Step(ARRAYS)).rows
            self._arrays = {int(row["oid"]): int(row["typarray"]) for row in rows}
            session.close()
        if beside:
            self._second = self._second or LibpqSession(self._dsn, "the host", self._arrays)
            return self._second
        self._session = self._session or LibpqSession(self._dsn, "the host", self._arrays)
        return self._session

    @property
    def pids(self) -> tuple[int, ...]:
        """The backends of its connections."""
        sessions = (self._session, self._second)
        return tuple(session.pid for session in sessions if session is not None)

    def close(self) -> None:
        """Close its connections; the next operation opens others."""
        for session in (self._session, self._second):
            if session is not None:
                session.close()
        self._session = self._second = self._arrays = None

    # --- operations -----------------------------------------------------------------------------

    def _run(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - any answer of an operation
        session = self._connected()
        beside = operation == "heartbeat" and session.in_transaction
        if beside:
            session = self._connected(beside=True)
        absent = dict.fromkeys(OPERATIONS[operation] - {"job", "jobs"})
        now = datetime.now(UTC) + timedelta(seconds=self._ahead)
        steps = self._queue.begin(operation, **{**absent, **arguments, NOW: now})
        if wallclock.MOVABLE and not isinstance(self._queue, sqlfile.SqlFileQueue):
            steps = wallclock.resumed_at(steps, lambda: self._ahead)
        answer = run(session, steps)
        if session.in_transaction and not (operation == "claim" and answer):
            session.run("ROLLBACK")  # a claim that got nothing; others end what they begin
        return answer


def run(session: LibpqSession, operation: Operation[T]) -> T:
    """Run an operation to its end; an error of the server is its own to handle.

    Args:
        session: The connection.
        operation: The operation, not begun yet.

    Raises:
        ServerError: The server answered with an error that the operation does not handle.
        ConnectionLostError: The connection broke.
    """
    resume = partial(next, operation)
    while True:
        try:
            step = resume()
        except StopIteration as stop:
            answer: T = stop.value
            return answer
        try:
            # Whoever asked gives up before: it knows who waits for whom.
            result = execute(session, step, waits.BULK)
        except ServerError as error:
            if session.in_transaction:
                session.run("ROLLBACK")
            resume = partial(operation.throw, error)
        else:
            resume = partial(operation.send, result)


# --- as JSON ------------------------------------------------------------------------------------


def _error(sqlstate: str, message: str) -> dict[str, object]:
    return {"error": {"sqlstate": sqlstate, "message": message}}


def _given(message: Mapping[str, Any]) -> dict[str, object]:
    """A message's arguments as an operation takes them."""
    given: dict[str, object] = {name: value for name, value in message.items() if name != "op"}
    for name in _DURATIONS:
        if name in given:
            given[name] = timedelta(seconds=message[name])
    if "payload" in given:
        given["payload"] = json.dumps(message["payload"])
    if "job" in given:
        given["job"] = _claim(message["job"])
    if "jobs" in given:
        given["jobs"] = [_claim(job) for job in message["jobs"]]
    return given


def _job(claim: Claim) -> dict[str, object]:
    """A claim with its token, each value of which keeps its type."""
    token = {
        name: [None if value.text is None else value.text.decode(), value.oid]
        for name, value in claim.token.items()
    }
    return {"id": claim.id, "token": token}


def _claim(job: Mapping[str, Any]) -> Claim:
    token = {
        name: Value(None if text is None else text.encode(), oid)
        for name, (text, oid) in job["token"].items()
    }
    return Claim(job["id"], token)


def _row(row: JobRow) -> dict[str, object]:
    return {"id": row.id, "state": row.state, "attempts": row.attempts}


# --- the process --------------------------------------------------------------------------------


def load(name: str) -> Queue:
    """The queue that a command line names.

    Args:
        name: The path of an SQL file, or `package.module:Class`.

    Raises:
        QueueproofError: There is no such queue, it cannot be used, or it has workers already.
    """
    if Path(name).is_file():
        return sqlfile.load(name)
    from queueproof.queues.resolve import resolve  # noqa: PLC0415 - costs time, where a queue file needs none
    from queueproof.queues.worker import WorkerQueue  # noqa: PLC0415 - the same

    queue = resolve(name)
    if isinstance(queue, WorkerQueue):
        raise QueueproofError(f"{name} has processes of its own: it needs no host")
    return queue


def _only(arguments: list[str]) -> str:
    if len(arguments) != 1:
        raise QueueproofError("write python -m queueproof.run.host QUEUE")
    return arguments[0]


def serve(queue: Queue, messages: Iterable[bytes], answers: IO[bytes]) -> None:
    """Answer messages until there are no more.

    Args:
        queue: The queue.
        messages: Lines.
        answers: Where the answers go, a line each.

    Raises:
        QueueproofError: The queue did something that no queue may.
    """
    host = Host(queue)
    for message in messages:
        answers.write(json.dumps(host.answer(json.loads(message))).encode() + b"\n")
        answers.flush()


def main(arguments: list[str] | None = None) -> int:
    """Serve the queue that the command line names, until stdin ends; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    # What a queue's own code prints is its log; the answers keep the real stdout for themselves.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        try:
            serve(load(_only(given)), sys.stdin.buffer, answers)
        except QueueproofError as error:
            sys.stderr.write(f"{error}\n")
            return Exit.UNUSABLE
        except (KeyboardInterrupt, BrokenPipeError):
            return Exit.INTERRUPTED
    return Exit.HOLDS


if __name__ == "__main__":
    sys.exit(main())
