"""A gate on the wire, and clients that know nothing of it; what holds for every client."""

import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq.abc import PGresult

from queueproof import waits
from queueproof.postgres import Server
from queueproof.wire import gate, protocol
from queueproof.wire.gate import COMMIT, Connection, Held, Wire
from tests.fix_programs import PATIENCE

OWNER = "w1"

BLOCKED = "SELECT pg_blocking_pids(%s) <> '{}'"
CUT = r"(?i)clos|terminat|reset|died"  # what clients say of a connection that was cut

T = TypeVar("T")
Client = Future[Any]
Script = Sequence[tuple[str, tuple[int, ...]]]  # statements with $1, $2, ... and their parameters

INSERT = ("INSERT INTO jobs VALUES ($1)", (5,))
UPDATE = ("UPDATE jobs SET id = id + $1", (100,))
TRANSACTION: Script = (("BEGIN", ()), INSERT, UPDATE, ("COMMIT", ()))


class Bench:
    """A gate before a database with one table, and a session beside the gate."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.wire = Wire(conninfo)
        self.dsn = self.wire.listen(OWNER)
        self.direct = psycopg.connect(conninfo, autocommit=True)
        self.direct.execute("CREATE TABLE jobs (id int)")
        self.clients: list[Client] = []
        self.threads = ThreadPoolExecutor()
        self.ends: list[socket.socket] = []  # one is readable once its client has ended
        self.raws: list[Raw] = []

    def start(self, act: Callable[..., Any], *arguments: object) -> Client:
        """Run a client in a thread of its own, whose end wakes the gate."""
        client = self.threads.submit(act, *arguments)
        ours, theirs = socket.socketpair()
        self.ends.append(ours)
        self.wire.watch(ours, lambda: self.wire.unwatch(ours))
        client.add_done_callback(lambda _: theirs.close())
        self.clients.append(client)
        return client

    def until(self, condition: Callable[[], object]) -> None:
        """Pump until something is so."""
        limit = waits.Limit(PATIENCE, "something to be so at the gate")
        while not condition():
            self.wire.pump(limit.left(1.0))

    def held(self) -> Connection:
        """The connection whose step stands before the gate; wait for it."""
        self.until(lambda: any(c.held for c in self.wire.connections(OWNER)))
        return next(c for c in self.wire.connections(OWNER) if c.held)

    def start_held(self, act: Callable[..., Any], *arguments: object) -> tuple[Client, Connection]:
        """Run a client in a thread of its own, up to its first step before the gate."""
        return self.start(act, *arguments), self.held()

    def held_at(self, wanted: str) -> Connection:
        """Release everything up to a statement; the connection that it stands on."""
        while True:
            connection = self.held()
            assert connection.held is not None
            if connection.held.sql.startswith(wanted):
                return connection
            self.let(connection)

    def let(self, connection: Connection) -> None:
        """Release a step, and wait until the server has finished with it."""
        connection.release()
        self.until(lambda: not connection.running)

    def let_all(self, client: Client) -> list[Held]:
        """Release step by step until a client has ended; the steps."""
        steps = []
        while not client.done():
            self.until(lambda: client.done() or any(c.held for c in self.wire.connections(OWNER)))
            for connection in self.wire.connections(OWNER):
                if connection.held is not None:
                    steps.append(connection.held)
                    self.let(connection)
        return steps

    def finish(self, client: Client) -> object:
        """Wait for a client's end; what it returned, or its error raised."""
        self.until(client.done)
        return client.result()

    def go_through(self, client: Client) -> list[Held]:
        """Release a client's steps one by one to its good end; the steps."""
        steps = self.let_all(client)
        self.finish(client)
        return steps

    def is_cut(self, client: Client) -> None:
        """See that a client ends with the error that its connection was cut."""
        with pytest.raises(Exception, match=CUT):
            self.finish(client)

    def ids(self) -> list[int]:
        """What everybody can see in the table."""
        return [row[0] for row in self.direct.execute("SELECT id FROM jobs ORDER BY id")]

    def ids_after_a_cut(self, client: Client, connection: Connection) -> list[int]:
        """The rows that are left when a connection is cut before what it holds."""
        connection.close()
        self.is_cut(client)
        self.until_gone(connection.pid)
        return self.ids()

    def until_server(self, query: str, *params: object) -> None:
        """Wait until a query is true on the server, and keep pumping meanwhile."""
        limit = waits.Limit(PATIENCE, query)
        while self.direct.execute(query.encode(), params).fetchone() != (True,):
            self.wire.pump(limit.left(0.001))

    def until_gone(self, pid: int) -> None:
        """Wait until a backend has ended, with whatever it had begun."""
        self.until_server("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", pid)

    def close(self) -> None:
        """Close everything, and wait for the clients to notice."""
        for raw in self.raws:
            raw.close()
        self.wire.forget(OWNER)
        self.until(lambda: all(client.done() for client in self.clients))
        self.threads.shutdown()
        self.wire.close()
        for end in self.ends:
            end.close()
        self.direct.close()


