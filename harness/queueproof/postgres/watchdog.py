"""The process that outlives the run: it starts the run's server, and cleans up when the run ends.

Exit handlers do not survive `kill -9`; a pipe does, because the kernel closes the run's end of it
however the run ends. So everything that could be left behind is first made known here, and cleaning
up is written once: the normal end of a run closes the pipe too, and waits.

The server is this process' child. Its pid therefore cannot pass to a stranger before it is
signalled here, and an `initdb` that is still running when the run dies is not left to itself.

Run as a script by `python -I -S`, which starts in 30 ms: standard library only. psycopg and
testcontainers are imported once there is a database or a container to remove.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias, cast

if TYPE_CHECKING:
    import psycopg

Request: TypeAlias = dict[str, Any]

START_SECONDS = 120  # initdb, and again the server or PgBouncer: a slow disk is not a broken one
STOP_SECONDS = 10  # the postmaster itself kills after five what ignores its SIGQUIT
CONTAINER_SECONDS = 2  # dockerd may finish creating a container after its client has died
DATABASE_SECONDS = 60  # somebody's busy server may take long to drop a database
RETURN_SECONDS = 10  # for somebody's server that restarts
CONNECT_SECONDS = 10  # a server that is going down answers nobody
TAIL = 15  # lines of a failed program's output that are shown


class WatchdogError(Exception):
    """The watchdog could not do what it was asked to; the message is the program's own."""


class Watchdog:
    """The run's end: a context manager that asks, and whose end is the clean-up.

    What is registered is removed in reverse order: `directory` makes a private directory, and
    removes it together with the server whose `data` is in it; `server` runs initdb and starts it;
    `restart` kills that server and starts it again; `program` starts one that works in such a
    directory, and ends with it; `container` and `database` are names to remove, `group` is a
    process group to kill, `mark` what the environment of every process to kill has; `forget` says
    that a name is gone already.
    """

    def __enter__(self) -> Self:
        self._asked: list[Request] = []
        self._lock = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the run alone
            cwd="/",
        )
        return self

    def ask(self, do: str, **what: object) -> None:
        """Have one thing done, or remembered for the end."""
        from queueproof import waits  # noqa: PLC0415 - which the script cannot import

        pipe = cast("IO[bytes]", self._process.stdin)
        request = {"do": do, **what}
        with self._lock:
            _note(self._asked, request)
            try:
                pipe.write(json.dumps(request).encode() + b"\n")
                pipe.flush()
                reply = self._reply(waits.START, f"the watchdog process to do: {do}")
            except waits.LimitError as silent:
                raise WatchdogError(str(silent)) from None
            except OSError:
                reply = b""
        if not reply:
            raise WatchdogError("the watchdog process was killed")
        if error := json.loads(reply):
            raise WatchdogError(error)

    def _reply(self, seconds: float, what: str) -> bytes:
        """One line of it; nothing where it has ended."""
        from queueproof import waits  # noqa: PLC0415 - as above

        fd = cast("IO[bytes]", self._process.stdout).fileno()
        limit = waits.Limit(seconds, what)
        reply = b""
        while not reply.endswith(b"\n"):
            while not waits.readable(fd, limit.left()):
                pass
            if not (read := os.read(fd, 65536)):
                return b""
            reply += read
        return reply

    def __exit__(self, *_: object) -> None:
        from queueproof import waits  # noqa: PLC0415 - as above

        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        try:
            told = self._reply(waits.CLEAN, "the watchdog")
        except waits.LimitError:
            return  # it goes on by itself
        finally:
            cast("IO[bytes]", self._process.stdout).close()
        waits.ended(self._process, waits.CLEAN)
        if self._process.returncode == 0 and told:
            left: dict[str, str] = json.loads(told)
        else:
            left = end(self._asked)  # somebody killed the watchdog: better late than never
        for name, reason in left.items():
            sys.stderr.write(
                f"queueproof: the database {name} could not be dropped, and is still there: "
                f"{reason}\nOnce the server answers: DROP DATABASE {name} WITH (FORCE)\n"
            )


