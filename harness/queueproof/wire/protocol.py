"""PostgreSQL's frontend/backend protocol, version 3, as far as a gate must read it; no I/O.

Source: the manual, chapter "Frontend/Backend Protocol". Bounds on lengths are the server's own
where it has them (src/backend/tcop/postgres.c, src/backend/libpq/auth.c).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from types import MappingProxyType
from typing import Literal, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import Format

from queueproof.errors import QueueproofError

LARGE = 64 * 2**20  # bytes; what is kept whole. The server takes up to 1 GiB.
PIECE = 64 * 2**10  # bytes; what is passed on without being read comes in pieces of this size
_SMALL = 10_000  # bytes; PostgreSQL's PQ_SMALL_MESSAGE_LIMIT
_TOKEN = 65_535  # PG_MAX_AUTH_TOKEN_LENGTH
_SHORTEST_STARTUP = 8  # bytes: its length and a code
_HEADER = struct.Struct("!ci")
_INT2 = struct.Struct("!h")
_INT4 = struct.Struct("!i")

# Codes of the first packet of a connection, where a version would stand.
CANCEL = 80877102
TLS = 80877103
GSS = 80877104
_MAJOR = 3  # of the protocol's version, spoken since PostgreSQL 7.4

FRONTEND: Mapping[bytes, int] = MappingProxyType(
    dict.fromkeys((b"B", b"F", b"P", b"Q", b"d"), LARGE)
    | dict.fromkeys((b"C", b"D", b"E", b"f"), _SMALL)
    # Nothing but their letter: the server refuses a Flush with more, and nobody could tell that
    # error from the answer to what came behind it.
    | dict.fromkeys((b"H", b"S", b"X", b"c"), _INT4.size)
    | {b"p": _TOKEN}
)
BACKEND: Mapping[bytes, int] = MappingProxyType(
    dict.fromkeys((b"A", b"C", b"D", b"E", b"N", b"T", b"V", b"d", b"t"), LARGE)
    | dict.fromkeys((b"1", b"2", b"3", b"G", b"H", b"I", b"K", b"S", b"W", b"Z"), _SMALL)
    | dict.fromkeys((b"c", b"n", b"s", b"v"), _SMALL)
    | {b"R": _TOKEN}
)
_PASSED: Mapping[str, frozenset[bytes]] = MappingProxyType(
    {"frontend": frozenset({b"d"}), "backend": frozenset({b"D", b"V", b"d"})}
)
_TOLD = MappingProxyType({"frontend": FRONTEND, "backend": BACKEND})
_LONGEST = 2**30  # bytes; of a message that is passed on in pieces

_TEXTS = frozenset({18, 19, 25, 114, 142, 705, 1042, 1043})
_JSONB = 3802  # in pg_type


class ProtocolError(QueueproofError):
    """The bytes that came over a connection are no PostgreSQL protocol."""


class Message(NamedTuple):
    """One message, or a piece of a long one that nobody needs to read."""

    kind: str  # its letter; empty for the packets before a client's startup is through
    raw: bytes  # header included
    more: bool = False  # further pieces of it follow

    @property
    def body(self) -> bytes:
        """Its bytes without the header."""
        return self.raw[5:] if self.kind else self.raw[4:]

    @property
    def code(self) -> int:
        """Of a packet before startup: the protocol's version, or what is requested instead."""
        (code,) = _INT4.unpack_from(self.raw, 4)
        return int(code)


