"""The waits of the harness for others, and their limits: no wait is without an end.

While a server is frozen (a paused container, a network that drops packets), libpq's blocking calls
do not return, and as long as they do not, Python runs no signal handler. So libpq is only called
where it does not block, and the waiting is done here, a moment at a time. A wait ends with what it
is for, or when its limit is over, which is told with what it was for; or `GRACE` seconds after
somebody has asked the run to stop (`queueproof.ending`).

Every limit is named here; `postgres/watchdog.py`, which imports nothing, has its own.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import psycopg
from psycopg import capabilities, pq
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGcancelConn, PGconn, PGresult
from psycopg.rows import TupleRow, tuple_row
from psycopg.waiting import Ready, Wait

from queueproof import ending
from queueproof.errors import QueueproofError

T = TypeVar("T")

# Seconds.
CONNECT = 10.0  # a server takes a connection, where the DSN names no connect_timeout
STATEMENT = 60.0  # a statement of the queue's, or what a worker is asked for, while nobody acts
OWN = 60.0  # a statement of the harness's own
BULK = 600.0  # the same where it fills, vacuums or copies tables
LOCK = 5.0  # a lock on the queue's tables that should be free, and once more without spare workers
IMPATIENT = f"SET lock_timeout = {LOCK * 1000:.0f}"
CANCEL = 10.0  # a statement ends that was cancelled
GONE = 10.0  # a backend or a process ends that was told to, or a connection of it
BEGIN = 30.0  # a worker begins its life or installs its queue
ANSWER = 10.0  # a worker reads what it is asked
IMAGE = 120.0  # a container becomes a server, once its image is here
TOOL = 10.0  # a tool of PostgreSQL's says its version
START = 300.0  # the watchdog starts a server: see there
READER = 10.0  # somebody reads what is written to a pipe or a device, or writes what is read there
LOGGED = 2.0  # a server that we started notes in its log why one of its processes has ended
CLEAN = 120.0  # the watchdog has removed everything

SLICE = 0.25  # between two looks at whether to go on waiting
LATE = 2.0  # a look comes so late only where this process did not run: stopped, or asleep
SOON = 0.02  # before somebody looks after others while he waits
OTHERS = 0.002  # between two looks at these

PIECE = 64 * 2**10  # bytes that are read at once
LARGEST = 64 * 2**20  # bytes of a file that somebody names
_SELECTS = 1024  # descriptors that select(2) can look at; poll(2) rounds up to milliseconds
_COPY = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)


class LimitError(QueueproofError):
    """Something did not happen in time; the message says what, and how long it was waited for."""


class StoppedError(LimitError):
    """Somebody has asked the run to stop, and it has waited for `GRACE` seconds since."""


# --- one wait -----------------------------------------------------------------------------------


class Limit:
    """The end of one wait.

    It is given once more where it ran out while this process did not run, and so could not look:
    stopped by Ctrl-Z or a debugger, say. What it waits for may have had no chance either.

    Args:
        what: What is waited for, such as `PostgreSQL to answer`; or what says it.
    """

    def __init__(self, seconds: float, what: str | Callable[[], str]) -> None:
        self.seconds = seconds
        self._what = what
        self._looks = time.monotonic()  # when, at the latest
        self._ends = self._looks + seconds
        self._again = True
        self.is_over()

    @property
    def what(self) -> str:
        """The name of what is waited for."""
        return self._what if isinstance(self._what, str) else self._what()

    def is_over(self) -> bool:
        """True if the wait has lasted as long as it may."""
        now = time.monotonic()
        if now >= ending.at():
            raise StoppedError(f"stopped while it waited for {self.what}")
        if now >= self._ends and now > self._looks + LATE and self._again:
            self._ends, self._again = now + self.seconds, False
        self._looks = now + SLICE
        return now >= self._ends

    def left(self, at_most: float = SLICE) -> float:
        """For how many seconds to wait before this is asked again."""
        if self.is_over():
            raise LimitError(f"waited {self.seconds:g} s for {self.what}")
        now = time.monotonic()
        wanted = max(0.0, min(at_most, self._ends - now, ending.at() - now))
        self._looks = now + wanted
        return wanted


def until(condition: Callable[[], bool], seconds: float, what: str, *, look: float = 0.001) -> None:
    """Wait until something is so, and ask again and again."""
    if condition():
        return
    limit = Limit(seconds, what)
    while not condition():
        time.sleep(limit.left(look))
        look = min(2 * look, 0.05)


def answer_of(program: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask a program a question, such as for its version; nothing that it began stays."""
    asked = [str(program), *arguments]
    with subprocess.Popen(  # noqa: S603 - a program that the user installed
        asked,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            answer, complaint = process.communicate(timeout=TOOL)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                told = f"waited {TOOL:g} s for `{' '.join(asked)}` to answer"
                raise LimitError(told) from None
            raise
    return subprocess.CompletedProcess(asked, process.returncode, answer, complaint)


def ended(process: subprocess.Popen[Any], seconds: float) -> bool:
    """True if a process ends, and is reaped, within some seconds, or `GRACE`."""
    with suppress(LimitError):
        until(lambda: process.poll() is not None, seconds, "a process")
    return process.returncode is not None


def readable(fd: int, seconds: float) -> bool:
    """Wait up to some seconds, to the microsecond, until a file descriptor can be read.

    Args:
        seconds: How long it is waited for; 0 looks once.
    """
    if fd < _SELECTS:
        return bool(select.select([fd], [], [], seconds)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def contents(path: Path) -> bytes:
    """The bytes of a file; whoever writes into a pipe or a device may be slow, but not silent.

    Raises:
        OSError: It cannot be read, or is longer than `LARGEST` bytes.
    """
    found = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while True:
            limit = Limit(READER, f"somebody to write into {path}")
            while not readable(descriptor, limit.left()):
                pass
            with suppress(BlockingIOError):
                piece = os.read(descriptor, PIECE)
                if not piece:
                    return bytes(found)
                found += piece
            if len(found) >= LARGEST:
                raise OSError(f"longer than {LARGEST >> 20} MiB")
    finally:
        os.close(descriptor)


def text(path: Path) -> str:
    """The text of a file that somebody names, with the limits of `contents`.

    Raises:
        QueueproofError: It cannot be read, is too long, or is not UTF-8.
    """
    try:
        return contents(path).decode()
    except UnicodeDecodeError:
        raise QueueproofError(f"cannot read {path}: save it as UTF-8") from None
    except OSError as error:
        raise QueueproofError(f"cannot read {path}: {error}") from None


# --- libpq --------------------------------------------------------------------------------------

Meanwhile: TypeAlias = Callable[[], object]
"""A function that is called again and again during a wait, as others may have to act first."""


def _ready(fd: int, wanted: Wait, limit: Limit, meanwhile: Meanwhile | None = None) -> Ready:
    """Wait until a descriptor is ready for reading, writing, or one of both."""
    poll = select.poll()
    poll.register(
        fd, select.POLLIN * bool(wanted & Wait.R) | select.POLLOUT * bool(wanted & Wait.W)
    )
    look = SLICE if meanwhile is None else SOON
    while not (found := poll.poll(math.ceil(limit.left(look) * 1000))):
        if meanwhile is not None:
            meanwhile()
            look = OTHERS
    ((_, events),) = found
    if events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
        return Ready(wanted)  # which libpq then finds out
    return Ready(Ready.R * bool(events & select.POLLIN) | Ready.W * bool(events & select.POLLOUT))


def _place(conninfo: str) -> str:
    """The address in a connection string, without its secrets."""
    given = conninfo_to_dict(conninfo)
    found = given.get("host") or given.get("hostaddr") or "its default address"
    return f"{found}:{given['port']}" if "port" in given else str(found)


def connect(conninfo: str) -> PGconn:
    """A connection of libpq's.

    Raises:
        LimitError: The server neither took nor refused it within its connect_timeout, or `CONNECT`.
        psycopg.OperationalError: It refused, and says why.
    """
    seconds = float(conninfo_to_dict(conninfo).get("connect_timeout") or 0) or CONNECT
    limit = Limit(seconds, f"PostgreSQL at {_place(conninfo)} to take a connection")
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        _poll(pgconn, pgconn.connect_poll, limit)
    except BaseException:
        pgconn.finish()
        raise
    if pgconn.status != pq.ConnStatus.OK:
        refused = pgconn.get_error_message().strip()
        pgconn.finish()
        raise psycopg.OperationalError(refused)
    pgconn.nonblocking = 1
    return pgconn


def _poll(connection: PGconn | PGcancelConn, poll: Callable[[], int], limit: Limit) -> None:
    """Wait as long as libpq says that a connection under way has to."""
    while (wanted := _UNDER_WAY.get(pq.PollingStatus(poll()))) is not None:
        _ready(connection.socket, wanted, limit)


_UNDER_WAY = {pq.PollingStatus.READING: Wait.R, pq.PollingStatus.WRITING: Wait.W}


def flush(pgconn: PGconn, limit: Limit, meanwhile: Meanwhile | None = None) -> None:
    """Wait until the server has taken what is sent.

    Args:
        meanwhile: Called again and again while it waits.
    """
    while pgconn.flush():
        _ready(pgconn.socket, Wait.RW, limit, meanwhile)
        pgconn.consume_input()


def answer(
    pgconn: PGconn,
    seconds: float,
    what: str | Callable[[], str],
    meanwhile: Meanwhile | None = None,
) -> PGresult | None:
    """The last result of what was sent, as PQexec would give it; None of a broken connection.

    Args:
        meanwhile: What to do while it is waited for.

    Raises:
        LimitError: It has not come in time.
        psycopg.OperationalError: The connection broke.
    """
    limit: Limit | None = None  # most answers come too soon for one
    if pgconn.flush():
        limit = Limit(seconds, what)
        flush(pgconn, limit, meanwhile)
    last: PGresult | None = None
    while True:
        while pgconn.is_busy():
            if not readable(pgconn.socket, SOON):
                limit = limit or Limit(seconds, what)
                _ready(pgconn.socket, Wait.R, limit, meanwhile)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or pgconn.status == pq.ConnStatus.BAD:
            return last
        last = result
        if result.status in _COPY:
            return last


def cancel(pgconn: PGconn) -> None:
    """Ask a server to cancel what a connection runs.

    Raises:
        LimitError: The server does not take the request.
        psycopg.Error: It refuses it.
    """
    if not capabilities.has_cancel_safe():  # libpq before 17 has only a call that blocks
        pgconn.get_cancel().cancel()
        return
    limit = Limit(CANCEL, "PostgreSQL to take a request to cancel")
    asking = pgconn.cancel_conn()
    try:
        asking.start()
        _poll(asking, asking.poll, limit)
    finally:
        asking.finish()


class LimitedConnection(psycopg.Connection[TupleRow]):
    """A connection of the harness's own, none of whose statements waits without an end.

    After a wait that was broken off it is closed: its answer may still come.

    Attributes:
        seconds: How long a statement may take.
        meanwhile: What to do while one is waited for.
    """

    seconds: float | None = None
    meanwhile: Meanwhile | None = None

    @classmethod
    def open(cls, conninfo: str) -> Self:
        """Connect; each statement is a transaction of its own, and none is prepared.

        Raises:
            LimitError: The server did not answer.
            psycopg.OperationalError: It refused.
        """
        # What a database in SQL_ASCII has in its catalogues would come as bytes.
        pgconn = connect(make_conninfo(conninfo, client_encoding="UTF8"))
        opened = cls(pgconn, tuple_row)
        opened.autocommit = True
        opened.prepare_threshold = None
        return opened

    def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.0,  # noqa: ARG002 - psycopg's, for Ctrl-C
        timeout: float | None = None,
    ) -> T:
        """Run what psycopg does on this connection, and wait whenever that has to.

        Args:
            gen: A generator of psycopg's, which yields what it waits for.
            interval: Not used: waits here are cut into moments anyway.
            timeout: Seconds; without it the connection's own limit, or `OWN`.

        Raises:
            LimitError: It took longer; the connection is closed then.
        """
        seconds = timeout or self.seconds or OWN
        limit = Limit(seconds, "PostgreSQL to answer the harness")
        try:
            wanted = next(gen)
            while True:
                try:
                    ready = _ready(self.pgconn.socket, wanted, limit, self.meanwhile)
                except BaseException:
                    self.pgconn.finish()
                    raise
                wanted = gen.send(ready)
        except StopIteration as done:
            value: T = done.value
            return value
