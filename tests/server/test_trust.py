"""A queue is code: what its SQL may do to a server, and where a superuser's rights are refused."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queueproof.advice.propose import tables_of
from queueproof.bench.cell import Ground
from queueproof.errors import QueueError, ServerUnavailableError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.work import runner_under
from queueproof.postgres import Server, open_server
from queueproof.probes.buffers import Content, measure
from queueproof.probes.probe import untold
from queueproof.probes.probes import PROBES
from queueproof.queues.sqlfile import load_text
from queueproof.run.open import open_lab
from queueproof.schedule.conditions import Conditions
from tests.fix_commands import Command
from tests.fix_hostile import HOSTILE, TOGETHER, after_its_tables, hostile
from tests.fix_places import SKIP_LOCKED, reference
from tests.fix_plays import play
from tests.fix_queues import RACES, queue_file
from tests.fix_server import tell

NEEDS = {
    "a program": "COPY jobs TO PROGRAM 'cat > /dev/null';",
    "a file": "COPY jobs FROM '/etc/passwd';",
    "somebody's database": "DROP DATABASE postgres;",
    "the server": "ALTER SYSTEM SET fsync = on;",
    "a superuser": "ALTER ROLE queueproof SUPERUSER;",
    "a role that runs programs": "GRANT pg_execute_server_program TO queueproof;",
    "an event trigger": (
        "CREATE FUNCTION on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;"
        " CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION on_ddl();"
    ),
}
READ_ONLY = """
DO $$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
END $$;
"""
EVENT_TRIGGER = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no more of this'; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
"""
CLAIM = "-- name: claim(worker, limit, queue)\n"
TERMINATES = reference(CLAIM, f"""{CLAIM}
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user;
""")  # fmt: skip


@pytest.fixture
def dsn(own: Server) -> str:
    """That server, as its superuser's DSN."""
    return str(own._admin)


@pytest.mark.parametrize("statement", NEEDS.values(), ids=NEEDS.keys())
def test_on_a_server_of_ours_a_queue_is_no_superuser(own: Server, statement: str) -> None:
    """Its SQL reaches no program, no file and no other database, and is told what would let it."""
    queue = load_text(after_its_tables(statement), "q.sql")
    line = str(after_its_tables(statement)[:-1].partition(statement)[0].count("\n") + 1)
    refused = pytest.raises(QueueError, match=rf"^q\.sql:{line}: (?s:.)*42501(?s:.)*: --trust$")
    with refused, open_lab(queue, own):
        pass


def test_a_queue_owns_its_database(own: Server, trusting: Server) -> None:
    """It may make schemas, functions, roles and trusted extensions; with --trust, everything."""
    allowed = "CREATE SCHEMA more; CREATE ROLE clerk; GRANT SELECT ON jobs TO clerk;"
    for statement, server in ((allowed, own), (NEEDS["a program"], trusting)):
        with open_lab(load_text(after_its_tables(statement), "q.sql"), server) as lab:
            assert not calibrate(lab).held


@pytest.fixture
def company(dsn: str) -> Iterator[str]:
    """The name of a database of somebody else's."""
    tell(dsn, "CREATE DATABASE app")
    yield "app"
    tell(dsn, "DROP DATABASE app WITH (FORCE)")


def test_a_superusers_dsn_is_refused_beside_other_peoples_databases(dsn: str, company: str) -> None:
    """A superuser's DSN is refused beside another's table, but not in a fresh service container."""
    # Its superuser and its one empty database are nobody's, whichever the DSN names.
    for database in ("postgres", company):
        with open_server(make_conninfo(dsn, dbname=database)) as server:
            assert server.superuser
    # One table is enough; who is no superuser can do nothing to it.
    tell(make_conninfo(dsn, dbname=company), "CREATE TABLE orders ()")
    with pytest.raises(ServerUnavailableError, match=r"\(app\), and a queue is code.*--trust"):
        open_server(dsn).__enter__()
    with open_server(dsn, trust=True) as server:
        assert server.superuser
    tell(dsn, "CREATE ROLE tester LOGIN CREATEDB")
    with open_server(make_conninfo(dsn, user="tester")) as server, server.database() as conninfo:
        psycopg.connect(conninfo).close()


