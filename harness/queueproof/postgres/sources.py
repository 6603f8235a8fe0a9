"""From the user's word for a server to the server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof import waits
from queueproof.errors import SERVERS, ServerUnavailableError
from queueproof.postgres import container, local
from queueproof.postgres.environment import no_libpq_variables
from queueproof.postgres.server import (
    ROLE,
    Conninfo,
    Server,
    ServerFacts,
    connected,
    examine,
    spoken,
)
from queueproof.postgres.watchdog import Watchdog

DEFAULT_IMAGE = "postgres:18"
_CAREFUL = 160_000  # the server_version_num from which CREATEROLE gives nothing that one has not
_UNKNOWN = re.compile(r'invalid URI query parameter: "(\w+)"')  # libpq's words
_NAMED = 3  # databases in a message
# Not the maintenance database, nor what another run of ours has made or left behind.
_OTHERS = """
SELECT datname, datallowconn FROM pg_catalog.pg_database
WHERE datname NOT IN ('postgres', 'template0', 'template1')
  AND datname !~ '^queueproof.*_[0-9a-f]{16}$' ORDER BY datname
"""
_HAS_TABLES = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
)
"""


@contextmanager
def open_server(
    source: str | None = None, *, durable: bool = False, trust: bool = False
) -> Iterator[Server]:
    """Provide a server until the end of the block; what was started for it is gone then.

    It is gone as well if the process is interrupted or killed in the block: see `watchdog`.

    Args:
        source: `embedded` (PostgreSQL 18 from a Python package) or `embedded:16`; `local` (the
            newest that is installed) or `local:/path/to/bin`; `container` (Docker; the image of
            $QUEUEPROOF_POSTGRES_IMAGE or postgres:18) or `container:image`; or the DSN of a
            running server, which gets fresh databases of our own name. None stands for
            $QUEUEPROOF_POSTGRES, and then for `embedded`. What a DSN leaves open libpq's variables
            fill in (PGHOST, PGPASSWORD, ...); the others take nothing from them, and until the end
            of the block they are not in this process' environment.
        durable: Whether the server that is started must keep what it acknowledged when it
            crashes: the setting for benchmarks and crash tests. A server with a DSN is left
            with its own settings; see `Server.durable`.
        trust: Whether a queue's own SQL may do what a superuser may: use a superuser's DSN although
            the server has other people's databases, and be a superuser on a server of our own.

    Yields:
        The server, which answers.

    Raises:
        ServerUnavailableError: There is no such server, or it cannot be used.
    """
    if source is not None and not source.strip():
        told = f"the name of the PostgreSQL server is empty: write {_spelt()}, or a DSN"
        raise ServerUnavailableError(told)
    wanted = Conninfo(source or os.environ.get("QUEUEPROOF_POSTGRES") or "embedded")
    source = None  # it may hold a password, and pytest prints the arguments of failed functions
    with ExitStack() as stack:
        if not _is_dsn(wanted):
            stack.enter_context(no_libpq_variables())
        watchdog = stack.enter_context(Watchdog())
        yield _open(wanted, watchdog, durable=durable, trust=trust)


@contextmanager
def borrowed(lent: Server) -> Iterator[Server]:
    """Use a server like the one that another process has opened, until the end of the block.

    It is one of its own where it can be started: a queue sees what belongs to the whole server
    (transaction ids, `pg_stat_activity`, `pg_locks`), and must not see what another process does.

    Raises:
        ServerUnavailableError: It cannot be started, or is another version on this machine.
    """
    if lent.shared:
        with Watchdog() as watchdog:
            yield replace(lent, _watchdog=watchdog)
        return
    with open_server(lent.source, durable=lent.durable, trust=lent.trusted) as server:
        if server.version != lent.version:
            here, there = spoken(server.version), spoken(lent.version)
            told = f"its {lent.source} is PostgreSQL {here}, here it is {there}"
            raise ServerUnavailableError(told)
        yield server


def _is_dsn(wanted: str) -> bool:
    return "=" in wanted or wanted.startswith(("postgresql://", "postgres://"))