@pytest.fixture
def bench(own: Server) -> Iterator[Bench]:
    """A gate that holds nothing yet."""
    with own.database() as conninfo, closing(Bench(conninfo)) as opened:
        yield opened


@pytest.fixture
def holding(bench: Bench) -> Bench:
    """A gate that holds."""
    bench.wire.hold(OWNER, on=True)
    return bench


def by_psycopg(
    dsn: str, script: Script, prepare: int | None = None, *, pipelined: bool = False
) -> None:
    """Psycopg, as most programs use it, or with its own prepared statements, in a pipeline."""
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.prepare_threshold = prepare
        with connection.pipeline() if pipelined else nullcontext():
            for sql, params in script:
                connection.execute(sql.encode(), params or None)


by_pipeline = partial(by_psycopg, prepare=0, pipelined=True)


class Low:
    """libpq below every adapter. Its own blocking calls would keep the gate's thread waiting."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.pgconn = connection.pgconn

    def next(self) -> PGresult | None:
        """The next answer, or the end of one statement's."""
        self.pgconn.flush()
        while self.pgconn.is_busy():
            select.select([self.pgconn.socket], [], [], PATIENCE)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def results(self) -> list[PGresult]:
        """The answers to one statement."""
        return list(iter(self.next, None))

    def prepare(self, name: bytes, sql: bytes) -> str:
        """Prepare a statement; how that was answered."""
        self.pgconn.send_prepare(name, sql)
        return said(self.results()[-1])

    def execute(self, name: bytes, *params: bytes) -> str:
        """Execute what was prepared; how that was answered."""
        self.pgconn.send_query_prepared(name, params)
        return said(self.results()[-1])

    def query(self, sql: bytes, *params: bytes) -> PGresult:
        """Execute a statement by the extended protocol."""
        self.pgconn.send_query_params(sql, params)
        return self.results()[-1]


def said(answer: PGresult) -> str:
    """A command's tag, or the answer's kind."""
    return (answer.command_status or b"").decode() or pq.ExecStatus(answer.status).name


def libpq(dsn: str, act: Callable[[Low], T]) -> T:
    """Use a connection of libpq's."""
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        return act(Low(connection))


def port_of(dsn: str) -> int:
    """Where a DSN leads."""
    return int(str(conninfo_to_dict(dsn)["port"]))


def startup(conninfo: str) -> bytes:
    """The first packet of a client without a password."""
    told = conninfo_to_dict(conninfo)
    names = f"user\0{told['user']}\0database\0{told['dbname']}\0\0".encode()
    return struct.pack("!ii", 8 + len(names), 3 << 16) + names


class Raw:
    """A client that sends what it likes; the gate's selector reads for it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._parser = protocol.Parser("backend")
        self._socket = socket.create_connection((gate.LOOPBACK, port_of(bench.dsn)))
        self.found: list[protocol.Message] = []
        self.ended = False
        bench.wire.watch(self._socket, self._receive)
        bench.raws.append(self)

    def log_in(self, data: bytes = b"") -> Self:
        """Be let in, without a password, and send something."""
        self.send(startup(self._bench.conninfo))
        assert self.until("Z")[0].kind == "R"
        self.send(data)
        return self

    def send(self, data: bytes) -> None:
        """Send bytes, if they are still wanted."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(2**16)
        except ConnectionResetError:
            data = b""
        self.found += self._parser.feed(data)
        if not data:
            self.close()

    def until(self, kind: str) -> list[protocol.Message]:
        """Wait for a message of some kind, or the end; everything up to it."""
        self._bench.until(lambda: self.ended or any(m.kind == kind for m in self.found))
        ends = [n for n, message in enumerate(self.found, 1) if message.kind == kind]
        count = ends[0] if ends else len(self.found)
        taken, self.found = self.found[:count], self.found[count:]
        return taken

    def close(self) -> None:
        """Go away."""
        if not self.ended:
            self.ended = True
            self._bench.wire.unwatch(self._socket)
            self._socket.close()


