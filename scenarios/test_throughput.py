"""Throughput: the one small benchmark that runs with the scenarios, so that `make bench` works.

It says that the load completes every job once, and gives a figure. It judges no figure: on a
machine that others use a limit in seconds would say nothing about the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

import pytest

from queueproof.bench.cell import Ground, Prepared
from queueproof.bench.measured import Measured, Shape
from queueproof.errors import to_install
from queueproof.postgres import open_server
from queueproof.queues.sqlfile import SqlFileQueue, load

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

JOBS = 400
ROUNDS = 3
SHAPE = Shape(batch=10, workers=2)
PATIENCE = 60.0  # seconds; where the load ends if it is not done, far from what it needs


@pytest.fixture
def optional_benchmark(request: pytest.FixtureRequest) -> BenchmarkFixture:
    """pytest-benchmark's fixture; a skip that names the extra where the plugin is not there."""
    if not request.config.pluginmanager.hasplugin("benchmark"):
        pytest.skip(f"needs pytest-benchmark: {to_install('bench')}")
    fixture: BenchmarkFixture = request.getfixturevalue("benchmark")
    return fixture


@pytest.fixture
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A durable server with a database and two worker processes."""
    source = request.config.getoption("--postgres", default=None)
    with open_server(source, durable=True) as server, Ground(server, SHAPE.workers) as ground:
        yield ground


def reference() -> SqlFileQueue:
    """The reference strategy."""
    with as_file(files("queueproof.strategies") / "skip_locked.sql") as path:
        return load(path)


def test_skip_locked_completes_every_job_once_under_load(
    optional_benchmark: BenchmarkFixture, ground: Ground
) -> None:
    """Two workers drain the reference queue in batches of ten; every job is completed once."""
    queue = reference()
    prepared: list[Prepared] = []
    measured: list[Measured] = []

    def setup() -> tuple[tuple[Prepared], dict[str, object]]:
        if prepared:  # before the next round takes its place
            measured.append(prepared[-1].verdict())
        prepared.append(ground.prepare(queue, SHAPE, JOBS))
        return (prepared[-1],), {}

    def drain(load: Prepared) -> None:
        load.run(PATIENCE)

    optional_benchmark.pedantic(drain, setup=setup, rounds=ROUNDS)  # type: ignore[no-untyped-call]
    measured.append(prepared[-1].verdict())

    for one in measured:
        assert one.exactly_once
        assert one.drained
        assert JOBS == one.completed == one.claimed
        assert one.rate > 0
    optional_benchmark.extra_info["jobs_per_second"] = [round(one.rate) for one in measured]
