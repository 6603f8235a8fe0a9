"""The gate on the wire with every client that it was made for, but for psycopg by itself."""

import asyncio
import json
import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import asyncpg
import psycopg
import pytest

from queueproof.postgres.local import find_embedded
from queueproof.wire.gate import Held
from tests.fix_places import ROOT
from tests.fix_programs import PATIENCE, finished
from tests.fix_server import PEERS
from tests.fix_wire import Bench, EachClient, Kind, Script, by_pipeline, by_psycopg


def by_async_psycopg(dsn: str, script: Script) -> None:
    """Psycopg's asynchronous connection."""

    async def act() -> None:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
        ) as connection:
            for sql, params in script:
                await connection.execute(sql.encode(), params or None)

    asyncio.run(act())


def by_asyncpg(dsn: str, script: Script) -> None:
    """Asyncpg: prepares everything that has parameters, and sends these in binary."""

    async def act() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            for sql, params in script:
                await connection.execute(sql, *params)
        finally:
            await connection.close(timeout=PATIENCE)

    asyncio.run(act())


def by_program(told: str, argv: Sequence[object], **environment: str) -> None:
    """A client that is a program."""
    done = finished(*argv, input=told, env={**os.environ, **environment})
    if done.returncode:
        raise RuntimeError(done.stderr)


def by_node(dsn: str, script: Script, name: str | None = None) -> None:
    """node-postgres."""
    told = json.dumps({"statements": script, "name": name})
    argv = ["node", ROOT / "tests" / "node" / "client.cjs", dsn, told]
    by_program("", argv, NODE_PATH=str(PEERS / "node_modules"))


def by_pgbench(mode: str, dsn: str, script: Script) -> None:
    """Pgbench: its variables are literals in simple mode, and parameters in the others."""
    lines = []
    for sql, params in script:
        lines += [f"\\set p{n} {value}" for n, value in enumerate(params, 1)]
        lines.append(sql.replace("$", ":p") + ";")
    pgbench = find_embedded("").directory / "pgbench"
    by_program("\n".join(lines) + "\n", [pgbench, "-n", "-t", "1", "-M", mode, "-f", "-", dsn])


KINDS = {
    "psycopg prepared": Kind(partial(by_psycopg, prepare=0)),
    "psycopg async": Kind(by_async_psycopg),
    "psycopg pipeline": Kind(by_pipeline),
    "asyncpg": Kind(by_asyncpg),
    "pgbench extended": Kind(partial(by_pgbench, "extended")),
    "pgbench prepared": Kind(partial(by_pgbench, "prepared")),
    "node": Kind(by_node),
    "node prepared": Kind(partial(by_node, name="s")),
    "pgbench simple": Kind(partial(by_pgbench, "simple"), literal=True, extended=False),
}
*CLIENTS, SIMPLE = (
    pytest.param(name, marks=pytest.mark.node) if "node" in name else name for name in KINDS
)


class TestEachClient(EachClient):
    """What holds for psycopg as most programs use it, of all others."""

    clients = CLIENTS
    simple = (SIMPLE,)

    @pytest.fixture
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        """The client."""
        if "node" in request.param:
            request.getfixturevalue("node_modules")
        return KINDS[request.param]


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IDENTITY = uuid.UUID(int=1)
SHOWN = (
    ("smallint", 7, "7"),
    ("int", -7, "-7"),
    ("bigint", 2**40, "1099511627776"),
    ("bool", True, "t"),
    ("uuid", IDENTITY, str(IDENTITY)),
    ("text", "naïve", "naïve"),
    ("timestamptz", MOMENT, "2026-01-02 03:04:05+00:00"),
    ("jsonb", '{"a": 1}', '{"a": 1}'),
    ("json", '{"a": 1}', '{"a": 1}'),
    ("numeric", Decimal("1.50"), "1.50"),
    ("bytea", b"\x01\xff", "\\x01ff"),
    ("int[]", [1, None], "{1,NULL}"),
    ("jsonb[]", ['{"a": 1}'], '{{"a": 1}}'),
    ("uuid[]", [IDENTITY], f"{{{IDENTITY}}}"),
    ("text", None, None),
)


@pytest.mark.parametrize(("name", "value", "shown"), SHOWN)
def test_binary_is_decoded(holding: Bench, name: str, value: object, shown: str | None) -> None:
    """A parameter that was sent in binary is shown as PostgreSQL writes its type."""

    async def act() -> None:
        connection = await asyncpg.connect(holding.dsn)
        await connection.fetch(f"SELECT $1::{name}", value)
        await connection.close()

    client = holding.start(asyncio.run, act())
    connection = holding.held_at("SELECT $1")
    assert connection.held == Held("execute", f"SELECT $1::{name}", (shown,))
    holding.let_all(client)
    holding.finish(client)


def test_an_execute_with_a_row_limit_is_a_step_each_time(holding: Bench) -> None:
    """A portal that is fetched from in parts is one step for each part."""

    async def act() -> list[int]:
        connection = await asyncpg.connect(holding.dsn)
        async with connection.transaction():
            cursor = await connection.cursor("SELECT generate_series(1, 3)")
            found = [row[0] for row in await cursor.fetch(2)]
            found += [row[0] for row in await cursor.fetch(2)]
        await connection.close()
        return found

    client = holding.start(asyncio.run, act())
    steps = [step.sql for step in holding.let_all(client)]
    assert steps == ["BEGIN;", *["SELECT generate_series(1, 3)"] * 2, "COMMIT;"]
    assert holding.finish(client) == [1, 2, 3]