class Parser:
    """Cuts the bytes of one direction of a connection into messages."""

    def __init__(self, side: Literal["frontend", "backend"]) -> None:
        self._limits = _TOLD[side]
        self._passed = _PASSED[side]
        self._begun = side == "backend"
        self._buffer = bytearray()
        self._kind = b""  # of the message whose pieces are being passed
        self._left = 0  # bytes of it that have not come

    @property
    def pending(self) -> bool:
        """True if the beginning of a message has come, and its end has not."""
        return bool(self._buffer or self._left)

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; the messages, or pieces, that are complete with them.

        Raises:
            ProtocolError: They are no protocol. Nothing more can be made of the connection.
        """
        self._buffer += data
        found: list[Message] = []
        position = 0
        while (end := self._end(position)) is not None:
            found.append(self._cut(position, end))
            position = end
        del self._buffer[:position]
        return found

    def _end(self, start: int) -> int | None:
        """The end of the message, or piece, that begins at a place; None if it has not come."""
        if self._left:
            end = start + min(self._left, PIECE)
        elif self._begun:
            if len(self._buffer) < start + 5:
                self._check_kind(bytes(self._buffer[start : start + 1]))
                return None
            kind, length = _HEADER.unpack_from(self._buffer, start)
            self._check(kind, length)
            whole = 1 + length
            end = start + (PIECE if kind in self._passed and whole > PIECE else whole)
        else:
            if len(self._buffer) < start + 4:
                return None
            (length,) = _INT4.unpack_from(self._buffer, start)
            if not _SHORTEST_STARTUP <= length <= _SMALL:
                raise ProtocolError(f"a startup packet of {length} bytes")
            end = start + length
        return end if len(self._buffer) >= end else None

    def _check_kind(self, kind: bytes) -> None:
        if kind and kind not in self._limits:
            raise ProtocolError(f"a message of the unknown kind {kind!r}")

    def _check(self, kind: bytes, length: int) -> None:
        self._check_kind(kind)
        limit = _LONGEST if kind in self._passed else self._limits[kind]
        if not _INT4.size <= length <= limit:
            raise ProtocolError(f"a message {kind!r} of {length} bytes")

    def _cut(self, start: int, end: int) -> Message:
        raw = bytes(self._buffer[start:end])
        if self._left:
            self._left -= len(raw)
            return Message(self._kind.decode(), raw, bool(self._left))
        if not self._begun:
            return self._startup(Message("", raw))
        kind, length = _HEADER.unpack_from(raw)
        self._kind, self._left = kind, 1 + length - len(raw)
        return Message(kind.decode(), raw, bool(self._left))

    def _startup(self, packet: Message) -> Message:
        code = packet.code
        if code >> 16 == _MAJOR:
            self._begun = True
        elif code not in {CANCEL, TLS, GSS}:
            raise ProtocolError(f"a startup packet of the unknown protocol {code >> 16}")
        return packet


def message(kind: str, body: bytes = b"") -> bytes:
    """A message as it goes over the wire."""
    return _HEADER.pack(kind.encode(), 4 + len(body)) + body


FLUSH = message("H")
REFUSED = b"N"  # to a request for encryption


def query(sql: str) -> bytes:
    """A simple query."""
    return message("Q", sql.encode() + b"\0")


def parse(wanted: Parse) -> bytes:
    """A Parse message."""
    names = wanted.name.encode() + b"\0" + wanted.sql.encode() + b"\0"
    oids = b"".join(oid.to_bytes(4) for oid in wanted.oids)
    return message("P", names + len(wanted.oids).to_bytes(2) + oids)


def error_response(severity: str, sqlstate: str, text: str) -> bytes:
    """An error, as a server reports it; its severity is `ERROR` or `FATAL`."""
    fields = (("S", severity), ("V", severity), ("C", sqlstate), ("M", text))
    return message("E", b"".join(f"{key}{value}\0".encode() for key, value in fields) + b"\0")


class Parse(NamedTuple):
    """A statement that is prepared, under a name or none; oids of parameters, 0 where unknown."""

    name: str
    sql: str
    oids: tuple[int, ...]


class Bind(NamedTuple):
    """Parameters that are bound to a statement; formats are 0 for text and 1 for binary."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]


