"""Free runs: sound queues are never accused, whatever dies; what is broken anyway is found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queueproof.errors import QueueproofError, ServerError
from queueproof.history.calls import Call, CallKind, History, Ref
from queueproof.judge.checker import CheckResult, Violation, declare
from queueproof.postgres import Server
from queueproof.queues.model import Claim, Operation, Queue, Step
from queueproof.queues.offer import Offer
from queueproof.queues.resolve import resolve
from queueproof.queues.sqlfile import load_text
from queueproof.queues.worker import WorkerQueue
from queueproof.report.free import tell_free
from queueproof.report.text import to_text
from queueproof.run import free, wallclock
from queueproof.run.free import Free, free_run
from queueproof.run.host import Host, describe, load
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.run.places import FreeFault, plan

STRATEGIES = Path(__file__).parents[2] / "strategies"
TEMPLATES = Path(free.__file__).parents[1] / "queues" / "templates"
REFERENCE = STRATEGIES / "skip_locked.sql"
HELD = STRATEGIES / "hold_open.sql"
ALL: Mapping[FreeFault, int] = {"kill": 3, "pause": 2, "terminate": 2, "restart": 1}


class ByOwnClock(Queue):
    """A queue whose leases are measured by its workers' own clocks."""

    lease = timedelta(seconds=30)
    max_attempts = 5

    def install(self) -> Operation[None]:
        """Create the table."""
        yield Step(
            "CREATE TABLE jobs (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'queued', "
            "attempts int NOT NULL DEFAULT 0, bound int NOT NULL, until timestamptz)"
        )

    def enqueue(self, max_attempts: int) -> Operation[list[str]]:
        """Put a job in."""
        insert = "INSERT INTO jobs (bound) VALUES (:bound) RETURNING id"
        result = yield Step(insert, {"bound": max_attempts})
        return [str(row["id"]) for row in result.rows]

    def claim(self, lease: timedelta) -> Operation[list[Claim]]:
        """Take a job until a moment that is told by this process' clock."""
        result = yield Step(
            "UPDATE jobs SET state = 'running', attempts = attempts + 1, "
            "until = CAST(:until AS timestamptz) WHERE id = (SELECT id FROM jobs "
            "WHERE state = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) "
            "RETURNING id, attempts",
            {"until": str(datetime.now(UTC) + lease)},
        )
        return [Claim(str(row["id"]), dict(row)) for row in result.rows]

    def complete(self, job: Claim) -> Operation[bool]:
        """End a job, if it is still this worker's."""
        result = yield Step(
            "UPDATE jobs SET state = 'completed' "
            "WHERE id = :id AND state = 'running' AND attempts = :attempts",
            job.token,
        )
        return result.affected > 0

    def recover(self) -> Operation[list[str]]:
        """Give back what this process' clock says is over."""
        result = yield Step(
            "UPDATE jobs SET state = CASE WHEN attempts < bound THEN 'queued' ELSE 'failed' END "
            "WHERE state = 'running' AND until < CAST(:now AS timestamptz) RETURNING id",
            {"now": str(datetime.now(UTC))},
        )
        return [str(row["id"]) for row in result.rows]


class Forgiving(Queue):
    """A queue whose enqueue makes its table when there is none."""

    def install(self) -> Operation[None]:
        """Create nothing."""
        yield Step("SELECT")

    def enqueue(self) -> Operation[list[str]]:
        """Put a job in, at the second attempt at the latest."""
        insert = Step("INSERT INTO jobs DEFAULT VALUES RETURNING id")
        try:
            result = yield insert
        except ServerError:
            yield Step("CREATE TABLE jobs (id bigserial PRIMARY KEY)")
            result = yield insert
        return [str(row["id"]) for row in result.rows]

    def claim(self) -> Operation[list[Claim]]:
        """Take nothing, and leave a transaction open."""
        yield Step("BEGIN")
        return []


