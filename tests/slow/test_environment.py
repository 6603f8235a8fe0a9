"""libpq's environment variables: nothing to a server of our own, the usual to a DSN."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from queueproof.examine.calibrate import calibrate
from queueproof.postgres import open_server
from queueproof.postgres.environment import without_libpq
from queueproof.queues.resolve import resolve
from queueproof.run.open import open_lab
from tests.fix_commands import Command
from tests.fix_server import tell

STRATEGIES = Path(__file__).parents[2] / "strategies"
SOUND = str(STRATEGIES / "skip_locked.sql")
WORKER = f"exec: {sys.executable} {STRATEGIES.parent}/harness/queueproof/queues/templates/worker.py"
each = pytest.mark.parametrize("queue", [SOUND, WORKER], ids=["file", "program"])


def tried(queue: str, source: str, environment: dict[str, str], patch: pytest.MonkeyPatch) -> str:
    """Try each operation of a queue on a server; its label."""
    for name in os.environ.keys() - without_libpq(os.environ).keys():
        patch.delenv(name)
    for name, value in environment.items():
        patch.setenv(name, value)
    with open_server(source) as server, open_lab(resolve(queue), server) as lab:
        assert {"claim", "complete"} <= calibrate(lab).queue.offers
        return server.label


@pytest.mark.sample
@each
def test_a_server_of_our_own_is_used_whatever_the_environment_names(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every variable leading elsewhere each operation works, and nobody calls there."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        environment = {
            "PGHOST": "127.0.0.1",
            "PGHOSTADDR": "127.0.0.1",
            "PGPORT": str(elsewhere.getsockname()[1]),
            "PGDATABASE": "myapp",
            "PGUSER": "me",
            "PGPASSWORD": "secret",
            "PGPASSFILE": "/nowhere",
            "PGSERVICE": "nowhere",
            "PGSSLMODE": "verify-full",
            "PGREQUIREAUTH": "scram-sha-256",
            "PGOPTIONS": "-c default_transaction_read_only=on",
            "PGTARGETSESSIONATTRS": "standby",
            "PGCLIENTENCODING": "nonsense",
            "PGTZ": "nonsense",
            "PGDATESTYLE": "nonsense",
        }
        assert "embedded" in tried(queue, "embedded", environment, monkeypatch)
        elsewhere.settimeout(0)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@each
def test_what_a_dsn_leaves_open_the_environment_fills_in(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


PUT_BACK = """
import os
from queueproof.postgres.environment import no_libpq_variables
with no_libpq_variables():
    with no_libpq_variables():
        pass
    print("PGTZ" in os.environ, os.environ["PG_OF_MINE"])
print(os.environ["PGTZ"])
"""


def test_what_was_taken_out_is_put_back() -> None:
    """The process has its variables again when nobody wants them out any more."""
    ran = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", PUT_BACK],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PGTZ": "Asia/Tokyo", "PG_OF_MINE": "stays"},
    )
    assert ran.stdout == "False stays\nAsia/Tokyo\n"