class _Reader:
    """Reads fields one after the other."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("a text without an end")
        found = self._body[self._at : end].decode(errors="replace")
        self._at = end + 1
        return found

    def take(self, count: int) -> bytes:
        found = self._body[self._at : self._at + count]
        if count < 0 or len(found) != count:
            raise ProtocolError("a message that ends too early")
        self._at += count
        return found

    def int2(self) -> int:
        (found,) = _INT2.unpack(self.take(2))
        return int(found)

    def int4(self) -> int:
        (found,) = _INT4.unpack(self.take(4))
        return int(found)

    def value(self) -> bytes | None:
        length = self.int4()
        return None if length == -1 else self.take(length)


def read_parse(body: bytes) -> Parse:
    """Read a Parse message.

    Raises:
        ProtocolError: It is malformed; so for every reader here.
    """
    reader = _Reader(body)
    name, sql = reader.text(), reader.text()
    return Parse(name, sql, _oids(reader))


def read_bind(body: bytes) -> Bind:
    """Read a Bind message."""
    reader = _Reader(body)
    portal, statement = reader.text(), reader.text()
    formats = tuple(reader.int2() for _ in range(reader.int2()))
    values = tuple(reader.value() for _ in range(reader.int2()))
    if len(formats) not in {0, 1, len(values)}:
        raise ProtocolError(f"{len(formats)} formats for {len(values)} parameters")
    if len(formats) <= 1:
        formats = (formats or (0,)) * len(values)
    return Bind(portal, statement, formats, values)


def read_target(body: bytes) -> tuple[str, str]:
    """Of a Describe or Close message: `S` for a statement or `P` for a portal, and its name."""
    reader = _Reader(body)
    return reader.take(1).decode(errors="replace"), reader.text()


def read_text(body: bytes) -> str:
    """The text that a Query, an Execute or a CommandComplete begins with."""
    return _Reader(body).text()


def read_oids(body: bytes) -> tuple[int, ...]:
    """The types of a ParameterDescription."""
    return _oids(_Reader(body))


def _oids(reader: _Reader) -> tuple[int, ...]:
    return tuple(reader.int4() & 0xFFFFFFFF for _ in range(reader.int2()))


def read_int4(body: bytes) -> int:
    """The number that a BackendKeyData or a FunctionCall begins with."""
    return _Reader(body).int4()


def read_error(body: bytes) -> tuple[str, str]:
    """SQLSTATE and message of an error."""
    fields = {}
    for field in body.rstrip(b"\0").split(b"\0"):
        fields[field[:1]] = field[1:].decode(errors="replace")
    return fields.get(b"C", "XX000"), fields.get(b"M", "")


Params = tuple[str | None, ...]


def decode(values: Iterable[bytes | None], formats: Iterable[int], oids: Iterable[int]) -> Params:
    """Parameters as a story shows them.

    Args:
        formats: 0 for text, 1 for binary; one each.
        oids: Their types as far as these are known: there may be fewer.
    """
    bound = zip(values, formats, chain(oids, repeat(0)), strict=False)
    return tuple(_decode(value, oid, is_binary=bool(form)) for value, form, oid in bound)


def _decode(value: bytes | None, oid: int, *, is_binary: bool) -> str | None:
    if value is None:
        return None
    return _decode_binary(value, oid) if is_binary else value.decode(errors="replace")


def _decode_binary(value: bytes, oid: int) -> str:
    if oid in _TEXTS:
        return value.decode(errors="replace")
    if oid == _JSONB and value[:1] == b"\x01":  # the version of its format
        return value[1:].decode(errors="replace")
    if not oid:
        return _hex(value)
    try:
        # The loaders fail in whatever way the bytes of a foreign client make them.
        return _spoken(Transformer().get_loader(oid, Format.BINARY).load(value))
    except (
        psycopg.Error,
        ValueError,
        ArithmeticError,
        LookupError,
        struct.error,
        NotImplementedError,
    ):
        return _hex(value)


def _spoken(value: object) -> str:
    """A value as PostgreSQL would write it, near enough for reading."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "t" if value else "f"
        case bytes() | bytearray() | memoryview():
            return _hex(bytes(value))
        case list():
            return "{" + ",".join(_spoken(item) for item in value) + "}"
        case dict():
            return json.dumps(value)
    return str(value)


def _hex(value: bytes) -> str:
    return f"\\x{value.hex()}"