@contextmanager
def installed(server: Server, name: str) -> Iterator[Lab]:
    """A lab with a queue as the command line names it."""
    with open_lab(resolve(name), server) as lab:
        yield lab


def run_free(
    lab: Lab, *, faults: Mapping[FreeFault, int], held: bool = False, jobs: int = 40, seed: int = 0
) -> Free:
    """A short free run with two workers."""
    offer = Offer(lab.queue, held, tied=held or lab.queue.lease is None)
    return free_run(lab, offer, declare(offer), jobs=jobs, workers=2, seed=seed, faults=faults)


# --- sound queues -------------------------------------------------------------------------------


def test_the_reference_survives_everything(server: Server) -> None:
    """Killed and paused workers, ended backends and a killed server break nothing in it."""
    with installed(server, str(REFERENCE)) as lab:
        found = run_free(lab, faults=ALL, jobs=60)
    assert found.broken == {}
    evidence = found.evidence
    assert {kind for kind, _, _ in found.hits} == ALL.keys()
    assert (evidence["workers killed"], evidence["server kills"]) == (3, 1)
    assert evidence["operations in the midst of another's"] > 0
    assert evidence["answers lost"] >= 3
    assert evidence["operations"] < 60 * 20


@pytest.mark.sample
def test_a_history_is_whole(server: Server) -> None:
    """Calls are numbered in the order of invocation, and all are over once the run is."""
    with installed(server, str(REFERENCE)) as lab:
        history = run_free(lab, faults={"kill": 3}).history
        assert lab.execute("SELECT 1 FROM pg_stat_activity WHERE application_name <> ''") == []
    calls = history.calls
    assert [call.index for call in calls] == list(range(len(calls)))
    assert all(one.invoked < other.invoked for one, other in pairwise(calls))
    assert all(call.returned is not None and call.returned > call.invoked for call in calls)
    claims = {call.index: call for call in calls if call.kind == "claim"}
    assert all(ref.job in claims[ref.call].ids for call in calls for ref in call.refs)
    assert history.final is not None
    assert set(history.final.values()) <= {"completed", "failed"}


def test_a_claim_may_be_a_transaction_left_open(server: Server) -> None:
    """A worker whose connection is cut or that dies loses its job at once, and is not accused."""
    with installed(server, str(HELD)) as lab:
        found = run_free(lab, faults={"kill": 3, "terminate": 3}, held=True)
    assert found.broken.keys() <= {"retry-bound"}  # as it declares, where a fault meets such a job
    assert {kind for kind, _, _ in found.hits} == {"kill", "terminate"}


@pytest.mark.skipif(not wallclock.MOVABLE, reason="time-machine is not installed")
def test_a_python_queue_s_own_clock_moves_with_the_server_s(server: Server) -> None:
    """Where a class asks its process for the time, a lease runs out there as in the database."""
    with installed(server, "test_free:ByOwnClock") as lab:
        found = run_free(lab, faults={"kill": 2, "pause": 2})
    assert found.broken == {}
    recovered = [call for call in found.history.calls if call.kind == "recover" and call.ids]
    assert recovered


def test_a_program_runs_freely_too(server: Server) -> None:
    """What speaks JSON lines by itself needs no host."""
    with installed(server, f"exec: {sys.executable} {TEMPLATES / 'worker.py'}") as lab:
        found = run_free(lab, faults={"kill": 1, "pause": 1, "terminate": 1})
    assert found.broken == {}
    assert {kind for kind, _, _ in found.hits} == {"kill", "pause", "terminate"}


REGISTERS = """
        case "start":
            db.execute("INSERT INTO workers VALUES (%(worker)s)", message)
            return {}
        case "claim":"""


