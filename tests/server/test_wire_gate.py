"""The gate on the wire: what it holds, shows, cuts and passes on, and what it costs."""

import os
import selectors
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import pq
from psycopg.conninfo import make_conninfo

from queueproof.errors import QueueproofError, ServerError, ServerUnavailableError
from queueproof.postgres import Server
from queueproof.wire import gate, protocol, upstream
from queueproof.wire.channel import Channel
from queueproof.wire.gate import COMMIT, Connection, Held, Wire
from tests.fix_programs import PATIENCE, frozen
from tests.fix_wire import (
    BLOCKED,
    INSERT,
    OWNER,
    UPDATE,
    Bench,
    EachClient,
    Kind,
    Low,
    Raw,
    Script,
    by_pipeline,
    by_psycopg,
    libpq,
    port_of,
    said,
    startup,
)


class TestEachClient(EachClient):
    """What holds for every client, of psycopg; of the others in tests/slow."""

    clients = ("psycopg",)

    @pytest.fixture
    def kind(self) -> Kind:
        """As most programs use it."""
        return Kind(by_psycopg)


def sent(bench: Bench, data: bytes) -> tuple[Raw, Connection]:
    """A client that has sent something, and its connection, which is held."""
    return Raw(bench).log_in(data), bench.held()


def logged_in(bench: Bench) -> tuple[Raw, Connection]:
    """A client that has sent nothing yet, and its connection."""
    raw = Raw(bench).log_in()
    (connection,) = bench.wire.connections(OWNER)
    return raw, connection


def test_a_statement_prepared_earlier_is_shown(holding: Bench) -> None:
    """An Execute shows what its name was prepared with until it is closed; a refusal leaves it."""

    def act(low: Low) -> None:
        low.prepare(b"add", b"INSERT INTO jobs VALUES ($1)")
        low.execute(b"add", b"1")
        low.execute(b"add", b"2")
        low.pgconn.send_close_prepared(b"add")
        low.results()
        low.prepare(b"add", b"DELETE FROM jobs WHERE id = $1")
        low.execute(b"add", b"1")

    client = holding.start(libpq, holding.dsn, act)
    steps = [step for step in holding.let_all(client) if step != COMMIT]
    added = [Held("execute", "INSERT INTO jobs VALUES ($1)", (one,)) for one in "12"]
    assert steps == [*added, Held("execute", "DELETE FROM jobs WHERE id = $1", ("1",))]
    assert holding.ids() == [2]

    def refused(low: Low) -> list[str]:
        return [
            low.prepare(b"add", b"INSERT INTO jobs VALUES ($1)"),
            low.prepare(b"add", b"DELETE FROM jobs WHERE id = $1"),  # the name is taken
            low.prepare(b"bad", b"SELEC"),
            low.execute(b"bad"),
            low.execute(b"add", b"1"),
        ]

    client = holding.start(libpq, holding.dsn, refused)
    steps = holding.let_all(client)
    assert steps == [Held("execute", "", ()), added[0], COMMIT]
    assert holding.finish(client) == ["COMMAND_OK", *["FATAL_ERROR"] * 3, "INSERT 0 1"]


def pipeline(statements: Sequence[str], *, syncs: Sequence[int] = ()) -> Callable[[Low], list[str]]:
    """Send statements at once, with a Sync behind some of them and the last; what each answered."""

    def act(low: Low) -> list[str]:
        low.pgconn.enter_pipeline_mode()
        for n, sql in enumerate(statements):
            low.pgconn.send_query_params(sql.encode(), None)
            if n in syncs:
                low.pgconn.pipeline_sync()
        low.pgconn.pipeline_sync()
        answers: list[str] = []
        while answers.count("PIPELINE_SYNC") <= len(syncs):
            answer = low.next()
            if answer is not None:
                answers.append(said(answer))
        low.pgconn.exit_pipeline_mode()
        return answers

    return act


