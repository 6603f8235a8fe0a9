"""The address of the server that clients are passed on to, and their login there."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof import waits
from queueproof.errors import QueueproofError, ServerUnavailableError

_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})


@dataclass(frozen=True, slots=True)
class Upstream:
    """The address of the server, and the login of clients."""

    family: socket.AddressFamily
    address: str | tuple[str, int]
    user: str
    password: str = field(repr=False)
    database: str

    def connect(self) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: The server does not take it.
        """
        opened = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            opened.settimeout(waits.Limit(waits.CONNECT, "the server").left(waits.CONNECT))
            opened.connect(self.address)
        except BaseException:
            opened.close()
            raise
        return opened


def resolve(conninfo: str) -> Upstream:
    """Let libpq find out where a connection string leads.

    Raises:
        ServerUnavailableError: The server does not let us in without encryption.
    """
    mode = conninfo_to_dict(conninfo).get("sslmode")
    if mode in _ENCRYPTED:
        raise QueueproofError(
            f"sslmode={mode}: workers run behind a gate that speaks no TLS to the server; "
            "write sslmode=prefer, or use another server"
        )
    plain = make_conninfo(conninfo, sslmode="disable", gssencmode="disable")
    try:
        with waits.LimitedConnection.open(plain) as connection:
            login = connection.pgconn
            family, address = _place(login.host.decode(), login.hostaddr.decode(), int(login.port))
            user, password, database = (
                part.decode() for part in (login.user, login.password, login.db)
            )
    except psycopg.Error as error:
        raise ServerUnavailableError(
            "the gate that workers run behind cannot log in; it speaks no TLS to the server: "
            f"{str(error).strip()}"
        ) from None
    return Upstream(family, address, user, password, database)


def _place(host: str, number: str, port: int) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    if host.startswith("/"):
        return socket.AF_UNIX, f"{host}/.s.PGSQL.{port}"
    if host.startswith("@"):  # Linux' abstract sockets
        return socket.AF_UNIX, f"\0{host[1:]}/.s.PGSQL.{port}"
    return (socket.AF_INET6 if ":" in number else socket.AF_INET), (number, port)
