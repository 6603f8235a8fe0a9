"""A server in another encoding than UTF-8 is used like any other."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queueproof.cli import run
from queueproof.postgres import Server, open_server
from queueproof.postgres.watchdog import Watchdog
from tests.fix_server import tell

STRATEGIES = Path(__file__).parents[2] / "strategies"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_cluster_in_another_encoding_is_used(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalogues are read, and a queue's database is in UTF-8."""
    ask = Watchdog.ask

    def asked(watchdog: Watchdog, do: str, **what: object) -> None:
        given = what.get("initdb")
        if isinstance(given, list):
            what["initdb"] = [one.replace("=UTF8", f"={encoding}") for one in given]
        ask(watchdog, do, **what)

    monkeypatch.setattr(Watchdog, "ask", asked)
    card = tmp_path / "card.json"
    with open_server("embedded") as server:
        monkeypatch.setenv("QUEUEPROOF_POSTGRES", str(server._admin))
        with psycopg.connect(str(server._admin)) as connection:
            assert connection.info.parameter_status("server_encoding") == encoding
        with server.database() as ours, psycopg.connect(ours) as connection:
            assert connection.execute("SELECT 'ü€', 'queue'::name").fetchone() == ("ü€", "queue")
        queue = str(STRATEGIES / "skip_locked.sql")
        asked_for = ["--only", "server-clock,steady-cost", "--profile", "quick", "--jobs", "1"]
        assert run(["check", queue, *asked_for, "--json", str(card)]) == 0
    assert json.loads(card.read_text())["verdict"] == "holds"


def test_a_database_in_another_encoding_is_asked(server: Server) -> None:
    """A DSN may name one beside a cluster in UTF-8."""
    made = "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII'"
    tell(server._admin, f"{made} LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with open_server(make_conninfo(str(server._admin), dbname="ascii")) as theirs:
            assert "client_encoding" not in str(theirs._admin)
            with theirs.database() as ours, psycopg.connect(ours) as connection:
                assert connection.info.encoding == "utf-8"
    finally:
        tell(server._admin, "DROP DATABASE ascii")
