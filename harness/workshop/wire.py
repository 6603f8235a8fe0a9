"""What the gate on the wire adds to a statement.

Method: one client process with four psycopg connections to one server: two directly, one through
a gate that holds nothing, one through a gate that holds every step and releases it as soon as it
stands. In each round every connection runs the same statements, in an order that rotates; a round
counts with its median. The figure is the median of the rounds' differences to the direct
connection, its spread their quartiles. The second direct connection shows the noise. A direct
connection here goes through a Unix socket; behind a gate the client's half is loopback TCP.

Run with `python -m workshop.wire`; it prints a table.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

from queueproof.postgres import Server, open_server
from queueproof.wire.gate import Wire

ROUNDS = 30
STATEMENTS = 200  # of each connection in a round
WARM = 50
DIRECT, NOISE, FREE, HELD = "direct", "direct again", "passed", "held and released"
# psycopg sends what has no parameters as a simple query.
PROTOCOLS: Mapping[str, tuple[str, Sequence[int]]] = {
    "simple": ("SELECT 1", ()),
    "extended": ("SELECT %s::int", (1,)),
}


class Added(NamedTuple):
    """What one way of connecting costs beside a direct connection.

    Attributes:
        protocol: Of the statement: simple or extended.
        way: How the client is connected.
        each: Microseconds of a statement, the median of all rounds.
        added: Microseconds more than direct, the median of all rounds.
        low: The first quartile of that.
        high: The third.
        ratio: Of `each` to the direct connection's.
    """

    protocol: str
    way: str
    each: float
    added: float
    low: float
    high: float
    ratio: float


Timed = dict[str, dict[str, list[float]]]  # by protocol and way, seconds of each round's median


def _client(answer: Pipe, dsns: Mapping[str, str], rounds: int, statements: int) -> None:
    """Run the statements on every connection, and send how long they took."""
    timed: Timed = {protocol: {way: [] for way in dsns} for protocol in PROTOCOLS}
    connections = {
        way: psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        for way, dsn in dsns.items()
    }
    for way, protocol in ((way, protocol) for way in dsns for protocol in PROTOCOLS):
        _median(connections[way], *PROTOCOLS[protocol], WARM)
    ways = list(dsns)
    for turn in range(rounds):
        for protocol, (sql, params) in PROTOCOLS.items():
            for n in range(len(ways)):
                way = ways[(turn + n) % len(ways)]
                timed[protocol][way].append(_median(connections[way], sql, params, statements))
    for connection in connections.values():
        connection.close()
    answer.send(timed)
    answer.close()


def _median(
    connection: psycopg.Connection, sql: str, params: Sequence[int], statements: int
) -> float:
    taken = []
    for _ in range(statements):
        began = time.perf_counter()
        connection.execute(sql.encode(), params or None)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(server: Server, *, rounds: int = ROUNDS, statements: int = STATEMENTS) -> list[Added]:
    """Time the same statements directly and through gates.

    Args:
        server: Where.
        rounds: How often each connection has its turn.
        statements: How many it runs in a turn.
    """
    with server.database() as conninfo, closing(Wire(conninfo)) as wire:
        dsns = {
            DIRECT: conninfo,
            NOISE: conninfo,
            FREE: wire.listen(FREE),
            HELD: wire.listen(HELD),
        }
        wire.hold(HELD, on=True)
        timed = _run(wire, {way: str(dsn) for way, dsn in dsns.items()}, rounds, statements)
    return [
        _added(protocol, way, timed[protocol][way], timed[protocol][DIRECT])
        for protocol in PROTOCOLS
        for way in dsns
    ]


def _run(wire: Wire, dsns: Mapping[str, str], rounds: int, statements: int) -> Timed:
    """Pump, and release whatever is held, until the client has finished."""
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    client = spawn.Process(target=_client, args=(theirs, dsns, rounds, statements))
    client.start()
    theirs.close()
    found: list[Timed] = []
    wire.watch(ours.fileno(), lambda: found.append(ours.recv()))
    while not found:
        wire.pump(None)
        for connection in wire.connections(HELD):
            if connection.held is not None:
                connection.release()
    wire.unwatch(ours.fileno())
    ours.close()
    while wire.connections(FREE) or wire.connections(HELD):
        wire.pump(None)
    client.join()
    return found[0]


def _added(protocol: str, way: str, taken: Sequence[float], direct: Sequence[float]) -> Added:
    more = [(one - base) * 1e6 for one, base in zip(taken, direct, strict=True)]
    low, middle, high = statistics.quantiles(more, n=4)
    each = statistics.median(taken) * 1e6
    ratio = statistics.median(taken) / statistics.median(direct)
    return Added(protocol, way, each, middle, low, high, ratio)


def main() -> int:
    """Measure and print a table; the exit code."""
    with open_server("embedded") as server:
        found = measure(server)
        label = server.label
    table = Table("protocol", "connection", "µs a statement", "added µs", "quartiles", "ratio")
    for one in found:
        table.add_row(
            one.protocol,
            one.way,
            f"{one.each:.0f}",
            "" if one.way == DIRECT else f"{one.added:+.0f}",
            "" if one.way == DIRECT else f"{one.low:+.0f} to {one.high:+.0f}",
            f"{one.ratio:.2f}",
        )
    console = Console()
    console.print(label, style="bold")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
