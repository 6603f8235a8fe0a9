"""A queue from workers that speak JSON lines: one process is one worker's life.

A message is one line with one JSON object on the worker's stdin, its answer one line on its
stdout, and what it writes to stderr is its log. `templates/README.md` describes every message.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from textwrap import indent
from typing import IO, Any, NoReturn, Self, TypeAlias, TypeGuard, cast, get_args
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from queueproof import waits
from queueproof.errors import QueueError, QueueproofError, ServerError, nearest
from queueproof.postgres.environment import without_libpq
from queueproof.postgres.watchdog import Watchdog, WatchdogError, started
from queueproof.queues.facts import readers, within_reach
from queueproof.queues.model import OPERATIONS, Claim, JobRow, Operation, Queue, State, Value

Json: TypeAlias = Mapping[str, Any]

LONGEST_LINE = 1_000_000  # bytes
_CHUNK = 65536  # bytes: what a pipe of Linux holds
_LOG_KEPT = 4096  # bytes of stderr
_MARK = "QUEUEPROOF_MARK"  # a variable
_LAST_WORDS = 1.0  # seconds for a dead worker's pipes to run dry
_SHOWN = 200  # characters of a line in a message


class WorkerError(QueueError):
    """A worker died, does not answer, or answers what is no answer; the message says which."""

    reference = "What a worker reads and answers: queueproof help program"


@dataclass(frozen=True, slots=True)
class WorkerClaim(Claim):
    """A job in a worker's hands, as the worker described it."""

    job: Json = field(default_factory=dict)  # the claim's answer; it goes back unchanged


