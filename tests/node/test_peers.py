"""The workers of real queues do what they are asked to, through their libraries' own code."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queueproof.postgres import Server
from queueproof.queues.resolve import resolve
from queueproof.queues.worker import WorkerProcess, WorkerQueue
from queueproof.run.lab import Lab
from tests.fix_server import PEERS

W1 = "00000000-0000-0000-0000-000000000001"
W2 = "00000000-0000-0000-0000-000000000002"
OVER = 1.07  # leases

PGQUEUER = "strategies.peers.pgqueuer_worker:PgQueuer"
PROCRASTINATE = "strategies.peers.procrastinate_worker:Procrastinate"
PG_BOSS = f"exec: node {PEERS}/pg_boss_worker.mjs"
GRAPHILE = f"exec: node {PEERS}/graphile_worker.mjs"

every_peer = pytest.mark.parametrize(
    "peer",
    [
        pytest.param(PGQUEUER, id="pgqueuer", marks=pytest.mark.slow),
        pytest.param(PROCRASTINATE, id="procrastinate", marks=pytest.mark.slow),
        pytest.param(PG_BOSS, id="pg-boss", marks=pytest.mark.node),
        pytest.param(GRAPHILE, id="graphile-worker", marks=pytest.mark.node),
    ],
)


class PeerLab(Lab):
    """A database with the clock that is moved, and the tables of a peer's own making."""

    def _run_install(self) -> None:
        assert isinstance(self.queue, WorkerQueue)
        with WorkerProcess(self.queue, "the installer") as process:
            assert process.ask(self.queue.request("install", dsn=self.conninfo), seconds=60) == {}


