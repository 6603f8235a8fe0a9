"""The protocol's parser: any fragmentation, any nonsense; and what it reads of messages."""

import struct
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import Literal

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg import postgres

from queueproof.postgres import Server
from queueproof.wire import protocol
from queueproof.wire.pipeline import Pipeline
from queueproof.wire.protocol import Message, Parser, ProtocolError, message
from tests.fix_wire import OWNER, Bench

Side = Literal["frontend", "backend"]
SIDES: tuple[Side, ...] = ("frontend", "backend")
STARTUP = struct.pack("!ii", 15, 3 << 16) + b"user\0x\0"
NONSENSE = (
    b"\0\0\0\x07" + b"user",  # shorter than a startup packet can be
    struct.pack("!ii", 10_001, 3 << 16),
    struct.pack("!ii", 8, 1234 << 16),
    STARTUP + b"z",
    STARTUP + b"E\0\0\0\x03",
    STARTUP + b"E\x7f\xff\xff\xff",
    STARTUP + b"S\0\0\x27\x11",
    STARTUP + b"Q\xff\xff\xff\xff",
    STARTUP + b"Q" + struct.pack("!i", protocol.LARGE + 1),
    STARTUP + b"d\x40\0\0\x01",
)
READERS: tuple[Callable[[bytes], object], ...] = (
    protocol.read_parse,
    protocol.read_bind,
    protocol.read_target,
    protocol.read_text,
    protocol.read_oids,
    protocol.read_int4,
    protocol.read_error,
)
OIDS = sorted({oid for info in postgres.types for oid in (info.oid, info.array_oid)} | {0, 987654})


