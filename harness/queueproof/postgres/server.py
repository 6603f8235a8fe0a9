"""A server to run on, whatever its source, and the databases that a run gets there."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof import waits
from queueproof.errors import ServerUnavailableError
from queueproof.postgres.watchdog import Watchdog, WatchdogError, drop_database, lock_key

OLDEST = 140_000  # older ones get no more repairs from PostgreSQL's project
_CHOOSES = 150_000  # the server_version_num from which CREATE DATABASE takes a STRATEGY
PREFIX = "queueproof"
ROLE = "queueproof"  # whom a queue's own SQL runs as, on a server of ours

_NOBODY = re.compile(
    r"connection to server (?:at \"(?P<host>[^\"]+)\".*, port (?P<port>\d+)"
    r"|on socket \"(?P<socket>[^\"]+)\") failed: (?:Connection refused|No such file or directory)"
)  # libpq's words


# Which follow one another in a log: the signal by which a process ended, and what it was at.
_CRASH = re.compile(r"was terminated by (signal .*)\n(?:.*DETAIL:  (.*(?:\n\t.*)*))?")
_SEGMENT = 16 * 2**20  # bytes of one of its write-ahead log (wal_segment_size)
_TIMERS = "^(idle_session|idle_in_transaction_session|transaction|statement|lock)_timeout$"
_POWERFUL = """EXISTS (
  SELECT FROM pg_catalog.pg_roles AS other
  WHERE (other.rolsuper OR other.rolname ~ '^pg_(execute|read|write)_server_(program|files)$')
    AND pg_catalog.pg_has_role(current_user, other.oid, 'MEMBER'))"""


class Conninfo(str):
    """A connection string whose repr, which tracebacks and debuggers show, keeps its secrets."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{self.public}>"

    @property
    def public(self) -> str:
        """Its server, user and database, without the rest."""
        if self.is_ambiguous:
            return "not a connection string"
        try:
            given = conninfo_to_dict(self)
        except psycopg.Error:
            return "not a connection string"
        shown = ("host", "hostaddr", "port", "user", "dbname")
        return make_conninfo("", **{key: given[key] for key in shown if key in given})

    @property
    def is_ambiguous(self) -> bool:
        """True if libpq takes a part of the password for the host, the port or the database."""
        # it ends user and password at the first @, if that stands before the first /
        head, at, tail = self.partition("://")[2].partition("@")
        return "@" in tail or (bool(at) and "/" in head)


class ServerFacts(NamedTuple):
    """The facts that a server tells about itself and about the role that we are."""

    version: int
    role: str
    superuser: bool
    powerful: bool  # a superuser, or a role that may act as one or on the server's machine
    createdb: bool
    fsync: str
    synchronous_commit: str
    standby: bool
    read_only: bool
    pooled: bool  # somebody between us and the backend gave us a process id of its own
    timers: Sequence[str]  # settings by which it ends who has waited for so long

    @property
    def durable(self) -> bool:
        """True if an acknowledged commit survives a crash."""
        return self.fsync == "on" and self.synchronous_commit != "off"

    @property
    def settings(self) -> str:
        """The settings that figures and crash verdicts depend on."""
        commit = f", synchronous_commit={self.synchronous_commit}"
        return f"fsync={self.fsync}{commit if self.fsync == 'on' else ''}"

    @property
    def description(self) -> str:
        """The same, and what they mean for somebody's data."""
        lost = "not crash-safe" if self.fsync == "on" else "a machine crash loses data"
        return self.settings if self.durable else f"{self.settings} (fast, {lost})"


class Started(NamedTuple):
    """A server that we started."""

    admin: Conninfo  # how to connect as its superuser
    restart: Callable[[], Conninfo]  # kills it as a crash would, starts it, and returns that anew
    bin_directory: Path | None = None  # where its programs are, if they are on this machine
    home: Path | None = None  # where its data are, if on this machine


def settings(*, durable: bool) -> dict[str, str]:
    """The settings of a server that we start.

    Nothing happens behind the run's back (no autovacuum, no deadlock timer before the scheduler's
    own verdict, no JIT that changes a claim's cost), and nothing is kept outside the data
    directory (shared memory in files), where a killed server would leave it.

    On a durable one commits survive a crash. It is a benchmark's, which turns autovacuum off and on
    itself: what stands on the command line could not be changed.
    """
    return ({} if durable else {"autovacuum": "off"}) | {
        "deadlock_timeout": "60s",
        "jit": "off",
        "max_connections": "200",  # fifty for one scenario, beside those of eight processes
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "dynamic_shared_memory_type": "mmap",
        "log_min_messages": "log",  # a run provokes errors by the thousand
        "fsync": "on" if durable else "off",
        "synchronous_commit": "on" if durable else "off",
        # What was committed asynchronously is then lost by a kill, and not only sometimes.
        "wal_writer_delay": "200ms" if durable else "10s",
        "full_page_writes": "on" if durable else "off",
        "shared_buffers": "512MB" if durable else "128MB",
        "max_wal_size": "4GB" if durable else "256MB",
    }


