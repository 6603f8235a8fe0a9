"""PgBouncer in transaction mode before a database, for as long as a block runs."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from queueproof import waits
from queueproof.errors import ServerUnavailableError
from queueproof.postgres.local import for_sockets, server_user
from queueproof.postgres.watchdog import Watchdog, WatchdogError

DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")  # Debian's is often not on PATH
MISSING = (
    "pgbouncer is not installed: apt-get install pgbouncer (Debian, Ubuntu), "
    "brew install pgbouncer, or put its directory on PATH"
)
PORT = 6432  # PgBouncer's own; it only names a socket in a folder of ours
DATABASE = "queue"
CONNECTIONS = 3  # to the server, from the beginning of each run
WAITED = "55P03"  # what a statement is answered that has waited for WAIT
WAIT = "2s"
_WARM = "COMMIT -- by the harness"

Row = tuple[Any, ...]


def find_pgbouncer() -> Path | None:
    """The program on PATH, or where distributions put it; None where it is not installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *DIRECTORIES))
    found = shutil.which("pgbouncer", path=path)
    return Path(found) if found else None


class Pooler:
    """PgBouncer, running."""

    def __init__(self, name: str, entrance: str, server: str) -> None:
        self.name = name  # `pgbouncer` and its version
        # How clients connect to it.
        self.conninfo = make_conninfo(entrance, dbname=DATABASE, connect_timeout=10)
        console = make_conninfo(entrance, dbname="pgbouncer", connect_timeout=10)
        # The console knows no prepared statements.
        self._console = waits.LimitedConnection.open(console)
        self._server = waits.LimitedConnection.open(server)
        self._counted = 0

    def renew(self) -> None:
        """Close its connections, clients' and server's, and open some to the server anew."""
        known = self._backends()
        self._console.execute(f"KILL {DATABASE}")
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY (%s))"
        waits.until(
            lambda: self._server.execute(gone, [known]).fetchone() == (True,),
            waits.GONE,
            "the backends of pgbouncer to end",
        )
        self._console.execute(f"RESUME {DATABASE}")
        clients = [waits.LimitedConnection.open(self.conninfo) for _ in range(CONNECTIONS)]
        for statement in ("BEGIN", _WARM):  # at the same time, so that each needs a connection
            for client in clients:
                client.execute(statement)
        for client in clients:
            client.close()
        self._counted = self._count()

    def transactions(self) -> int:
        """The number of transactions that have gone through it since `renew`."""
        return self._count() - self._counted

    def busy_backends(self) -> int:
        """On how many backends something has run since `renew`."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s) AND query <> %s"
        ((found,),) = self._server.execute(asked, [self._backends(), _WARM]).fetchall()
        return int(found)

    def close(self) -> None:
        """Close the harness's own connections."""
        self._console.close()
        self._server.close()

    def _count(self) -> int:
        counts = {row["database"]: int(row["total_xact_count"]) for row in self._show("STATS")}
        return counts.get(DATABASE, 0)

    def _backends(self) -> list[int]:
        return [int(row["remote_pid"]) for row in self._show("SERVERS")]

    def _show(self, what: str) -> list[dict[str, Any]]:
        cursor = self._console.execute(f"SHOW {what}")
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextmanager
def open_pooler(conninfo: str, program: Path) -> Iterator[Pooler]:
    """Run PgBouncer in transaction mode before a database; nothing of it is left afterwards.

    Its defaults for transaction mode: nothing is reset between two clients. Connections to the
    server take turns (server_round_robin). Who waits for a lock for `WAIT` is told `WAITED`,
    because from here nobody sees who waits for whom. The password of the database is written into a
    file of mode 0600 only.

    Raises:
        ServerUnavailableError: PgBouncer does not start, or does not get into the database.
    """
    user = server_user()  # PgBouncer refuses to run as root, and a server's socket is private
    owner = [user.pw_uid, user.pw_gid] if user else None
    with Watchdog() as watchdog:
        home = for_sockets(Path(tempfile.gettempdir()).absolute())
        directory = home / f"queueproof-{secrets.token_hex(8)}"
        try:
            watchdog.ask("directory", path=str(directory), owner=owner)
            configuration = directory / "pgbouncer.ini"
            configuration.touch(mode=0o600, exist_ok=False)
            configuration.write_text(_configuration(conninfo, directory), encoding="utf-8")
            if owner:
                os.chown(configuration, *owner)
            watchdog.ask(
                "program",
                directory=str(directory),
                owner=owner,
                command=[str(program), str(configuration)],
                listens=str(directory / f".s.PGSQL.{PORT}"),
            )
        except (OSError, WatchdogError, psycopg.OperationalError, waits.LimitError) as error:
            raise ServerUnavailableError(f"{program} could not be started: {error}") from None
        entrance = make_conninfo(
            "", host=str(directory), port=PORT, user="pgbouncer", sslmode="disable"
        )
        try:
            pooler = Pooler(version(program), entrance, conninfo)
            try:
                pooler.renew()
                yield pooler
            finally:
                pooler.close()
        except psycopg.OperationalError as error:
            told = f"{program} does not connect us to the server: {str(error).strip()}"
            raise ServerUnavailableError(told) from None


def version(program: Path) -> str:
    """`pgbouncer` and the version that a program says of itself."""
    version = re.search(r"\d+(\.\d+)+", waits.answer_of(program, "--version").stdout)
    return f"pgbouncer {version[0]}" if version else "pgbouncer"


def _configuration(conninfo: str, directory: Path) -> str:
    """pgbouncer.ini; libpq says where a DSN, its environment and its password file lead."""
    with waits.LimitedConnection.open(conninfo) as connection:
        info = connection.info
        given = info.get_parameters()
        target = {
            "host": info.host,
            "port": str(info.port),
            "user": info.user,
            "password": info.password,
            "dbname": info.dbname,
            "connect_query": f"SET lock_timeout = '{WAIT}'",
        }
    tls = {"server_tls_sslmode": given.get("sslmode", "prefer")}
    if "sslrootcert" in given:
        tls["server_tls_ca_file"] = given["sslrootcert"]
    options = {
        "unix_socket_dir": str(directory),
        "listen_port": str(PORT),
        "auth_type": "any",  # the directory lets nobody else in
        "admin_users": "pgbouncer",
        "pool_mode": "transaction",
        "server_round_robin": "1",
        "default_pool_size": "40",
        "ignore_startup_parameters": "extra_float_digits,options",
        **tls,
    }
    database = " ".join(f"{name}={_quoted(value)}" for name, value in target.items() if value)
    lines = [f"{name} = {value}" for name, value in options.items()]
    return "\n".join(["[databases]", f"{DATABASE} = {database}", "[pgbouncer]", *lines, ""])


def _quoted(value: str) -> str:
    if "\n" in value:
        raise ServerUnavailableError("pgbouncer takes no line break in a password or a name")
    return "'" + value.replace("'", "''") + "'"