def conversation(dsn: str) -> None:
    """Something of everything: both protocols, an error, COPY, a pipeline, a large row."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int, note text)")
        connection.execute("INSERT INTO notes VALUES (%b, %s)", [1, "é" * 10])
        with connection.pipeline():
            for n in range(3):
                connection.execute("INSERT INTO notes VALUES (%s)", [n], prepare=True)
        with connection.cursor() as cursor:
            with cursor.copy("COPY notes FROM STDIN") as copy:
                copy.write(b"7\t" + b"x" * 100_000 + b"\n")
            with cursor.copy("COPY notes TO STDOUT") as copy:
                assert sum(1 for _ in copy) == 5
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        connection.execute("SELECT repeat('x', 200000)")


@pytest.fixture(scope="module")
def recorded(server: Server) -> dict[Side, bytes]:
    """What both sides of a real conversation have sent."""
    streams: dict[Side, bytearray] = {side: bytearray() for side in SIDES}
    plain = Parser.feed

    def feed(parser: Parser, data: bytes) -> list[Message]:
        side: Side = "frontend" if parser._limits is protocol.FRONTEND else "backend"
        streams[side] += data
        return plain(parser, data)

    with (
        pytest.MonkeyPatch.context() as patch,
        server.database() as conninfo,
        closing(Bench(conninfo)) as bench,
    ):
        patch.setattr(Parser, "feed", feed)
        bench.finish(bench.start(conversation, bench.dsn))
        bench.until(lambda: not bench.wire.connections(OWNER))
    return {side: bytes(stream) for side, stream in streams.items()}


def parse(side: Side, pieces: Sequence[bytes]) -> list[Message]:
    """The messages of a stream that comes in pieces."""
    parser = Parser(side)
    return [found for piece in pieces for found in parser.feed(piece)]


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    """A stream in pieces."""
    ends = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize("side", SIDES)
def test_a_real_conversation_is_read(recorded: dict[Side, bytes], side: Side) -> None:
    """Every byte that psycopg and PostgreSQL sent belongs to a message, and passes unchanged."""
    stream = recorded[side]
    found = parse(side, [stream])
    assert b"".join(one.raw for one in found) == stream
    kinds = {one.kind for one in found}
    wanted = {"frontend": set("PBDESQXcd") | {""}, "backend": set("12CDEGHKRSTZcdn")}
    assert wanted[side] <= kinds


@given(places=st.lists(st.integers(min_value=0), max_size=30))
@example(places=list(range(2000)))
def test_fragments_give_the_same_messages(recorded: dict[Side, bytes], places: list[int]) -> None:
    """It does not matter how the network cuts a stream."""
    for side, stream in recorded.items():
        assert parse(side, cut(stream, places)) == parse(side, [stream])


@given(data=st.data(), side=st.sampled_from(SIDES), places=st.lists(st.integers(0), max_size=10))
def test_frames_come_out_as_they_go_in(data: st.DataObject, side: Side, places: list[int]) -> None:
    """Each message comes out whole, or in pieces of one size where nobody reads it."""
    kinds = st.sampled_from("PBQ" + "d" if side == "frontend" else "ECTDd")
    body = st.binary(max_size=200) | st.integers(60_000, 200_000).map(bytes)
    sent = data.draw(st.lists(st.builds(message, kinds, body), max_size=8))
    begin = [STARTUP] if side == "frontend" else []
    found = parse(side, cut(b"".join([*begin, *sent]), places))
    whole = [b""]
    for one in found:
        whole[-1] += one.raw
        assert not one.more or len(one.raw) == protocol.PIECE
        if not one.more:
            whole.append(b"")
    assert whole == [*begin, *sent, b""]


@given(side=st.sampled_from(SIDES), begun=st.booleans(), pieces=st.lists(st.binary(max_size=50)))
def test_random_bytes(side: Side, begun: bool, pieces: list[bytes]) -> None:  # noqa: FBT001
    """Any bytes are messages, wait for more, or are refused; nothing is made up or lost."""
    parser = Parser(side)
    if begun and side == "frontend":
        parser.feed(STARTUP)
    found: list[Message] = []
    try:
        for piece in pieces:
            found += parser.feed(piece)
    except ProtocolError:
        return
    stream = b"".join(pieces)
    passed = b"".join(one.raw for one in found)
    assert stream.startswith(passed)
    assert parser.pending == (passed != stream or any(one.more for one in found[-1:]))


@pytest.mark.parametrize("stream", NONSENSE)
def test_nonsense_is_refused_at_its_header(stream: bytes) -> None:
    """A kind or a length that cannot be is refused at once: nothing is gathered behind it."""
    with pytest.raises(ProtocolError):
        parse("frontend", [stream])


def test_a_long_row_is_not_gathered() -> None:
    """A message that nobody reads is passed on as it comes, whatever its length."""
    parser = Parser("backend")
    parser.feed(b"D" + struct.pack("!i", 2**29))
    for _ in range(100):
        parser.feed(bytes(protocol.PIECE))
        assert len(parser._buffer) < 2 * protocol.PIECE


@pytest.mark.parametrize("read", READERS)
@given(body=st.binary(max_size=60))
@example(body=b"")
@example(body=b"\0\0\x7f\xff\0\0")
@example(body=b"\0\0\0\0\xff\xff")
@example(body=b"\0\0\0\0\0\x01\xff\xff\xff\xfe")
def test_malformed_bodies(read: Callable[[bytes], object], body: bytes) -> None:
    """A reader gives what it reads, or says that it is no protocol."""
    with suppress(ProtocolError):
        read(body)


@given(
    sent=st.lists(st.tuples(st.sampled_from("PBDCEHSQFXcdf"), st.binary(max_size=20)), max_size=9)
)
def test_any_order_of_messages(sent: list[tuple[str, bytes]]) -> None:
    """A conversation in any order, with any answers, is followed or refused."""
    pipeline = Pipeline()
    for kind, body in sent:
        one = Message(kind, message(kind, body))
        for act in (pipeline.sent, pipeline.received):
            with suppress(ProtocolError):
                act(one)
    pipeline.received(Message("Z", message("Z", b"I")))
    assert not pipeline.in_transaction


def test_bind_and_error() -> None:
    """Formats are none for text, one for all, or one each; an error is written as it is read."""
    values = struct.pack("!h", 2) + b"\0\0\0\x01x" + b"\xff\xff\xff\xff"
    for formats, read in ((), (0, 0)), ((1,), (1, 1)), ((1, 0), (1, 0)):
        packed = struct.pack(f"!{1 + len(formats)}h", len(formats), *formats)
        bind = protocol.read_bind(b"portal\0statement\0" + packed + values + b"\0\0")
        assert bind == ("portal", "statement", read, (b"x", None))
    with pytest.raises(ProtocolError, match="3 formats for 2 parameters"):
        protocol.read_bind(b"\0\0" + struct.pack("!4h", 3, 0, 0, 0) + values)
    written = protocol.error_response("ERROR", "40P01", "deadlock détecté")
    assert protocol.read_error(written[5:]) == ("40P01", "deadlock détecté")
    assert protocol.read_error(b"\0") == ("XX000", "")


@given(oid=st.sampled_from(OIDS), value=st.binary(max_size=40), binary=st.booleans())
@example(oid=1700, value=b"\0\x01\0\0\xd0\0\0\0", binary=True)
@example(oid=1184, value=b"\x7f" * 8, binary=True)
@example(oid=1007, value=b"\x7f" * 24, binary=True)
@example(oid=600, value=b"\0" * 16, binary=True)
def test_any_parameter_can_be_shown(oid: int, value: bytes, binary: bool) -> None:  # noqa: FBT001
    """A parameter of any type is shown somehow, its bytes at worst."""
    (shown,) = protocol.decode([value], [int(binary)], [oid])
    assert isinstance(shown, str)


def test_parameters_of_which_no_type_is_known() -> None:
    """There may be fewer types than parameters; a binary one without a type is its bytes."""
    values, formats = [b"\0\0\0\5", b"\0\5", b"x", None], [1, 1, 0, 1]
    assert protocol.decode(values, formats, [23]) == ("5", "\\x0005", "x", None)
