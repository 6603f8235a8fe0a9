"""Queues that own their connections: each worker is a process, stepped from the wire.

What a worker sends to the server stands before a gate (`queueproof.wire`) until the schedule lets
it through, so that to a runner it is a session like any other: it offers a statement, is told to
send it, and either answers or waits for a lock.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from psycopg import sql

from queueproof import waits
from queueproof.errors import QueueError, ServerError
from queueproof.postgres import Server
from queueproof.postgres.pooler import Pooler
from queueproof.queues.model import Operation, Result, Step
from queueproof.queues.sqltext import move_times
from queueproof.queues.worker import WorkerError, WorkerProcess, WorkerQueue
from queueproof.run import wallclock
from queueproof.run.gates import GATE, INSIDE
from queueproof.run.lab import HARNESS, Lab
from queueproof.run.session import Session, read_tag
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.conditions import Gate
from queueproof.wire.gate import Connection, Wire

SPARES = 2  # workers that are started before they are needed
_LOOK = 0.1  # seconds
_NO_WORKERS = frozenset({"clock", "nemesis"})
_INSTALLER = "the installer"
_WORKER = re.compile(r"w\d+")
_SET = re.compile(r"(?:SET|RESET) ([\w.]+)(?: = (.*))?")
_WROTE = "SELECT backend_xid IS NOT NULL FROM pg_catalog.pg_stat_get_activity(%s)"


class _SilentError(WorkerError):
    """A worker neither answers nor ends."""


class _Conversation:
    """One life of a worker, with whatever it sends to the server passing the gate."""

    def __init__(self, lab: ClientLab, name: str) -> None:
        self._lab = lab
        self._closed = False
        self.owner = f"{name} {next(lab.lives)}"
        self.dsn = lab.wire.listen(self.owner)
        try:
            self.process = WorkerProcess(lab.queue, name)
        except BaseException:
            lab.wire.forget(self.owner)
            raise
        lab.wire.watch(self.process.stdout, self.process.receive)

    def converse(self, message: dict[str, object]) -> Any:  # noqa: ANN401 - JSON
        """Ask for something that is no operation of the queue, and wait for the answer."""
        self.process.send(message)
        return self.heard(str(message["op"]))

    def heard(self, operation: str) -> Any:  # noqa: ANN401 - JSON
        """Wait for the answer to what it was asked last."""
        limit = waits.Limit(waits.BEGIN, operation)
        while self.process.answer is None:
            self._lab.wire.pump(_LOOK)
            self.process.check()
            if limit.is_over():
                waits.connect(self._lab.conninfo).finish()  # a frozen server is not its fault
                raise _SilentError(
                    f"{self._lab.queue.name}: no answer to {operation} after {limit.seconds:g} s"
                )
        return self.process.take()

    def close(self) -> None:
        """Kill the worker, and close its connections."""
        if not self._closed:
            self._closed = True
            self._lab.wire.unwatch(self.process.stdout)
            self.process.kill()
            self._lab.wire.forget(self.owner)


class ClientSession(Session):
    """A worker's process, which begins its life as this worker, and its connections."""

    def __init__(self, lab: ClientLab, key: str, talk: _Conversation) -> None:
        self.name = key
        self.conninfo = lab.conninfo
        self._lab = lab
        self._wire = lab.wire
        self._settings: dict[str, str] = {}
        self.keys_held: set[int] = set()  # of the gates of which backends
        self._offered: Step | None = None
        self._standing: Connection | None = None  # what is offered stands before this one's gate
        self._asked = False
        self.disturbed = False  # its connections were broken: it serves no further run
        self._ahead = 0.0
        self._talk = talk
        self.owner = talk.owner  # its connections' name at the gate
        self._process = talk.process

    @property
    def settings(self) -> list[str]:
        """The statements that a new connection of it runs first."""
        return [f"SET {name} = {value}" for name, value in self._settings.items()]

    @property
    def connections(self) -> list[Connection]:
        """Its open connections."""
        return self._wire.connections(self.owner)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of its backends."""
        return tuple(connection.pid for connection in self.connections if connection.pid)

    @property
    def pid(self) -> int:
        """The backend that runs, or would next; 0 for none."""
        found = [connection for connection in self.connections if connection.running]
        return next((c.pid for c in (*found, self._standing) if c is not None), 0)

    @property
    def waiting(self) -> list[int]:
        """The backends that run."""
        return [connection.pid for connection in self.connections if connection.running]

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open on one of its connections, failed ones included."""
        return any(connection.in_transaction for connection in self.connections)

    @property
    def closed(self) -> bool:
        """True if its process has ended."""
        return not self._process.alive

    @property
    def busy(self) -> bool:
        """True if one of its connections is in the middle of anything."""
        return not all(connection.idle for connection in self.connections)

    def quieten(self) -> bool:
        """True if it has answered everything, and waits with no transaction open."""
        self._wire.pump(0)
        if self.closed or self._asked or self.in_transaction or self.disturbed:
            return False
        return not self.busy

    def start_work(self) -> None:
        """Have its worker do what it does before it can claim."""
        settings = dict(self._settings)
        self.configure({name: value for name, value in settings.items() if name != GATE})
        self._set_clock()
        self._lab.started.add(identity(self.name))
        request = self._lab.queue.request("start", worker=identity(self.name))
        self._lab.queue.read_error("start", self._talk.converse(request))
        self.configure(settings)  # the gate inside statements too: nobody would open it before

    def configure(self, settings: Mapping[str, str]) -> None:
        """Give its connections some settings, and take back those that they were given before."""
        if settings == self._settings:
            return
        gone = [f"RESET {name}" for name in self._settings if name not in settings]
        self._settings = dict(settings)
        for connection in self.connections:
            for statement in (*gone, *self.settings):
                connection.run(statement)

    def send(self, step: Step, *, begin: bool = False) -> None:
        """Ask the worker for something, or let through what it offers."""
        assert not begin, "a worker begins its own transactions"
        if step.request is not None:
            self._refuse_late()
            self._set_clock()
            self._wire.hold(self.owner, self.stepped)
            self._asked = True
            self._process.send(dict(step.request))
            return
        assert step is self._offered
        if self._standing is not None and not self._standing.closed:
            self._lab.notice(step)
            if self._standing.pid not in self.keys_held:
                self.keys_held.add(self._standing.pid)
                self._lab.hold_key(self._standing.pid)
            self._standing.release()

    def _refuse_late(self) -> None:
        """See that it did not answer before its COMMIT, which may still fail."""
        self._wire.pump(0)
        for connection in self.connections:
            if connection.held is not None:
                raise WorkerError(
                    f"{self._lab.queue.name}: after an answer came {connection.held.sql!r}; answer "
                    "when the database has answered: what is lost on the way was promised"
                )

    def ready(self, seconds: float) -> bool:
        """Wait up to some seconds until it has answered or offers its next statement."""
        enough = time.monotonic() + max(seconds, _LOOK)  # where it sends something all the time
        while not self._settled():
            if not self._wire.pump(seconds) or time.monotonic() > enough:
                return False
            seconds = 0.0
        return True

    def _settled(self) -> bool:
        if self._process.answer is not None:
            return True
        try:
            self._process.check()
        except WorkerError:
            return True  # as `result` says
        connections = self.connections
        if any(connection.running for connection in connections):
            return False
        for connection in connections:
            if connection.held is None:
                continue
            if connection.held.kind != "sync" or self._lab.has_written(connection.pid):
                return True
            connection.release()  # nothing was written: nobody can see this commit
        return False

    def result(self) -> Result:
        """The result of what has happened since the last `send`."""
        connection, self._standing, self._offered = self._standing, None, None
        command, error = ("", None) if connection is None else (connection.tag, connection.error)
        if self._process.answer is not None:
            # What it sends now of a transaction that it left open, nobody has asked for.
            self._wire.hold(self.owner, self.in_transaction)
            self._asked = False
            return self._result(command, error, reply=self._process.take())
        self._process.check()
        self._standing = next(c for c in self.connections if c.held is not None)
        held = self._standing.held
        assert held is not None
        params = {str(n): value for n, value in enumerate(held.params, 1)}
        written = self._lab.written.get(held.sql, held.sql)
        self._offered = Step(written, params, commits=held.kind == "sync")
        return self._result(command, error, offered=self._offered)

    def _result(
        self,
        command: str,
        error: tuple[str, str] | None,
        *,
        offered: Step | None = None,
        reply: object = None,
    ) -> Result:
        word, affected = read_tag(command)
        return Result(
            affected=affected,
            in_transaction=self.in_transaction or (offered is not None and offered.commits),
            command="" if error else word,
            offered=offered,
            reply=reply,
        )

    def run(self, sql: str) -> None:
        """Run a statement of the harness's own on each of its connections.

        A setting is kept for connections that it opens later. A transaction of its own only the
        worker could end: it is killed instead.
        """
        if sql == "ROLLBACK":
            self._lab.discard(self)
            return
        if match := _SET.fullmatch(sql):
            name, value = match.groups()
            rest = {known: v for known, v in self._settings.items() if known != name}
            self.configure({**rest, name: value} if value else rest)
            return
        for connection in self.connections:
            connection.run(sql)

    def explain(self, step: Step, options: str) -> Result:
        """See `Session.explain`: as a session beside it would have it."""
        session = self._lab.own_session("explainer")
        for name, value in self._settings.items():
            session.run(f"SET {name} = {value}")
        try:
            return session.explain(step, options)
        finally:
            for name in self._settings:
                session.run(f"RESET {name}")

    def cancel(self) -> None:
        """Cancel its running statements; its library is told of a deadlock."""
        for connection in self.connections:
            if connection.running:
                connection.disguise = ("40P01", "deadlock detected")
        limit = waits.Limit(waits.CANCEL, f"what {self.name} runs to end, now that it is cancelled")
        while not self.ready(limit.left(_LOOK)):
            self._lab.signal("cancel", self.waiting)

    def close(self) -> None:
        """Kill the worker, and close its connections."""
        self._talk.close()

    def _set_clock(self) -> None:
        ahead = self._lab.ahead(self.name)
        if ahead != self._ahead and self._lab.queue.moves_clock:
            answer = self._talk.converse(self._lab.queue.request("clock", ahead=ahead))
            self._lab.queue.read_error("clock", answer)
        self._ahead = ahead


