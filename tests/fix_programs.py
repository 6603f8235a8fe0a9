"""Programs that end with their test, and waits for a condition that end with an error."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from queueproof import waits

PATIENCE = 60.0  # seconds, for what takes milliseconds where a machine has nothing else to do


class Program(subprocess.Popen[str]):
    """A program that a test begins, whose streams are the test's."""

    def line(self) -> str:
        """The next line that it prints."""
        assert self.stdout is not None
        return self.stdout.readline().strip()


Begin = Callable[..., Program]


def eventually(condition: Callable[[], bool], what: str = "what a test waits for") -> None:
    """Wait until something is so, for as long as a test may; the error says what it was."""
    waits.until(condition, PATIENCE, what)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def ends(process: subprocess.Popen[str], number: int) -> str:
    """What a process says on stderr that is sent a signal, and ends by it."""
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    return told


def finished(*command: object, check: bool = False, **how: Any) -> CompletedProcess[str]:  # noqa: ANN401
    """A program that has come to its end, and what it said; `how` is subprocess.run's."""
    usual = {"capture_output": True, "text": True, "timeout": 2 * PATIENCE}
    return subprocess.run([*map(str, command)], check=check, **{**usual, **how})  # noqa: S603


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Processes that do not answer; one that has ended in the meantime does not either."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Begins a program that ends with the test, also where the test fails before it ends it."""
    with ExitStack() as stack:

        def program(*command: str, **how: Any) -> Program:  # noqa: ANN401 - Popen's
            piped = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = stack.enter_context(Program(command, text=True, **{**piped, **how}))
            stack.callback(process.kill)
            return process

        yield program
