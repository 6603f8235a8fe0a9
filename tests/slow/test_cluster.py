"""A check on a cluster: a scheduler and workers of dask's, and what ends in the middle of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
from distributed import Client

from queueproof import cli, waits
from queueproof.cluster import client as cluster_client
from queueproof.cluster import members
from queueproof.cluster.client import on_cluster
from queueproof.errors import QueueproofError
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.postgres import Server, open_server
from queueproof.queues.deployment import deployment
from queueproof.queues.resolve import resolve
from queueproof.queues.sqlfile import load
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab

STRATEGIES = Path(__file__).resolve().parents[2] / "strategies"
WORKER = """import json, sys
for line in sys.stdin: print(json.dumps({"operations": ["enqueue", "claim"]}), flush=True)
"""
ASKED = ("single-claim", "fencing")
LOCAL = ("--host", "127.0.0.1", "--no-dashboard")

BRIEF = ("--only", "single-claim", "--profile", "quick")
LONG = 120.0  # seconds: a check begins slowly on a busy machine


class Cluster:
    """A scheduler, and the workers that a test adds."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.workers: list[psutil.Process] = []
        self.address = ""
        where = folder / "scheduler.json"
        self.scheduler = self._begin("scheduler", "--port", "0", "--scheduler-file", str(where))
        waits.until(lambda: where.exists() and "tcp://" in where.read_text(), LONG, "a scheduler")
        with Client(scheduler_file=str(where), set_as_default=False) as client:
            self.address = client.scheduler.address

    def _begin(self, *command: str, **environment: str) -> psutil.Process:
        log = self._stack.enter_context((self._folder / "log").open("ab"))
        process = subprocess.Popen(  # noqa: S603 - dask's programs
            [sys.executable, "-m", "dask", *command, *LOCAL],
            stdout=log,
            stderr=log,
            cwd=self._folder,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return psutil.Process(process.pid)

    def add(self, count: int = 1, **environment: str) -> None:
        """Begin workers, and wait until they have joined."""
        for _ in range(count):
            options = ("--nthreads", "1", "--no-nanny", "--death-timeout", "60")
            self.workers.append(self._begin("worker", self.address, *options, **environment))
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=60)

    def servers(self) -> list[list[psutil.Process]]:
        """The processes of each worker's server, with who started it."""
        found = [one.children(recursive=True) for one in self.workers if one.is_running()]
        return [those for those in found if any(map(_is_server, those))]

    def wait_for_servers(self) -> list[psutil.Process]:
        """Wait until each worker has a server: they are in the middle of their first unit."""
        waits.until(lambda: len(self.servers()) == len(self.workers), LONG, "servers", look=0.05)
        return [one for those in self.servers() for one in those]

    def wait_for_end(self, processes: list[psutil.Process]) -> None:
        """Wait until processes have ended."""
        waits.until(lambda: not any(one.is_running() for one in processes), LONG, "their end")


def _is_server(process: psutil.Process) -> bool:
    try:
        name: str = process.name()
    except psutil.NoSuchProcess:  # somebody starts and ends more than a server
        return False
    return name == "postgres"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler without workers."""
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


def judged(lab: Lab, **how: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - as `check_queue` has it
    """The card of a short check, without its times."""
    card = check_queue(lab, select(ASKED), profile="glance", **how)
    return [asdict(judgement) | {"seconds": 0} for judgement in card.guarantees]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`queueproof` with some arguments."""
    command = [sys.executable, "-m", "queueproof", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)  # noqa: S603 - our own


@pytest.mark.parametrize("name", ["skip_locked", "select_then_update"])
def test_the_number_of_workers_changes_nothing(name: str, server: Server, cluster: Cluster) -> None:
    """Verdicts, evidence, stories and tokens are those of a check in one process here."""
    told: list[str] = []
    with open_lab(load(STRATEGIES / f"{name}.sql"), server) as lab:
        alone = judged(lab)
        for count in (1, 2):
            cluster.add()
            with on_cluster(cluster.address, lab, told.append) as helpers:
                assert helpers.count == count
                assert judged(lab, helpers=helpers) == alone
                left = cluster.wait_for_servers()
            cluster.wait_for_end(left)
    assert told == []


