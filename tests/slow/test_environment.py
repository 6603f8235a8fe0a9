"""What surrounds a server: libpq's variables, encodings, and where temporary files may be."""

import json
import os
import socket
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof.errors import ServerUnavailableError
from queueproof.examine.calibrate import calibrate
from queueproof.postgres import Server, local, open_server
from queueproof.postgres.environment import without_libpq
from queueproof.postgres.server import connected
from queueproof.postgres.watchdog import Watchdog
from queueproof.queues.resolve import resolve
from queueproof.run.open import open_lab
from tests.fix_commands import WORKER_PROGRAM, Command
from tests.fix_places import REFERENCE
from tests.fix_programs import finished
from tests.fix_server import tell

SOUND = str(REFERENCE)
each_queue = pytest.mark.parametrize("queue", [SOUND, WORKER_PROGRAM], ids=["file", "program"])
NAMES = (
    *("PGDATABASE", "PGUSER", "PGPASSWORD", "PGPASSFILE", "PGSERVICE"),
    *("PGCLIENTENCODING", "PGTZ", "PGDATESTYLE"),
)
WORKING = [b"a,b", b"not\xffutf-8", b"x" * 150 + b"/" + b"y" * 100, b'it\'s "quoted" $HOME %s']
PUT_BACK = """
import os
from queueproof.postgres.environment import no_libpq_variables
with no_libpq_variables():
    with no_libpq_variables():
        pass
    print("PGTZ" in os.environ, os.environ["PG_OF_MINE"])
print(os.environ["PGTZ"])
"""


def tried(queue: str, source: str, environment: dict[str, str], patch: pytest.MonkeyPatch) -> str:
    """Try each operation of a queue on a server; its label."""
    for name in os.environ.keys() - without_libpq(os.environ).keys():
        patch.delenv(name)
    for name, value in environment.items():
        patch.setenv(name, value)
    with open_server(source) as server, open_lab(resolve(queue), server) as lab:
        assert {"claim", "complete"} <= calibrate(lab).queue.offers
        return server.label


@each_queue
@pytest.mark.sample(1)
def test_our_own_server_minds_no_environment(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every variable leading elsewhere each operation works, and nobody calls there."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        environment = {
            **dict.fromkeys(("PGHOST", "PGHOSTADDR"), "127.0.0.1"),
            "PGPORT": str(elsewhere.getsockname()[1]),
            "PGSSLMODE": "verify-full",
            "PGREQUIREAUTH": "scram-sha-256",
            "PGOPTIONS": "-c default_transaction_read_only=on",
            "PGTARGETSESSIONATTRS": "standby",
            **dict.fromkeys(NAMES, "nonsense"),
        }
        assert "embedded" in tried(queue, "embedded", environment, monkeypatch)
        elsewhere.settimeout(0)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@each_queue
def test_the_environment_completes_a_dsn(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and role are the variables', for the harness and for a worker process."""
    with open_server("embedded") as server, server.database() as dsn:
        place = conninfo_to_dict(dsn)
        tell(dsn, "CREATE ROLE me LOGIN CREATEDB")
        environment = {"PGHOST": str(place["host"]), "PGPORT": "5432", "PGUSER": "me"}
        assert "user=me" in tried(queue, "postgresql:///postgres", environment, monkeypatch)


def test_the_command_asks_the_environment_for_a_server_and_what_its_dsn_leaves_open(
    dsn: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$QUEUEPROOF_POSTGRES is used unless --postgres names another one, with libpq's variables."""
    place = conninfo_to_dict(dsn)
    for name in ("host", "user"):
        monkeypatch.setenv(f"PG{name.upper()}", str(place[name]))
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "postgresql:///postgres")
    asked = ("check", SOUND, "--only", "server-clock", "--profile", "quick", "--jobs", 1)
    ran = command(*asked)
    assert (ran.code, f"user={place['user']}" in ran.out.partition("\n")[0]) == (0, True), ran
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "nothing")
    assert command(*asked).code == 4
    assert command(*asked, "--postgres", dsn).code == 0


def test_what_was_taken_out_is_put_back() -> None:
    """The process has its variables again when nobody wants them out any more."""
    environment = os.environ | {"PGTZ": "Asia/Tokyo", "PG_OF_MINE": "stays"}
    ran = finished(sys.executable, "-c", PUT_BACK, env=environment, check=True)
    assert ran.stdout == "False stays\nAsia/Tokyo\n"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_cluster_in_another_encoding_is_used(
    encoding: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
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
        quickly = ("--only", "server-clock,steady-cost", "--profile", "quick", "--jobs", 1)
        assert command("check", SOUND, *quickly, "--json", card).code == 0
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


@pytest.mark.parametrize("temporary", WORKING, indirect=True)
def test_a_server_works_wherever_temporary_files_may_be(temporary: Path) -> None:
    """Its sockets have a short and plain folder of their own; nothing is left in either."""
    with open_server("embedded") as server:
        assert any(temporary.iterdir())
        sockets = Path(str(conninfo_to_dict(server._admin)["host"]))
        assert sockets.is_dir()
        with connected(server._admin) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not any(temporary.iterdir())
    assert not sockets.exists()


@pytest.mark.parametrize(
    ("temporary", "why"),
    [(b"new\nline", "its path has a line break"), (b"/".join([b"z" * 240] * 4), "its path has 9")],
    indirect=["temporary"],
)
def test_what_postgresql_cannot_take_is_named(temporary: Path, why: str) -> None:
    """It is not the space that is missing."""
    with pytest.raises(ServerUnavailableError, match=why) as told, open_server("embedded"):
        pass
    assert "TMPDIR=/tmp chooses another" in str(told.value)
    assert not any(temporary.iterdir())


def test_a_folder_for_sockets_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a comma, and no other that can be written."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ServerUnavailableError, match=r"no folder for sockets: .*special"):
        local.for_sockets(tmp_path / "a,b")