class WorkerQueue(Queue):
    """A queue whose operations worker processes carry out, over connections of their own.

    What the queue promises and offers its workers say: until `described_by` has seen the
    answer to its `init`, nothing is promised, and only what every queue has is offered.
    """

    name: str = ""
    takes_any_queue = False  # a library may have to make a queue before it takes a job

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        written: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Say how workers are started, by their command and its arguments; none is yet.

        `written` is the definition, where the files among the arguments are not that, and
        `environment` what it gets beside this process' variables, libpq's excepted.
        """
        self.argv = tuple(argv)
        # A worker is told where to connect to: PGHOSTADDR would lead it past the gate.
        self.environment = {**without_libpq(os.environ), **(environment or {})}
        self.written = _written(self.argv) if written is None else written
        self.name = name
        self._operations = frozenset(self.required)
        self._takes: Mapping[str, frozenset[str]] = {}

    @property
    def offers(self) -> frozenset[str]:  # not cached: it is known late
        """The operations that this queue has."""
        return self._operations & OPERATIONS.keys()

    @property
    def moves_clock(self) -> bool:
        """True if it can move its own process' clock."""
        return "clock" in self._operations

    def takes(self, operation: str) -> frozenset[str]:
        """Arguments of `OPERATIONS[operation]` that the worker wants to be told."""
        return self._takes.get(operation, OPERATIONS[operation])

    def begin(self, operation: str, **arguments: object) -> Operation[Any]:  # noqa: ARG002 - the model's
        """Refuse: a worker's statements are its own."""
        raise QueueproofError(
            f"{self.name}: a worker sends its own statements, and {operation} is needed as steps;"
            " that takes an SQL file, or a Python class of queueproof.Queue"
        )

    def described_by(self, answer: Json) -> None:
        """Take over what the answer to `init` says, `operations` and facts; or a WorkerError."""
        self.read_error("init", answer)
        known = {"operations", "takes", *_FACTS}
        for key in answer:
            if key not in known:
                self._refuse("init", answer, f"unknown key {key!r}{_near(key, known)}")
        self._take_operations(answer)
        for key, read in _FACTS.items():
            value = answer.get(key)
            try:
                setattr(self, key, getattr(Queue, key) if value is None else read(value))
            except ValueError as error:
                self._refuse("init", answer, f"{key}: {error}")

    def _take_operations(self, answer: Json) -> None:
        refuse = partial(self._refuse, "init", answer)
        operations = answer.get("operations")
        if not _is_strings(operations):
            refuse('it must have "operations", a list such as ["enqueue", "claim", "complete"]')
        known = OPERATIONS.keys() | {"clock"}
        for name in operations:
            if name not in known:
                refuse(f"unknown operation {name!r}{_near(name, known)}")
        for name in ("enqueue", "claim"):
            if name not in operations:
                refuse(f'"operations" lacks {name!r}, which every queue has')
        self._operations = frozenset(operations) | {"install"}
        takes = answer.get("takes") or {}
        if not isinstance(takes, Mapping):
            refuse('"takes" is an object such as {"claim": ["worker", "limit"]}')
        for name, arguments in takes.items():
            if name not in OPERATIONS:
                refuse(f'"takes" has the unknown operation {name!r}{_near(name, OPERATIONS)}')
            if not _is_strings(arguments):
                example = json.dumps(sorted(OPERATIONS[name]))
                refuse(f'"takes": {name!r} needs a list such as {example}')
            for argument in arguments:
                if argument not in OPERATIONS[name]:
                    near = _near(argument, OPERATIONS[name])
                    refuse(f'"takes": {name!r} cannot be given {argument!r}{near}')
            # A heartbeat may be about whatever its worker holds.
            for job in (OPERATIONS[name] & {"job", "jobs"}) - {*arguments}:
                if name != "heartbeat":
                    refuse(f'"takes": {name!r} is about a {job}: add {job!r}')
        self._takes = {name: frozenset(arguments) for name, arguments in takes.items()}

    def request(self, operation: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """The message for `init`, `install`, `clock` or an operation that it offers.

        Given are `dsn` and `queue` for init, `dsn` for install, `ahead` (seconds) for clock;
        otherwise those of `OPERATIONS`, of which the worker gets what it takes.
        """
        if "dsn" in arguments:
            arguments["dsn"] = as_uri(str(arguments["dsn"]))
        if operation in {"init", "install", "clock"}:
            return {"op": operation, **arguments}
        takes = sorted(self.takes(operation))
        given = {name: self._argument(name, arguments.get(name)) for name in takes}
        sent = {name: value for name, value in given.items() if value is not None}
        return {"op": operation, **({"jobs": [sent]} if operation == "enqueue" else sent)}

    def _argument(self, name: str, value: object) -> object:
        if value is None:
            # As in a queue file: what a caller leaves open is the header's, or 3 attempts.
            value = {"lease": self.lease_time, "max_attempts": self.max_attempts or 3}.get(name)
        if name == "payload" and isinstance(value, str):
            return json.loads(value)
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, Claim):
            return _job(value)
        if name == "jobs":
            return [_job(claim) for claim in cast("Iterable[Claim]", value)]
        return value

    def read(self, operation: str, request: Json, answer: object) -> Any:  # noqa: ANN401 - JSON
        """The answer to a message, as the operation of a `Queue` would return it.

        Else a WorkerError with the line and what is missing there, or a ServerError where the
        worker says that the server, or its library, refused.
        """
        if not isinstance(answer, Mapping):
            self._refuse(operation, answer, "an answer is one JSON object")
        if "error" in answer:
            raise ServerError(*self._error(operation, answer))
        refuse = partial(self._refuse, operation, answer)
        match operation:
            case "enqueue" | "recover":
                ids = _ids(answer.get("ids"), refuse)
                if operation == "enqueue" and len(ids) != (given := len(request["jobs"])):
                    refuse(f"it was given {given} job{'' if given == 1 else 's'}: as many ids")
                return ids
            case "complete_many":
                return _accepted_ids(answer, request, refuse)
            case "claim" | "complete_and_claim":
                claims = [_claim(job) for job in _objects(answer, refuse)]
                if operation == "claim":
                    return claims
                return _accepted_ids(answer, request, refuse), claims
            case "complete" | "fail" | "heartbeat":
                if not isinstance(answer.get("accepted"), bool):
                    refuse('it must be {"accepted": true} or {"accepted": false}')
                if operation == "heartbeat" and answer["accepted"] and "job" in answer:
                    return _renewed(answer, request, refuse)
                return answer["accepted"]
            case "jobs":
                return _job_rows(_objects(answer, refuse), refuse)
            case _:
                return None

    def read_error(self, operation: str, answer: object) -> None:
        """See that `init`, `install`, `start` or `clock` has not failed; WorkerError if it has."""
        try:
            self.read(operation, {}, answer)
        except ServerError as error:
            raise WorkerError(f"{self.name}: {operation} failed: {error}") from None

    def _error(self, operation: str, answer: Json) -> tuple[str, str]:
        wanted = '"error" is {"sqlstate": "40001", "message": "..."}'
        error = answer["error"]
        if not isinstance(error, Mapping):
            self._refuse(operation, answer, wanted)
        sqlstate, message = error.get("sqlstate"), error.get("message")
        if not isinstance(sqlstate, str) or not re.fullmatch("[0-9A-Z]{5}", sqlstate):
            unknown = '; where the library does not tell the SQLSTATE, "XX000"'
            self._refuse(operation, answer, wanted + unknown)
        if not isinstance(message, str):
            self._refuse(operation, answer, wanted)
        return sqlstate, message

    def _refuse(self, operation: str, answer: object, message: str) -> NoReturn:
        line = _shortened(json.dumps(answer))
        raise WorkerError(f"{self.name} answered {operation} with {line}: {message}")


