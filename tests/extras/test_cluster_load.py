"""A load from a cluster: workers of dask's that drive one server together."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from threading import Thread

import psycopg
import pytest

from queueproof import waits
from queueproof.bench import bench, latency
from queueproof.bench.cell import Ground
from queueproof.bench.measured import Pace, Shape
from queueproof.bench.pool import Pools, RoundLostError
from queueproof.cluster import load as cluster_load
from queueproof.cluster.load import drivers
from queueproof.cluster.members import _matters
from queueproof.errors import QueueError, QueueproofError
from queueproof.postgres import Server, open_server
from queueproof.queues.sqlfile import load, load_text
from tests.extras.fix_cluster import LONG, Cluster
from tests.slow.fix_commands import Begin, Command

pytest_plugins = ["tests.extras.fix_cluster"]

STRATEGIES = Path(__file__).parents[2] / "strategies"
REFERENCE = STRATEGIES / "skip_locked.sql"
JOBS = 2_000


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """A scheduler with two workers."""
    cluster.have(2)
    return cluster


@pytest.fixture
def somebodys(dsn: str) -> Iterator[Server]:
    """A server that is somebody's, as far as a benchmark knows."""
    with open_server(dsn) as server:
        yield server


def pools(cluster: Cluster, told: list[str]) -> Pools:
    """Its workers, for a benchmark."""
    return partial(drivers, cluster.address, told.append)


def backends(dsn: str) -> int:
    """How many sessions have claimed in a benchmark's database, or completed what they claimed."""
    with psycopg.connect(dsn) as connection:
        ((count,),) = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname ~ '^queueproof_bench'"
            " AND query ~ 'UPDATE jobs'"
        )
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("pace", [Pace(), Pace(backlog=100), Pace(warm_up=0.02)])
def test_a_load_from_two_workers_is_one_load(
    somebodys: Server, cluster: Cluster, pace: Pace
) -> None:
    """Each drives half of the connections, each job is done once, and they end when all are."""
    told: list[str] = []
    with Ground(somebodys, 4, pace, pools=pools(cluster, told)) as ground:
        for shape in (Shape(1, 4), Shape(10, 3), Shape(10, 1)):
            prepared = ground.prepare(load(REFERENCE), shape, JOBS)
            prepared.run(LONG)
            found = prepared.verdict()
            assert found.exactly_once
            assert found.drained or pace.backlog
            assert found.completed >= JOBS
            assert 0 < found.seconds < LONG
            assert len(prepared._tallies) == shape.workers
            assert sum(tally.own_cpu > 0 for tally in prepared._tallies) == min(2, shape.workers)
        assert ground.facts == {"workers": 2, "machines": 1, "lost": 0}
    assert told == []


def test_latencies_of_all_workers_are_merged(somebodys: Server, cluster: Cluster) -> None:
    """An open loop's histogram has each claim of both."""
    with Ground(somebodys, 2, Pace(rate=100), pools=pools(cluster, [])) as ground:
        prepared = ground.prepare(load(REFERENCE), Shape(1, 2), 400)
        prepared.run(1.0)
        found = prepared.verdict()
    assert found.exactly_once
    assert all(tally.latencies for tally in prepared._tallies)
    merged = latency.empty()
    merged.decode_and_add(found.histogram)
    assert merged.get_total_count() == found.claimed == found.completed


def test_a_load_that_loses_a_worker_is_lost(dsn: str, somebodys: Server, cluster: Cluster) -> None:
    """That is told, and those who are left drive the next one."""
    told: list[str] = []

    def kill() -> None:
        waits.until(lambda: backends(dsn) == 2, LONG, "both to claim")
        cluster.workers[0].kill()

    with Ground(somebodys, 2, Pace(rate=50), pools=pools(cluster, told)) as ground:
        killer = Thread(target=kill)
        prepared = ground.prepare(load(REFERENCE), Shape(1, 2), 400)
        killer.start()
        with pytest.raises(RoundLostError, match=r"lost the cluster's worker tcp://"):
            prepared.run(LONG)
        killer.join()
        ground.pace = Pace()
        prepared = ground.prepare(load(REFERENCE), Shape(1, 2), 400)
        prepared.run(LONG)
        assert prepared.verdict().exactly_once
        assert ground.facts == {"workers": 1, "machines": 1, "lost": 1}
    assert len(told) == 1
    assert told[0].endswith(": the round does not count")


def test_a_round_is_measured_again_as_a_whole(dsn: str, cluster: Cluster) -> None:
    """Where it lost a worker: each queue has as many rounds as were asked for, of the same load."""
    told: list[str] = []

    def kill(what: str, _share: float) -> None:
        if what.startswith("round 2/2: for_update") and cluster.workers[0].is_running():
            cluster.workers[0].kill()
            cluster.workers[0].wait()

    queues = [load(REFERENCE), load(STRATEGIES / "for_update.sql")]
    report = bench.run(
        queues,
        [10],
        [2],
        rounds=2,
        seconds=0.1,
        postgres=dsn,
        pools=pools(cluster, told),
        progress=kill,
    )
    assert [len(entry.runs) for entry in report.entries] == [2, 2]
    assert all(run.exactly_once for entry in report.entries for run in entry.runs)
    assert report.method["drivers"] == {"workers": 1, "machines": 1, "lost": 1}
    assert len(told) == 1


