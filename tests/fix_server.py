"""One server for the whole session, and the programs that some tests need beside it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from queueproof.postgres import Server, open_server
from queueproof.postgres.pooler import MISSING, find_pgbouncer
from tests.fix_places import STRATEGIES
from tests.fix_programs import Begin

PEERS = STRATEGIES / "peers"
RUN = """
import os, signal, sys, time, psycopg
from queueproof.postgres import open_server

with open_server(sys.argv[1]) as server, server.database() as conninfo:
    with psycopg.connect(conninfo) as session:
        if sys.argv[2:] == ["fork"] and os.fork() == 0:
            time.sleep(60)  # a worker that outlives the run holds its pipe open
            os._exit(0)
        print(conninfo, flush=True)
        signal.pause()
"""


def tell(conninfo: str, *statements: str) -> None:
    """Have a server run statements, each committed by itself."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that is there for all tests: $QUEUEPROOF_POSTGRES, or the embedded one."""
    with open_server() as opened:
        yield opened


@pytest.fixture(scope="session")
def dsn(server: Server) -> str:
    """That server, as somebody names it who asks for it."""
    return str(server._admin)


@pytest.fixture
def on_server(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command line use the server of the tests."""
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", dsn)


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server of this module alone, started here: its settings and processes may be touched."""
    with open_server("embedded") as opened:
        yield opened


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """An empty database."""
    with server.database() as conninfo:
        yield conninfo


@pytest.fixture(scope="session")
def pgbouncer() -> Path:
    """PgBouncer itself; for tests marked `pgbouncer`."""
    found = find_pgbouncer()
    assert found, f"tests marked `pgbouncer` need it: {MISSING}"
    return found


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


@pytest.fixture
def run(begin: Begin) -> Begin:
    """Begins a run on a server of some source, in a process group as from a terminal."""
    ours = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return lambda *arguments: begin(
        *(sys.executable, "-c", RUN, *arguments), start_new_session=True, env=os.environ | ours
    )


@pytest.fixture
def theirs(server: Server) -> Iterator[Server]:
    """A server that somebody else has started: it is not ours to kill."""
    with server.database() as conninfo, open_server(conninfo, trust=True) as opened:
        yield opened