def options(chosen: Mapping[str, str]) -> list[str]:
    """Return settings as arguments of `postgres`."""
    return [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]


@contextmanager
def connected(conninfo: Conninfo) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connect to a server for the first time.

    Raises:
        ServerUnavailableError: It cannot be reached, or a statement of the block fails.
    """
    try:
        with waits.LimitedConnection.open(conninfo) as connection:
            yield connection
    except (psycopg.Error, waits.LimitError) as error:
        if places := _deserted(str(error)):
            how = "start PostgreSQL there, correct the address, or use --postgres embedded"
            raise ServerUnavailableError(f"nobody listens at {', '.join(places)}: {how}") from None
        # libpq names host, port and user in its message, never the password, once it has tried
        met = isinstance(error, waits.LimitError) or "connection to server" in str(error)
        raise ServerUnavailableError(
            f"PostgreSQL at {conninfo.public or 'its default address'}"
            f" {'does not let us in' if met else 'cannot be reached'}: {str(error).strip()}\n"
            "Does psql reach it by the same address?"
        ) from None


def _deserted(error: str) -> list[str]:
    """The addresses at which libpq met nobody; none where it met somebody anywhere."""
    # The line below each is a hint; in another language than English it is told as it is.
    attempts = [line for line in error.splitlines() if not line.startswith("\t")]
    found = [_NOBODY.fullmatch(line) for line in attempts]
    places = [one["socket"] or f"{one['host']}:{one['port']}" for one in found if one]
    return list(dict.fromkeys(places)) if len(places) == len(attempts) else []


def examine(conninfo: Conninfo) -> ServerFacts:
    """Connect, and ask what we need to know.

    Raises:
        ServerUnavailableError: The server cannot be reached, or is too old to be asked.
    """
    with connected(conninfo) as connection:
        version = connection.info.server_version
        refuse_old(version)
        (row,) = connection.execute(
            f"SELECT current_user, rolsuper, {_POWERFUL}, rolcreatedb,"
            " current_setting('fsync'), current_setting('synchronous_commit'),"
            " pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',"
            " pg_backend_pid() <> %s, ARRAY(SELECT name FROM pg_catalog.pg_settings"
            " WHERE name ~ %s AND setting <> '0' ORDER BY name)"
            " FROM pg_catalog.pg_roles WHERE rolname = current_user",
            [connection.info.backend_pid, _TIMERS],
        ).fetchall()
    return ServerFacts(version, *row)


def refuse_old(version: int) -> None:
    """Raise ServerUnavailableError for a server_version_num that we do not work with."""
    if version < OLDEST:
        raise ServerUnavailableError(
            f"this is PostgreSQL {spoken(version)}; queueproof needs {spoken(OLDEST)} or newer."
        )


def spoken(version: int) -> str:
    """Return a server_version_num as people say it: 180004 is 18.4."""
    return f"{version // 10000}.{version % 10000}"


@dataclass(eq=False)
class Server:
    """A PostgreSQL server that is there for as long as its `open_server` block runs."""

    source: str  # what `open_server` takes to get the same again, but never a password
    version: int  # server_version_num, such as 180004
    durable: bool  # an acknowledged commit survives a crash of the server
    superuser: bool  # we may do everything there
    trusted: bool  # the queue's own SQL may do what we may
    label: str  # one line for headers and reports
    bin_directory: Path | None  # where psql and pgbench of this server are, if that is known
    home: Path | None  # where its data are, if we started it on this machine
    _admin: Conninfo = field(repr=False)
    _database_settings: Mapping[str, str] = field(repr=False)
    _watchdog: Watchdog | None = field(repr=False)  # None: the databases go with the server
    _restart: Callable[[], Conninfo] | None = field(repr=False)

    @property
    def ours(self) -> bool:
        """True if we started it, so that it is ours to kill."""
        return self._restart is not None

    @property
    def shared(self) -> bool:
        """True if it is somebody's, on which processes work together; of ours each has its own."""
        return bool(self._admin) and not self.ours

    def lent(self) -> Server:
        """A copy for another process, to work on a server like this one; see `sources.borrowed`."""
        admin = Conninfo() if self.ours else self._admin  # by which the two are told apart there
        return replace(self, _admin=admin, _watchdog=None, _restart=None)

    def restart(self, conninfo: str) -> Conninfo:
        """Kill the server as a crash would, with every session, and start it again.

        Returns how to connect to the same database from now on: a container gets another port.

        Raises:
            ServerUnavailableError: It is not ours, or does not come back.
        """
        if self._restart is None:
            raise ServerUnavailableError(f"{self.label} is not ours to kill")
        self._admin = self._restart()
        return Conninfo(make_conninfo(self._admin, dbname=conninfo_to_dict(conninfo)["dbname"]))

    @property
    def owner(self) -> str:
        """The owner of a queue's database, as SQL."""
        return "CURRENT_USER" if self.trusted else sql.Identifier(ROLE).as_string()

    def for_queue(self, conninfo: str) -> Conninfo:
        """The connection string for a queue's own SQL in a database of `database`: as its owner.

        The harness connects so too: whatever it does with a table may set off code of the queue's.
        """
        return Conninfo(conninfo if self.trusted else make_conninfo(conninfo, user=ROLE))

    def administer(self, *statements: str | sql.Composed) -> None:
        """Run statements that need our rights, outside of every queue's database."""
        with waits.LimitedConnection.open(self._admin) as connection:
            for statement in statements:
                connection.execute(statement)

    @property
    def is_full(self) -> bool:
        """True if its disk has no room for a segment of its log, without which it ends."""
        with suppress(OSError):  # somebody has removed the folder, say
            return self.home is not None and shutil.disk_usage(self.home).free < _SEGMENT
        return False

    def crash(self) -> str:
        """The signal that ended one of its processes, and its statement; nothing where none did.

        Its log has that soon after a connection is lost; of a server that is not ours it is unseen.
        """
        told: list[tuple[str, str]] = []

        def found() -> bool:
            assert self.home is not None
            told[:] = _CRASH.findall((self.home / "log").read_text(errors="replace"))
            return bool(told)

        with suppress(OSError, waits.LimitError):
            if self.home is not None:
                waits.until(found, waits.LOGGED, "a line on a crash")
        return "; ".join(" ".join(part.split()) for part in told[-1]) if told else ""

    def lacks(self, conninfo: str) -> bool:
        """True if it answers, and no longer has such a database."""
        name = conninfo_to_dict(conninfo)["dbname"]
        asked = "SELECT FROM pg_catalog.pg_database WHERE datname = %s"
        with (
            suppress(psycopg.Error, waits.LimitError),
            waits.LimitedConnection.open(self._admin) as connection,
        ):
            return connection.execute(asked, [name]).fetchone() is None
        return False

    @contextmanager
    def database(
        self, prefix: str = PREFIX, settings: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """Create an empty database, by its connection string, and drop it at the end of the block.

        It is dropped with its sessions, also when the block raised or the connection died; on a
        server that is not ours, also when this process is killed.

        Raises:
            ServerUnavailableError: The database cannot be created or connected to.
            ValueError: The prefix of its name could make it look like somebody else's.
        """
        if not prefix.startswith(PREFIX):
            raise ValueError(f"the prefix {prefix!r} must begin with {PREFIX!r}")
        name = f"{prefix}_{secrets.token_hex(8)}"
        if self._watchdog:
            self._watchdog.ask("database", name=name, conninfo=self._admin, path=sys.path)
        try:
            self._create(name, {**self._database_settings, **(settings or {})})
        except psycopg.errors.DuplicateDatabase:
            self._forget(name)  # somebody's: never drop it
            raise
        except psycopg.Error as error:
            self._drop(name)
            told = f"no database could be created on {self.label}: {str(error).strip()}"
            raise ServerUnavailableError(told) from None
        except BaseException:
            self._drop(name)
            raise
        try:
            yield Conninfo(make_conninfo(self._admin, dbname=name))
        finally:
            self._drop(name)

    def _create(self, name: str, settings: Mapping[str, str]) -> None:
        named = sql.Identifier(name)
        with waits.LimitedConnection.open(self._admin) as connection:
            connection.execute("SELECT pg_advisory_lock(%s)", [lock_key(name)])
            # template1 may hold somebody's tables, and cannot be copied while somebody is in it
            create = sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(named)
            # Copied as files it takes a third of the time that it takes by the log. That makes
            # checkpoints, of which somebody's server, or a disk, would have to bear the cost.
            fast = self.ours and not self.durable and self.version >= _CHOOSES
            strategy = " STRATEGY FILE_COPY" if fast else ""
            connection.execute(create + sql.SQL(strategy + _encoding(connection)))
            owned = sql.SQL("ALTER DATABASE {} OWNER TO {}")  # which CREATE cannot say of oneself
            connection.execute(owned.format(named, sql.SQL(self.owner)))
            for setting, value in settings.items():
                parts = named, sql.Identifier(setting), sql.Literal(value)
                connection.execute(sql.SQL("ALTER DATABASE {} SET {} = {}").format(*parts))
        if self._watchdog:  # its pg_hba.conf may let us into the databases that it names only
            waits.LimitedConnection.open(make_conninfo(self._admin, dbname=name)).close()

    def _drop(self, name: str) -> None:
        # the server may be gone: then so is the database, or the watchdog tries again at the end
        with suppress(psycopg.Error, waits.LimitError):
            with waits.LimitedConnection.open(self._admin) as connection:
                drop_database(connection, name)
            self._forget(name)

    def _forget(self, name: str) -> None:
        if self._watchdog:
            with suppress(WatchdogError):
                self._watchdog.ask("forget", name=name)


def _encoding(connection: waits.LimitedConnection) -> str:
    """The SQL that makes a database UTF-8 where the cluster is not: payloads have any character.

    The locale of the cluster is of its own encoding, and C of every one.
    """
    asked = connection.execute(
        "SELECT pg_catalog.pg_encoding_to_char(encoding) FROM pg_catalog.pg_database"
        " WHERE datname = 'template0'"
    )
    return "" if asked.fetchone() == ("UTF8",) else " ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