def test_a_round_is_not_begun_for_ever(
    dsn: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers who hear of each start too late begin none, and the third time is the end."""
    monkeypatch.setattr(cluster_load, "SOON", -1.0)
    told: list[str] = []
    with pytest.raises(QueueproofError, match=r"heard of the start .* s late, 3 times in the same"):
        bench.run([load(REFERENCE)], [1], [2], postgres=dsn, pools=pools(cluster, told))
    assert len(told) == 3


def test_what_the_server_rejects_is_the_queues(somebodys: Server, cluster: Cluster) -> None:
    """Under load as before it; the next load finds everybody ready."""
    text = REFERENCE.read_text()
    done = "SET status       = 'completed'"
    assert done in text
    text = text.replace(done, f"{done}, priority = 1 / 0")
    broken = load_text(text, "broken.sql")
    with Ground(somebodys, 2, pools=pools(cluster, [])) as ground:
        prepared = ground.prepare(broken, Shape(1, 2), 100)
        with pytest.raises(QueueError, match="division by zero"):
            prepared.run(LONG)
        prepared = ground.prepare(load(REFERENCE), Shape(1, 2), 100)
        prepared.run(LONG)
        assert prepared.verdict().exactly_once


def test_a_report_says_who_drove_the_load(
    dsn: str, cluster: Cluster, tmp_path: Path, command: Command
) -> None:
    """`bench --cluster` is a benchmark like others; its workers' processes are gone then."""
    asked = ("--batch", "10", "--workers", "2", "--rounds", "1", "--seconds", "0.2")
    figures = tmp_path / "figures.json"
    where = ("--postgres", dsn, "--cluster", cluster.address, "--json", figures)
    ran = command("bench", REFERENCE, *asked, *where)
    assert ran.code == 0, ran.err
    assert "The load came from 2 dask workers on 1 machine" in " ".join(ran.out.split())
    report = json.loads(figures.read_text())
    assert report["queueproof"]["method"]["drivers"] == {"workers": 2, "machines": 1, "lost": 0}
    cluster.wait_for_end(cluster.at_work())


@pytest.fixture
def begun(dsn: str, cluster: Cluster, begin_command: Begin) -> Iterator[subprocess.Popen[str]]:
    """A benchmark, in the middle of a long load; its backends are gone before the next one."""
    asked = ("--rate", "20", "--workers", "2", "--seconds", "60", "--rounds", "1")
    where = ("--postgres", dsn, "--cluster", cluster.address)
    process = begin_command("bench", REFERENCE, *asked, *where)
    waits.until(lambda: backends(dsn) == 2, LONG, "both to claim")
    yield process
    process.kill()
    waits.until(lambda: backends(dsn) == 0, LONG, "both to be gone")


def test_a_signal_ends_a_load_everywhere(cluster: Cluster, begun: subprocess.Popen[str]) -> None:
    """The processes at the workers are gone, and the workers stay."""
    left = cluster.at_work()
    assert left
    begun.send_signal(signal.SIGTERM)
    _, said = begun.communicate(timeout=60)
    assert (begun.returncode, len(said.splitlines())) == (143, 1), said
    cluster.wait_for_end(left)
    assert [worker.poll() for worker in cluster.workers] == [None, None]


@pytest.mark.parametrize(("error", "told"), [(CancelledError(), False), (ValueError(), True)])
def test_what_nobody_waits_for_any_more_is_not_logged(error: Exception, *, told: bool) -> None:
    """Of an end in the midst of a load there is one line, and no traceback of tornado's."""
    facts = (type(error), error, None)
    record = logging.LogRecord("tornado.application", logging.ERROR, "", 0, "", None, facts)
    assert _matters(record) is told


@pytest.mark.parametrize("what", ["client", "worker", "scheduler"])
def test_nothing_is_left_of_a_load_whose_end_nobody_could_tell(
    what: str, cluster: Cluster, begun: subprocess.Popen[str]
) -> None:
    """Whoever is killed: the processes that drove it end soon, in the middle of their time."""
    left = cluster.at_work()
    victims: dict[str, Callable[[], None]] = {
        "client": begun.kill,
        "worker": cluster.workers[0].kill,
        "scheduler": cluster.scheduler.kill,
    }
    mine = cluster.workers[0].children(recursive=True) if what == "worker" else left
    victims[what]()
    cluster.wait_for_end(mine)
    if what == "scheduler":
        _, said = begun.communicate(timeout=60)
        assert begun.returncode == 4
        assert "went away in the middle of the work" in said


def test_a_load_needs_a_server_for_all(worker_program: str, command: Command) -> None:
    """A server of our own, what is done here, and a program are each one message."""
    for asked, said in (
        ((REFERENCE,), "share one server, which every one of them can reach"),
        ((REFERENCE, "--endure", "1"), "--endure, --yardstick and --rounds 0 are done here"),
        ((worker_program,), "is a program that stands on this machine"),
    ):
        ran = command("bench", *asked, "--cluster", "tcp://127.0.0.1:9")
        assert (ran.code, said in ran.err, "Traceback" in ran.err) == (4, True, False)


def test_a_worker_that_does_not_reach_the_server_is_named(dsn: str, cluster: Cluster) -> None:
    """With what libpq says of it there."""
    cluster.add(PGCHANNELBINDING="require")
    with pytest.raises(
        QueueproofError, match=r"worker tcp://127.0.0.1:\d+: no connection .* channel binding"
    ):
        bench.run([load(REFERENCE)], [1], [3], postgres=dsn, pools=pools(cluster, []))
