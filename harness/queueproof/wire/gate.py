"""The gate: a proxy that holds back what clients execute until somebody releases it.

Clients of any language connect to a port of their own on the loopback interface. What they send
is passed on to the server, and its answers back; but while an owner is held, whatever executes
something stands still until it is released, shows its SQL, and may be cut off before or after the
server has acted.

A step is a simple Query, or an Execute with the messages before it since the last step, Sync or
Flush. A Sync that would commit what an Execute has done outside an explicit transaction is a step
of its own: the moment at which its locks are held and its effect is unseen.

One thread, one selector: nothing moves but inside `Wire.pump` and the methods that say so.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

from queueproof import waits
from queueproof.errors import QueueproofError, ServerError
from queueproof.wire import protocol
from queueproof.wire.channel import Channel
from queueproof.wire.pipeline import Due, Finished, Pipeline
from queueproof.wire.protocol import Message, Parser, ProtocolError
from queueproof.wire.upstream import Upstream, resolve

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

LOOPBACK = "127.0.0.1"
_HIGH = 2**20  # bytes that may wait for a slow reader
_INBOX = 16 * 2**20  # bytes of a client's that may wait before the gate
_GROUP = 2 * protocol.LARGE  # bytes of one step
_OVERHEAD = 128  # bytes that a message takes beside its own
_CANCELLED = "57014"
_BROKEN = "08006"
_MALFORMED = "08P01"
_UNREACHABLE = "08001"


class Held(NamedTuple):
    """A step that stands before the gate."""

    kind: Literal["query", "execute", "sync"]  # `sync` commits what an `execute` did
    sql: str  # as the client wrote it; COMMIT for a `sync`
    params: protocol.Params = ()  # bound to $1, $2, ..., for reading


COMMIT = Held("sync", "COMMIT")


class Connection:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, wire: Wire, owner: str, opened: socket.socket) -> None:
        self.owner = owner
        self.pid = 0  # of its backend; 0 until the server has said it
        self.held: Held | None = None  # what stands before the gate
        # SQLSTATE and message that the client is told instead, if the server says that the
        # statement was cancelled. Taken back when the statement has finished.
        self.disguise: tuple[str, str] | None = None
        self.closed = False
        self._wire = wire
        self._phase: Literal["new", "cancel", "login", "ready"] = "new"
        self._client = wire.channel(opened, self._from_client, self._throttle)
        self._server: Channel | None = None
        self._client_parser = Parser("frontend")
        self._server_parser = Parser("backend")
        self._to_server: list[bytes] = []
        self._to_client: list[bytes] = []
        self._pipeline = Pipeline()
        self._inbox: deque[Message] = deque()  # what has come from the client
        self._group: deque[tuple[Message, Due]] = deque()  # that of it which may become a step
        self._kept = 0  # about how many bytes these take
        self._step: Held | None = None  # what was released and is not finished
        self._own: deque[str] = deque()  # statements of the harness's, the first one running
        self._own_error: ServerError | None = None
        self._welcome = b""  # that the client may begin: said once the settings are made

    @property
    def opened(self) -> bool:
        """True if its client has begun to log in, and the connection is not gone."""
        return self._phase in {"login", "ready"} and not self.closed

    @property
    def in_transaction(self) -> bool:
        """True if an explicit transaction is open, failed ones included."""
        return self._pipeline.in_transaction

    @property
    def running(self) -> bool:
        """True if the server has not finished with something that was let through."""
        unfinished = self._step is not None or not self._pipeline.answered
        return unfinished and not self.closed

    @property
    def idle(self) -> bool:
        """True if nothing of its client's is held, running, unanswered or half sent."""
        unfinished = self._inbox or self._group or self._client_parser.pending
        return self._rests and not unfinished

    @property
    def _rests(self) -> bool:
        """True if the server waits for a new command."""
        free = self._phase == "ready" and not self._own and not self.closed
        return free and self._pipeline.rests

    @property
    def tag(self) -> str:
        """The server's name for the command that it completed last, such as `UPDATE 1`.

        Empty after a step that has failed.
        """
        return self._pipeline.tag

    @property
    def error(self) -> tuple[str, str] | None:
        """SQLSTATE and message, if what was released last has failed."""
        return self._pipeline.error

    def release(self) -> None:
        """Let through what is held."""
        held = self.held
        assert held is not None, "nothing is held"
        self._step, self.held = held, None
        self._pipeline.tag, self._pipeline.error = "", None
        self._pass_group()
        if held.kind == "execute":
            self._to_server.append(protocol.FLUSH)  # so that the server answers before the Sync
        self._flush()

    def run(self, sql: str) -> None:
        """Execute a statement of the harness's own while the server waits for a new command.

        Its answer does not matter, as of SET. What else is on the wire moves meanwhile.

        Raises:
            ServerError: The server answered with an error, or the connection broke.
            LimitError: The server does not answer, or the client does not end what it has begun.
            QueueproofError: A step is running, or the client is in the middle of a pipeline.
        """
        what = f"PostgreSQL to answer {sql} on a connection of {self.owner}"
        limit = waits.Limit(waits.OWN, what)
        while not self._rests and not self.closed:
            if self._step is not None or self.held is not None:
                raise QueueproofError(f"{self.owner} is in the middle of something: {sql}")
            self._wire.pump(limit.left())
        self._own.append(sql)
        self._to_server.append(protocol.query(sql))
        self._flush()
        while self._own and not self.closed:
            self._wire.pump(limit.left())
        error, self._own_error = self._own_error, None
        if error is not None:
            raise error
        if self.closed:
            raise ServerError(_BROKEN, "the connection is closed")

    def switch(self) -> None:
        """Act on the owner's being held from now on, or no more."""
        if not self._pipeline.answered and self._wire.holds(self.owner):
            self._to_server.append(protocol.FLUSH)  # what has passed has to be answered first
        try:
            self._advance()
        except ProtocolError as error:
            self._refuse(_MALFORMED, f"the gate cannot read this: {error}")

    def close(self) -> None:
        """Close both sides now."""
        self._leave()
        self._client.close()
        if self._server is not None:
            self._server.close()

    def _end(self) -> None:
        """Close both sides once each has been written what is meant for it."""
        self._leave()
        self._client.end()
        if self._server is not None:
            self._server.end()

    def _leave(self) -> None:
        self.closed = True
        self.held = None
        self._wire.drop(self)

    def _refuse(self, sqlstate: str, why: str) -> None:
        """Tell the client why, and close."""
        self._client.send(protocol.error_response("FATAL", sqlstate, why))
        self._end()

    def _from_client(self, data: bytes) -> None:
        if not data:
            self._end()
            return
        try:
            for message in self._client_parser.feed(data):
                self._take(message)
            self._advance()
        except ProtocolError as error:
            self._refuse(_MALFORMED, f"the gate cannot read this: {error}")

    def _take(self, message: Message) -> None:
        if self.closed:
            return
        if self._phase == "new":
            self._begin(message)
        elif self._phase == "cancel":
            raise ProtocolError("more than a request to cancel")
        elif self._phase == "login" and message.kind == "p":
            self._to_server.append(message.raw)
        else:
            if message.kind in {"Q", "P"} and not message.more:
                message = self._rewritten(message)
            self._inbox.append(message)
            self._kept += len(message.raw) + _OVERHEAD

    def _rewritten(self, message: Message) -> Message:
        """A message with SQL in it, as its server should get it."""
        if message.kind == "Q":
            sql = protocol.read_text(message.body)
            new = self._wire.rewrite(sql)
            return message if new == sql else Message("Q", protocol.query(new))
        parse = protocol.read_parse(message.body)
        moved = parse._replace(sql=self._wire.rewrite(parse.sql))
        return message if moved == parse else Message("P", protocol.parse(moved))

    def _begin(self, packet: Message) -> None:
        if packet.code in {protocol.TLS, protocol.GSS}:
            self._client.send(protocol.REFUSED)
            return
        try:
            opened = self._wire.upstream.connect()
        except (OSError, QueueproofError) as error:
            self._refuse(_UNREACHABLE, f"the gate cannot reach the server: {error}")
            return
        self._phase = "cancel" if packet.code == protocol.CANCEL else "login"
        self._server = self._wire.channel(opened, self._from_server, self._throttle)
        self._to_server.append(packet.raw)

    def _advance(self) -> None:
        """Let through what may pass, up to the next step."""
        if self._phase == "ready":
            while not self._own and not self.closed and self._let_through():
                pass
        self._flush()

    def _let_through(self) -> bool:
        """Pass on what comes next; False if that is nothing for now."""
        if not self._wire.holds(self.owner) or self._pipeline.copying or self._pipeline.skipping:
            self.held = None
            self._pass_group()
            return self._pass_on()
        if self.held is not None or not self._pipeline.answered:
            return False
        return self._look()

    def _look(self) -> bool:
        """Find the next step, or pass on what comes before it; False if that is all for now."""
        while self._inbox:
            message = self._inbox[0]
            match message.kind:
                case "E":
                    portal = self._pipeline.portal(message)
                    return self._hold(Held("execute", portal.statement.sql, portal.params))
                case "Q":
                    return self._hold_alone(Held("query", protocol.read_text(message.body)))
                case "F":
                    oid = protocol.read_int4(message.body)
                    return self._hold_alone(Held("query", f"function call {oid}"))
                case "S" if self._pipeline.uncommitted:
                    return self._hold_alone(COMMIT)
                case "P" | "B" | "C" | "D":
                    self._gather()
                case "d":  # which nobody has asked for, and which brings no answer
                    self._pass_group()
                    self._to_server.append(protocol.FLUSH)
                    return self._pass_on()
                case _:
                    self._pass_group()
                    return self._pass_on()
        if self._kept > _GROUP:
            raise ProtocolError(f"more than {_GROUP} bytes before an Execute")
        return False

    def _gather(self) -> None:
        message = self._inbox.popleft()
        self._group.append((message, self._pipeline.note(message)))

    def _hold(self, held: Held) -> bool:
        self._gather()
        self.held = held
        return False

    def _hold_alone(self, held: Held) -> bool:
        """Hold a message without those before it, which execute nothing."""
        if not self._group:
            return self._hold(held)
        self._pass_group()
        self._to_server.append(protocol.FLUSH)
        return True

    def _pass_group(self) -> None:
        while self._group:
            self._send(*self._group.popleft())

    def _pass_on(self) -> bool:
        """Send the first message of the inbox to the server, if there is one."""
        if not self._inbox:
            return False
        self._send(self._inbox.popleft())
        return True

    def _send(self, message: Message, due: Due | None = None) -> None:
        self._kept -= len(message.raw) + _OVERHEAD
        self._pipeline.sent(message, due)
        self._to_server.append(message.raw)
        if message.kind in {"c", "f"}:
            self._to_server.append(protocol.FLUSH)  # the one behind the Execute was ignored

    def _from_server(self, data: bytes) -> None:
        if not data:
            self._end()
            return
        try:
            for message in self._server_parser.feed(data):
                if not self.closed:
                    self._answer(message)
            self._advance()
        except ProtocolError as error:
            self._refuse(_MALFORMED, f"the gate cannot read what the server answers: {error}")

    def _answer(self, message: Message) -> None:
        if self._own and message.kind not in "AS":
            self._answer_own(message)
            return
        if self._phase == "ready":
            if message.kind == "E" and self.disguise is not None:
                message = self._disguised(message, *self.disguise)
            self._finish(self._pipeline.received(message))
        elif message.kind == "K":
            self.pid = protocol.read_int4(message.body)
        elif message.kind == "Z":
            self._log_in(message.raw)
            return
        self._to_client.append(message.raw)

    def _disguised(self, message: Message, sqlstate: str, text: str) -> Message:
        if protocol.read_error(message.body)[0] != _CANCELLED:
            return message
        return Message("E", protocol.error_response("ERROR", sqlstate, text))

    def _finish(self, finished: Finished) -> None:
        """Act on what the server has finished with."""
        if self._step is None or finished != _ENDS[self._step.kind]:
            return
        if self._step == COMMIT and self.error is None:
            self._pipeline.tag = "COMMIT"
        self._step = self.disguise = None

    def _log_in(self, welcome: bytes) -> None:
        self._phase = "ready"
        self._welcome = welcome
        self._own.extend(self._wire.settings(self.owner))
        self._next_own()

    def _next_own(self) -> None:
        if self._own:
            self._to_server.append(protocol.query(self._own[0]))
        elif self._welcome:
            self._to_client.append(self._welcome)
            self._welcome = b""

    def _answer_own(self, message: Message) -> None:
        if message.kind == "E":
            self._own_error = ServerError(*protocol.read_error(message.body))
        elif message.kind == "Z":
            self._pipeline.received(message)
            sql = self._own.popleft()
            if self._welcome and self._own_error is not None:
                self._refuse(self._own_error.sqlstate, f"{sql}: {self._own_error.message}")
            else:
                self._next_own()

    def _flush(self) -> None:
        if self._to_server and self._server is not None:
            self._server.send(b"".join(self._to_server))
            self._to_server.clear()
        if self._to_client:
            self._client.send(b"".join(self._to_client))
            self._to_client.clear()
        self._throttle()

    def _throttle(self) -> None:
        """Take no more from either side than the other takes."""
        if self._server is None or self.closed:
            return
        self._server.read(on=self._client.waiting < _HIGH)
        stands = self.held is not None or self.running or self._own or self._phase == "login"
        full = stands and self._kept > _INBOX
        self._client.read(on=self._server.waiting < _HIGH and not full)