def main(parent: int) -> None:
    """Serve requests until the run has ended, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # a handler, not SIG_IGN, which the server would inherit
        signal.signal(number, lambda *_: None)
    asked: list[Request] = []
    children: list[subprocess.Popen[bytes]] = []  # never polled: a zombie keeps its pid taken
    for request in _requests(parent):
        _note(asked, request)
        error = ""
        try:
            match request["do"]:
                case "directory":
                    _make_directory(request)
                case "server":
                    children.append(_start_server(request))
                case "restart":
                    _stop_server(Path(request["directory"]) / "data")
                    children.append(_launch(request))
                case "program":
                    children.append(_start_program(request))
        except FileExistsError as exists:
            asked.remove(request)  # not ours
            error = str(exists)
        except (OSError, subprocess.SubprocessError, WatchdogError) as failure:
            error = str(failure)
        with suppress(BrokenPipeError):
            os.write(1, json.dumps(error).encode() + b"\n")
    left = end(asked)
    for child in children:
        _end_child(child)
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(left).encode() + b"\n")


def _end_child(child: subprocess.Popen[bytes]) -> None:
    """End what still runs: somebody has removed the folder that says which process it is."""
    for number in (signal.SIGQUIT, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            child.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)


def _note(asked: list[Request], request: Request) -> None:
    if request["do"] == "forget":
        asked[:] = [known for known in asked if known.get("name") != request["name"]]
    elif request["do"] != "restart":  # the server that it starts is known
        asked.append(request)


def end(asked: list[Request]) -> dict[str, str]:
    """Remove everything that was asked for, the latest first; what is gone already is no error.

    Returns:
        The databases that are still there, and why.
    """
    left = {}
    for request in reversed(asked):
        with suppress(Exception):  # one that resists must not keep the others
            match request["do"]:
                case "directory":
                    _remove_directory(Path(request["path"]))
                case "container":
                    sys.path[:] = request["path"]
                    _remove_container(request["name"])
                case "database":
                    sys.path[:] = request["path"]
                    if reason := _drop(request["conninfo"], request["name"]):
                        left[request["name"]] = reason
                case "group":
                    _kill_group(request["pid"], request["started"])
                case "mark":
                    _wait(partial(_kill_marked, request["mark"]), STOP_SECONDS)
    return left


def started(pid: int) -> int:
    """The start of a process, in clock ticks; 0 where there is none, or nobody can tell."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[19])  # the 22nd field: proc(5)


def _kill_group(pid: int, since: int) -> None:
    """Kill a process group, unless its number has passed to a stranger in the meantime."""
    if started(pid) in {0, since}:  # a group outlives its first process, and keeps the number
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _kill_marked(mark: str) -> bool:
    """Kill every process whose environment has a mark; whether there was none.

    So those are found too whom a program has put into a session of their own, and who outlive
    it: neither their group nor their parent tells whose they are.
    """
    found = False
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if mark.encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
                found = True
    return not found


def _drop(conninfo: str, name: str) -> str:
    """Drop a database of a server that may not answer; why it is still there, or nothing."""
    reason = [f"the server has not answered for {DATABASE_SECONDS} s"]

    def act() -> None:
        reason[0] = _drop_patiently(conninfo, name)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(DATABASE_SECONDS)
    return reason[0]


def _drop_patiently(conninfo: str, name: str) -> str:
    """Drop a database of a server that may be starting again."""
    import psycopg  # noqa: PLC0415 - not in a watchdog that has no database to drop

    give_up = time.monotonic() + RETURN_SECONDS
    while True:
        try:
            patient = psycopg.connect(conninfo, autocommit=True, connect_timeout=CONNECT_SECONDS)
            with patient as connection:
                drop_database(connection, name)
        except psycopg.OperationalError as error:
            if time.monotonic() > give_up:
                return " ".join(str(error).split())
            time.sleep(0.2)
        except psycopg.Error as error:
            return " ".join(str(error).split())
        else:
            return ""


