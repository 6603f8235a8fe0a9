"""A check on a cluster: dask's scheduler and workers, what ends in the middle, and who is none."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm import CommClosedError

from queueproof import cli, waits
from queueproof.cluster import client as cluster_client
from queueproof.cluster.client import _matters, joined, on_cluster
from queueproof.errors import Exit, QueueproofError
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.postgres import Server, open_server
from queueproof.queues.deployment import deployment
from queueproof.queues.model import Queue
from queueproof.queues.resolve import resolve
from queueproof.queues.sqlfile import load, load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from tests.extras.fix_cluster import LONG, Cluster, Meanwhile
from tests.fix_commands import WORKER_PROGRAM, Command
from tests.fix_places import REFERENCE, STRATEGIES
from tests.fix_programs import Begin, finished
from tests.fix_queues import CLAIM, RACES, queue_file
from tests.fix_queues import SOUND as STEPS

pytest_plugins = ["tests.extras.fix_cluster"]

SOUND, BROKEN = REFERENCE, STRATEGIES / "select_then_update.sql"
SMALL, RACING = (load_text(queue_file(claim=claim), "q.sql") for claim in (CLAIM, RACES))
ASKED = ("single-claim", "claim-limit", "isolation")
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def judged(lab: Lab, asked: Sequence[str] = ("single-claim",), **how: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - as `check_queue` has it
    """The card of a short check, without its times."""
    card = check_queue(lab, select(asked), profile="glance", **how)
    return [asdict(judgement) | {"seconds": 0} for judgement in card.guarantees]


def there(queue: Queue, server: Server, cluster: Cluster, **how: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - the same
    """The card of a check on a cluster."""
    with (
        open_lab(queue, server) as lab,
        on_cluster(cluster.address, lab, lambda _: None) as helpers,
    ):
        return judged(lab, helpers=helpers, **how)


def compare(queue: Queue, server: Server, cluster: Cluster) -> None:
    """Verdicts, evidence, stories and tokens are those of a check in one process here."""
    with open_lab(queue, server) as lab:
        alone = judged(lab)
    assert there(queue, server, cluster) == alone


@pytest.mark.parametrize(
    ("queue", "asked"), [(SMALL, ASKED), (RACING, ASKED[::2])], ids=["sound", "broken"]
)
def test_the_number_of_workers_changes_nothing(
    queue: Queue, asked: tuple[str, ...], server: Server, cluster: Cluster
) -> None:
    """Of two the card is that of a check in one process here, as below that of one worker is."""
    cluster.have(2)
    told: list[str] = []
    with open_lab(queue, server) as lab:
        alone = judged(lab, asked)
        with on_cluster(cluster.address, lab, told.append) as helpers:
            assert helpers.count == 2
            assert judged(lab, asked, helpers=helpers) == alone
            left = cluster.at_work()
            assert left
        cluster.wait_for_end(left)
    assert told == []


def test_what_a_dead_worker_was_at_is_done_again(server: Server, cluster: Cluster) -> None:
    """The same is found, somebody says so, and its server is gone."""
    cluster.have(2)
    told: list[str] = []
    with open_lab(load(BROKEN), server) as lab:
        alone = judged(lab)
        meanwhile = Meanwhile(cluster, lambda it: it.serving()[0].kill())
        with on_cluster(cluster.address, lab, told.append) as helpers:
            assert judged(lab, helpers=helpers, progress=meanwhile) == alone
    assert len(told) == 1
    assert told[0].startswith("lost the cluster's worker tcp://127.0.0.1:")
    cluster.wait_for_end(meanwhile.left)


def test_what_ends_every_worker_is_not_tried_for_ever(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses its unit as its worker would, and the check says so."""
    monkeypatch.setattr(cluster_client, "TIMES", 1)

    def kill(cluster: Cluster) -> None:
        (seat,) = [one for one in cluster.at_work() if one.ppid() == cluster.workers[0].pid]
        seat.kill()

    with pytest.raises(QueueproofError, match=r"workers of tcp://.* were lost"):
        there(load(SOUND), server, cluster, progress=Meanwhile(cluster, kill))


class Lost:
    """A seat whose process is killed at once."""

    def submit(self, _unit: bytes) -> Future[bytes]:
        """See `Seat`."""
        future = Future[bytes]()
        future.set_exception(BrokenProcessPool())
        return future