# What the server's having finished with a step looks like.
_ENDS: dict[str, Finished] = {"query": "ready", "execute": "execute", "sync": "ready"}


class _Owner:
    """One worker's life: its port and its connections."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.held = False
        self.connections: list[Connection] = []
        self._wire = wire
        self._name = name
        self._listener = socket.create_server((LOOPBACK, 0))
        self._listener.setblocking(False)  # noqa: FBT003 - the standard library's
        self.port: int = self._listener.getsockname()[1]
        wire.watch(self._listener, self._accept)

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # it has thought better of it
            opened, _ = self._listener.accept()
            self.connections.append(Connection(self._wire, self._name, opened))

    def close(self) -> None:
        """Close the port and every connection."""
        self._wire.unwatch(self._listener)
        self._listener.close()
        for connection in list(self.connections):
            connection.close()


class Wire:
    """Ports for clients, and what stands between them and the server."""

    def __init__(self, conninfo: str) -> None:
        # Of the server's database, as libpq reads it; may be set when that is to be had elsewhere.
        self.conninfo = conninfo
        # Gives the statements that are run on a new connection of an owner before its client may
        # use it.
        self.settings: Callable[[str], Sequence[str]] = lambda _: ()
        self.rewrite: Callable[[str], str] = lambda sql: sql  # what the server gets instead
        self._resolved: tuple[str, Upstream] | None = None
        self._selector = selectors.DefaultSelector()
        self._channels: set[Channel] = set()
        self._owners: dict[str, _Owner] = {}

    def listen(self, owner: str) -> str:
        """Open a port for an owner.

        Returns:
            The URI by which its client connects.

        Raises:
            ServerUnavailableError: The server does not let us in without encryption.
        """
        upstream = self.upstream
        opened = self._owners[owner] = _Owner(self, owner)
        login, password, database = (
            quote(part, safe="") for part in (upstream.user, upstream.password, upstream.database)
        )
        if password:
            login += f":{password}"
        return f"postgresql://{login}@{LOOPBACK}:{opened.port}/{database}?sslmode=disable"

    def forget(self, owner: str) -> None:
        """Close an owner's port and connections, on both sides."""
        if owner in self._owners:
            self._owners.pop(owner).close()

    def connections(self, owner: str) -> list[Connection]:
        """The connections of an owner that its clients have begun to use, in order of opening."""
        if owner not in self._owners:
            return []
        return [found for found in self._owners[owner].connections if found.opened]

    def hold(self, owner: str, on: bool) -> None:  # noqa: FBT001 - a switch
        """Hold back what an owner's clients execute from now on, or let all of it through."""
        self._owners[owner].held = on
        for connection in list(self._owners[owner].connections):
            connection.switch()

    def holds(self, owner: str) -> bool:
        """True if what an owner's clients execute is held back."""
        return owner in self._owners and self._owners[owner].held

    def drop(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        owner = self._owners.get(connection.owner)
        if owner is not None and connection in owner.connections:
            owner.connections.remove(connection)

    @property
    def upstream(self) -> Upstream:
        """The server that `conninfo` leads to.

        Raises:
            ServerUnavailableError: The server does not let us in without encryption.
        """
        if self._resolved is None or self._resolved[0] != self.conninfo:
            self._resolved = self.conninfo, resolve(self.conninfo)
        return self._resolved[1]

    def channel(
        self, opened: socket.socket, receive: Callable[[bytes], None], drained: Callable[[], None]
    ) -> Channel:
        """A socket that is read and written as `pump` finds it ready: see `Channel`."""
        return Channel(self._channels, self._selector, opened, receive, drained)

    def watch(self, fd: FileDescriptorLike, callback: Callable[[], object]) -> None:
        """Have `pump` call something whenever a file descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, lambda _: callback())

    def unwatch(self, fd: FileDescriptorLike) -> None:
        """Watch a file descriptor no more; before it is closed."""
        self._selector.unregister(fd)

    def pump(self, seconds: float | None) -> bool:
        """Move what can be moved; whether there was anything.

        Args:
            seconds: How long to wait at most for something; None for as long as it takes.
        """
        ready = self._selector.select(seconds)
        known = self._selector.get_map()
        for key, mask in ready:
            # What was done for an earlier one may have closed it, or opened another in its place.
            current = known.get(key.fd)
            if current is not None and current.data == key.data:
                key.data(mask)
        return bool(ready)

    def close(self) -> None:
        """Close every port and every connection."""
        for owner in list(self._owners):
            self.forget(owner)
        for channel in list(self._channels):
            channel.close()
        self._selector.close()