def test_each_life_of_a_program_begins(server: Server, tmp_path: Path) -> None:
    """Whoever is started in a dead worker's place registers too, or its claims would fail."""
    text = (TEMPLATES / "worker.py").read_text(encoding="utf-8")
    for old, new in (
        ('        case "claim":', REGISTERS),
        ('"operations": [', '"operations": ["start", '),
        ("CREATE TABLE jobs", "CREATE TABLE workers (name text PRIMARY KEY); CREATE TABLE jobs"),
        ("locked_by    text", "locked_by    text REFERENCES workers"),
    ):
        assert old in text
        text = text.replace(old, new)
    worker = tmp_path / "worker.py"
    worker.write_text(text, encoding="utf-8")
    with installed(server, f"exec: {sys.executable} {worker}") as lab:
        found = run_free(lab, faults={"kill": 2})
        ((registered,),) = lab.execute("SELECT count(*) FROM queue.workers")
    assert found.broken == {}
    assert [call.error for call in found.history.calls if call.error] == []
    assert {call.actor for call in found.history.calls if call.kind == "claim"} > {"w1", "w3"}
    assert int(str(registered)) >= 4


def test_a_program_may_hide_its_connections(server: Server, tmp_path: Path) -> None:
    """Whose backend is whose is then unknown: none is ended, and what is lost may still happen."""
    text = (TEMPLATES / "worker.py").read_text(encoding="utf-8")
    worker = tmp_path / "worker.py"
    hidden = text.replace(
        "psycopg.connect(", "psycopg.connect(application_name='its own', conninfo="
    )
    worker.write_text(hidden, encoding="utf-8")
    with installed(server, f"exec: {sys.executable} {worker}") as lab:
        found = run_free(lab, faults={"kill": 3, "terminate": 2})
    assert found.broken == {}
    assert {kind for kind, _, _ in found.hits} == {"kill"}
    lost = [call for call in found.history.calls if call.answer == "unknown"]
    assert [call.returned for call in lost] == [None] * 3


# --- broken queues, whatever the order ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "guarantee"),
    [
        ("routing_inverted_filter", "routing"),
        ("final_state_completed_lease", "final-state"),
        ("no_lost_job_fail_leaves_running", "no-lost-job"),
    ],
)
def test_what_breaks_in_any_order_is_found(server: Server, name: str, guarantee: str) -> None:
    """A defect that needs no race shows in the first free run, under its own name."""
    with installed(server, str(STRATEGIES / "broken" / f"{name}.sql")) as lab:
        found = run_free(lab, faults={})
    assert [guarantee] == list(found.broken)
    story = to_text(tell_free(found, found.broken[guarantee]))
    assert story.startswith(f"{guarantee}: ")
    assert "Seen in a free run of 2 workers with seed 0; not replayable" in story


def test_jobs_of_the_dead_that_never_come_back_are_found(server: Server) -> None:
    """Whoever dies with a job in its hands strands it, if nobody recovers it."""
    with installed(server, str(STRATEGIES / "broken" / "stale_recovery_null_lease.sql")) as lab:
        found = run_free(lab, faults={"kill": 6})
    assert list(found.broken) == ["stale-recovery"]


# --- what is drawn ------------------------------------------------------------------------------


def planned(seed: int, faults: Mapping[FreeFault, int] = ALL) -> list[tuple[Any, ...]]:
    """What a seed draws for three workers."""
    places = plan(60, 3, seed, faults, lease=30.0, queues=("default", "other"))
    return [(p.role, p.operations, p.jobs, p.queue, p.faults, p.moves) for p in places]


def test_a_seed_draws_who_does_how_much_and_what_happens_when() -> None:
    """The same seed draws the same steps for faults and for moves of the clock, another others."""
    assert planned(1) == planned(1) != planned(2)
    faults = [fault.kind for *_, faults, _ in planned(1) for fault in faults.values()]
    assert sorted(faults) == sorted(kind for kind, n in ALL.items() for _ in range(n))
    assert sum(jobs for _, _, jobs, *_ in planned(1)) == 60