def test_a_lost_unit_keeps_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker looks for no cycles: a seat in one would outlive its client."""
    task = SimpleNamespace(state="executing")
    state = SimpleNamespace(tasks={"unit": task})
    worker = SimpleNamespace(address="", get_current_task=lambda: "unit", state=state)
    monkeypatch.setattr(cluster_client, "get_worker", lambda: worker)
    seat: Any = Lost()
    left = weakref.ref(seat)
    gc.disable()
    try:
        with suppress(BrokenProcessPool):
            cluster_client._do(seat, b"")
        del seat
        assert left() is None
    finally:
        gc.enable()


def begun(begin: Begin, cluster: Cluster) -> tuple[Any, ...]:
    """A check in the middle of its first units, and what works for it at the cluster."""
    asked = ("--only", "single-claim", "--profile", "quick", "--cluster", cluster.address)
    check = begin("check", SOUND, *asked)
    return check, cluster.wait_for_server()


def test_a_signal_ends_it_everywhere(cluster: Cluster, begin_command: Begin) -> None:
    """The workers' processes and servers are gone, after kill -9 too; the workers stay."""
    cluster.have(2)
    check, left = begun(begin_command, cluster)
    check.send_signal(signal.SIGINT)
    _, said = check.communicate(timeout=60)
    assert (check.returncode, len(said.splitlines())) == (130, 1), said
    cluster.wait_for_end(left)
    assert [worker.poll() for worker in cluster.workers] == [None, None]
    check, left = begun(begin_command, cluster)
    check.kill()
    check.wait(LONG)
    cluster.wait_for_end(left)


def test_a_late_answer_is_not_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """What a signal ends may be waiting for the scheduler, whose connection is closed then."""

    async def lose() -> None:
        asyncio.get_running_loop().create_future().set_exception(CommClosedError("gone"))

    with joined(cluster.address) as client:
        client.sync(lose)
    gc.collect()
    assert caplog.text == ""


def test_a_cluster_that_does_not_hear_that_we_go_is_left(cluster: Cluster) -> None:
    """The end of a check fails by it no more, and dask does not wait for it again."""
    held = threading.Event()
    with joined(cluster.address) as client:
        client.loop.add_callback(held.wait, LONG)
    assert client.status == "closed"
    held.set()


def test_a_scheduler_that_goes_is_told(server: Server, cluster: Cluster) -> None:
    """There is no verdict then, and the workers' servers end."""
    meanwhile = Meanwhile(cluster, lambda it: it.scheduler.kill())
    with pytest.raises(QueueproofError, match=r"scheduler tcp://.* went away in the middle"):
        there(load(SOUND), server, cluster, progress=meanwhile)
    cluster.wait_for_end(meanwhile.left)


