"""Processes that judge beside each other: no queue sees what another one's workers do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from queueproof.examine.processes import lent_server, processes
from queueproof.examine.work import beside
from queueproof.postgres import Server, open_server
from queueproof.queues.sqlfile import load_text
from queueproof.run.open import open_lab
from queueproof.schedule.actors import identities, identity

REFERENCE = Path(__file__).parents[2] / "strategies" / "skip_locked.sql"
OUTBOX = REFERENCE.read_text(encoding="utf-8").replace(
    "FOR UPDATE SKIP LOCKED", "AND xmin::text::xid8 < pg_snapshot_xmin(pg_current_snapshot())", 1
)


@pytest.fixture(scope="module")
def theirs(server: Server) -> Iterator[Server]:
    """Provide a server that somebody else has started."""
    with server.database() as conninfo, open_server(conninfo, trust=True) as theirs:
        yield theirs


def started_and_called() -> tuple[object, str]:
    """When this process' server was started, and what a worker of its is called."""
    with lent_server().database() as conninfo, psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT pg_catalog.pg_postmaster_start_time()").fetchone()
    assert row is not None
    return row[0], identity("w1")


def test_each_has_a_server_of_its_own(server: Server) -> None:
    """Transaction ids, sessions and locks belong to a server, and a queue may read them."""
    with server.database() as conninfo, psycopg.connect(conninfo) as connection:
        (here,) = connection.execute("SELECT pg_catalog.pg_postmaster_start_time()").fetchall()
    with processes(server, 1) as pool:
        there, called = pool.submit(started_and_called).result()
    assert there != here[0]
    assert identity("w1") == called


def test_on_somebodys_server_no_two_have_a_worker_of_one_name(theirs: Server) -> None:
    """A sweep that asks who is connected would take another process' worker for its own."""
    with processes(theirs, 1) as pool:
        _, called = pool.submit(started_and_called).result()
    assert identity("w1") != called
    assert sorted([called, identity("w2")]) == [
        {identity("w1"): called}.get(name, name)
        for name in sorted([identity("w1"), identity("w2")])
    ]
    assert identities("w1").sub("w1", f"{called}, {identity('w1')}") == "w1, w1"


@pytest.mark.parametrize(("text", "alone"), [(REFERENCE.read_text("utf-8"), False), (OUTBOX, True)])
def test_what_sees_its_neighbours_is_judged_by_one_process(
    theirs: Server, text: str, *, alone: bool
) -> None:
    """On somebody's server processes share it, so that a queue that reads it has no other."""
    with open_lab(load_text(text, "q.sql"), theirs) as lab, beside(lab, 2) as helpers:
        assert (helpers is None, "judged by one process" in lab.label) == (alone, alone)