def from_command(name: str) -> WorkerQueue:
    """The queue that `exec: command` names; QueueproofError where there is no such command."""
    line = name.removeprefix("exec:").strip()
    example = 'write both in quotes: "exec: node worker.mjs"'
    try:
        argv = shlex.split(line)
    except ValueError as error:
        raise QueueproofError(f"{name}: {str(error).lower()}") from None
    if not argv:
        raise QueueproofError(f"{name} names no command; {example}")
    command = argv[0]
    if shutil.which(command) is None:
        if Path(command).is_file() and "/" not in command:
            raise QueueproofError(f"{name}: {command} is not on PATH; write ./{command}")
        if Path(command).is_file():
            raise QueueproofError(f"{name}: {command} is not executable; chmod +x {command}")
        hint = "; is it installed, and on PATH?"
        if "=" in command:
            hint = "; set variables by env: `exec: env NAME=value command`"
        raise QueueproofError(f"{name}: there is no command {command}{hint}")
    return WorkerQueue(name, argv)


def as_uri(dsn: str) -> str:
    """A libpq connection string, or a URI already, as the URI that most client libraries read."""
    if "://" in dsn:
        return dsn
    try:
        parts = {k: str(v) for k, v in conninfo_to_dict(dsn).items() if v is not None}
    except psycopg.ProgrammingError:
        raise QueueproofError("the database's address is no connection string") from None
    path = quote(parts.pop("dbname", ""), safe="")
    host, place = parts.get("host", ""), ""
    # A socket's directory is no host of a URI, and a user without a host is one to few.
    if host and "/" not in host and "," not in host:
        del parts["host"]
        place = f"[{host}]" if ":" in host else quote(host, safe="")
        if port := parts.pop("port", ""):
            place += f":{port}"
        if user := parts.pop("user", ""):
            password = parts.pop("password", None)
            login = quote(user, safe="")
            login += "" if password is None else f":{quote(password, safe='')}"
            place = f"{login}@{place}"
    query = f"?{urlencode(parts, quote_via=quote, safe='/')}" if parts else ""
    return f"postgresql://{place}/{path}{query}"


