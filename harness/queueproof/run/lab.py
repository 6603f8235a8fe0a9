"""A queue installed in a database of its own, with a movable clock and a reset to the beginning."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib.resources import files
from typing import Any, Literal, TypeGuard
from zlib import crc32

from psycopg import sql
from psycopg.conninfo import make_conninfo

from queueproof import waits
from queueproof.errors import QueueError, ServerError
from queueproof.postgres import Server
from queueproof.postgres.pooler import Pooler
from queueproof.queues.model import NOW, Operation, Queue, Result, Step, watched
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.sqltext import BEGINS, first_keyword
from queueproof.run import gates, wallclock
from queueproof.run.clock import Clock
from queueproof.run.gates import GATE, GATE_KEYS, Scheduler
from queueproof.run.refused import hint, rejected
from queueproof.run.session import (
    ARRAYS,
    ConnectionLostError,
    LibpqSession,
    Session,
    drive,
    execute,
    noted,
    settle,
)
from queueproof.run.stubs import stubs
from queueproof.run.tables import QUIET, Tables
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.conditions import PLAIN, Conditions, Gate

HARNESS = frozenset({"filler", "snapshot", "explainer"})  # sessions that are no worker's
DEFAULT_BOUND = 3  # what `:max_attempts` is bound to where the header has no such key
SEARCH_PATH = "public, clock, pg_catalog"  # what names no schema is meant for public
_EMPTY = Step("DISCARD ALL")
_RESET = "RESET ALL"
_PLANS = "DISCARD PLANS"  # those of statements inside functions, which outlive a change of settings
_UNPREPARED = {"plan_cache_mode": "auto"}  # a plan is made for the values of its parameters
# For a plan that is made once it must not matter which values come first.
_PREPARED = "-c plan_cache_mode=force_generic_plan"
_WORKER = re.compile(rf"w\d+|late|{DRAINER}")  # who claims, and so has a life that starts
_FIRST_LOOK = 3  # resets, after which every operation is likely to have run
RENEW_EVERY = 50  # runs; a table emptied by DELETE grows, and a plan must not depend on that

# A function with a search_path of its own would miss the clock (design: The clock).
_PINNED = """
SELECT p.oid::regprocedure::text, substr(setting, length('search_path=') + 1)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace, unnest(p.proconfig) AS setting
WHERE setting LIKE 'search_path=%' AND n.nspname !~ '^pg_' AND n.nspname <> 'clock'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
"""
_SET_PATH = "SELECT set_config('search_path', %s, true)"
_AT_ROW = """
SELECT EXISTS (
  SELECT FROM pg_locks
  WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND granted
)
"""
_OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND pid <> pg_backend_pid() AND state <> 'idle'
"""
_FLUSHES = 150_000  # the server_version_num from which this is so
_FLUSH = "SELECT pg_catalog.pg_stat_force_next_flush()"
_BUFFERS = """
SELECT coalesce(sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)
  + coalesce(toast_blks_read + toast_blks_hit, 0)), 0)::bigint
FROM pg_catalog.pg_statio_user_tables
"""