class Worker:
    """One life of a peer's process, beside the harness' gate."""

    def __init__(self, lab: Lab, process: WorkerProcess, name: str) -> None:
        self._lab = lab
        self._process = process
        self.name = name

    @property
    def queue(self) -> WorkerQueue:
        """What it said of itself."""
        assert isinstance(self._lab.queue, WorkerQueue)
        return self._lab.queue

    def ask(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401
        """The answer to a message, read as the harness would."""
        ahead = self._lab.now() - time.monotonic()
        assert self._process.ask(self.queue.request("clock", ahead=ahead)) == {}
        request = self.queue.request(operation, worker=self.name, **arguments)
        return self.queue.read(operation, request, self._process.ask(request))

    def begin(self) -> None:
        """Do what comes before all claims."""
        if "start" in self.queue.offers:
            assert self.ask("start") is None

    def enqueue(self, *, priority: int = 0, delay: int = 0, queue: str = "default") -> str:
        """Put a job in."""
        seconds = timedelta(seconds=delay)
        (found,) = self.ask("enqueue", payload="{}", priority=priority, delay=seconds, queue=queue)
        return str(found)

    def claim(self, limit: int = 5, queue: str = "default") -> dict[str, Any]:
        """Take some jobs; each by its id."""
        return {job.id: job for job in self.ask("claim", limit=limit, queue=queue)}

    def recover(self) -> list[str]:
        """What a recovery brought back; nothing where claims do that."""
        return list(self.ask("recover")) if "recover" in self.queue.offers else []

    def states(self) -> dict[str, str]:
        """Every job's state; one that has completed may be gone."""
        return {job.id: job.state for job in self.ask("jobs")}


WorkersOf = Callable[[str], tuple[Lab, Worker, Worker]]


@pytest.fixture
def workers_of(server: Server, request: pytest.FixtureRequest) -> Iterator[WorkersOf]:
    """Installs a peer in a database of its own, and starts two of its workers."""
    with ExitStack() as stack:

        def start(peer: str) -> tuple[Lab, Worker, Worker]:
            if "node" in peer:
                request.getfixturevalue("node_modules")
            queue = resolve(peer)
            assert isinstance(queue, WorkerQueue)
            lab = PeerLab(queue, server, stack.enter_context(server.database()))
            stack.callback(lab.close)

            def begin(name: str) -> Worker:
                process = stack.enter_context(WorkerProcess(queue, name))
                message = queue.request("init", dsn=lab.conninfo, queue="default")
                queue.described_by(process.ask(message))
                worker = Worker(lab, process, name)
                worker.begin()
                return worker

            return lab, begin(W1), begin(W2)

        yield start


def live(lab: Lab, first: Worker, second: Worker) -> None:
    """Have two workers bring five jobs to their ends, and check what each step answers."""
    lease = first.queue.lease_time
    assert lease is not None
    plain, high, middle = (first.enqueue(priority=priority) for priority in (0, 2, 1))
    routed, later = first.enqueue(queue="other"), first.enqueue(delay=60)

    mine = first.claim(limit=2)
    assert {high, middle} == set(mine)
    others = second.claim()
    assert {plain} == set(others)
    running = dict.fromkeys((plain, high, middle), "running")
    assert {**running, routed: "queued", later: "queued"} == second.states()

    assert first.ask("complete", job=mine[high])
    assert not first.ask("complete", job=mine[high])
    assert first.ask("fail", job=mine[middle], error="it failed")
    if "heartbeat" in first.queue.offers:
        assert second.ask("heartbeat", job=others[plain])
    assert second.recover() == []
    states = first.states()
    assert {plain: "running", middle: "queued"} == {job: states[job] for job in (plain, middle)}
    assert states.get(high, "completed") == "completed"

    lab.advance(OVER * lease.total_seconds())
    if "recover" in first.queue.offers:
        assert [plain] == first.recover()
        assert first.states()[plain] == "queued"
    lab.advance(60)
    again = first.claim()
    assert {plain, middle, later} == set(again)
    for job in again.values():
        assert first.ask("complete", job=job)
    (other,) = second.claim(queue="other").values()
    assert routed == other.id
    assert second.ask("complete", job=other)
    assert first.claim() == {}
    assert {"completed"} >= set(first.states().values())


@every_peer
def test_jobs_live_through_claim_failure_and_recovery(peer: str, workers_of: WorkersOf) -> None:
    """Each peer's workers do their part, and again once the tables are as after `install`."""
    lab, first, second = workers_of(peer)
    assert first.queue.order == "priority, fifo"
    live(lab, first, second)
    lab.reset()
    second.begin()
    first.begin()
    live(lab, second, first)


@pytest.mark.slow
def test_a_procrastinate_worker_that_begins_anew_has_a_row_of_its_own(
    workers_of: WorkersOf,
) -> None:
    """After a reset ids begin anew: a heartbeat counts for the worker that sent it alone."""
    lab, first, second = workers_of(PROCRASTINATE)
    for worker in (first, second):
        worker.enqueue()
        worker.claim()
    lab.reset()
    second.begin()
    first.begin()
    ours, theirs = first.enqueue(), first.enqueue()
    assert {ours} == set(second.claim(limit=1))
    assert {theirs} == set(first.claim(limit=1))
    lab.advance(20)
    assert second.ask("heartbeat")
    lab.advance(20)
    assert [theirs] == second.recover()


@pytest.mark.node
@pytest.mark.parametrize("peer", [PG_BOSS, GRAPHILE], ids=["pg-boss", "graphile-worker"])
def test_a_worker_says_what_went_wrong_and_goes_on(peer: str, workers_of: WorkersOf) -> None:
    """What the server refuses has its SQLSTATE, and the next message is heard."""
    _, worker, _ = workers_of(peer)
    message = worker.queue.request("enqueue", payload="{}", priority=10**12, queue="default")
    assert worker._process.ask(message)["error"]["sqlstate"] == "22003"
    assert {worker.enqueue()} == set(worker.claim())


@pytest.fixture
def node_worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A Node.js worker without a queue, begun: a claim tells the time, an end fails."""
    worker = tmp_path / "worker.mjs"
    worker.write_text(f"""
        import {{ serve }} from '{(PEERS / "lines.mjs").as_uri()}'
        const year = (date) => date.getUTCFullYear()
        const told = () => [year(new Date()), year(new Date(Date.now())), year(new Date(Date())),
          year(new Date(0)), year(new Date('1999-12-31Z')), new Date() instanceof Date]
        const claim = async () => ({{ jobs: told().map((one) => ({{ id: String(one) }})) }})
        const broken = Object.assign(new Error('write'), {{ code: 'EPIPE', syscall: 'write' }})
        const complete = async () => {{ throw new Error('a library says so', {{ cause: broken }}) }}
        const open = async () => ({{ claim, complete }})
        await serve({{ facts: {{}}, takes: {{}}, install: null, open }})
    """)
    with WorkerProcess(WorkerQueue("a worker", ["node", str(worker)]), "w1") as process:
        offered = process.ask({"op": "init", "dsn": ""})["operations"]
        assert offered == ["claim", "complete", "clock"]
        yield process


@pytest.mark.node
def test_a_node_worker_has_the_clock_that_it_is_given(node_worker: WorkerProcess) -> None:
    """`clock` moves what a Node.js library takes for now, and no moment that it names."""
    told = []
    for years in (0, 4):
        node_worker.ask({"op": "clock", "ahead": years * 365.25 * 86400})
        told.append([job["id"] for job in node_worker.ask({"op": "claim"})["jobs"]])
    now = int(told[0][0])
    assert told == [[*[str(now + n)] * 3, "1970", "1999", "true"] for n in (0, 4)]


@pytest.mark.node
def test_a_broken_connection_of_a_node_worker_has_a_sqlstate(node_worker: WorkerProcess) -> None:
    """An errno of five letters, which looks like one, is none."""
    error = node_worker.ask({"op": "complete"})["error"]
    assert error == {"sqlstate": "08006", "message": "a library says so"}
