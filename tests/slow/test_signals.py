"""Checks and benchmarks that a signal ends, whatever they wait for, and what they say meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from queueproof.postgres import Server
from tests.fix_places import REFERENCE, SKIP_LOCKED
from tests.fix_programs import Begin, Eventually, ends, frozen

COMMAND = """
from queueproof.cli import main, talk
talk.QUIET_SECONDS = 0.1
main()
"""
LEFT = "SELECT FROM pg_database WHERE datname ~ '^queueproof_bench'"
Running = Callable[..., subprocess.Popen[str]]

each_signal = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture
def running(begin: Begin, own: Server) -> Running:
    """Begins a command on a server of this module's, which says soon what it is doing."""
    where = ("--postgres", str(own._admin))
    return lambda *command: begin(sys.executable, "-c", COMMAND, *command, *where)


@each_signal
def test_a_signal_ends_a_run_whose_server_is_frozen(
    own: Server, running: Running, eventually: Eventually, number: signal.Signals
) -> None:
    """Nobody answers any more, neither the runner nor who cleans up, and it ends all the same."""
    with psycopg.connect(own._admin, autocommit=True) as admin:
        (found,) = admin.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
        process = running("check", str(REFERENCE))
        asked = "SELECT pid FROM pg_stat_activity WHERE datname ~ '^queueproof_'"

        def backends() -> list[int]:
            return [pid for (pid,) in admin.execute(asked).fetchall()]

        eventually(lambda: len(backends()) > 3, "a run that is under way")
        with frozen(int(found[0].split()[0])), frozen(*backends()):  # all: none is begun any more
            said = ends(process, number)
        eventually(lambda: not backends(), "the backends of the run to end")
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


HELD = (
    "SELECT count(*) = 3 FROM pg_stat_activity"
    " WHERE datname ~ '^queueproof_bench' AND state = 'idle in transaction'"
)
SLEEPING = "SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'"
LOAD = ("--batch", "1", "--workers", "3", "--hold", "900", "--seconds", "60")


@each_signal
@pytest.mark.parametrize(
    ("install", "under_way", "options"),
    [("SELECT pg_sleep(999);", SLEEPING, ()), ("", HELD, LOAD)],
    ids=["that waits for the queue's SQL", "under a load that would last"],
)
def test_a_signal_ends_a_benchmark(
    *,
    own: Server,
    running: Running,
    eventually: Eventually,
    tmp_path: Path,
    install: str,
    under_way: str,
    options: tuple[str, ...],
    number: signal.Signals,
) -> None:
    """The last line says so, and no database is left."""
    queue = tmp_path / "queue.sql"
    queue.write_text(SKIP_LOCKED.replace("-- name: schema#", f"-- name: schema#\n{install}"))
    with psycopg.connect(own._admin, autocommit=True) as admin:
        process = running("bench", str(queue), *options)
        eventually(lambda: admin.execute(under_way).fetchone() == (True,), "what it waits for")
        said = ends(process, number)
        eventually(lambda: not admin.execute(LEFT).fetchall(), "its database to go")
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


def test_a_run_without_a_terminal_says_what_it_does(running: Running) -> None:
    """Now and then, on stderr, in a line."""
    process = running("check", str(REFERENCE))
    assert process.stderr is not None
    line = process.stderr.readline()
    ends(process, signal.SIGTERM)
    assert re.fullmatch(r"queueproof: after \d+ s: .*\n", line)
