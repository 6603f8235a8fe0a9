"""One server for the whole session, labs on it, and patience."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from queueproof.postgres import Server, open_server
from queueproof.postgres.pooler import MISSING, find_pgbouncer
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab

PATIENCE = 30.0  # seconds

# The same examples every time, so that a red run says something of its change; new ones by
# `--hypothesis-profile=search`. How long an example takes on a busy machine says nothing.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile("same")


def pytest_configure() -> None:
    """Begin with signals as a terminal has them: a background job or nohup would ignore some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits until a condition holds, and fails if it does not."""

    def wait(condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up
            time.sleep(0.01)

    return wait


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Begins a program that ends with the test, also where the test fails before it ends it."""
    with ExitStack() as stack:

        def program(*command: str, **how: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - Popen's
            process = stack.enter_context(subprocess.Popen(command, text=True, **how))  # noqa: S603
            stack.callback(process.kill)
            return process

        yield program


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that is there for all tests: $QUEUEPROOF_POSTGRES, or the embedded one."""
    with open_server() as opened:
        yield opened


@pytest.fixture
def lab_of(server: Server) -> Iterator[Callable[[str], Lab]]:
    """Installs a queue file's text in a database of its own."""
    with ExitStack() as stack:
        yield lambda text: stack.enter_context(open_lab(load_text(text, "queue.sql"), server))


@pytest.fixture(scope="session")
def pgbouncer() -> Path:
    """PgBouncer itself; for tests marked `pgbouncer`."""
    found = find_pgbouncer()
    assert found, f"tests marked `pgbouncer` need it: {MISSING}"
    return found


PEERS = Path(__file__).parent.parent / "strategies" / "peers"


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The packages of strategies/peers, node-postgres among them; for tests marked `node`."""
    lock, modules = PEERS / "package-lock.json", PEERS / "node_modules"
    there = modules / ".package-lock.json"
    if not there.exists() or there.stat().st_mtime < lock.stat().st_mtime:
        npm = shutil.which("npm")
        assert npm, "tests marked `node` need Node.js and npm"
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=PEERS, check=True)  # noqa: S603
    return modules