def _open(wanted: Conninfo, watchdog: Watchdog, *, durable: bool, trust: bool) -> Server:
    if _is_dsn(wanted):
        return _somebodys(wanted, watchdog, trust=trust)
    kind = where = str(wanted).split(":", 1)[0]
    match kind:
        case "embedded" | "local":
            detail = wanted.removeprefix(kind).removeprefix(":")  # of others it may be a secret
            find = local.find_embedded if kind == "embedded" else local.find_installed
            programs = find(detail)
            started = local.start(watchdog, programs, durable=durable)
            source = str(wanted) if kind == "embedded" else f"local:{programs.directory}"
        case "container":
            image = wanted.removeprefix(kind).removeprefix(":")
            image = image or os.environ.get("QUEUEPROOF_POSTGRES_IMAGE") or DEFAULT_IMAGE
            started = container.start(watchdog, image, durable=durable)
            source, where = f"container:{image}", f"container {image}"
        case _:
            # no more than its first word is repeated: the rest may hold a password
            raise ServerUnavailableError(
                f"unknown PostgreSQL source that begins with {kind!r}: write {_spelt()}, or a DSN"
                " such as postgresql://user@host/postgres."
            )
    facts = examine(started.admin)
    if not trust:
        _make_role(started.admin, facts)
    return Server(
        source=source,
        version=facts.version,
        durable=facts.durable,
        superuser=facts.superuser,
        trusted=trust,
        label=f"PostgreSQL {spoken(facts.version)}, {where}, a throwaway server, {facts.settings}",
        bin_directory=started.bin_directory,
        home=started.home,
        _admin=started.admin,
        _database_settings={},
        _watchdog=None,
        _restart=started.restart,
    )


def _spelt() -> str:
    """The sources that have names, each without its detail and with one."""
    forms = [form.rstrip("]").split("[") for form in SERVERS]
    return ", ".join(f"{name} or {name}{detail}" for name, detail in forms)


def _make_role(admin: Conninfo, facts: ServerFacts) -> None:
    """Create the role that a queue's own SQL runs as: it owns its database, and nothing else.

    Of a superuser's rights a queue needs none, and with them it could run programs (COPY ... TO
    PROGRAM). Before PostgreSQL 16 a role that makes others may give them those rights.
    """
    makes_roles = sql.SQL("CREATEROLE" if facts.version >= _CAREFUL else "NOCREATEROLE")
    password = sql.Literal(conninfo_to_dict(admin).get("password"))
    create = sql.SQL("CREATE ROLE {} LOGIN {} PASSWORD {}")
    with connected(admin) as connection:
        connection.execute("SET synchronous_commit = on")  # it must survive the server's kill
        connection.execute(create.format(sql.Identifier(ROLE), makes_roles, password))


def _somebodys(dsn: Conninfo, watchdog: Watchdog, *, trust: bool) -> Server:
    _refuse_malformed(dsn)
    if "connect_timeout" not in conninfo_to_dict(dsn):
        dsn = Conninfo(make_conninfo(dsn, connect_timeout=round(waits.CONNECT)))
    dsn = _completed(dsn)
    facts = examine(dsn)
    _refuse(facts)
    dsn = _patient(dsn, facts.timers)
    if facts.powerful and not trust:
        _refuse_company(dsn, facts)
    given = {"jit": "off"} | ({"deadlock_timeout": "60s"} if facts.superuser else {})
    return Server(
        source=dsn.public,
        version=facts.version,
        durable=facts.durable,
        superuser=facts.superuser,
        trusted=True,  # the role is what it is
        label=f"PostgreSQL {spoken(facts.version)} at {dsn.public}, {facts.description}",
        bin_directory=None,
        home=None,
        _admin=dsn,
        _database_settings=given,
        _watchdog=watchdog,
        _restart=None,
    )


def _completed(dsn: Conninfo) -> Conninfo:
    """A DSN with what the environment, a service and a password file add to it.

    So that whoever is handed it, a worker process for one, gets to the same server.
    """
    with connected(dsn) as connection:
        used = {o.keyword.decode(): (o.val, o.compiled) for o in connection.pgconn.info}
        password = connection.info.password
    added = {key: val.decode() for key, (val, own) in used.items() if val and val != own}
    added.pop("client_encoding", None)  # the harness's own
    given = conninfo_to_dict(dsn)  # now: a traceback would show the password
    complete = {**added, "password": password or None, **given, "service": None}
    return Conninfo(make_conninfo("", **complete))