def test_executes_of_a_pipeline_are_steps(holding: Bench) -> None:
    """Several before one Sync are several steps, which it commits; what an error skips is none."""
    sent = [f"INSERT INTO jobs VALUES ({n})" for n in (1, 2, 3)]
    client = holding.start(libpq, holding.dsn, pipeline(sent, syncs=[1]))
    for sql in sent[:2]:
        connection = holding.held()
        assert connection.held == Held("execute", sql)
        holding.let(connection)
    assert (connection.held, holding.ids()) == (COMMIT, [])
    holding.let(connection)
    assert (connection.tag, holding.ids()) == ("COMMIT", [1, 2])
    assert holding.let_all(client) == [Held("execute", sent[2]), COMMIT]
    first, second = ["INSERT 0 1"] * 2, ["INSERT 0 1"]
    assert holding.finish(client) == [*first, "PIPELINE_SYNC", *second, "PIPELINE_SYNC"]
    # What the server ignores after an error is no step; what follows the Sync is again.
    sent = ["SELEC", "INSERT INTO jobs VALUES (1)", "INSERT INTO jobs VALUES (2)"]
    client, connection = holding.start_held(libpq, holding.dsn, pipeline(sent, syncs=[1]))
    holding.let(connection)
    assert connection.error is not None
    assert (connection.error[0], connection.tag) == ("42601", "")
    assert holding.let_all(client) == [Held("execute", sent[2]), COMMIT]
    failed = ["FATAL_ERROR", "PIPELINE_ABORTED"]
    assert holding.finish(client) == [*failed, "PIPELINE_SYNC", "INSERT 0 1", "PIPELINE_SYNC"]
    assert holding.ids() == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("sent", "steps"),
    [
        (["BEGIN", "INSERT INTO jobs VALUES (1)"], 2),
        (["BEGIN", "INSERT INTO jobs VALUES (1)", "COMMIT"], 3),
        (["BEGIN", "SAVEPOINT a", "INSERT INTO jobs VALUES (1)", "ROLLBACK TO a"], 4),
        (["BEGIN", "INSERT INTO jobs VALUES (1)", "COMMIT AND CHAIN", "SELECT 1"], 4),
        (["BEGIN", "ROLLBACK", "INSERT INTO jobs VALUES (1)"], 4),
        (["SET work_mem = '1MB'", "SHOW work_mem"], 2),
        (["INSERT INTO jobs VALUES (1)", "SELEC"], 2),
        ([""], 1),
    ],
)
def test_a_sync_is_a_step_where_it_commits(holding: Bench, sent: list[str], steps: int) -> None:
    """A Sync passes with its group in a transaction, after an error, and behind mere settings."""
    found = holding.let_all(holding.start(libpq, holding.dsn, pipeline(sent)))
    assert [step.sql for step in found[: len(sent)]] == sent
    assert len(found) == steps