def test_check_trust(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check --trust` is all that it takes, and a story's command has it too."""
    path = tmp_path / "q.sql"
    path.write_text(queue_file(more=NEEDS["a program"], claim=RACES))
    monkeypatch.delenv("QUEUEPROOF_POSTGRES", raising=False)
    quickly = ("--only", "single-claim", "--jobs", "1", "--fail-fast", "--profile", "quick")
    refused = command("check", path, *quickly)
    assert (refused.code, "--trust" in refused.err) == (4, True)
    ran = command("check", path, *quickly, "--trust")
    assert (ran.code, f"queueproof replay {path} --trust" in ran.out) == (1, True)


def completing(statement: str) -> str:
    """The reference whose completion sends one more statement."""
    head, complete, rest = SKIP_LOCKED.partition("-- name: complete(id, worker, attempt)!\n")
    return head + complete + rest.replace(";\n", f";\n{statement};\n", 1)


KEEPS = ": the queue's SQL keeps queueproof from its work: (?s:.*)"
BACKENDS = r"queue's SQL \(pg_terminate_backend\)"
GONE = r'relation "public\.jobs" does not exist \(42P01\)'
OWN_FAULT = {  # the queue, whether it is a superuser, and what is told
    "read only": (after_its_tables(READ_ONLY), True, f"{KEEPS}read-only transaction"),
    "event trigger": (after_its_tables(EVENT_TRIGGER), True, f"{KEEPS}no more of this"),
    "backends, as a superuser": (TERMINATES, True, BACKENDS),
    "backends of its own": (TERMINATES, False, BACKENDS),
    "drop": (completing("DROP TABLE jobs"), False, GONE),
    "rename": (completing("ALTER TABLE jobs RENAME TO tasks"), False, GONE),
}


@pytest.mark.parametrize(("text", "superuser", "told"), OWN_FAULT.values(), ids=OWN_FAULT)
def test_what_a_queue_does_to_the_harness_is_its_own_fault(
    dsn: str, tmp_path: Path, command: Command, text: str, *, superuser: bool, told: str
) -> None:
    """Exit 4 and one message with the file: no internal error, and no server that went away."""
    path = tmp_path / "q.sql"
    path.write_text(text)
    where = dsn if superuser else "embedded"
    ran = command("check", path, "--only", "order", "--profile", "quick", "--postgres", where)
    assert ran.code == 4
    assert ran.err.startswith(str(path))
    assert re.search(told, ran.err)
    assert "went away" not in ran.err


@pytest.fixture(scope="module")
def trusting() -> Iterator[Server]:
    """A server of our own on which a queue is a superuser."""
    with open_server("embedded", trust=True) as server:
        yield server


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_no_rights_are_lent(own: Server, dsn: str, seen: Path, names: Sequence[str]) -> None:
    """No statement of the harness's own lends the queue's code a superuser's rights."""
    # Measuring, filling and racing run as its role, and so does what drops the database.
    tell(dsn, "ALTER ROLE queueproof NOSUPERUSER")  # an attack before has succeeded
    with open_lab(hostile(seen, *names), own) as lab:
        offer = calibrate(lab)
        tables_of(lab)
        PROBES["claim-limit"].watch(lab, offer, 0, untold)
        measure(lab, offer, [[Content(kind, 640)] for kind in ("churned", "finished", "waiting")])
        for conditions in (Conditions(gate="every"), Conditions(far=True, planner="no index")):
            runner_under(lab, offer, conditions).run(play("w1 claims | w2 claims"))
        lab.tables.rewrite()
        lab.reset(renew=True)
    assert not seen.exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HOSTILE)
def test_an_attack_succeeds_where_the_queue_is_trusted(
    trusting: Server, seen: Path, name: str
) -> None:
    """Each of them runs its program there."""
    with open_lab(hostile(seen, name), trusting) as lab:
        if not seen.exists():  # it takes the queue's operations
            calibrate(lab)
        lab.reset(renew=False)
    assert seen.exists()


def test_the_benchmark_lends_no_rights_either(own: Server, seen: Path) -> None:
    """Filling, vacuuming, counting and dropping run as the queue."""
    names = ["check", "index expression", "rule, always", "policy", "statistics", "partition key"]
    for name in names:
        with Ground(own, 1) as ground:
            ground.count(hostile(seen, name), 1)
    assert not seen.exists()