def _patient(dsn: Conninfo, timers: Sequence[str]) -> Conninfo:
    """A DSN whose sessions no timer ends: they wait for as long as somebody else is to act first.

    The role's own settings would outdo those of its database.
    """
    if not timers:
        return dsn
    given = conninfo_to_dict(dsn).get("options") or ""
    off = " ".join(f"-c {name}=0" for name in timers)
    return Conninfo(make_conninfo(dsn, options=f"{given} {off}".strip()))


def _refuse_malformed(dsn: Conninfo) -> None:
    """Raise for what libpq would misread: its messages quote what it took for a host or port.

    That can be a part of the password, so none of this repeats anything of the DSN.
    """
    if dsn.is_ambiguous:
        raise ServerUnavailableError(
            "the DSN cannot be read: in a user, password or option write @ as %40, / as %2F,"
            " : as %3A and % as %25."
        )
    try:
        seconds = str(conninfo_to_dict(dsn).get("connect_timeout", 0))
        if not seconds.removeprefix("-").isdecimal():
            raise ServerUnavailableError("connect_timeout in the DSN is no whole number of seconds")
    except psycopg.Error as error:
        # A name behind the address, which is not ambiguous, can be no part of a password before it.
        unknown = _UNKNOWN.search(str(error)) if "password" not in dsn else None
        if unknown:
            told = f"the DSN has ?{unknown[1]}=, which libpq does not know: leave it out."
            raise ServerUnavailableError(told) from None
        raise ServerUnavailableError(
            "the DSN cannot be read: write postgresql://user:password@host:port/database, with"
            " special characters percent-encoded, or \"host=... dbname=... password='...'\"."
        ) from None


def _refuse_company(dsn: Conninfo, facts: ServerFacts) -> None:
    """Raise where a queue could get at other people's databases, as a superuser or nearly one.

    A fresh service container has `postgres` and perhaps one more, which is empty.
    """
    with connected(dsn) as connection:
        others = connection.execute(_OTHERS).fetchall()
    theirs = [name for name, open_ in others if not (open_ and _is_empty(dsn, name))]
    if theirs:
        listed = ", ".join(theirs[:_NAMED]) + (", ..." if len(theirs) > _NAMED else "")
        raise ServerUnavailableError(
            f"role {facts.role!r} is a superuser, or may act as one, of a server that has other"
            f" people's databases ({listed}), and a queue is code: as that role it could do"
            " anything to them. Give the"
            " DSN of another role (CREATE ROLE queueproof LOGIN CREATEDB), or, where you trust the"
            " queue, --trust."
        )


def _is_empty(dsn: Conninfo, database: str) -> bool:
    """True if nobody has made anything in a database yet."""
    try:
        with waits.LimitedConnection.open(make_conninfo(dsn, dbname=database)) as connection:
            return connection.execute(_HAS_TABLES).fetchone() == (False,)
    except psycopg.Error:
        return False


def _refuse(facts: ServerFacts) -> None:
    if facts.pooled:
        raise ServerUnavailableError(
            "a connection pooler such as PgBouncer stands before this server, and it would move"
            " our sessions between backends. Give the DSN of the server itself."
        )
    if facts.standby:
        raise ServerUnavailableError(
            "this server is a standby, which is read-only. Give the DSN of its primary."
        )
    if facts.read_only:
        raise ServerUnavailableError(
            "transactions are read-only here. Set default_transaction_read_only = off for role"
            f" {facts.role!r} or its database, or use another."
        )
    if not (facts.createdb or facts.superuser):
        role = sql.Identifier(facts.role).as_string()
        raise ServerUnavailableError(
            f"role {facts.role!r} may not create databases, and queueproof works only in fresh"
            f" ones of its own. Have an administrator run: ALTER ROLE {role} CREATEDB;"
        )
