"""The watchdog without a server: when a program that it starts counts as there."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof.postgres import watchdog

BIND = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
{then}
time.sleep(600)
"""


def request(directory: Path, then: str) -> watchdog.Request:
    """What starts a program that binds a socket, and does something then."""
    path = str(directory / "s")
    command = [sys.executable, "-I", "-S", "-c", BIND.format(then=then), path]
    return {"directory": str(directory), "owner": None, "command": command, "listens": path}


def test_a_socket_comes_before_a_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between bind and listen, whoever connects is refused: PgBouncer was said to be there."""
    wait = watchdog._wait

    def once_bound(condition: Callable[[], bool], seconds: float) -> bool:
        assert wait((tmp_path / "s").is_socket, seconds)
        return condition()

    monkeypatch.setattr(watchdog, "_wait", once_bound)
    with pytest.raises(watchdog.WatchdogError, match="has not listened for"):
        watchdog._start_program(request(tmp_path, "pass"))
    assert not (tmp_path / "pid").exists()


def test_a_program_that_listens(tmp_path: Path) -> None:
    """A program is there once it listens, and ends with its directory, or says why it ended."""
    program = watchdog._start_program(request(tmp_path, "server.listen()"))
    try:
        assert watchdog._listens(str(tmp_path / "s"))
    finally:
        watchdog._stop_program(tmp_path)
    assert not watchdog._listens(str(tmp_path / "s"))
    program.wait()
    (tmp_path / "s").unlink()
    with pytest.raises(watchdog.WatchdogError, match="no such luck"):
        watchdog._start_program(request(tmp_path, "sys.exit('no such luck')"))