class WorkerProcess:
    """One process: one worker's life.

    Nothing here waits but `ask`, `kill`, and `send` to a worker that reads nothing. Whoever runs
    it calls `receive` when `stdout` is readable, and `check` before relying on it.

    Attributes:
        answer: To the last message, once it is there.
        pid: Its process id, which is also its process group's.
        stdout: The descriptor on which it answers.
    """

    def __init__(self, queue: WorkerQueue, name: str) -> None:
        self._queue = queue
        self._name = name
        self._asked: Json | None = None
        self.answer: Json | None = None
        self._pending = b""
        self._fault = ""
        self._ending: os.waitid_result | None = None
        self._ended = False  # whether its stdout is at its end
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the worker that the user named
                queue.argv,
                env={**queue.environment, _MARK: _mark()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a group to kill, and Ctrl-C is for the run alone
                bufsize=0,
            )
        except OSError as error:
            how = error.strerror or error
            raise WorkerError(f"{queue.name} cannot be started: {how}") from None
        self.pid = self._process.pid
        self._group = f"group {self.pid}"
        self._stdin, self._log_pipe = (
            cast("IO[bytes]", pipe) for pipe in (self._process.stdin, self._process.stderr)
        )
        self.stdout = cast("IO[bytes]", self._process.stdout).fileno()
        self._log = b""
        # A pipe that nobody empties stops the worker that writes to it.
        self._logger = threading.Thread(target=self._keep_log, daemon=True)
        self._logger.start()
        os.set_blocking(self.stdout, False)
        os.set_blocking(self._stdin.fileno(), False)
        try:
            _watchdog().ask("group", name=self._group, pid=self.pid, started=started(self.pid))
        except WatchdogError as error:
            self.kill()
            raise WorkerError(f"{queue.name} cannot be started: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        """True if it runs, or is stopped."""
        return self._end() is None

    def _end(self) -> os.waitid_result | None:
        """Its ending. It is not reaped, so that its process id, and its group's, stays taken."""
        if self._ending is None:
            self._ending = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return self._ending

    def send(self, message: Json) -> None:
        """Ask for something; the answer to the message before it must have been taken."""
        assert self._asked is None, f"{self._asked} is not answered yet"
        self._receive_all()
        if self._fault:
            self._fail(self._fault)
        self._asked = message
        self.check()
        line = json.dumps(message).encode() + b"\n"
        limit = waits.Limit(waits.ANSWER, f"{self._name} to read what it is asked")
        pipe = self._stdin.fileno()
        while line:
            if not select.select([], [pipe], [], 0 if limit.is_over() else limit.left())[1]:
                if limit.is_over():
                    self._fail(f"does not read what it is asked: {_request(message)}")
                continue
            try:
                line = line[os.write(pipe, line) :]
            except BlockingIOError:
                continue  # there is room for less than a whole page
            except BrokenPipeError:
                self._ended = True
                self.check()

    def receive(self) -> None:
        """Read what there is on stdout; `check` tells what is wrong with it."""
        if self._ended:
            return
        try:
            chunk = os.read(self.stdout, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self._ended = True
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            self._parse(line)
        if self._pending and (not self._is_awaited or len(self._pending) > LONGEST_LINE):
            self._parse(self._pending)

    @property
    def _is_awaited(self) -> bool:
        """True if the next line is the answer to something."""
        return self._asked is not None and self.answer is None

    def _parse(self, line: bytes) -> None:
        if self._fault:
            return
        shown = _shortened(line.decode(errors="replace"))
        if not self._is_awaited:
            self._fault = f"wrote a line that nobody asked for: {shown}"
        elif len(line) > LONGEST_LINE:
            self._fault = f"wrote a line of more than {LONGEST_LINE // 1_000_000} MB: {shown}"
        elif (answer := _parsed(line)) is None:
            self._fault = f"wrote {shown}, which is no JSON object; its log belongs on stderr"
        else:
            self.answer = answer

    def _receive_all(self) -> None:
        while not self._ended and not self._fault and select.select([self.stdout], [], [], 0)[0]:
            self.receive()

    def take(self) -> Json:
        """The answer; the worker may be asked something else from now on."""
        answer, self.answer, self._asked = self.answer, None, None
        assert answer is not None, "there is no answer yet"
        return answer

    def check(self) -> None:
        """See that it can still be relied on: it has not died, and wrote what is an answer.

        The WorkerError says which worker, what it was asked, how it ended, and the end of its log.
        """
        if not self.alive:
            self._receive_all()
        if self._fault:
            self._fail(self._fault)
        if self.answer is not None or (self.alive and not self._ended):
            return
        give_up = time.monotonic() + _LAST_WORDS
        while self.alive and time.monotonic() < give_up:
            time.sleep(0.001)
        self._fail(_ending(end) if (end := self._end()) else "closed its stdout, and runs on")

    def ask(self, message: Json, seconds: float | None = None) -> Json:
        """Ask for something and wait for the answer, for `waits.ANSWER` or so many seconds."""
        self.send(message)
        seconds = waits.ANSWER if seconds is None else seconds
        limit = waits.Limit(seconds, f"{self._name} to answer {message['op']}")
        while self.answer is None:
            if limit.is_over():
                self._fail(f"has not answered {message['op']} within {seconds:g} s")
            if select.select([self.stdout], [], [], limit.left())[0]:
                self.receive()
            self.check()
        return self.take()

    def _fail(self, what: str) -> NoReturn:
        asked = f", asked {_request(self._asked)}" if self._asked else ""
        if not self.alive:
            self._logger.join(_LAST_WORDS)
        log = self._log.decode(errors="replace").strip()
        said = "\nIts stderr ends:\n" + indent(log, "  ") if log else ""
        raise WorkerError(f"{self._queue.name} ({self._name}) {what}{asked}{said}")

    def _keep_log(self) -> None:
        while chunk := os.read(self._log_pipe.fileno(), _CHUNK):
            self._log = (self._log + chunk)[-_LOG_KEPT:]

    def kill(self) -> None:
        """End it at once with all that it has started, as a crash would; it is gone afterwards."""
        if self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(waits.LimitError):  # the kernel may keep what stands in a call of its own
            waits.until(lambda: not self.alive, waits.GONE, "a killed worker to end", look=0.0001)
        with suppress(WatchdogError):  # it was killed itself, and there is nothing left to watch
            _watchdog().ask("forget", name=self._group)
        waits.ended(self._process, waits.GONE)
        self._ended = True
        # Whoever left the group may still hold the pipe open, and is not waited for.
        self._logger.join(_LAST_WORDS)
        for pipe in (self._process.stdin, self._process.stdout):
            cast("IO[bytes]", pipe).close()
        if not self._logger.is_alive():
            self._log_pipe.close()


@cache
def _watchdog() -> Watchdog:
    """Kills what this process leaves behind, however it ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    watchdog = stack.enter_context(Watchdog())
    watchdog.ask("mark", mark=f"{_MARK}={_mark()}")
    return watchdog


@cache
def _mark() -> str:
    """The mark by which all that workers start is known, wherever it has gone."""
    return secrets.token_hex(16)


def _written(argv: Sequence[str]) -> str:
    """A command, and the files that it names."""
    texts = [json.dumps(list(argv))]
    for path in map(Path, argv):
        with suppress(OSError):  # an argument that can be no file's name, or not be read
            if path.is_file():
                texts.append(path.read_bytes().decode(errors="surrogateescape"))
    return "".join(texts)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line as the JSON object that it is, or None."""
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
        if b"\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _request(message: Json) -> str:
    """A message as it may be shown: without the password of the database."""
    return _shortened(json.dumps({k: v for k, v in message.items() if k != "dsn"}))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _ending(end: os.waitid_result) -> str:
    if end.si_code == os.CLD_EXITED:
        return f"ended with exit status {end.si_status}"
    return f"was ended by signal {end.si_status} ({signal.strsignal(end.si_status)})"


def _near(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) or f"; known are {', '.join(sorted(known))}"


def _is_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _job(claim: Claim) -> Json:
    assert isinstance(claim, WorkerClaim)
    return claim.job


_Refuse: TypeAlias = Callable[[str], NoReturn]


def _ids(ids: object, refuse: _Refuse) -> list[str]:
    if not _is_strings(ids):
        refuse('it must have "ids", a list of strings such as ["7"]')
    return ids


def _accepted_ids(answer: Json, request: Json, refuse: _Refuse) -> frozenset[str] | None:
    if answer.get("ids", "") is None:
        return None
    ids = _ids(answer.get("ids"), refuse)
    asked = {job["id"] for job in request["jobs"]}
    for one in ids:
        if one not in asked:
            refuse(f"{one!r} is none of the jobs that it was given")
    return frozenset(ids)


def _objects(answer: Json, refuse: _Refuse) -> list[Json]:
    jobs = answer.get("jobs")
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        refuse('it must have "jobs", a list of objects such as {"id": "7"}')
    for job in jobs:
        if not isinstance(job.get("id"), str):
            refuse('each of "jobs" needs an "id", a string such as "7"')
    return jobs


def _claim(job: Json) -> WorkerClaim:
    return WorkerClaim(job["id"], {key: _value(value) for key, value in job.items()}, job)


def _renewed(answer: Json, request: Json, refuse: _Refuse) -> WorkerClaim:
    """The claim with the fields that a heartbeat's answer replaces."""
    job, new = request.get("job"), answer["job"]
    if not isinstance(job, dict):
        refuse('"job" belongs into the answer to a heartbeat that was given one')
    if not isinstance(new, dict) or new.get("id", job["id"]) != job["id"]:
        refuse(f'"job" is an object with what replaces the fields of job {job["id"]!r}')
    return _claim({**job, **new})


def _value(value: object) -> Value:
    if value is None:
        return Value(None, 0)
    return Value((value if isinstance(value, str) else json.dumps(value)).encode(), 0)


def _job_rows(jobs: Iterable[Json], refuse: _Refuse) -> list[JobRow]:
    states: tuple[State, ...] = get_args(State)
    rows: dict[str, JobRow] = {}
    for job in jobs:
        attempts = job.get("attempts")
        state = next((state for state in states if state == job.get("state")), None)
        if state is None:
            refuse(f'each of "jobs" needs a "state", one of {", ".join(states)}')
        if attempts is not None and type(attempts) is not int:
            refuse(f'"attempts" is a whole number, not {json.dumps(attempts)}')
        if job["id"] in rows:
            refuse(f"job {job['id']!r} stands there twice")
        rows[job["id"]] = JobRow(job["id"], state, attempts)
    return list(rows.values())


def _seconds(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{json.dumps(value)} is not a number of seconds; write 30")  # noqa: TRY004 - as every wrong value
    try:
        return within_reach(timedelta(seconds=value))
    except OverflowError:
        raise ValueError(f"{value} seconds are more than a clock can tell") from None


_FACTS = readers(_seconds, "30", '{"order": "why it is accepted"}')
"""The reader of each key of the header: as in an SQL file, but for durations, which are numbers."""