def test_a_commit_that_fails(holding: Bench) -> None:
    """A deferred constraint fails at the Sync, which is the step that reports it."""
    holding.direct.execute("ALTER TABLE jobs ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
    holding.direct.execute("INSERT INTO jobs VALUES (5)")
    client = holding.start(by_psycopg, holding.dsn, [INSERT])
    connection = holding.held_at("COMMIT")
    holding.let(connection)
    assert (connection.tag, connection.error and connection.error[0]) == ("", "23505")
    with pytest.raises(psycopg.errors.UniqueViolation):
        holding.finish(client)


def extended(sql: str, rows: int = 0) -> bytes:
    """Parse, Bind and Execute, for so many rows or all."""
    parse = protocol.message("P", b"\0" + sql.encode() + b"\0\0\0")
    execute = protocol.message("E", struct.pack("!xi", rows))
    return parse + protocol.message("B", b"\0" * 8) + execute


def test_groups_without_an_execute_pass(holding: Bench) -> None:
    """Preparing a statement is no step, with a Sync behind it or a Flush."""

    def act(low: Low) -> list[str]:
        answers = [low.prepare(b"a", b"SELECT 1")]
        low.pgconn.enter_pipeline_mode()
        low.pgconn.send_prepare(b"b", b"SELECT 2")
        low.pgconn.send_flush_request()
        return [*answers, *map(said, low.results())]

    assert holding.finish(holding.start(libpq, holding.dsn, act)) == ["COMMAND_OK", "COMMAND_OK"]


def test_a_portal_that_is_left_in_the_middle(holding: Bench) -> None:
    """An Execute that was given fewer rows than there are has a commit too."""
    two_of_three = extended("SELECT generate_series(1, 3)", rows=2)
    raw, connection = sent(holding, two_of_three + protocol.message("S"))
    holding.let(connection)
    assert [m.kind for m in raw.until("s")] == ["1", "2", "D", "D", "s"]
    assert connection.held == COMMIT


def test_a_function_call_is_held(holding: Bench) -> None:
    """The protocol's function call is a step like a query; what executes nothing passes before."""
    (oid,) = holding.direct.execute("SELECT 'pg_backend_pid'::regproc::oid::int").fetchone() or ()
    raw, connection = sent(holding, protocol.message("F", struct.pack("!ihhh", oid, 0, 0, 1)))
    assert connection.held == Held("query", f"function call {oid}")
    holding.let(connection)
    (answer,) = (message for message in raw.until("Z") if message.kind == "V")
    assert answer.body == struct.pack("!ii", 4, connection.pid)
    unfinished = protocol.message("P", b"a\0SELECT 1\0\0\0")
    raw, connection = sent(holding, unfinished + protocol.query("SELECT 2"))
    assert connection.held == Held("query", "SELECT 2")
    assert raw.until("1")
    holding.let(connection)
    assert raw.until("Z")


def copy_by_psycopg(dsn: str) -> list[tuple[str, ...]]:
    """COPY in both directions as a simple query."""
    with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY jobs FROM STDIN") as copy:
            for n in range(3):
                copy.write_row((n,))
        with cursor.copy("COPY jobs TO STDOUT") as copy:
            return list(copy.rows())


def copy_by_libpq(dsn: str) -> list[tuple[str, ...]]:
    """COPY as an Execute, with a Sync before its data and another behind them."""

    def act(low: Low) -> list[tuple[str, ...]]:
        low.pgconn.send_query_params(b"COPY jobs FROM STDIN", None)
        begun = low.next()
        assert begun is not None
        assert said(begun) == "COPY_IN"
        low.pgconn.put_copy_data(b"0\n1\n2\n")
        low.pgconn.put_copy_end()
        assert [said(answer) for answer in low.results()] == ["COPY 3"]
        answer = low.query(b"SELECT id::text FROM jobs")
        return [((answer.get_value(n, 0) or b"").decode(),) for n in range(answer.ntuples)]

    return libpq(dsn, act)


@pytest.mark.parametrize("copy", [copy_by_psycopg, copy_by_libpq])
@pytest.mark.parametrize("held", [True, False])
def test_copy_passes_once_released(bench: Bench, copy: Callable[[str], Any], held: bool) -> None:  # noqa: FBT001
    """COPY is one step; its data pass both ways, and what follows is a step again."""
    bench.wire.hold(OWNER, on=held)
    client = bench.start(copy, bench.dsn)
    steps = [step.sql for step in bench.let_all(client) if step != COMMIT]
    assert bench.finish(client) == [("0",), ("1",), ("2",)]
    assert len(steps) == (2 if held else 0)
    assert bench.ids() == [0, 1, 2]


@pytest.mark.parametrize("by", ["simple", "extended"])
def test_copy_that_fails(holding: Bench, by: str) -> None:
    """After an error among COPY data the connection is as good as before."""

    def act(low: Low) -> list[str]:
        if by == "simple":
            low.pgconn.send_query(b"COPY jobs FROM STDIN")
        else:
            low.pgconn.send_query_params(b"COPY jobs FROM STDIN", None)
        low.next()
        low.pgconn.put_copy_data(b"nonsense\n")
        low.pgconn.put_copy_end()
        return [*map(said, low.results()), said(low.query(b"SELECT 1"))]

    client = holding.start(libpq, holding.dsn, act)
    steps = holding.let_all(client)
    assert holding.finish(client) == ["FATAL_ERROR", "SELECT 1"]
    assert [step.sql for step in steps] == ["COPY jobs FROM STDIN", "SELECT 1", "COMMIT"]


def test_encryption_is_declined(bench: Bench) -> None:
    """Requests for TLS and GSSAPI are answered with N, and the client goes on without."""
    bench.finish(bench.start(by_psycopg, make_conninfo(bench.dsn, sslmode="prefer"), [INSERT]))
    raw = Raw(bench)
    for code in (protocol.TLS, protocol.GSS):
        raw._parser = protocol.Parser("backend")
        raw.send(struct.pack("!ii", 8, code))
        bench.until(lambda: raw._parser._buffer == b"N")
    raw._parser = protocol.Parser("backend")
    raw.log_in()


def test_state_of_a_connection(holding: Bench) -> None:
    """A connection is idle between statements only, and says what was answered last."""
    raw, connection = logged_in(holding)
    assert connection.owner == OWNER
    assert connection.idle
    sent = protocol.query("UPDATE jobs SET id = 1")
    raw.send(sent[:9])
    holding.until(lambda: not connection.idle)
    assert connection.held is None
    raw.send(sent[9:])
    assert holding.held() is connection
    assert not connection.running
    connection.release()
    assert connection.running
    raw.until("Z")
    assert (connection.running, connection.idle, connection.tag) == (False, True, "UPDATE 0")
    raw.send(protocol.message("X"))
    holding.until(lambda: connection.closed)
    assert (connection.running, connection.idle) == (False, False)
    assert holding.wire.connections(OWNER) == []


def test_connections_are_known_by_owner(bench: Bench) -> None:
    """Each owner has connections of its own, in the order of their opening."""
    other = bench.wire.listen("w2")
    first, second = Raw(bench).log_in(), Raw(bench).log_in()
    bench.finish(bench.start(by_psycopg, other, [INSERT]))
    found = bench.wire.connections(OWNER)
    assert len(found) == len({connection.pid for connection in found}) == 2
    first.close()
    bench.until(lambda: len(bench.wire.connections(OWNER)) == 1)
    assert bench.wire.connections(OWNER) == found[1:]
    assert bench.wire.connections("nobody") == []
    second.close()


def test_a_client_or_a_backend_that_dies_while_held(holding: Bench) -> None:
    """A message that was held never reaches the server; a backend's end is told its client."""
    raw, connection = sent(holding, protocol.query("INSERT INTO jobs VALUES (1)"))
    raw.close()
    holding.until(lambda: connection.closed)
    assert connection.held is None
    holding.until_gone(connection.pid)
    assert holding.ids() == []
    client, connection = holding.start_held(by_psycopg, holding.dsn, [INSERT])
    holding.direct.execute("SELECT pg_terminate_backend(%s)", [connection.pid])
    holding.until(lambda: connection.closed)
    with pytest.raises(psycopg.errors.AdminShutdown):
        holding.finish(client)


def test_a_client_that_leaves_at_once(bench: Bench) -> None:
    """What a client has sent before it went reaches the server, with nothing held."""
    Raw(bench).log_in(protocol.query("INSERT INTO jobs VALUES (1)") + protocol.message("X")).close()
    bench.until_server("SELECT count(*) = 1 FROM jobs")


@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_cancel_is_forwarded(holding: Bench, version: str) -> None:
    """A client's request to cancel reaches its backend, with the longer keys of 3.2 too."""
    cancelling = threading.Event()

    def act(low: Low) -> str:
        low.pgconn.send_query(b"UPDATE jobs SET id = 1")
        low.pgconn.flush()
        assert cancelling.wait(PATIENCE)
        low.connection.cancel_safe(timeout=PATIENCE)
        return (low.results()[-1].error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()

    with psycopg.connect(holding.conninfo) as other:
        other.execute("LOCK jobs")
        dsn = make_conninfo(holding.dsn, max_protocol_version=version)
        client, connection = holding.start_held(libpq, dsn, act)
        connection.release()
        holding.until_server(BLOCKED, connection.pid)
        cancelling.set()
        assert holding.finish(client) == "57014"


def test_only_a_cancellation_is_disguised(holding: Bench) -> None:
    """What the harness cancelled can be told to the client as a deadlock, and no other error."""
    deadlock = ("40P01", "deadlock detected")
    with psycopg.connect(holding.conninfo) as other:
        other.execute("LOCK jobs")
        client, connection = holding.start_held(by_psycopg, holding.dsn, [UPDATE])
        connection.disguise = deadlock
        connection.release()
        holding.until_server(BLOCKED, connection.pid)
        holding.direct.execute("SELECT pg_cancel_backend(%s)", [connection.pid])
        holding.until(lambda: not connection.running)
    assert connection.error == deadlock
    with pytest.raises(psycopg.errors.DeadlockDetected, match="deadlock detected"):
        holding.finish(client)
    client, connection = holding.start_held(by_psycopg, holding.dsn, [("SELECT 1 / 0", ())])
    connection.disguise = deadlock
    holding.let(connection)
    assert connection.disguise is None  # it ends with its step
    with pytest.raises(psycopg.errors.DivisionByZero):
        holding.finish(client)


def test_notifications_pass_while_something_is_held(holding: Bench) -> None:
    """NOTIFY reaches a client that is held."""
    raw, connection = sent(holding, protocol.query("LISTEN news"))
    holding.let(connection)
    raw.until("Z")
    raw.send(protocol.query("SELECT 1"))
    holding.held()
    holding.direct.execute("NOTIFY news, 'told'")
    # The server sends it between statements; this one goes beside what is held.
    connection.run("SELECT 2")
    assert raw.until("A")[-1].body.endswith(b"news\0told\0")
    assert connection.held == Held("query", "SELECT 1")


def test_a_password_passes(bench: Bench) -> None:
    """SCRAM works through the gate, with a password of every awkward character in the DSN."""
    password = "s3cr:t/@%x? 'y\\"  # noqa: S105 - of a role of this test's
    role = f"guarded_{uuid.uuid4().hex}"
    quoted = password.replace("'", "''")
    bench.direct.execute("SET standard_conforming_strings = on")
    bench.direct.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{quoted}'".encode())
    (file,) = bench.direct.execute("SHOW hba_file").fetchone() or ()
    rules = Path(file).read_text()
    Path(file).write_text(f"local all {role} scram-sha-256\n{rules}")
    bench.direct.execute("SELECT pg_reload_conf()")
    rule = "auth_method = 'scram-sha-256' AND %s = ANY (user_name)"
    bench.until_server(f"SELECT EXISTS (SELECT FROM pg_hba_file_rules WHERE {rule})", role)
    bench.wire.conninfo = make_conninfo(bench.conninfo, user=role, password=password)
    dsn = bench.wire.listen("w2")
    bench.finish(bench.start(by_psycopg, dsn, [("SELECT $1::int", (1,))]))
    refused = make_conninfo(dsn, password="no")  # noqa: S106 - not the one
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        bench.finish(bench.start(by_psycopg, refused, [INSERT]))


def test_settings_are_made_before_the_client_may_begin(bench: Bench) -> None:
    """It has its owner's and hears nothing of them, or is refused with the server's reason."""
    bench.wire.settings = lambda owner: [f"SET application_name = 'of {owner}'", "SET my.own = 'x'"]
    raw = Raw(bench).log_in()
    raw.send(protocol.query("SELECT current_setting('my.own')"))
    assert [m.kind for m in raw.until("Z")] == ["T", "D", "C", "Z"]
    name = "SELECT application_name FROM pg_stat_activity WHERE pid = %s"
    (connection,) = bench.wire.connections(OWNER)
    assert bench.direct.execute(name, [connection.pid]).fetchone() == (f"of {OWNER}",)
    bench.wire.settings = lambda _: ["SET nonsense = 1"]
    client = bench.start(by_psycopg, bench.dsn, [INSERT])
    with pytest.raises(psycopg.OperationalError, match="SET nonsense = 1: unrecognized"):
        bench.finish(client)


def test_run(holding: Bench) -> None:
    """A statement of the harness's own runs beside what is held, and its answer is swallowed."""
    raw, connection = sent(holding, protocol.query("SHOW my.own"))
    connection.run("SET my.own = 'seen'")
    with pytest.raises(ServerError, match="22012: division by zero"):
        connection.run("SELECT 1 / 0")
    assert (connection.tag, connection.error, raw.found) == ("", None, [])
    holding.let(connection)
    assert [m.kind for m in raw.until("Z")] == ["T", "D", "C", "Z"]
    assert connection.idle


def test_run_where_it_cannot(holding: Bench) -> None:
    """In the middle of a pipeline and on a broken connection it is an error, and no hang."""
    client, connection = holding.start_held(by_psycopg, holding.dsn, [INSERT])
    holding.let(connection)
    assert connection.held == COMMIT
    with pytest.raises(QueueproofError, match="w1 is in the middle of something: SELECT 1"):
        connection.run("SELECT 1")
    connection.close()
    with pytest.raises(ServerError, match="08006"):
        connection.run("SELECT 1")
    holding.until(client.done)
    _, connection = logged_in(holding)
    with pytest.raises(ServerError, match=r"57P01|08006"):
        connection.run("SELECT pg_terminate_backend(pg_backend_pid())")
    holding.until(lambda: connection.closed)


def test_run_waits_for_what_passes(bench: Bench) -> None:
    """With nothing held, a statement of the harness's own waits until the server is free."""
    raw, connection = logged_in(bench)
    with psycopg.connect(bench.conninfo) as other:
        other.execute("LOCK jobs")
        raw.send(protocol.query("INSERT INTO jobs VALUES (1)"))
        bench.until_server(BLOCKED, connection.pid)
        assert connection.running
    connection.run("DELETE FROM jobs")
    assert [m.kind for m in raw.until("Z")] == ["C", "Z"]
    assert bench.ids() == []


def test_holding_may_begin_and_end_at_any_time(bench: Bench) -> None:
    """Held from a moment on, the next statement stands; let go, it passes and so does the rest."""
    raw = Raw(bench).log_in(protocol.query("INSERT INTO jobs VALUES (1)"))
    raw.until("Z")
    bench.wire.hold(OWNER, on=True)
    raw.send(protocol.query("INSERT INTO jobs VALUES (2)") + protocol.query("SELECT 1"))
    connection = bench.held()
    assert bench.ids() == [1]
    bench.wire.hold(OWNER, on=False)
    assert connection.held is None
    raw.until("Z")
    raw.until("Z")
    assert bench.ids() == [1, 2]


def test_holding_in_the_middle_of_a_pipeline(bench: Bench) -> None:
    """Held between an Execute and its Sync, the Sync that commits it stands before the gate."""
    raw = Raw(bench).log_in(extended("INSERT INTO jobs VALUES (1)"))
    (connection,) = bench.wire.connections(OWNER)
    bench.until(lambda: connection.running)
    bench.wire.hold(OWNER, on=True)
    raw.send(protocol.message("S"))
    assert bench.held() is connection
    assert (connection.held, bench.ids()) == (COMMIT, [])
    bench.let(connection)
    assert bench.ids() == [1]


def test_watch(bench: Bench) -> None:
    """Other file descriptors wake the pump, until they are watched no more."""
    ours, theirs = os.pipe()
    heard: list[bytes] = []
    bench.wire.watch(ours, lambda: heard.append(os.read(ours, 10)))
    os.write(theirs, b"one")
    assert bench.wire.pump(PATIENCE)
    assert heard == [b"one"]
    bench.wire.unwatch(ours)
    os.write(theirs, b"two")
    assert not bench.wire.pump(0)
    os.close(ours)
    os.close(theirs)


def test_forget_breaks_everything_of_an_owner(holding: Bench) -> None:
    """A forgotten owner's clients are cut off, its backends end, and its port is closed."""
    client = holding.start(by_psycopg, holding.dsn, [INSERT])
    pid = holding.held().pid
    holding.wire.forget(OWNER)
    holding.is_cut(client)
    holding.until_gone(pid)
    late = holding.start(by_psycopg, holding.dsn, [INSERT])
    with pytest.raises(psycopg.OperationalError, match="refused"):
        holding.finish(late)
    holding.wire.forget(OWNER)


def test_nothing_is_left_open(own: Server) -> None:
    """A closed gate has closed every socket that it had opened, and its backends end."""
    with own.database() as conninfo:
        before = sorted(Path("/proc/self/fd").iterdir())
        wire = Wire(conninfo)
        port = port_of(wire.listen(OWNER))
        opened = [socket.create_connection((gate.LOOPBACK, port)) for _ in range(3)]
        wire.pump(PATIENCE)
        wire.close()
        for one in opened:
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
            one.close()
        assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("by", [by_psycopg, by_pipeline], ids=["plain", "pipeline"])
def test_rewrite(holding: Bench, by: Callable[[str, Script], None]) -> None:
    """What the server gets may be another statement than the client sent."""
    holding.wire.rewrite = lambda sql: sql.replace("things", "jobs")
    sent = [("INSERT INTO things VALUES (7)", ()), ("INSERT INTO things VALUES ($1)", (8,))]
    steps = holding.go_through(holding.start(by, holding.dsn, sent))
    changed = [("INSERT INTO jobs VALUES (7)", ()), ("INSERT INTO jobs VALUES ($1)", ("8",))]
    assert [(step.sql, step.params) for step in steps if step != COMMIT] == changed
    assert holding.ids() == [7, 8]


def test_a_server_that_is_not_there(bench: Bench) -> None:
    """Who comes while the server is away, or no more, is told so, and others are not disturbed."""
    raw = Raw(bench).log_in()
    bench.wire.conninfo = make_conninfo(bench.conninfo, host="/nowhere")
    hasty = Raw(bench)
    hasty.send(startup(bench.conninfo) + protocol.query("SELECT 1"))
    assert [m.kind for m in hasty.until("")] == ["E"]
    away = pytest.raises(psycopg.OperationalError, match="the gate cannot reach the server")
    with away:
        bench.finish(bench.start(by_psycopg, bench.dsn, [INSERT]))
    bench.wire.conninfo = bench.conninfo
    bench.finish(bench.start(by_psycopg, bench.dsn, [INSERT]))
    bench.wire._resolved = (bench.conninfo, replace(bench.wire.upstream, address="/nowhere"))
    with away:
        bench.finish(bench.start(by_psycopg, bench.dsn, [INSERT]))
    raw.send(protocol.query("SELECT 1"))
    assert raw.until("Z")


@pytest.mark.parametrize(
    ("host", "number", "place"),
    [
        ("/run/postgresql", "", (socket.AF_UNIX, "/run/postgresql/.s.PGSQL.5433")),
        ("@postgresql", "", (socket.AF_UNIX, "\0postgresql/.s.PGSQL.5433")),
        ("db", "10.0.0.1", (socket.AF_INET, ("10.0.0.1", 5433))),
        ("db", "fd00::1", (socket.AF_INET6, ("fd00::1", 5433))),
    ],
)
def test_place_of_a_server(host: str, number: str, place: tuple[object, object]) -> None:
    """A host of libpq's is a directory, an abstract socket's name, or a machine."""
    assert upstream._place(host, number, 5433) == place


def test_a_server_on_tcp(own: Server) -> None:
    """The server may be on TCP as well as on a Unix socket: here it is another gate."""
    inner: list[str] = []
    begun = threading.Event()
    ours, theirs = socket.socketpair()

    def act(conninfo: str) -> None:
        with closing(Wire(conninfo)) as wire:
            wire.watch(ours, inner.clear)
            inner.append(wire.listen(OWNER))
            begun.set()
            while inner:
                wire.pump(None)

    with own.database() as conninfo, closing(ours), ThreadPoolExecutor() as threads:
        relay = threads.submit(act, conninfo)
        with closing(theirs):
            assert begun.wait(PATIENCE)
            with closing(Bench(inner[0])) as bench:
                bench.finish(bench.start(by_psycopg, bench.dsn, [INSERT]))
                assert bench.ids() == [5]
        relay.result(PATIENCE)


@pytest.mark.parametrize(
    ("setting", "error", "told"),
    [
        ({"sslmode": "require"}, QueueproofError, "sslmode=require: .* write sslmode=prefer"),
        ({"sslmode": "verify-full"}, QueueproofError, "=verify-full: .* write sslmode=prefer"),
        ({"user": "nobody"}, ServerUnavailableError, r'no TLS.*role "nobody" does not'),
    ],
    ids=["encryption is asked for", "with certificates", "the login is refused"],
)
def test_a_server_that_the_gate_cannot_use(
    bench: Bench, setting: dict[str, str], error: type[Exception], told: str
) -> None:
    """It speaks no TLS: that is said with a next step, and nothing is sent in the clear."""
    refused = pytest.raises(error, match=told)
    with closing(Wire(make_conninfo(bench.conninfo, **setting))) as wire, refused:
        wire.listen("w2")


HOSTILE = (
    struct.pack("!iiii", 16, protocol.CANCEL, 1, 1) * 2,
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack("!ii", 8, 2 << 16),
    struct.pack("!ii", 2**31 - 1, 3 << 16),
    struct.pack("!ii", -1, 3 << 16),
    b"\x16\x03\x01\x02\x00\x01\x00",  # TLS without asking
)
# What means something as the body of several kinds of messages.
BODIES = (
    *(b"\0", b"\0" * 8, b"\0" * 5, b"S\0", b"P\0"),
    *(b"SELECT 1\0", b"SELECT 1/0; SELECT 1\0", b"BEGIN\0", b"COMMIT\0", b"\0SELECT 1\0\0\0"),
    *(b"COPY jobs FROM STDIN\0", b"COPY jobs TO STDOUT\0", b"\0COPY jobs FROM STDIN\0\0\0"),
    *(b"\0INSERT INTO jobs VALUES (1)\0\0\0", b"\0BEGIN\0\0\0", b"1\n", b"x\n"),
)
FRAMES = st.one_of(
    st.builds(protocol.message, st.sampled_from("BCDEFHPQSXcdfp"), st.binary(max_size=40)),
    st.builds(protocol.message, st.sampled_from("BCDEFPQdf"), st.sampled_from(BODIES)),
    st.builds(protocol.message, st.sampled_from("HSc")),
)
BIG = 32 * 2**20


@pytest.mark.parametrize("data", HOSTILE)
def test_no_protocol_at_all(bench: Bench, data: bytes) -> None:
    """A connection that does not begin as the protocol does is closed with a reason."""
    raw = Raw(bench)
    raw.send(data)
    (told,) = raw.until("E")
    assert protocol.read_error(told.body)[0] == "08P01"
    raw.until("")
    assert raw.ended
    bench.finish(bench.start(by_psycopg, bench.dsn, [INSERT]))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(FRAMES, max_size=12), held=st.booleans())
@example(frames=[protocol.message("H", b"\0"), protocol.message("Q", b"\0")], held=True)
@example(frames=[protocol.message("P", b"\0SELECT 1\0\0\0"), protocol.message("d")], held=True)
def test_hostile_messages(bench: Bench, frames: list[bytes], held: bool) -> None:  # noqa: FBT001
    """Whatever a client sends after login, only its own connection can suffer."""
    bench.wire.hold(OWNER, on=held)
    raw = Raw(bench).log_in(b"".join([*frames, protocol.message("S"), protocol.message("X")]))

    def let_through() -> bool:
        for connection in bench.wire.connections(OWNER):
            if connection.held is not None:
                connection.release()
        return raw.ended

    bench.until(let_through)
    assert bench.wire.connections(OWNER) == []
    bench.wire.hold(OWNER, on=False)
    other = Raw(bench).log_in()
    other.send(protocol.query("SELECT 1"))
    assert [m.kind for m in other.until("Z")] == ["T", "D", "C", "Z"]
    other.close()
    bench.until(lambda: not bench.wire.connections(OWNER))


def test_a_slow_reader_holds_the_server_back(bench: Bench) -> None:
    """Of a result that its client does not read, no more than a bounded part is kept."""
    read = threading.Event()

    def act(low: Low) -> int:
        low.pgconn.send_query(f"SELECT repeat('x', {BIG})".encode())
        assert read.wait(PATIENCE)
        return len(low.results()[0].get_value(0, 0) or b"")

    client = bench.start(libpq, bench.dsn, act)
    bench.until(lambda: any(not c._reading for c in bench.wire._channels))
    assert sum(channel.waiting for channel in bench.wire._channels) < 2 * 2**20
    assert not bench.wire.pump(0)
    read.set()
    assert bench.finish(client) == BIG


@pytest.mark.parametrize("busy", [True, False])
def test_a_client_that_breaks_off(bench: Bench, busy: bool) -> None:  # noqa: FBT001
    """A client that is gone, in the middle of a result or not, takes no other along."""
    raw, connection = logged_in(bench)
    bench.wire.unwatch(raw._socket)
    if busy:
        raw.send(protocol.query(f"SELECT repeat('x', {BIG})"))
        bench.until(lambda: any(not c._reading for c in bench.wire._channels))
    raw._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw._socket.close()
    raw.ended = True
    bench.until_gone(connection.pid)
    assert connection.closed
    bench.finish(bench.start(by_psycopg, bench.dsn, [INSERT]))


@pytest.mark.parametrize(("close", "left"), [(False, [2**20]), (True, [])])
def test_what_a_client_has_left(bench: Bench, close: bool, left: list[int]) -> None:  # noqa: FBT001
    """What a slow server has not taken yet outlives its client, but not the gate."""
    raw, connection = logged_in(bench)
    with frozen(connection.pid):
        raw.send(protocol.query(f"INSERT INTO jobs VALUES (length('{'x' * 2**20}'))"))
        raw.close()
        bench.until(lambda: not bench.wire.connections(OWNER))
        assert len(bench.wire._channels) == 1
        if close:
            bench.wire.close()
            assert not bench.wire._channels
            bench.wire = Wire(bench.conninfo)
    bench.until(lambda: not bench.wire._channels)
    bench.until_gone(connection.pid)
    assert bench.ids() == left


def test_a_slow_server_holds_the_client_back(bench: Bench) -> None:
    """Of data that the server does not take, no more than a bounded part is kept."""
    copying, stopped = threading.Event(), threading.Event()

    def act() -> int:
        with psycopg.connect(bench.dsn, autocommit=True) as client, client.cursor() as cursor:
            with cursor.copy("COPY notes FROM STDIN") as copy:
                copying.set()
                assert stopped.wait(PATIENCE)
                for _ in range(BIG // 2**20):
                    copy.write((b"x" * 1023 + b"\n") * 2**10)
            return cursor.rowcount

    bench.direct.execute("CREATE TABLE notes (note text)")
    client = bench.start(act)
    bench.until(copying.is_set)
    (connection,) = bench.wire.connections(OWNER)
    with frozen(connection.pid):
        stopped.set()
        bench.until(lambda: any(not c._reading for c in bench.wire._channels))
        assert sum(channel.waiting for channel in bench.wire._channels) < 3 * 2**20
    assert bench.finish(client) == BIG // 2**10


def test_a_large_statement_is_held_and_shown(holding: Bench) -> None:
    """A statement with megabytes of parameters is a step like any other."""

    def act() -> None:
        with psycopg.connect(holding.dsn, autocommit=True) as client:
            client.execute("SELECT length(%s::text)", ["x" * BIG])

    client, connection = holding.start_held(act)
    assert connection.held is not None
    assert connection.held.params == ("x" * BIG,)
    holding.go_through(client)


def test_messages_without_end(holding: Bench) -> None:
    """A client that fills the gate with small messages is held back, and others are not."""

    def act() -> None:
        with socket.create_connection((gate.LOOPBACK, port_of(holding.dsn))) as client:
            client.sendall(startup(holding.conninfo) + protocol.query("SELECT 1"))
            while True:
                client.sendall(protocol.message("H") * 2**16)

    client, connection = holding.start_held(act)
    holding.until(lambda: not connection._client._reading)
    assert len(connection._inbox) < 2**18
    holding.finish(holding.start(by_psycopg, holding.dsn, []))
    connection.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        holding.finish(client)


def test_what_cannot_be_a_step_is_refused(holding: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without its Execute is refused once it is too long, a malformed message at once."""
    monkeypatch.setattr(gate, "_GROUP", 2**16)
    raw = Raw(holding).log_in(protocol.message("P", b"\0SELECT 1\0\0\0") * 2**10)
    assert protocol.read_error(raw.until("E")[-1].body)[0] == "08P01"
    # Behind a held message it is told to its client, not to who opens the gate.
    raw = Raw(holding).log_in(protocol.query("SELECT 1") + protocol.message("C"))
    holding.held()
    holding.wire.hold(OWNER, on=False)
    assert protocol.read_error(raw.until("E")[-1].body)[0] == "08P01"


def test_a_channel_that_has_ended_takes_no_more() -> None:
    """What it was given before goes out in order; whoever has read before it harms nothing."""
    ours, theirs = socket.socketpair()
    heard = list[bytes]()
    with closing(selectors.DefaultSelector()) as selector, closing(theirs):
        channel = Channel(set(), selector, ours, heard.append, lambda: None)
        channel._act(selectors.EVENT_READ)
        assert heard == []
        for sent in (b"x", b"y"):
            channel.send(sent)
        channel.end()
        channel.send(b"too late")
        assert (theirs.recv(9), theirs.recv(9)) == (b"xy", b"")