class ClientLab(Lab):
    """The place for the runs of a queue whose workers are processes of their own."""

    queue: WorkerQueue
    by_clients = True
    gates = frozenset[Gate]({"statement", "row", "every"})  # a worker's queries are its own
    ends_transactions = False
    chooses_connections = False
    remembers = True
    reconnects = True

    def __init__(self, queue: WorkerQueue, server: Server, conninfo: str) -> None:
        self.wire = Wire(server.for_queue(conninfo))  # the gate between the workers and the server
        self.wire.settings = self._settings_of
        self.wire.rewrite = self._rewritten
        self.written: dict[str, str] = {}  # what the server gets to what a worker wrote
        self._spares: deque[_Conversation] = deque()
        self._ahead = SPARES
        self.lives = itertools.count(1)  # a number for each life of a worker
        try:
            super().__init__(queue, server, conninfo)
        except BaseException:
            self._drop_spares()
            self.wire.close()
            raise
        self.has_own_clock = False

    def _run_install(self) -> None:
        """Have a worker make the queue's tables, and say what the queue is.

        A worker may want its tables when it begins, or to have begun before it makes them.
        """
        with closing(_Conversation(self, _INSTALLER)) as installer:
            try:
                self._begin_life(installer)
                self._make_tables(installer)
            except _SilentError:
                raise
            except WorkerError as error:
                installer.close()
                self._install_first(error)
        name = sql.Identifier(self._admin.info.dbname)
        level = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
        self._admin.execute(level.format(name, self.queue.isolation))

    def _install_first(self, reason: WorkerError) -> None:
        """The other way round: tables first, and then another worker begins."""
        with closing(_Conversation(self, _INSTALLER)) as installer:
            try:
                self._make_tables(installer)
            except WorkerError as error:
                if not installer.process.alive:
                    raise reason from None  # it ends either way
                told = f"{reason}\nAsked to install first, it did not either: {error}"
                raise WorkerError(told) from None
        with closing(_Conversation(self, _INSTALLER)) as second:
            self._begin_life(second)

    def _begin_life(self, talk: _Conversation) -> None:
        self._ask_init(talk)
        self.greet(talk)

    def _make_tables(self, installer: _Conversation) -> None:
        request = self.queue.request("install", dsn=installer.dsn)
        self.queue.read_error("install", installer.converse(request))

    def _ask_init(self, talk: _Conversation) -> None:
        talk.process.send(self.queue.request("init", dsn=talk.dsn, queue="default"))

    def greet(self, talk: _Conversation) -> None:
        """Hear what a worker says that it offers, now that it has begun its life."""
        self.queue.described_by(talk.heard("init"))

    def session(self, key: str) -> Session:
        """The worker under a key, ready for an operation; a new one where there is none.

        A worker's second connection is its own business.
        """
        return super().session(key if key in HARNESS else key.partition(",")[0])

    def _open(self, key: str) -> Session:
        if key in HARNESS:
            return super()._open(key)
        try:
            return self._begin(key, self._spare())
        except WorkerError:
            # It was started while nobody moved what it sent, and may have lost patience.
            self._drop_spares()
            return self._begin(key, self._started())

    def _begin(self, key: str, talk: _Conversation) -> ClientSession:
        session = ClientSession(self, key, talk)
        self._sessions[key] = session  # whose connections ask for their settings
        try:
            self.greet(talk)
        except BaseException:
            del self._sessions[key]
            session.close()
            raise
        return session

    def _started(self) -> _Conversation:
        talk = _Conversation(self, "a worker")
        self._ask_init(talk)
        return talk

    def _spare(self) -> _Conversation:
        """A worker that has been started already, while others are to come."""
        while len(self._spares) <= self._ahead:
            self._spares.append(self._started())
        return self._spares.popleft()

    def _meanwhile(self) -> None:
        """Move what workers send while one of the harness's own connections is waited for.

        It may wait for a worker that has begun a transaction and gets no further otherwise.
        """
        self.wire.pump(0)

    def _make_way(self) -> bool:
        """End the workers that were started ahead: as they begin, they open a transaction."""
        self._ahead = 0
        found = bool(self._spares)
        self._drop_spares()
        return found

    def _drop_spares(self) -> None:
        """End them: what they are connected to is gone."""
        while self._spares:
            self._spares.pop().close()

    def _configure(self, session: Session, wanted: Mapping[str, str]) -> None:
        if isinstance(session, ClientSession):
            session.stepped = True
            gate = self._conditions.gate
            asks = gate in INSIDE and session.name != DRAINER  # who acts alone, and stops nowhere
            session.configure({GATE: f"'{gate}'", **wanted} if asks else wanted)
            if "start" in self.queue.offers and not self._under_way:
                session.start_work()
        else:
            super()._configure(session, wanted)

    def prepare(self, actors: Iterable[str]) -> None:
        """Start workers that offer `start`; in the middle of a run one might wait."""
        for actor in actors:
            if "start" in self.queue.offers and actor not in _NO_WORKERS:
                self.session(actor)
        self._under_way = True

    def _settings_of(self, owner: str) -> Sequence[str]:
        """The statements that a new connection runs before a worker may use it."""
        own = (session for session in self._clients if session.owner == owner)
        return [statement for session in own for statement in session.settings]

    @property
    def _clients(self) -> list[ClientSession]:
        return [one for one in self._sessions.values() if isinstance(one, ClientSession)]

    def owner_of(self, pid: int) -> str | None:
        """The worker that has opened a backend."""
        return next((session.name for session in self._clients if pid in session.pids), None)

    def shown(self, step: Step) -> Step:
        """A statement that has not answered, as it is shown to the user."""
        return step._replace(sql=f"its last statement was {step.sql}") if step.sql else step

    def interrupt(self, session: Session) -> None:
        """End what a session waits for: it ends with its process."""

    def _until_gone(self, pids: Sequence[int]) -> None:
        self.signal("terminate", pids)  # which may be at work, and would not notice
        if self._pooler is None:  # whose process ids are none
            super()._until_gone(pids)

    def terminate(self, key: str) -> None:
        """Have the server end the backends of a worker, which notices or not."""
        session = self._sessions.get(key)
        if not isinstance(session, ClientSession):
            super().terminate(key)
            return
        pids = session.pids
        self._until_gone(pids)
        self._lose(session, pids)

    def _lose(self, session: ClientSession, pids: Sequence[int]) -> None:
        """Wait until the gate has seen that backends are gone."""
        session.disturbed = True
        limit = waits.Limit(waits.GONE, f"the connections of {session.name} to break")
        while set(pids) & set(session.pids):
            self.wire.pump(limit.left(_LOOK))

    def _reconnect(self) -> None:
        """The server came back: workers see for themselves that their connections are gone.

        Other actors get new processes. A worker need not connect again: it may also end, and is
        started again under another name.
        """
        self._drop_spares()
        self.wire.conninfo = self.conninfo
        clients = {s.name: s for s in self._clients if _WORKER.fullmatch(s.name)}
        for session in clients.values():
            self._lose(session, session.pids)
            session.keys_held.clear()
            session.conninfo = self.conninfo
            del self._sessions[session.name]
        used = self._used & clients.keys()
        super()._reconnect()
        self._sessions |= clients
        self._used |= used

    @contextmanager
    def through(self, pooler: Pooler) -> Iterator[None]:
        """Have the workers connect to a pooler, anew in each run, while the block runs."""
        with super().through(pooler):
            self._drop_spares()
            self.wire.conninfo = pooler.conninfo
            try:
                yield
            finally:
                self._drop_spares()
                self.wire.conninfo = self.conninfo

    def start(self, operation: str, actor: str = "", /, **arguments: Any) -> Operation[Any]:  # noqa: ANN401, ARG002 - whatever operations take; who asks is the worker's own
        """Begin an operation: the worker is asked, and each of its statements is a step."""
        takes = self.queue.takes(operation)
        taken = {name: value for name, value in arguments.items() if name in takes}
        request = self.queue.request(operation, **taken)
        result = yield Step("", request=request)
        while result.offered is not None:
            result = yield result.offered
        return self.queue.read(operation, request, result.reply)

    def hold_key(self, pid: int) -> None:
        """Hold the key that a backend needs to pass a gate."""
        if self._pooler is None:
            self._control.lock_gate(pid)

    def has_written(self, pid: int) -> bool:
        """True if the open transaction of a backend has changed or locked a row."""
        return self._admin.execute(_WROTE, [pid]).fetchone() == (True,)

    def _rewritten(self, statements: str) -> str:
        """A worker's SQL with every form of the time moved with the clock."""
        moved = move_times(statements)
        if moved != statements:
            self.written[moved] = statements
        return moved

    def notice(self, step: Step) -> None:
        """See whether a statement carries its process' own time, which the harness cannot move."""
        if not self.unmoved and not self.queue.moves_clock and wallclock.carries_now(step):
            shown = textwrap.shorten(step.sql, 120, placeholder=" ...")
            self.unmoved = (
                "the program sends its process' own time, which stays behind when the database's "
                f"is moved ({shown}): have it use now() there, or offer the operation clock"
            )

    def refused(self, operation: str, step: Step, error: ServerError) -> QueueError:
        """See `Lab.refused`; the step is its last statement, or what it was asked."""
        last = "" if step.request else f"\nIts last statement: {textwrap.shorten(step.sql, 300)}"
        return WorkerError(
            f"{self.queue.name}: {operation} failed although nobody disturbed it: {error}{last}"
        )

    def close(self) -> None:
        """Kill every worker and close every connection."""
        super().close()
        self._drop_spares()
        self.wire.close()