def test_a_class_goes_with_its_module(
    server: Server, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker needs no file of it; what the module imports it does need, and that is said."""
    folder = tmp_path / "here"
    folder.mkdir()
    one = STEPS.replace("FROM jobs RET", "FROM jobs WHERE id = (SELECT min(id) FROM jobs) RET")
    (folder / "queue_of_one.py").write_text(one)
    two = one.replace('row["id"]', "row[sql_of_two.ID]")
    (folder / "queue_of_two.py").write_text(f"import sql_of_two\n{two}")
    (folder / "sql_of_two.py").write_text("ID = 'id'")
    monkeypatch.syspath_prepend(folder)
    compare(resolve("queue_of_one:Mine"), server, cluster)
    with pytest.raises(QueueproofError, match=r"tcp://.* needs sql_of_two, which is not there"):
        there(resolve("queue_of_two:Mine"), server, cluster)


def refused(command: Command, *asked: object) -> str:
    """Why a check does not begin."""
    ran = command("check", *asked)
    assert (ran.code, "Traceback" in ran.err) == (4, False)
    return ran.err


def test_another_version_is_refused(cluster: Cluster, tmp_path: Path, command: Command) -> None:
    """Before anything is done: the message says who has which."""
    other = tmp_path / "other" / "queueproof-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: queueproof\nVersion: 9.9.9\n")
    cluster.add(PYTHONPATH=str(other.parent))
    said = refused(command, SOUND, "--cluster", cluster.address)
    assert "queueproof 9.9.9, and here it is Python" in said


def test_who_is_not_there_is_named(
    standing: Callable[[], Cluster],
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    """A scheduler that does not answer, and one without workers, are one message each."""
    with monkeypatch.context() as impatient:
        impatient.setattr(waits, "CONNECT", 0.5)
        said = refused(command, SOUND, "--cluster", "tcp://127.0.0.1:9")
    assert "no dask scheduler answers at tcp://127.0.0.1:9 within 0.5 s" in said
    monkeypatch.setattr(cluster_client, "JOIN", 0.5)
    cluster = standing()
    cluster.have(0)
    with pytest.raises(QueueproofError, match=r"a worker to join the cluster of tcp://"):
        there(load(SOUND), server, cluster)


def test_two_versions_of_a_queue_go_together(
    server: Server, cluster: Cluster, tmp_path: Path
) -> None:
    """`--with`: what a deploy breaks, and in which way round, is found as in one process here."""
    for name, claim in (("old", CLAIM), ("new", RACES)):
        (tmp_path / f"{name}.sql").write_text(queue_file(claim=claim))
    for way in deployment(str(tmp_path / "old.sql"), str(tmp_path / "new.sql")).ways:
        compare(way, server, cluster)


def test_workers_start_the_server_that_is_asked_for(cluster: Cluster) -> None:
    """`--postgres embedded:16`: the card is that of a check in one process on the same version."""
    with open_server("embedded:16") as server:
        compare(RACING, server, cluster)


def test_what_is_in_one_place_is_refused(dsn: str, command: Command) -> None:
    """A DSN and a program, each in one sentence, before anybody asks for the scheduler."""
    for asked, said in (
        ((SOUND, "--postgres", dsn), "a DSN names one"),
        ((WORKER_PROGRAM,), "is a program that stands on this machine"),
    ):
        assert said in refused(command, *asked, "--cluster", "tcp://127.0.0.1:9")


def test_who_helps_begins_without_what_it_does_not_need() -> None:
    """Processes beside a check, and those at a cluster's workers, import what they use alone."""
    code = (
        "import sys, queueproof.examine.work;"
        "import queueproof.cluster.seat;"
        "print([m for m in ('hypothesis', 'distributed', 'rich', 'jinja2') if m in sys.modules])"
    )
    assert finished(sys.executable, "-c", code, check=True).stdout == "[]\n"


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that says the same to everybody, or nothing, and keeps the line open."""
    said: bytes = request.param
    with socket.create_server(("127.0.0.1", 0)) as listening:
        lines = []

        def serve() -> None:
            with suppress(OSError):  # it is closed at the end
                while True:
                    line, _ = listening.accept()
                    lines.append(line)
                    line.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for line in lines:
            line.close()


def test_what_can_be_no_address_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a missing file is looked at before; for TLS what is missing is named."""
    assert cli.run(["check", "no such file.sql", "--cluster", "localhost"]) == Exit.UNUSABLE
    told = "queueproof: --cluster 'localhost': write tcp://host:port of a scheduler\n"
    assert capsys.readouterr().err == told
    told = r"tls:// needs certificates: see `distributed\.comm\.tls`"
    with pytest.raises(QueueproofError, match=told), joined("tls://127.0.0.1:9"):
        pass


@pytest.mark.parametrize("stranger", [b"", HTTP, b"\0" * 64], indirect=True, ids=repr)
def test_who_is_no_scheduler_is_told_soon(stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody silent, who speaks HTTP, or something else: dask's client itself would stay."""
    monkeypatch.setattr(waits, "CONNECT", 1.0)
    told = rf"no dask scheduler answers at tcp://127\.0\.0\.1:{stranger} within 1 s: "
    with pytest.raises(QueueproofError, match=told), joined(f"tcp://127.0.0.1:{stranger}"):
        pass


@pytest.mark.parametrize(("error", "told"), [(CancelledError(), False), (ValueError(), True)])
def test_what_nobody_waits_for_any_more_is_not_logged(error: Exception, *, told: bool) -> None:
    """An end in the midst of a check is told in one line, without a traceback of tornado's."""
    facts = (type(error), error, None)
    record = logging.LogRecord("tornado.application", logging.ERROR, "", 0, "", None, facts)
    assert _matters(record) is told
