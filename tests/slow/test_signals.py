"""Checks and benchmarks that a signal ends, whatever they wait for, and what they say meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from fix_places import SKIP_LOCKED
from fix_programs import PATIENCE, ends, frozen
from queueproof import waits
from queueproof.postgres import Server, open_server

CHECK = """
import sys
from queueproof.cli import main, talk
talk.QUIET_SECONDS = 0.1
main()
"""


def checking(postgres: str, queue: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """`queueproof check` in a process of its own, which says soon what it is doing."""
    return running("check", str(queue), "--postgres", postgres)


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own."""
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", CHECK, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # an ignored Ctrl-C, as a shell leaves it in the background, would stay so
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_whose_server_is_frozen(tmp_path: Path, number: signal.Signals) -> None:
    """Nobody answers any more, neither the runner nor who cleans up, and it ends all the same."""
    queue = tmp_path / "queue.sql"
    queue.write_text(SKIP_LOCKED)
    with open_server("embedded") as own, psycopg.connect(own._admin, autocommit=True) as admin:
        (found,) = admin.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
        postmaster = int(found[0].split()[0])
        with checking(str(own._admin), queue) as process:
            asked = "SELECT pid FROM pg_stat_activity WHERE datname ~ '^queueproof_'"

            def backends() -> list[int]:
                return [pid for (pid,) in admin.execute(asked).fetchall()]

            waits.until(lambda: len(backends()) > 3, PATIENCE, "a run that is under way")
            with frozen(postmaster), frozen(*backends()):  # all: none is begun any more
                said = ends(process, number)
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_benchmark_that_waits(
    server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    """The queue's own SQL does not answer; the last line says so, and no database is left."""
    queue = tmp_path / "queue.sql"
    queue.write_text(
        SKIP_LOCKED.replace("-- name: schema#", "-- name: schema#\nSELECT pg_sleep(999);")
    )
    sleeping = "SELECT pid FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'"
    left = "SELECT FROM pg_database WHERE datname ~ '^queueproof_bench'"
    with (
        psycopg.connect(server._admin, autocommit=True) as admin,
        running("bench", str(queue), "--postgres", str(server._admin)) as process,
    ):
        waits.until(lambda: bool(admin.execute(sleeping).fetchall()), PATIENCE, "its first wait")
        said = ends(process, number)
        waits.until(lambda: not admin.execute(left).fetchall(), PATIENCE, "its database to go")
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_benchmark_under_load(
    server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    """Its workers are in the middle of a load that would last; no database is left."""
    queue = tmp_path / "queue.sql"
    queue.write_text(SKIP_LOCKED)
    held = (
        "SELECT FROM pg_stat_activity"
        " WHERE datname ~ '^queueproof_bench' AND state = 'idle in transaction'"
    )
    left = "SELECT FROM pg_database WHERE datname ~ '^queueproof_bench'"
    load = ("--batch", "1", "--workers", "3", "--hold", "900", "--seconds", "60")
    with (
        psycopg.connect(server._admin, autocommit=True) as admin,
        running("bench", str(queue), *load, "--postgres", str(server._admin)) as process,
    ):
        waits.until(lambda: len(admin.execute(held).fetchall()) == 3, PATIENCE, "its load")
        said = ends(process, number)
        waits.until(lambda: not admin.execute(left).fetchall(), PATIENCE, "its database to go")
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


def test_a_run_without_a_terminal_says_what_it_does(server: Server, tmp_path: Path) -> None:
    """Now and then, on stderr, in a line."""
    queue = tmp_path / "queue.sql"
    queue.write_text(SKIP_LOCKED)
    with checking(str(server._admin), queue) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        ends(process, signal.SIGTERM)
    assert re.fullmatch(r"queueproof: after \d+ s: .*\n", line)
