"""Commands: in this process where only what they do is the subject, or in one of their own."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from queueproof import cli
from tests.fix_places import WORKER
from tests.fix_programs import Begin


class Ran(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]
WORKER_PROGRAM = f"exec: {sys.executable} {WORKER}"  # that `init --program` writes, as a queue
STILL_AT_IT = re.compile(r"^queueproof: (?:broken )?after [\d.]+ s: .*\n", re.MULTILINE)


def without_progress(err: str) -> str:
    """What a command says on stderr, without what a slow machine is told now and then."""
    return STILL_AT_IT.sub("", err)


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a server would be started: the mistake must be found before."""
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "a mistake came through to the server")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process."""
    monkeypatch.delenv("QUEUEPROOF_DEBUG", raising=False)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def command(*arguments: object) -> Ran:
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(code, out, without_progress(err))

    return command


@pytest.fixture
def begin_command(begin: Begin, tmp_path: Path) -> Begin:
    """Begin a command in a process of its own, whose streams are read here."""
    return lambda *arguments, **how: begin(
        sys.executable, "-m", "queueproof", *map(str, arguments), cwd=tmp_path, **how
    )