@dataclass(frozen=True)
class Kind:
    """A client, and how its steps look.

    Attributes:
        run: Runs a script, given a DSN.
        literal: Whether parameters are literals in its SQL.
        extended: Whether a statement is an Execute, and its commit a Sync.
    """

    run: Callable[[str, Script], None]
    literal: bool = False
    extended: bool = True

    def shown(self, statement: tuple[str, tuple[int, ...]]) -> Held:
        """A statement as it should stand before the gate."""
        sql, params = statement
        if self.literal:
            for n, value in enumerate(params, 1):
                sql = sql.replace(f"${n}", str(value))
            return Held("query", sql)
        if not self.extended:
            return Held("query", sql)
        return Held("execute", sql, tuple(map(str, params)))


class EachClient:
    """Facts that hold whatever the client, for a class of tests that says which clients.

    Attributes:
        clients: Those that send a statement as an Execute.
        simple: Those that send it as a query.
    """

    clients: ClassVar[Sequence[object]] = ()
    simple: ClassVar[Sequence[object]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Ask each client; of a Sync those alone that send one."""
        sync = metafunc.function.__name__ == "test_cut_before_a_sync"
        metafunc.parametrize("kind", [*self.clients, *(() if sync else self.simple)], indirect=True)

    def test_shows_and_holds_a_statement(self, holding: Bench, kind: Kind) -> None:
        """A held statement is shown with its parameters, and nobody sees its effect."""
        client = holding.start(kind.run, holding.dsn, [INSERT])
        wanted = kind.shown(INSERT)
        connection = holding.held_at(wanted.sql)
        assert connection.held is not None
        assert connection.held._replace(sql=connection.held.sql.rstrip(";")) == wanted
        assert holding.ids() == []
        holding.let(connection)
        assert connection.tag == "INSERT 0 1"
        if kind.extended:
            assert holding.held() is connection  # its Sync may come in another packet
            assert (connection.held, connection.in_transaction) == (COMMIT, False)
            assert holding.ids() == []
            holding.let(connection)
        assert holding.ids() == [5]
        assert holding.let_all(client) == []
        holding.finish(client)

    def test_cut_before(self, holding: Bench, kind: Kind) -> None:
        """A client cut off before its statement gets an error, and the server never acted."""
        client = holding.start(kind.run, holding.dsn, [INSERT])
        assert holding.ids_after_a_cut(client, holding.held_at(kind.shown(INSERT).sql)) == []

    def test_cut_before_a_sync(self, holding: Bench, kind: Kind) -> None:
        """Cut before its Sync an Execute is rolled back."""
        client = holding.start(kind.run, holding.dsn, [INSERT])
        connection = holding.held_at(INSERT[0])
        holding.let(connection)
        holding.until(lambda: connection.held == COMMIT)  # which may come in a message of its own
        assert holding.ids_after_a_cut(client, connection) == []

    def test_cut_in_a_transaction(self, holding: Bench, kind: Kind) -> None:
        """A transaction cut off before its COMMIT is rolled back, whatever the server did."""
        client = holding.start(kind.run, holding.dsn, TRANSACTION)
        assert holding.ids_after_a_cut(client, holding.held_at("COMMIT")) == []

    def test_steps_of_a_transaction(self, holding: Bench, kind: Kind) -> None:
        """In an explicit transaction each statement is one step, and its Sync is none."""
        steps = holding.go_through(holding.start(kind.run, holding.dsn, TRANSACTION))
        sent = [step.sql.rstrip(";") for step in steps]
        assert sent[-4:] == [kind.shown(statement).sql for statement in TRANSACTION]
        assert holding.ids() == [105]

    def test_blocked_is_what_the_server_says(self, holding: Bench, kind: Kind) -> None:
        """A released statement that waits for a lock stays running, and its pid shows for whom."""
        holding.direct.execute("INSERT INTO jobs VALUES (1)")
        client = holding.start(kind.run, holding.dsn, [UPDATE])
        connection = holding.held_at(kind.shown(UPDATE).sql)
        with psycopg.connect(holding.conninfo) as other:
            other.execute("UPDATE jobs SET id = 2")
            connection.release()
            blocker = [other.info.backend_pid]
            holding.until_server("SELECT pg_blocking_pids(%s) = %s::int[]", connection.pid, blocker)
            assert connection.running
            assert not connection.idle
        holding.go_through(client)
        assert holding.ids() == [102]

    def test_passes_while_nothing_is_held(self, bench: Bench, kind: Kind) -> None:
        """Without a hold everything passes, and the connection's state is still known."""
        bench.finish(bench.start(kind.run, bench.dsn, [*TRANSACTION, INSERT]))
        assert bench.ids() == [5, 105]
        bench.until(lambda: not bench.wire.connections(OWNER))