def test_there_are_no_more_faults_than_steps() -> None:
    """Whoever asks for more faults than operations gets one at each of them."""
    hit = [len(faults) for *_, faults, _ in planned(1, {"kill": 1000})]
    operations = [operations for _, operations, *_ in planned(1)]
    assert hit[:3] == [len(range(n // 10, n * 2 // 3)) for n in operations[:3]]


# --- stories ------------------------------------------------------------------------------------


def told(*calls: Call) -> Free:
    """A free run of some calls, each of which took a second, one after the other."""
    for n, call in enumerate(calls):
        call.index, call.invoked, call.returned = n, 2 * n + 1, 2 * n + 2
        call.began, call.ended = 100.0 + n, 100.5 + n
    return Free(History(list(calls)), CheckResult(), [("kill", "claim", "at work")], 2, 7)


def call(kind: CallKind, actor: str, *ids: str, **facts: Any) -> Call:  # noqa: ANN401
    """An accepted call."""
    return Call(0, kind, actor, 0, 0.0, ids=ids, **{"answer": "accepted", **facts})


def test_a_story_tells_what_was_done_to_one_job() -> None:
    """Only calls on the guilty job are told, with what happened to the clock and its holders."""
    found = told(
        call("enqueue", "producer", "1", bound=1),
        call("enqueue", "producer", "2", priority=1, delay=13.7),
        call("claim", "w1", "1", limit=2),
        call("claim", "w2", "2", limit=1),
        call("crash", "w1"),
        call("crash", "w2"),
        call("advance", "clock", delay=33.4),
        call("recover", "reaper", "1"),
        call("heartbeat", "w1", refs=(Ref(2, "1"),), answer="rejected"),
        call("complete", "w1", refs=(Ref(2, "1"),), answer="unknown"),
        call("claim", "w3", "1", limit=5),
        call("complete", "w3", refs=(Ref(10, "1"),)),
    )
    story = to_text(tell_free(found, Violation("retry-bound", "w3 started attempt 2", "1", 10)))
    assert story[story.index("             seconds") :].splitlines() == [
        "             seconds  who       what",
        "      0.000 .. 0.500  producer  enqueue (max_attempts 1): job 1",
        "      2.000 .. 2.500  w1        claim of at most 2: job 1",
        "      4.000 .. 4.500  w1        is killed",
        "      6.000 .. 6.500  clock     moves on by 33.4 s",
        "      7.000 .. 7.500  reaper    recover: job 1",
        "      8.000 .. 8.500  w1        heartbeat job 1: rejected",
        "      9.000 .. 9.500  w1        complete job 1: no answer",
        "    10.000 .. 10.500  w3        claim of at most 5: job 1",
        "",
        "Why it matters: a job that cannot succeed, or that kills its worker, is tried for ever.",
    ]


def test_a_story_of_no_single_job_tells_what_happened_around_the_guilty_call() -> None:
    """A claim that took too much is shown with the calls that it met."""
    found = told(
        call("claim", "w1", "1", "2", limit=1),
        call("claim", "w2", limit=1),
        call("claim", "w3", limit=1, answer="unknown", error="57P01: gone"),
    )
    guilty = found.history.calls[0]
    guilty.returned, guilty.ended = 4, 101.6
    story = to_text(tell_free(found, Violation("claim-limit", "w1 was given 2", None, 0)))
    assert story[story.index("           seconds") :].splitlines()[:3] == [
        "           seconds  who  what",
        "    0.000 .. 1.600  w1   claim of at most 1: jobs 1, 2",
        "    1.000 .. 1.500  w2   claim of at most 1: nothing",
    ]


def test_what_a_race_causes_is_not_told_as_well() -> None:
    """Once two workers had one job, what becomes of it breaks nothing of its own."""
    found = told(call("claim", "w1", "1", limit=1))
    for guarantee in ("fencing", "single-claim", "retry-bound", "single-claim"):
        found.findings.violations.append(Violation(guarantee, "because", "1", 0))
    assert list(found.broken) == ["single-claim"]
    del found.findings.violations[1::2]
    assert list(found.broken) == ["fencing", "retry-bound"]


# --- what cannot run freely ---------------------------------------------------------------------


def test_a_queue_that_other_processes_cannot_load_is_refused(
    lab_of: Callable[[str], Lab], server: Server
) -> None:
    """The message says how to make it one that they can."""
    with pytest.raises(QueueproofError, match=r"queue\.sql: .* it has changed; save it"):
        run_free(lab_of(REFERENCE.read_text(encoding="utf-8")), faults={})

    class Local(ByOwnClock):
        """Nobody can import it."""

    with (
        open_lab(Local(), server) as lab,
        pytest.raises(QueueproofError, match=r"<locals>\.Local: .* at the top of a module"),
    ):
        run_free(lab, faults={})


def test_a_program_that_dies_by_itself_is_told(server: Server, tmp_path: Path) -> None:
    """A worker that ends without a reason is nobody's fault but its own."""
    worker = tmp_path / "worker.py"
    text = (TEMPLATES / "worker.py").read_text(encoding="utf-8")
    worker.write_text(text, encoding="utf-8")
    with installed(server, f"exec: {sys.executable} {worker}") as lab:
        worker.write_text(text.replace("CLAIM = ", "raise SystemExit(3)\nCLAIM = "))
        with pytest.raises(QueueproofError, match=r"ended with exit status 3, asked .*init"):
            run_free(lab, faults={"kill": 1})


# --- the host -----------------------------------------------------------------------------------


@pytest.fixture
def host_of(server: Server) -> Iterator[Callable[[Queue], Host]]:
    """Hosts a queue in this process, with its schema in a database of its own."""
    with server.database() as dsn:

        def host_of(queue: Queue) -> Host:
            host = Host(queue)
            assert host.answer({"op": "install", "dsn": dsn}) == {}
            assert "operations" in host.answer({"op": "init", "dsn": dsn, "queue": "default"})
            hosts.append(host)
            return host

        hosts: list[Host] = []
        yield host_of
        for host in hosts:
            host.close()


JOB = {"payload": {"to": "you"}, "priority": 1, "delay": 0, "max_attempts": 3, "queue": "default"}
CLAIM = {"op": "claim", "worker": "w", "limit": 2, "queue": "default"}


def test_a_token_comes_back_in_value_and_type(host_of: Callable[[Queue], Host]) -> None:
    """Every column of a claim travels as text with its type's oid, and is bound as that."""
    host = host_of(load(str(REFERENCE)))
    assert host.answer({"op": "enqueue", "jobs": [JOB]}) == {"ids": ["1"]}
    answer = host.answer(CLAIM)
    token = {"id": ["1", 20], "attempt": ["1", 23], "payload": ['{"to": "you"}', 3802]}
    assert answer == {"jobs": [{"id": "1", "token": token}]}
    job = json.loads(json.dumps(answer))["jobs"][0]
    beat = {"op": "heartbeat", "worker": "w", "job": job, "lease": 30}
    assert host.answer(beat) == {"accepted": True}
    assert host.answer({"op": "fail", "worker": "v", "job": job}) == {"accepted": False}
    assert host.answer({"op": "recover"}) == {"ids": []}
    batch = {"op": "complete_many", "worker": "w", "jobs": [job]}
    assert host.answer(batch) == {"ids": ["1"]}
    seen = {"id": "1", "state": "completed", "attempts": 1}
    assert host.answer({"op": "jobs"}) == {"jobs": [seen]}
    assert host.answer({"op": "cleanup", "age": 0}) == {}
    assert host.answer({"op": "jobs"}) == {"jobs": []}


def test_an_error_of_the_server_is_an_answer(host_of: Callable[[Queue], Host]) -> None:
    """It has the SQLSTATE, and the transaction that it ended is rolled back."""
    host = host_of(load(str(REFERENCE)))
    answer = host.answer({"op": "enqueue", "jobs": [{**JOB, "max_attempts": 0}]})
    error: Any = answer["error"]
    assert error["sqlstate"] == "23514"
    assert host.answer({"op": "enqueue", "jobs": [JOB]}) == {"ids": ["2"]}


def test_an_operation_may_handle_an_error_itself(host_of: Callable[[Queue], Host]) -> None:
    """What the server refuses is thrown into the operation, which may go on."""
    host = host_of(Forgiving())
    assert host.answer({"op": "enqueue", "jobs": [{}]}) == {"ids": ["1"]}
    assert host.answer(CLAIM) == {"jobs": []}  # whose transaction is rolled back
    assert host.answer({"op": "enqueue", "jobs": [{}]}) == {"ids": ["2"]}


def test_a_lost_connection_is_an_answer_and_opened_anew(
    server: Server, host_of: Callable[[Queue], Host]
) -> None:
    """Whoever loses its connection says so once, and has another one afterwards."""
    host = host_of(load(str(REFERENCE)))
    assert host.answer({"op": "jobs"}) == {"jobs": []}
    with psycopg.connect(str(server._admin), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [host.pids[0]])
    error: Any = host.answer({"op": "jobs"})["error"]
    assert error["sqlstate"] in {"08006", "57P01"}
    assert host.answer({"op": "jobs"}) == {"jobs": []}


def test_a_heartbeat_beside_an_open_transaction_has_a_connection_of_its_own(
    host_of: Callable[[Queue], Host],
) -> None:
    """Rule 3: in the transaction of a claim nobody outside would see it."""
    text = HELD.read_text(encoding="utf-8")
    beat = "\n-- name: heartbeat(id)!\nINSERT INTO beats VALUES (:id);\n"
    text = text.replace("-- name: schema#", "-- name: schema#\nCREATE TABLE beats (job bigint);")
    host = host_of(load_text(text + beat, "held.sql"))
    host.answer({"op": "enqueue", "jobs": [JOB]})
    claimed: Any = host.answer(CLAIM)
    job = claimed["jobs"][0]
    (before,) = host.pids
    assert host.answer({"op": "heartbeat", "worker": "w", "job": job}) == {"accepted": True}
    first, second = host.pids
    assert first == before != second
    assert host.answer({"op": "complete", "worker": "w", "job": job}) == {"accepted": True}


@pytest.mark.parametrize("path", sorted(STRATEGIES.glob("*.sql")), ids=lambda path: path.stem)
def test_a_hosted_queue_is_described_as_it_is(path: Path) -> None:
    """Through its host a queue offers and promises what its file does."""
    queue = load(str(path))
    hosted = WorkerQueue("hosted", [sys.executable])
    hosted.described_by(json.loads(json.dumps(describe(queue))))
    assert hosted.offers == queue.offers
    facts = ("lease", "max_attempts", "backoff", "jitter", "order", "concurrency_limit")
    for fact in (*facts, "isolation", "promises", "retry_on", "breaks"):
        assert getattr(hosted, fact) == getattr(queue, fact)
    for operation in queue.offers:
        assert queue.takes(operation) <= hosted.takes(operation)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "write python -m queueproof.run.host QUEUE"),
        (["gone.sql"], "gone.sql: No such file or directory"),
        (["exec: cat"], "exec: cat has processes of its own: it needs no host"),
    ],
)
def test_the_host_says_why_it_cannot_begin(arguments: list[str], complaint: str) -> None:
    """One line on stderr, and the exit code of what cannot be used."""
    done = subprocess.run(  # noqa: S603 - this package
        [sys.executable, "-m", "queueproof.run.host", *arguments],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (4, "", f"{complaint}\n")