def drop_database(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a database of this run, with its sessions, once the session that creates it has ended.

    That session may still be at it after its client was killed. It holds the advisory lock of
    `lock_key`, so that the database cannot appear after it was found missing.

    Args:
        connection: To the database of the same server that it was created from.
    """
    from psycopg import sql  # noqa: PLC0415 - as above

    connection.execute(f"SET statement_timeout = '{DATABASE_SECONDS}s'")
    connection.execute("SELECT pg_advisory_lock(%s)", [lock_key(name)])
    named = sql.Identifier(name)
    template = "SELECT FROM pg_catalog.pg_database WHERE datname = %s AND datistemplate"
    if connection.execute(template, [name]).fetchone() is not None:  # which the queue has made it
        connection.execute(sql.SQL("ALTER DATABASE {} IS_TEMPLATE false").format(named))
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(named))


def lock_key(database: str) -> int:
    """Return the advisory lock that stands for a database name: its 16 hex digits as a bigint."""
    return int(database[-16:], 16) - 2**63


def _requests(parent: int) -> Iterator[Request]:
    """Yield until the run's end of the pipe is closed.

    A worker that the run forked holds that end open as well, and may survive it: after a second
    without a request, look whether the run itself is still there.
    """
    pending = b""
    while True:
        if select.select([0], [], [], 1.0)[0]:
            received = os.read(0, 65536)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            yield from map(json.loads, lines)
        elif os.getppid() != parent:
            return


def _make_directory(request: Request) -> None:
    """Make `path`, for nobody but `owner` ([uid, gid], None for this user) to enter."""
    Path(request["path"]).mkdir(mode=0o700)
    if request["owner"]:
        os.chown(request["path"], *request["owner"])


def _start_server(request: Request) -> subprocess.Popen[bytes]:
    """Run the command line `initdb`, then `postgres`."""
    initdb = subprocess.run(  # noqa: S603 - programs that the user chose
        request["initdb"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=START_SECONDS,
        check=False,
        **_how(request),
    )
    if initdb.returncode:
        raise WatchdogError(_tail(initdb.stderr))
    return _launch(request)


def _how(request: Request) -> dict[str, Any]:
    """In which environment and as whom (`owner`) the server's programs run."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    # the time zone is named because initdb would look for it in the whole zone database
    environment |= {"LC_ALL": "C", "TZ": "UTC"}
    settings: dict[str, Any] = {"env": environment, "cwd": "/", "stdin": subprocess.DEVNULL}
    if request["owner"]:
        uid, gid = request["owner"]
        settings |= {"user": uid, "group": gid, "extra_groups": []}
    return settings


def _launch(request: Request) -> subprocess.Popen[bytes]:
    """Start `postgres` on a data directory, and wait until it takes connections."""
    directory = Path(request["directory"])
    log = directory / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(  # noqa: S603 - a program that the user chose
            request["postgres"], stdout=output, stderr=output, **_how(request)
        )
    status = directory / "data" / "postmaster.pid"

    def settled() -> bool:
        with suppress(OSError):
            if status.read_bytes().rstrip().endswith(b"ready"):
                return True
        return server.poll() is not None

    if not _wait(settled, START_SECONDS) or server.poll() is not None:
        server.kill()
        raise WatchdogError(_tail(log.read_bytes()) or f"exit code {server.wait()}, empty log")
    return server


def _start_program(request: Request) -> subprocess.Popen[bytes]:
    """Run `command`, and wait until it listens at the socket `listens`.

    The socket's file is there before: bind makes it, and until listen whoever connects is refused.
    """
    directory = Path(request["directory"])
    log = directory / "log"
    with log.open("wb") as output:
        program = subprocess.Popen(  # noqa: S603 - a program that the user chose
            request["command"], stdout=output, stderr=output, **_how(request)
        )
    (directory / "pid").write_text(str(program.pid))

    def settled() -> bool:
        return program.poll() is not None or _listens(request["listens"])

    if not _wait(settled, START_SECONDS) or program.poll() is not None:
        silent = program.poll() is None
        program.kill()
        code = program.wait()
        (directory / "pid").unlink()
        why = f"has not listened for {START_SECONDS} s" if silent else f"exit code {code}"
        raise WatchdogError(_tail(log.read_bytes()) or f"{why}, empty log")
    return program


def _listens(path: str) -> bool:
    """True if somebody takes connections at a Unix-domain socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        return client.connect_ex(path) == 0


def _stop_program(directory: Path) -> None:
    """Stop the program that works in a directory at once."""
    try:
        pid = int((directory / "pid").read_text())
    except (OSError, ValueError):
        return  # there is none
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _wait(lambda: _ended(pid), STOP_SECONDS)


def _tail(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").strip().splitlines()[-TAIL:])


def _stop_server(data: Path) -> None:
    """Stop the server of a data directory at once, as a crash would: it writes nothing more."""
    status = data / "postmaster.pid"
    try:
        lines = status.read_text(errors="surrogateescape").splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return  # never started, or stopped by somebody
    for number in (signal.SIGQUIT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)  # or a stopped one would not hear of it
        if _wait(lambda: _ended(pid), STOP_SECONDS):
            break
    if status.exists():
        # killed, not stopped: its System V segment (the interlock on the data directory,
        # "key id" in line 7) would stay until the machine restarts
        with suppress(IndexError, ValueError):
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), 0, None)
        status.unlink(missing_ok=True)  # it would say `ready` of the next server


def _ended(pid: int) -> bool:
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _remove_directory(path: Path) -> None:
    _stop_server(path / "data")
    _stop_program(path)

    def removed() -> bool:
        # again and again: the backends of a server that was killed may still write into it
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    _wait(removed, STOP_SECONDS)


def _remove_container(name: str) -> None:
    from docker.errors import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
        NotFound,
    )
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - an extra

    client = DockerClient().client

    def removed() -> bool:
        try:
            client.containers.get(name).remove(force=True, v=True)
        except NotFound:
            return False
        return True

    _wait(removed, CONTAINER_SECONDS)
    client.close()


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition came true in time; asked for every 5 ms."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]))