class Lab:
    """The place for one queue's runs: its database, its sessions, its clock."""

    by_clients = False  # its workers are processes with connections of their own
    # Where inside a statement its sessions can stop.
    gates: frozenset[Gate] = frozenset({"statement", "row", "every", "query"})
    ends_transactions = True  # they are begun and ended here, as statements are sent
    chooses_connections = True  # it is said here on which connection a transaction runs
    remembers = False  # its workers may keep something from one run to the next
    reconnects = False  # its workers see for themselves that a connection is gone, and go on
    unmoved = ""  # why the queue's time could not be moved with the database's; or nothing
    # What is done while one of the harness's own connections is waited for.
    _meanwhile: waits.Meanwhile | None = None

    def __init__(self, queue: Queue, server: Server, conninfo: str) -> None:
        self.queue = queue
        self.server = server
        # As the database's owner: what the harness does there may set off code of the queue's, and
        # must lend it no rights.
        self.conninfo = server.for_queue(conninfo)
        self.arrays: dict[int, int] = {}  # of each type that the queue's schema defines, by oid
        self.schema: list[Step] = []  # the statements that installed it
        self._admin = self._connect()
        self.twin: Lab | None = None  # on a server that may be killed, once `twin_of` has opened it
        self.resources = ExitStack()  # what ends with it
        self._pooler: Pooler | None = None
        self._sessions: dict[str, Session] = {}
        self._vacant: list[LibpqSession] = []  # of dead workers, emptied
        self._used: set[str] = set()
        self.clock = Clock(superuser=server.superuser)
        # Elsewhere each move of the clock makes plans invalid, or a pooler may be between.
        self._prepares = server.ours and server.superuser and not queue.keeps_state
        self._measures = False  # what statements cost
        self._resets = 0
        self._payloads = itertools.count(1)
        self._under_way = False  # a run, in which workers act beside each other
        self.stops = False  # statements that begin from now on stop at a gate
        # Workers, as the queue knows them, whose life has begun since the last reset.
        self.started: set[str] = set()
        self._conditions = PLAIN  # of the run that the last reset was for
        self._seed = 0  # the same
        # Its operations are code, which may ask its process for the time.
        self.has_own_clock = not isinstance(queue, SqlFileQueue)
        try:
            self._install(conninfo)
            self._control = self._scheduler()
            self.tables = Tables(
                self._admin, self._control, superuser=server.superuser, make_way=self._make_way
            )
            self._control.run(self.clock.real)
            if queue.sends_time:
                self.clock.set_by(self._control.moment)
        except BaseException:
            self._admin.close()
            raise

    def _connect(self) -> waits.LimitedConnection:
        """The harness's own connection: its clock is the real one, its names are qualified."""
        connection = waits.LimitedConnection.open(self.conninfo)
        connection.meanwhile = self._meanwhile
        # The database's setting would put the queue's schema and the moved clock first. And a name
        # that one connection reads must mean the same on the other: no schema of a queue is here.
        connection.execute("SET search_path = pg_catalog")
        connection.execute(waits.IMPATIENT)
        return connection

    def _scheduler(self) -> Scheduler:
        control = Scheduler(self.conninfo, self._meanwhile)
        if self.server.superuser:
            control.run(QUIET)
        return control

    @property
    def sees_neighbours(self) -> bool:
        """True if the queue may see what others do on its server: somebody's, who may be there."""
        return self.queue.sees_cluster and not self.server.ours

    @property
    def label(self) -> str:
        """The server in one line, and what comes of it that it is not the queue's alone."""
        if not self.sees_neighbours:
            return self.server.label
        why = "the queue may read what belongs to the whole server, and see who else is there"
        return f"{self.server.label}; judged by one process: {why}"

    def _install(self, conninfo: str) -> None:
        run = self._admin.execute
        name = sql.Identifier(self._admin.info.dbname)
        run(files("queueproof.run").joinpath("clock.sql").read_text())
        if self.server.superuser:  # the last that is done as one: nothing of the queue's is there
            with waits.LimitedConnection.open(conninfo) as ours:
                ours.execute(files("queueproof.run").joinpath("rights.sql").read_text())
                if not self.server.trusted:  # before PostgreSQL 15 it is not the database's owner's
                    ours.execute(f"ALTER SCHEMA public OWNER TO {self.server.owner}")
        for setting in (
            sql.SQL("search_path = {}").format(sql.SQL(SEARCH_PATH)),
            sql.SQL("default_transaction_isolation = {}").format(self.queue.isolation),
            sql.SQL("timezone = 'UTC'"),
            sql.SQL("client_min_messages = error"),
        ):
            run(sql.SQL("ALTER DATABASE {} SET ").format(name) + setting)
        self._run_install()
        if run("SELECT to_regclass('clock.ahead')").fetchone() == (None,):
            message = "schema drops `clock`, in which queueproof keeps the time that it moves"
            raise QueueError(message, self.queue.source_of("install"))
        for function, path in run(_PINNED).fetchall():
            rest = "" if path == '""' else f", {path}"  # it was SET search_path = ''
            with self._admin.transaction():  # a path is kept as it was set: it may be any text
                run(_SET_PATH, [f"clock, pg_catalog{rest}"])
                run(f"ALTER ROUTINE {function} SET search_path FROM CURRENT")
        self.arrays = {int(oid): int(array) for oid, array in run(ARRAYS).fetchall()}
        run(gates.FUNCTION)

    def _run_install(self) -> None:
        """Have the queue make its tables."""
        installer = LibpqSession(self.conninfo, "the installer")
        steps = self.queue.begin("install")

        def run(_: Session, step: Step) -> Result:
            self.schema.append(step)
            try:
                return execute(installer, step)
            except ServerError as error:
                more = hint(error, self.schema, self._admin, self.server)
                more += stubs(installer, steps, self.schema[:-1], step, error)
                raise rejected(step, error, more) from error

        with closing(installer):
            drive(installer, steps, run)
            if installer.in_transaction:
                begins = [one.source for one in self.schema if first_keyword(one.sql) in BEGINS]
                message = "schema leaves a transaction open: end it with COMMIT"
                raise QueueError(message, *begins[-1:])

    def reset(self, conditions: Conditions = PLAIN, *, renew: bool = False, seed: int = 0) -> None:
        """Bring the database back to the beginning and the clock back to real time.

        Args:
            conditions: Under what the next run takes place.
            renew: Whether tables are made as small as new ones, which takes longer.
            seed: What each session's random numbers hang on, and its name: a run that is done
                again draws the same.

        Raises:
            QueueError: Somebody holds a lock on a table of the queue, an operation has altered or
                dropped one, or a worker process has made one.
        """
        if conditions.gate != self._conditions.gate:
            self._begin_anew(renew=False)
            self.tables.stop_at(conditions.gate)
        self._conditions = conditions
        self._seed = seed
        self._begin_anew(renew=renew)

    def _begin_anew(self, *, renew: bool) -> None:
        emptied = []
        for key in list(self._used):
            session = self._sessions.get(key)
            if session is not None and (session.closed or not session.quieten()):
                self.discard(session)
            elif not isinstance(session, LibpqSession) or self._pooler:
                continue
            elif not self._prepares:
                session.send(_EMPTY)  # all at once, and the tables with them
                emptied.append(session)
            else:
                session.go_ahead([_RESET] if session.prepares else [_RESET, _PLANS])
        self._used.clear()
        self._payloads = itertools.count(1)
        if self._pooler:
            self.forget_sessions()
            self._pooler.renew()
        self._resets += 1
        # What was measured has left statistics: they would decide how the next runs are planned.
        full = renew or self._measures or self._resets % RENEW_EVERY == 0
        self._measures = renew
        if self.remembers and (full or self._resets == _FIRST_LOOK):
            self.tables.refuse_new()
        real, far = self.clock.reset(measured=renew), self._conditions.far
        self.tables.go_back(real, full=full, far=far, drop_new=not self.remembers)
        for session in emptied:
            try:
                settle(session, _EMPTY)
            except (ConnectionLostError, ServerError):
                self.discard(session)
        self._under_way = self.stops = False
        self.started.clear()
        if self.queue.sends_time:
            self.clock.set_by(self._control.moment)

    def _make_way(self) -> bool:
        """End sessions that hold locks and are not needed; False where there are none."""
        return False

    def session(self, key: str) -> Session:
        """The open session under a key; a new connection where there is none."""
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._open(key)
        if key not in self._used:
            self._configure(session, self._wanted(key))
        self._used.add(key)
        if isinstance(session, LibpqSession):
            self._gate(session)
        return session

    def _gate(self, session: LibpqSession) -> None:
        """Have it stop inside its next statement, or no more."""
        gate = self._conditions.gate
        asks = self.stops and gate in gates.INSIDE and session.name not in {DRAINER, *HARNESS}
        wanted = f"{gate} {gates.ALOUD}" if asks else ""
        if wanted != session.gate and not session.in_transaction:
            session.go_ahead([f"SET {GATE} = '{wanted}'"])
            session.gate = wanted

    def _configure(self, session: Session, wanted: Mapping[str, str]) -> None:
        """Set what a session begins with since the last reset, and start its worker."""
        if "start" in self.queue.offers and not self._under_way and _WORKER.fullmatch(session.name):
            self._start_worker(session)
        settings = [f"SET {name} = {value}" for name, value in wanted.items()]
        if isinstance(session, LibpqSession) and not self._pooler:
            unprepared = _UNPREPARED.items() <= wanted.items()
            session.go_ahead([_PLANS, *settings] if unprepared else settings)
            session.prepares = self._prepares and not unprepared
        elif settings:
            session.run("; ".join(settings))

    def _open(self, key: str) -> Session:
        """A connection for a key that nobody has used since it was new, or emptied."""
        if self._vacant and not self._pooler and key not in HARNESS:
            spare = self._vacant.pop()
            spare.rename(key)
            return spare
        conninfo = self._pooler.conninfo if self._pooler else self.conninfo
        if self._prepares and not self._pooler:
            conninfo = make_conninfo(conninfo, options=_PREPARED)
        session = LibpqSession(conninfo, key, self.arrays, self._meanwhile)
        self._control.lock_gate(session.pid)
        return session

    def _wanted(self, key: str) -> Mapping[str, str]:
        """The settings that the session under a key begins with."""
        wanted = self._conditions.settings(key.partition(",")[0])
        if wanted or self._conditions.planner or self._measures or key in HARNESS:
            wanted = {**_UNPREPARED, **wanted}
        if self._conditions.gate in {"query", "every"}:
            wanted = {"cursor_tuple_fraction": "1", **wanted}  # a cursor's plan is the query's own
        if self.queue.draws_lots and not self._pooler:
            wanted = {**wanted, "seed": f"{crc32(f'{self._seed} {key}'.encode()) / 2**31 - 1}"}
        return wanted

    def prepare(self, actors: Iterable[str]) -> None:
        """Start the workers that will act; in the middle of a run one might wait."""
        for actor in actors:
            if "start" in self.queue.offers and _WORKER.fullmatch(actor):
                self.session(actor)
        self._under_way = True

    def _start_worker(self, session: Session) -> None:
        """Have a worker register, before its session is given any setting."""
        self.started.add(identity(session.name))
        asked = self.start("start", session.name, worker=identity(session.name))
        sent = [Step("")]
        try:
            drive(session, watched(asked, sent.append))
        except ServerError as error:
            raise self.refused("start", sent[-1], error) from error
        if session.in_transaction:
            message = "start leaves its transaction open: end it with COMMIT"
            raise QueueError(message, sent[-1].source)

    def owner_of(self, pid: int) -> str | None:  # noqa: ARG002 - which a subclass may know
        """The actor of a backend that one of its sessions has opened by itself."""
        return None

    def start(self, operation: str, actor: str = "", /, **arguments: Any) -> Operation[Any]:  # noqa: ANN401 - whatever operations take and answer
        """Begin an operation, with what it takes, on behalf of an actor: its clock may be wrong."""
        if self.queue.sends_time:
            arguments[NOW] = self.clock.shown(self._conditions.skew(actor))
        steps = self.queue.begin_for(actor, operation, **arguments)
        if self.has_own_clock and wallclock.MOVABLE:
            return wallclock.resumed_at(steps, lambda: self.ahead(actor))
        if self.has_own_clock:
            return watched(steps, self._see_time)
        return steps

    def _see_time(self, step: Step) -> None:
        """See whether a statement carries its process' own time, which cannot be moved here."""
        if not self.unmoved and wallclock.carries_now(step):
            shown = textwrap.shorten(step.sql, 120, placeholder=" ...")
            self.unmoved = f"{wallclock.MISSING}; and it is sent to the server ({shown})"

    def promote(self, jobs: int) -> bool:
        """Have jobs made claimable that are due; whether a promotion said that it made one."""
        moved = False
        for _ in range(jobs if "promote" in self.queue.offers else 0):
            with suppress(ServerError):  # judged where promotions are
                if not drive(self.session("reaper"), self.start("promote", **self.defaults())):
                    break
                moved = True
        return moved

    def maintain(self, jobs: int = 1, sent: list[str] | None = None) -> None:
        """Do what happens by itself while time passes, as at the end of a run (rule 28).

        Recover and promote; once more where a promotion changed something.
        """
        for _ in range(2):
            for _ in range(jobs + 1 if "recover" in self.queue.offers else 0):
                asked = self.start("recover", **self.defaults())
                with suppress(ServerError):  # judged where recoveries are
                    if drive(self.session("reaper"), noted(asked, [] if sent is None else sent)):
                        continue
                break
            if not self.promote(jobs):
                break

    def refused(self, operation: str, step: Step, error: ServerError) -> QueueError:  # noqa: ARG002 - a subclass names it
        """The user's error for an operation that failed although nobody disturbed it."""
        return rejected(step, error, hint(error, self.schema, self._admin, self.server))

    def shown(self, step: Step) -> Step:
        """A statement that has not answered, as it is shown to the user."""
        return step

    def interrupt(self, session: Session) -> None:
        """Cancel what a session waits for: its worker is dead, and cannot."""
        if self._pooler or not isinstance(session, LibpqSession):
            session.cancel()
        else:
            session.cancel(partial(self._control.asked, "cancel"))

    def own_session(self, key: str) -> LibpqSession:
        """The session under one of the keys of `HARNESS`."""
        session = self.session(key)
        assert isinstance(session, LibpqSession), key
        return session

    @property
    def control_pid(self) -> int:
        """The scheduler's backend, which holds the gates' keys."""
        return self._control.pid

    def open_gate(self, session: Session) -> None:
        """Let a session that has stopped at a gate go on, and no further than to the next one."""
        session.said = ""
        self._control.open_gate(session.pid)

    def is_at_row(self, session: Session) -> bool:
        """True if a session that has stopped at a gate has locked a row, and not the next."""
        if session.said:
            return session.said == "row"
        return self._admin.execute(_AT_ROW, [GATE_KEYS["row"], session.pid]).fetchone() == (True,)

    def discard(self, session: Session) -> None:
        """Close a session and wait until its backend has rolled back and gone."""
        unfinished = session.in_transaction
        for key, known in list(self._sessions.items()):
            if known is session:
                del self._sessions[key]
                self._used.discard(key)
        pids = session.pids
        session.close()
        self._until_gone(pids)
        if self._pooler and unfinished:  # the process ids that it gives out are not the backends'
            still = sum(session.in_transaction for session in self._sessions.values())
            waits.until(
                lambda: self._admin.execute(_OPEN).fetchone() == (still,),
                waits.GONE,
                f"the connection of {session.name} to roll back behind the pooler",
            )

    def _until_gone(self, pids: Sequence[int]) -> None:
        """Wait until backends have rolled back and gone, and take their gates' keys back."""
        for pid in pids:
            self._control.unlock_gate(pid)
        gone = "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = ANY (%s))"
        waits.until(
            lambda: self._admin.execute(gone, [list(pids)]).fetchone() == (True,),
            waits.GONE,
            f"{'backend' if len(pids) == 1 else 'backends'} {', '.join(map(str, pids))} to end",
            look=0.0001,
        )

    @contextmanager
    def through(self, pooler: Pooler) -> Iterator[None]:
        """Open the workers' sessions at a pooler, new ones in each run, while the block runs."""
        self.reset()
        direct, self._sessions = self._sessions, {}
        self._pooler = pooler
        try:
            yield
        finally:
            self.forget_sessions()
            self._pooler = None
            self._sessions = direct

    def forget_sessions(self) -> None:
        """Close the workers' sessions."""
        for session in [*self._sessions.values(), *self._vacant]:
            self.discard(session)
        self._vacant.clear()

    def drop(self, key: str) -> None:
        """End the session under a key, if there is one: nothing that it had is left on the server.

        A new backend takes longer than most runs. So it is emptied and kept for somebody else where
        the queue cannot tell the difference: its locks, temporary tables and all else are gone.
        """
        session = self._sessions.get(key)
        if session is not None and self._empty(session):
            del self._sessions[key]
            self._used.discard(key)
            self._vacant.append(session)
        elif session is not None:
            self.discard(session)

    def _empty(self, session: Session) -> TypeGuard[LibpqSession]:
        """Make a session as new, if that can be done, and nobody can tell."""
        if not isinstance(session, LibpqSession) or self.queue.sees_backends or self._pooler:
            return False
        if not session.quieten():
            return False
        for statement in (_RESET, _PLANS) if self._prepares else (_EMPTY.sql,):
            session.run(statement)
        return True

    def terminate(self, key: str) -> None:
        """Have the server end the backend under a key, if there is one; it is gone afterwards."""
        if session := self._sessions.get(key):
            self.signal("terminate", session.pids)
            self.discard(session)

    def signal(self, how: Literal["cancel", "terminate"], pids: Sequence[int]) -> None:
        """Have the server cancel what backends do, or end them."""
        asked = f"SELECT pg_{how}_backend(pid) FROM unnest(%s::int4[]) AS pid"
        self._admin.execute(asked, [list(pids)])

    def restart(self) -> None:
        """Kill the server, which is ours, with every session; start it again, and connect anew."""
        self.conninfo = self.server.for_queue(self.server.restart(self.conninfo))
        self._reconnect()

    def _disconnect(self) -> None:
        """Close every connection."""
        for session in (*self._sessions.values(), *self._vacant):
            session.close()
        self._sessions.clear()
        self._vacant.clear()
        self._control.close()
        self._admin.close()

    def _reconnect(self) -> None:
        self._disconnect()
        self._used.clear()
        self._admin = self._connect()
        self._control = self._scheduler()
        self.tables.use(self._admin, self._control)

    def blockers(self, session: Session) -> list[int]:
        """Backends that a session waits for (`pg_blocking_pids`); empty where it does not wait."""
        return [found for pid in session.waiting for found in self._control.blocking(pid)]

    def now(self) -> float:
        """Seconds on the database's clock since an arbitrary moment."""
        return self.clock.now()

    def until_aligned(self) -> float:
        """Seconds until the moved clock shows the fraction at which what is timed begins."""
        return self.clock.until_aligned(self._control.moment())

    def ahead(self, actor: str) -> float:
        """Seconds by which the clock of an actor's process should be ahead of real time."""
        return self.clock.shift + self._conditions.skew(actor)

    def advance(self, seconds: float) -> None:
        """Move the database's clock forward; transactions that are open keep their `now()`."""
        self.clock.move(seconds, self._control, forget=not self.is_busy)

    @property
    def is_busy(self) -> bool:
        """True while somebody's statement or transaction is open."""
        return any(session.busy for session in self._sessions.values())

    def defaults(self) -> dict[str, object]:
        """Arguments for an operation that nothing depends on.

        No two payloads are the same: an enqueue may answer a job that it has instead of a new one.
        """
        arguments: dict[str, object] = {
            "payload": f'{{"job": {next(self._payloads)}}}',
            "priority": 0,
            "delay": timedelta(0),
            "max_attempts": self.queue.max_attempts or DEFAULT_BOUND,
            "queue": "default",
        }
        if self.queue.lease_time is not None:
            arguments["lease"] = self.queue.lease_time
        return arguments

    @property
    def can_count(self) -> bool:
        """True if the server can be made to report what its backends have touched."""
        return self._admin.info.server_version >= _FLUSHES

    def touched(self) -> int:
        """Shared buffers that the queue's tables and indexes were touched for, so far."""
        for session in self._sessions.values():
            session.run(_FLUSH)
        ((found,),) = self._admin.execute(_BUFFERS).fetchall()
        return int(found)

    def execute(self, statement: str, seconds: float | None = None) -> Sequence[tuple[object, ...]]:
        """Run a statement of the harness's own, for `waits.OWN` or so many seconds at most."""
        self._admin.seconds = seconds
        try:
            cursor = self._admin.execute(statement)
        finally:
            self._admin.seconds = None
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close every connection, and what ends with it."""
        self.resources.close()
        self._disconnect()