def test_what_a_dead_worker_was_at_is_done_again(server: Server, cluster: Cluster) -> None:
    """The same is found, somebody says so, and its server is gone."""
    cluster.add(2)
    told: list[str] = []
    left: list[psutil.Process] = []

    def kill() -> None:
        left.extend(cluster.wait_for_servers())
        cluster.workers[0].kill()

    with open_lab(load(STRATEGIES / "select_then_update.sql"), server) as lab:
        alone = judged(lab)
        killer = Thread(target=kill)
        killer.start()
        with on_cluster(cluster.address, lab, told.append) as helpers:
            assert judged(lab, helpers=helpers) == alone
        killer.join()
    assert len(told) == 1
    assert told[0].startswith("lost the cluster's worker tcp://127.0.0.1:")
    cluster.wait_for_end(left)


def test_what_ends_every_worker_is_not_tried_for_ever(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses its unit as its worker would, and the check says so."""
    monkeypatch.setattr(cluster_client, "TIMES", 1)
    cluster.add()

    def kill() -> None:
        cluster.wait_for_servers()
        (seat,) = cluster.workers[0].children()
        seat.kill()

    with open_lab(load(STRATEGIES / "skip_locked.sql"), server) as lab:
        killer = Thread(target=kill)
        killer.start()
        with (
            on_cluster(cluster.address, lab, lambda _: None) as helpers,
            pytest.raises(QueueproofError, match=r"1 workers of tcp://.* were lost"),
        ):
            judged(lab, helpers=helpers)
        killer.join()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_everywhere(
    number: signal.Signals,
    code: int,
    cluster: Cluster,
    tmp_path: Path,
    begin: Callable[..., subprocess.Popen[str]],
) -> None:
    """The workers' processes and servers are gone, the workers themselves stay."""
    cluster.add(2)
    queue = str(STRATEGIES / "skip_locked.sql")
    asked = ("check", queue, *BRIEF, "--cluster", cluster.address)
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    check = begin(sys.executable, "-m", "queueproof", *asked, cwd=tmp_path, **piped)
    left = cluster.wait_for_servers()
    check.send_signal(number)
    _, said = check.communicate(timeout=60)
    assert check.returncode == code
    assert len(said.splitlines()) == 1, said
    cluster.wait_for_end(left)
    assert all(worker.is_running() for worker in cluster.workers)


def test_a_check_that_was_killed_leaves_nothing(
    cluster: Cluster, tmp_path: Path, begin: Callable[..., subprocess.Popen[str]]
) -> None:
    """Not even where nobody could tell the workers."""
    cluster.add()
    queue = str(STRATEGIES / "skip_locked.sql")
    asked = ("check", queue, *BRIEF, "--cluster", cluster.address)
    check = begin(sys.executable, "-m", "queueproof", *asked, cwd=tmp_path)
    left = cluster.wait_for_servers()
    check.kill()
    check.wait(LONG)
    cluster.wait_for_end(left)


def test_a_scheduler_that_goes_is_told(server: Server, cluster: Cluster) -> None:
    """There is no verdict then, and the workers' servers end."""
    cluster.add()
    left: list[psutil.Process] = []

    def kill() -> None:
        left.extend(cluster.wait_for_servers())
        cluster.scheduler.kill()

    with open_lab(load(STRATEGIES / "skip_locked.sql"), server) as lab:
        killer = Thread(target=kill)
        killer.start()
        with (
            on_cluster(cluster.address, lab, lambda _: None) as helpers,
            pytest.raises(QueueproofError, match=r"scheduler tcp://.* went away in the middle"),
        ):
            judged(lab, helpers=helpers)
        killer.join()
    cluster.wait_for_end(left)


QUEUE = """
import queueproof
from queueproof import Claim, Operation, Step
{imports}

class Mine(queueproof.Queue):
    def install(self) -> Operation[None]:
        yield Step("CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY, done bool)")

    def enqueue(self) -> Operation[list[str]]:
        result = yield Step("INSERT INTO jobs (done) VALUES (false) RETURNING id::text")
        return [str(row["id"]) for row in result.rows]

    def claim(self, limit) -> Operation[list[Claim]]:
        result = yield Step({claim}, {{"limit": limit}})
        return [Claim(str(row["id"])) for row in result.rows]
"""
CLAIM = '''
CLAIM = """UPDATE jobs SET done = true WHERE id IN (
    SELECT id FROM jobs WHERE NOT done ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
) RETURNING id::text"""
'''


def test_a_class_goes_with_its_module(
    server: Server, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker needs no file of it; what the module imports it does need, and that is said."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "queue_of_one.py").write_text(QUEUE.format(imports=CLAIM, claim="CLAIM"))
    (folder / "queue_of_two.py").write_text(
        QUEUE.format(imports="import sql_of_two", claim="sql_of_two.CLAIM")
    )
    (folder / "sql_of_two.py").write_text(CLAIM)
    monkeypatch.syspath_prepend(folder)
    cluster.add()
    with open_lab(resolve("queue_of_one:Mine"), server) as lab:
        alone = judged(lab)
        with on_cluster(cluster.address, lab, lambda _: None) as helpers:
            assert judged(lab, helpers=helpers) == alone
    with (
        open_lab(resolve("queue_of_two:Mine"), server) as lab,
        on_cluster(cluster.address, lab, lambda _: None) as helpers,
        pytest.raises(QueueproofError, match=r"tcp://.* needs sql_of_two, which is not there"),
    ):
        judged(lab, helpers=helpers)


def test_another_version_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """Before anything is done: the message says who has which."""
    other = tmp_path / "other" / "queueproof-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: queueproof\nVersion: 9.9.9\n")
    cluster.add(PYTHONPATH=str(other.parent))
    queue = str(STRATEGIES / "skip_locked.sql")
    done = run("check", queue, "--cluster", cluster.address, cwd=tmp_path)
    assert done.returncode == 4
    assert "queueproof 9.9.9, and here it is Python" in done.stderr
    assert "Traceback" not in done.stderr


def test_who_is_not_there_is_named(
    cluster: Cluster,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A scheduler that does not answer, and one without workers, are one message each."""
    queue = STRATEGIES / "skip_locked.sql"
    with monkeypatch.context() as impatient:
        impatient.setattr(waits, "CONNECT", 0.5)
        assert cli.run(["check", str(queue), "--cluster", "tcp://127.0.0.1:9"]) == 4
    said = capsys.readouterr().err
    assert "no dask scheduler answers at tcp://127.0.0.1:9 within 0.5 s" in said
    assert "Traceback" not in said
    monkeypatch.setattr(members, "JOIN", 0.5)
    with (
        open_lab(load(queue), server) as lab,
        pytest.raises(QueueproofError, match=r"a worker to join the cluster of tcp://"),
        on_cluster(cluster.address, lab, lambda _: None),
    ):
        pass


def test_two_versions_of_a_queue_go_together(server: Server, cluster: Cluster) -> None:
    """`--with`: what a deploy breaks, and in which way round, is found as in one process here."""
    cluster.add()
    old, new = STRATEGIES / "skip_locked.sql", STRATEGIES / "deploy/single_claim_another_lock.sql"
    for way in deployment(str(old), str(new)).ways:
        with open_lab(way, server) as lab:
            alone = judged(lab)
            with on_cluster(cluster.address, lab, lambda _: None) as helpers:
                assert judged(lab, helpers=helpers) == alone


def test_workers_start_the_server_that_is_asked_for(cluster: Cluster) -> None:
    """`--postgres embedded:16`: the card is that of a check in one process on the same version."""
    cluster.add()
    with (
        open_server("embedded:16") as server,
        open_lab(load(STRATEGIES / "select_then_update.sql"), server) as lab,
    ):
        alone = judged(lab)
        with on_cluster(cluster.address, lab, lambda _: None) as helpers:
            assert judged(lab, helpers=helpers) == alone


def test_what_stands_in_one_place_is_refused(server: Server, tmp_path: Path) -> None:
    """A DSN and a program, each in one sentence, before anybody asks for the scheduler."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    for asked, said in (
        (
            (str(STRATEGIES / "skip_locked.sql"), "--postgres", str(server._admin)),
            "a DSN names one",
        ),
        ((f"exec: {sys.executable} {worker}",), "is a program that stands on this machine"),
    ):
        done = run("check", *asked, "--cluster", "tcp://127.0.0.1:9", cwd=tmp_path)
        assert done.returncode == 4
        assert said in done.stderr
        assert "Traceback" not in done.stderr
