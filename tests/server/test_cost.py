"""The benchmark: what it sends, what it counts, how it ends, and what its report says."""

import base64
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

import workshop
from queueproof.bench import chart, latency, render
from queueproof.bench.bench import Group, Setting, groups, measure, names_of
from queueproof.bench.cell import Ground
from queueproof.bench.compare import compare, unfit
from queueproof.bench.counters import COUNTED, LEAST_JOBS, LOCKING, WARM
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.bench.load import (
    compile_queue,
    ends_open,
    literal_limit,
    refuse,
    why_not,
)
from queueproof.bench.measured import Measured, Pace, Shape, percentile
from queueproof.bench.pool import Pool, WorkerLostError
from queueproof.bench.session import Field, LoadSession
from queueproof.errors import Exit, QueueError
from queueproof.postgres import Server
from queueproof.queues.model import Queue
from queueproof.queues.sqlfile import SqlFileQueue, load
from queueproof.queues.worker import WorkerQueue
from queueproof.report.page import to_page
from tests.fix_loads import (
    BOTH,
    BRIEF,
    CLAIM,
    COMPLETE,
    RETRIED,
    all_done,
    briefly,
    every_second_call,
    measured,
    program,
    queue,
    registered,
    scripted,
    strategy,
)
from tests.fix_places import ROOT, STRATEGIES
from tests.fix_programs import PATIENCE, finished
from workshop.__main__ import HOLD, drawn, main, named, pages, peers, plan, strategies
from workshop.yardstick import compared, pgbench


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("SELECT 1 LIMIT :limit", "SELECT 1 LIMIT 10"),
        ("SELECT :limit::int + :limit", "SELECT 10::int + 10"),
        *[("SELECT ':limit', :limits, :worker -- :limit",) * 2],
        ("SELECT a[1:limit] LIMIT\n  :limit", "SELECT a[1:limit] LIMIT\n  10"),
    ],
)
def test_the_limit_is_a_literal_and_nothing_else_is(text: str, sent: str) -> None:
    """`:limit` becomes a number wherever it is a parameter, and only there."""
    assert sent == literal_limit(text, 10)


def test_a_compiled_claim_has_no_limit_parameter(server: Server) -> None:
    """The claim of the reference takes the worker and the queue; 10 stands in its text."""
    with server.database() as conninfo:
        session = LoadSession(conninfo, b"SET search_path = public")
        reference = strategy("skip_locked")
        for statement in reference.blocks["schema"].statements:
            session.command(statement.text.encode())
        compiled = compile_queue(reference, session.pgconn, Shape(10, 1))
        held = compile_queue(reference, session.pgconn, Shape(10, 1, HOLD))
        session.pgconn.finish()
    (claim,) = compiled.claim.commands
    assert b"LIMIT 10\n" in claim.sql
    assert {"worker", "queue"} == set(claim.parameters)
    assert compiled.many
    assert [column.name for column in compiled.token] == ["ids", "attempts"]
    assert [(b"BEGIN", 0.0), (claim.sql, 0.0), (b"COMMIT", HOLD)] == [
        (command.sql, command.wait) for command in held.claim.commands
    ]


SINGLE = CLAIM.replace(":limit", "1").replace("(limit)", "")
AT_MOST_ONCE = load(Path(workshop.__file__).parent / "at_most_once.sql")
EVIL = """</script></svg><script>alert(1)</script>'"><img src=x onerror=alert(1)>"""
ONE = Shape(1, 1)
PACES = (Pace(-1), Pace(1e9), Pace(backlog=-1), Pace(payload=10**9), Pace(warm_up=99))
SOUND = ("skip_locked", "for_update", "nowait", "advisory_lock", "in_subselect")
KEEPING_LITTLE = ("sound/delete_on_complete", "sound/ready_and_claimed")
RUN = Measured(
    jobs=100,
    completed=100,
    seconds=1.0,
    drained=True,
    claimed=100,
    double_claims=0,
    unfinished=0,
    lost=0,
    rejected=0,
    empty=1,
    retries=2,
    deadlocks=0,
    lock_waits=0.5,
    p50=0.001,
    p95=0.002,
    p99=0.003,
)
METHOD = {
    "server": "PostgreSQL 18.4, embedded",
    "settings": {"fsync": "on"},
    "durable": True,
    "cores": 2,
    "load_before": 0.5,
    "rounds": 3,
    "seconds": 0.7,
    "date": "2026-01-02T03:04:05Z",
    "queues": {},
}


@pytest.mark.parametrize(
    ("name", "batch", "hold", "reason"),
    [
        ("skip_locked", 1000, HOLD, None),
        ("for_update", 10, HOLD, None),
        ("hold_open", 1, HOLD, None),
        ("hold_open", 10, 0.0, "one transaction open per job"),
        ("select_then_update", 10, 0.0, None),
        ("select_then_update", 1, HOLD, "more than one transaction"),
        ("without a limit", 1, 0.0, None),
        ("without a limit", 2, 0.0, "has no limit"),
    ],
)
def test_what_does_not_fit_says_why(name: str, batch: int, hold: float, reason: str | None) -> None:
    """A claim that is its transaction, or has no limit, takes one job; one in two holds none."""
    asked = queue(claim=SINGLE) if name == "without a limit" else strategy(name)
    told = why_not(asked, Shape(batch, 1, hold))
    assert told is None if reason is None else told and reason in told


@pytest.mark.parametrize(
    ("block", "is_open"),
    [("BEGIN; SELECT 1;", True), ("BEGIN; SELECT 1; COMMIT;", False), ("SELECT 1;", False)],
)
def test_an_open_transaction_is_seen(block: str, *, is_open: bool) -> None:
    """A block ends inside a transaction if it begins one and does not end it."""
    assert is_open == ends_open(queue(claim=f"\n{block}").blocks["claim"])


@pytest.mark.parametrize(
    ("texts", "oid", "literal"),
    [
        ([b"1", b"2"], 20, b"{1,2}"),
        ([b"1", None], 20, b'{"1",NULL}'),
        ([b'a"b', b"c\\d", b"e,f", b"NULL", None], 25, b'{"a\\"b","c\\\\d","e,f","NULL",NULL}'),
        ([], 20, b"{}"),
    ],
)
def test_arrays_are_literals(texts: list[bytes | None], oid: int, literal: bytes) -> None:
    """Elements are quoted unless they are numbers; NULL is not the text NULL."""
    assert literal == Field(0, "id", oid, 0).array_of(texts)


@pytest.mark.parametrize(
    ("path", "shape"),
    [(path, Shape(batch, 3)) for path in SOUND + KEEPING_LITTLE for batch in (1, 10)]
    + [("hold_open", Shape(1, 3, hold)) for hold in (0.0, HOLD)]
    + [(path, Shape(10, 2, HOLD)) for path in ("skip_locked", "for_update")],
)
def test_a_sound_queue_is_drained_once(ground: Ground, path: str, shape: Shape) -> None:
    """Every job is handed out once and completed, whatever the strategy and its steps."""
    # Also where `complete` ends the transaction that its claim has begun.
    found = measured(ground, strategy(path), shape, 60)
    assert all_done(found)
    assert (found.jobs, found.completed, found.claimed, found.rejected) == (60, 60, 60, 0)
    assert 0 < found.p50 <= found.p95 <= found.p99
    assert found.p50 >= shape.hold or path == "hold_open"  # it is held behind the claim


@pytest.fixture
def paced(ground: Ground) -> Iterator[Ground]:
    """The ground, whose pace a test may set, and whether it completes and claims apart."""
    yield ground
    ground.pace, ground.apart = Pace(), False


@pytest.mark.parametrize("batch", [1, 10])
def test_one_statement_completes_a_batch_and_claims_the_next(paced: Ground, batch: int) -> None:
    """With `complete_and_claim` a worker sends half as much, and every job is still done once."""
    lease_table = strategy("lease_table")
    assert measured(paced, lease_table, Shape(batch, 3)).exactly_once
    together = measured(paced, lease_table, Shape(batch, 1))
    paced.apart = True  # as beside pgbench, which cannot hand a batch on
    apart = measured(paced, lease_table, Shape(batch, 1))
    assert all_done(together)
    assert (together.round_trips, together.empty) == (60 // batch + 1, 1)
    assert (apart.round_trips, apart.empty) == (2 * 60 // batch + 1, 1)


@pytest.mark.parametrize(
    ("blocks", "shape"),
    [({}, Shape(1, 3, HOLD)), ({"complete_and_claim": BOTH}, Shape(7, 1))],
    ids=["job by job", "a batch of `complete_and_claim`, which ends by `complete`"],
)
def test_what_is_claimed_is_completed(ground: Ground, blocks: dict[str, str], shape: Shape) -> None:
    """When the time is up, that is; the rest is still queued."""
    found = briefly(ground, queue(**blocks), shape, 5000)
    assert not found.drained
    assert found.exactly_once
    assert 0 < found.completed == found.claimed < found.jobs


def test_a_batch_that_is_handed_on_again_is_kept_and_counted(ground: Ground) -> None:
    """After a deadlock the same batch is completed; one that is not accepted is told."""
    failing = every_second_call("40P01", BOTH)
    found = measured(ground, queue(complete_and_claim=failing), Shape(7, 1))
    assert all_done(found)
    assert found.retries == found.deadlocks > 0
    deaf = queue(complete_and_claim=BOTH.replace("ANY (:ids)", "ANY (:ids) AND id > 7"))
    found = briefly(ground, deaf, Shape(7, 1), enough=lambda found: found.completed >= 53)
    assert (found.rejected, found.unfinished, found.completed) == (7, 7, 53)


def test_an_enqueue_of_two_statements_is_run_step_by_step(ground: Ground) -> None:
    """The jobs are put in through the queue's own `enqueue`, whatever it consists of."""
    two = (
        "INSERT INTO jobs DEFAULT VALUES RETURNING id;\n"
        "UPDATE jobs SET note = 'in' WHERE id = ANY (:ids) RETURNING id;\n"
    )
    found = measured(ground, queue(enqueue=two), jobs=5)
    assert (found.jobs, found.completed, found.exactly_once) == (5, 5, True)


def test_what_is_handed_out_twice_or_not_completed_is_counted(ground: Ground) -> None:
    """A claim of what is completed is no throughput; and the table has the last word."""
    again = queue(
        claim="SELECT min(id) AS id FROM jobs;",
        complete=COMPLETE.replace(" AND status = 'running'", ""),
    )
    found = briefly(ground, again, Shape(1, 1), enough=lambda found: found.double_claims)
    assert not found.exactly_once
    assert found.completed == 1
    assert found.claimed - 1 == found.double_claims > 0
    half = "SET status = CASE WHEN id % 2 = 0 THEN 'completed' ELSE status END"
    lying = queue(complete=COMPLETE.replace("SET status = 'completed'", half))
    found = measured(ground, lying, Shape(1, 1), 10)
    assert not found.exactly_once
    assert (found.completed, found.unfinished, found.rejected) == (5, 5, 0)


@pytest.mark.parametrize(("header", "sqlstate"), [(RETRIED, "55P03"), ("", "40P01")])
def test_errors_for_this_time_are_retried(ground: Ground, header: str, sqlstate: str) -> None:
    """A claim whose every second call fails still drains the queue; a deadlock needs no listing."""
    found = measured(ground, queue(header=header, claim=every_second_call(sqlstate)))
    assert all_done(found)
    assert found.retries > 0
    assert found.deadlocks == (found.retries if sqlstate == "40P01" else 0)


def test_what_one_worker_costs_is_the_same_each_time(ground: Ground) -> None:
    """Counters are the same within a few per cent; a claim that reads more shows in them."""
    first, second = (ground.count(queue(), 10) for _ in range(2))
    # A page that is pruned a claim sooner or later makes the small difference.
    assert first == pytest.approx(second, rel=0.05)
    assert first["round_trips_per_job"] == 1.1  # a claim of ten, and ten completions
    assert first["rows_changed_per_job"] == 2
    assert 0 < first["buffers_per_claim"] < 10 * first["buffers_per_job"]
    reading = CLAIM.replace("UPDATE", "SELECT count(*) AS counted FROM jobs;\nUPDATE", 1)
    assert ground.count(queue(claim=reading), 10)["buffers_per_claim"] > first["buffers_per_claim"]


def test_rows_that_a_claim_locks_are_counted(ground: Ground) -> None:
    """Those that it takes, more where it sorts after it has locked; in an open transaction too."""
    assert ground.count(queue(), 10)["rows_locked_per_claim"] == 10
    all_first = CLAIM.replace(
        "ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED",
        "AND id IN (SELECT id FROM jobs FOR UPDATE SKIP LOCKED) ORDER BY id LIMIT :limit",
    )
    assert all_first != CLAIM
    left = LEAST_JOBS - 10 * (WARM + COUNTED + LOCKING)
    assert ground.count(queue(claim=all_first), 10)["rows_locked_per_claim"] > left
    for name in ("skip_locked", "hold_open"):
        counted = ground.count(strategy(name), 1)
        assert counted["rows_locked_per_claim"] == 1
        assert counted["buffers_per_job"] > 0
        # A session hands nothing over before its transaction ends.
        assert ("buffers_per_claim" in counted) == (name == "skip_locked")


def test_a_load_is_counted(ground: Ground) -> None:
    """All round trips and rows of the workers, and the time of their processes and backends."""
    found = measured(ground, queue(), Shape(10, 3), 600)
    assert found.rows_changed == 2 * 600
    assert found.round_trips == 600 + 60 + found.empty
    assert found.buffers > 600
    assert found.wal_bytes > 600
    assert found.worker_cpu > 0
    assert found.server_cpu
    assert sum(found.waits.values()) == pytest.approx(1)


def test_latency_counts_from_when_a_claim_was_due(paced: Ground) -> None:
    """One worker can do fifty claims a second, two hundred are due: the wait is in the latency."""
    pytest.importorskip("hdrh")
    paced.pace = Pace(rate=200)
    found = measured(paced, queue(), Shape(1, 1, 0.02), 300, 0.5)
    assert found.exactly_once
    assert found.completed <= 25
    assert found.late + found.skipped >= 50
    assert found.p99 > 10 * 0.02  # a closed loop would say 0.02


def test_a_load_has_the_beginning_and_the_payload_that_were_asked_for(paced: Ground) -> None:
    """Work done before is no part of the rate, and a backlog stays; jobs have their size."""
    paced.pace = Pace(backlog=2000, warm_up=0.1)
    found = measured(paced, queue(), Shape(1, 2), 1000)
    assert found.exactly_once
    assert found.jobs == 3000
    assert not found.drained
    assert 0 < found.warm < found.completed
    assert 1000 <= found.completed < 2000
    assert found.rate * found.seconds == pytest.approx(found.completed - found.warm)
    paced.pace = Pace(payload=5000)
    assert measured(paced, strategy("skip_locked"), jobs=10).exactly_once
    sizes = paced._admin.execute("SELECT min(length(payload::text)) FROM public.jobs").fetchone()
    assert sizes
    assert 5000 <= sizes[0] < 5100


@pytest.mark.parametrize(
    ("shape", "pace", "rounds"),
    [(ONE, pace, 1) for pace in PACES]
    + [(Shape(0, 1), Pace(), 1), (Shape(1, 65), Pace(), 1), (Shape(1, 1, -1), Pace(), 1)]
    + [(ONE, Pace(), -1)],
)
def test_numbers_out_of_range_are_refused(shape: Shape, pace: Pace, rounds: int) -> None:
    """Before any server is started; the message says what it may be at most."""
    with pytest.raises(BenchError, match="at most"):
        measure([Group(shape, (queue(),))], Setting(1, pace, "nowhere"), rounds=rounds)


@pytest.mark.parametrize(
    ("name", "batch", "done"),
    [
        ("skip_locked", 1, "jobs WHERE status = 'completed'"),
        ("skip_locked", 10, "jobs WHERE status = 'completed'"),
        ("lease_table", 10, "history"),  # its claim is a WITH of several changes
    ],
)
def test_pgbench_runs_the_same_sql(ground: Ground, name: str, batch: int, done: str) -> None:
    """It claims and completes as many jobs, each once: the tables show them."""
    assert pgbench(ground, strategy(name), Shape(batch, 2), 100)
    found = ground._admin.execute(f"SELECT count(*) FROM public.{done}".encode())
    assert found.fetchone() == (100,)


def test_the_harness_stands_beside_pgbench(paced: Ground) -> None:
    """Both have a rate in each round, the harness with two statements as pgbench."""
    found = compared(paced, strategy("lease_table"), Shape(10, 2), rounds=2, jobs=100)
    assert paced.apart
    assert len(found) == 2
    assert all(own > 0 and beside > 0 for own, beside in found)


def test_what_pgbench_cannot_run_has_no_yardstick(ground: Ground) -> None:
    """Several statements in a block, a batch without complete_many, and who starts or completes."""
    # What it rejects is told by its own first error, and has no rate of what was left.
    for refused, batch in ((strategy("select_then_update"), 1), (queue(), 10)):
        assert pgbench(ground, refused, Shape(batch, 1), 10) is None
    for refused in (AT_MOST_ONCE, registered()):
        assert pgbench(ground, refused, Shape(1, 1), 10) is None
    failing = queue(claim="SELECT id FROM jobs WHERE 1 / (id - id) = 1;")
    with pytest.raises(QueueError, match=r"pgbench could not run it: .*division by zero"):
        pgbench(ground, failing, Shape(1, 1), 10)


def test_states_have_the_names_that_the_header_gives_them(ground: Ground) -> None:
    """`done` is completed where [states] says so: here too, as in a check."""
    done = COMPLETE.replace("completed", "done")
    assert all_done(measured(ground, queue(header='[states]\ndone = "completed"', complete=done)))


def test_what_gives_no_figure_says_so(ground: Ground) -> None:
    """Rejected completions and what does not apply are errors with the reason, and no hang."""
    refusing = queue(complete=COMPLETE.replace("running", "queued"))
    told = r"no job was completed: (\d+) were claimed, (\d+) completions rejected, \d+ claims empty"
    with pytest.raises(QueueError, match=told) as refused:
        measured(ground, refusing, seconds=BRIEF)
    found = re.search(told, str(refused.value))
    assert found
    assert found[1] == found[2]  # as many as there was time for
    with pytest.raises(QueueError, match="one transaction open per job"):
        ground.prepare(strategy("hold_open"), Shape(10, 1), 1)


def at_line(asked: SqlFileQueue, block: str, below: int, words: str) -> tuple[SqlFileQueue, str]:
    """A queue, and what is told of a line so far below a block's name."""
    return asked, rf"^q\.sql:{asked.blocks[block].source.line + below}: .*{words}"


UNKNOWN = COMPLETE.replace("(id)", "(id, attempt)").replace("= :id", "= :id + :attempt")
PROMOTER = 'answer = {"jobs": []}\n    elif asked["op"] == "promote":\n        sys.exit(3)'
FAILING = 'if calls %% 3 == 0: answer = {"error": {"sqlstate": "%s", "message": "told"}}'
WRONG: dict[str, tuple[SqlFileQueue | WorkerQueue, str]] = {
    "SQL that the server rejects": at_line(
        queue(claim=CLAIM.replace("FROM jobs", "FROM job")), "claim", 2, 'relation "job" does not'
    ),
    "a claim whose last answer has no job, but a column of type void": (
        queue(claim=f"{CLAIM.rstrip()}\nSELECT pg_notify('claimed', '');\n"),
        "claim must return a column id",
    ),
    "a parameter that no claim returns": (
        queue(complete=UNKNOWN),
        "no parameter :attempt here, only id, now, worker",
    ),
    "an error that is not listed": (queue(claim=every_second_call("22012")), r":\d+: .*\(22012\)"),
    "a start that never succeeds": at_line(
        registered("left(:worker, 1)"), "start", 1, "duplicate key value"
    ),
    "a worker that ends": (scripted("sys.exit(3)"), "ended with exit status 3"),
    "a worker that ends at its promotion": (
        scripted(PROMOTER, operations='"complete", "promote"'),
        "ended with exit status 3",
    ),
    "a worker without jobs": (scripted("answer = {}"), 'must have "jobs"'),
    "a worker whose id is a number": (scripted('answer = {"jobs": [{"id": 1}]}'), 'needs an "id"'),
    "a worker that fails": (scripted(FAILING % "42P01"), "claim failed: 42P01: told"),
    "a worker without an end": (scripted(operations='"fail"'), "offer no complete"),
}


@pytest.mark.parametrize(("wrong", "told"), WRONG.values(), ids=WRONG)
def test_what_fails_is_told(ground: Ground, wrong: SqlFileQueue | WorkerQueue, told: str) -> None:
    """It is an error at once, with the line or what the worker did, and the pool is there after."""
    with pytest.raises(QueueError, match=told):
        measured(ground, wrong, Shape(1, 2), 10)
    assert measured(ground, queue()).exactly_once


def test_a_worker_that_dies_is_told(server: Server) -> None:
    """The end of a process is an error at once, not a wait."""
    with Ground(server, 1) as ground:
        assert isinstance(ground._pool, Pool)
        (process,) = ground._pool._processes
        process.kill()
        process.join()
        with pytest.raises(WorkerLostError, match="died"):
            ground.prepare(queue(), Shape(1, 1), 1)


def test_whoever_is_left_of_a_load_takes_nothing_of_the_next(ground: Ground) -> None:
    """As the process of a cluster's worker that was lost: its sessions are ended before that."""
    assert measured(ground, queue()).exactly_once
    with psycopg.connect(ground.conninfo) as left:
        ground.prepare(queue(), Shape(1, 1), 1).run(PATIENCE)
        with pytest.raises(psycopg.OperationalError):
            left.execute("SELECT")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (queue(complete="", fail=COMPLETE), r"q\.sql: .* no block complete; write `-- name: comp"),
        (Queue(), "bench measures queue files, and queues whose workers"),
    ],
    ids=["without complete", "a class of steps"],
)
def test_what_has_no_end_or_no_text_is_refused(asked: Queue, told: str) -> None:
    """The block that is missing is named; SQL step by step is neither a text nor a program."""
    with pytest.raises(QueueError, match=told):
        refuse(asked)


def test_a_queue_has_fewer_operations_or_more(ground: Ground) -> None:
    """A claim alone will do (the limit of all others), and so will starting and promoting."""
    found = measured(ground, AT_MOST_ONCE, Shape(7, 3))
    assert all_done(found)
    assert found.rows_changed == found.dead_rows == 60
    assert ground.count(AT_MOST_ONCE, 1)["round_trips_per_job"] == 1
    # Nobody claims who has not started, and nothing that no promoter has made ready.
    found = measured(ground, registered())
    assert all_done(found)
    assert found.round_trips >= 2 * found.completed  # to start is not among them, nor to promote
    assert ground.count(registered(), 1)["round_trips_per_job"] == 2


def test_queues_have_short_names() -> None:
    """A file's and a program's own, a class's; all that was typed where two are the same."""
    typed = "strategies.peers.pgqueuer_worker:PgQueuer"
    found = names_of([strategy("lease_table"), program(), WorkerQueue(typed, ["python"])])
    assert list(found.values()) == ["lease_table", "worker", "PgQueuer"]
    twice = [WorkerQueue(f"{module}:Q", ["python"]) for module in "ab"]
    assert names_of(twice) == {"a:Q": "a:Q", "b:Q": "b:Q"}


@pytest.mark.parametrize("batch", [1, 7])
def test_a_worker_program_claims_and_completes_every_job(ground: Ground, batch: int) -> None:
    """Its processes are asked for jobs until there are none."""
    found = measured(ground, program(), Shape(batch, 3), 60)
    assert all_done(found)
    assert (found.jobs, found.rejected) == (60, 0)
    assert found.rows_changed >= 2 * 60
    assert min(found.worker_cpu, found.p50) > 0


def test_a_worker_program_is_asked_again_and_starts_and_promotes(ground: Ground) -> None:
    """A deadlock is no failure; before its first claim each starts, and somebody promotes."""
    failing = scripted(FAILING % "40P01")
    found = briefly(ground, failing, Shape(1, 1), 10, lambda one: min(one.completed, one.retries))
    assert found.retries == found.deadlocks > 0
    assert found.completed > 0
    told = scripted(operations='"complete", "start", "promote"')
    assert measured(ground, told, Shape(1, 2), 10, BRIEF).completed


@pytest.mark.parametrize("pace", [Pace(rate=9.0), Pace(backlog=9), Pace(warm_up=1.0)])
def test_a_worker_program_has_a_closed_loop_only(pace: Pace) -> None:
    """What its loop has not is refused before anything starts."""
    with pytest.raises(BenchError, match="worker programs are measured in a closed loop"):
        measure(groups([program()]), Setting(pace=pace))
    with pytest.raises(BenchError, match="worker programs are measured in a closed loop"):
        compare(groups([program(), program()], [1], [1])[0], Setting(pace=pace))


def test_a_failing_command_line_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan without a queue, and a server that is not there, are one message of the user's."""
    with pytest.raises(BenchError, match="name a queue file"):
        measure(groups([]))
    assert main(["--quick", "--postgres", "nowhere"]) == Exit.UNUSABLE
    assert "nowhere" in capsys.readouterr().err


def runs(*seconds: float) -> list[Measured]:
    """A run for each duration, of 100 jobs."""
    return [replace(RUN, seconds=value) for value in seconds]


def report() -> BenchReport:
    """Two strategies, one of them with a gap and with double claims, and a convoy."""
    twice = [replace(run, claimed=200, double_claims=100) for run in runs(2.0, 4.0, 4.0)]
    return BenchReport(
        METHOD,
        [
            Series("first", Shape(1, 4), runs(1.0, 2.0, 1.0)),
            Series("second", Shape(1, 4), twice),
            Series("first", Shape(10, 4), runs(0.1, 0.1, 0.1)),
            Series("second", Shape(10, 4), reason="it takes <one> job"),
            Series("first", Shape(1, 16), runs(1.0)),
            Series("second", Shape(1, 16), runs(4.0)),
            Series("first", Shape(1, 16, HOLD), runs(1.0)),
            Series("second", Shape(1, 16, HOLD), runs(15.0)),
        ],
    )


def test_ratios_are_taken_round_by_round() -> None:
    """A rate is the median of the rounds; a slow moment that meets both queues costs no ratio."""
    assert Series("first", Shape(1, 1), runs(1.0, 2.0, 1.0)).rate == pytest.approx(100)
    base = Series("first", Shape(1, 1), runs(1.0, 2.0))
    assert Series("second", Shape(1, 1), runs(2.0, 4.0)).ratios(base) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(1, 0.5, 1), (4, 0.5, 2), (100, 0.95, 95), (100, 0.99, 99), (7, 1, 7)],
)
def test_a_percentile_is_the_nearest_rank(count: int, share: float, expected: float) -> None:
    """The value that at least the share of all does not exceed."""
    assert expected == percentile([float(n) for n in range(1, count + 1)], share)


def test_json_is_read_back() -> None:
    """Nothing of a report is lost in its file."""
    written = report()
    read = BenchReport.from_json(written.to_json())
    assert written.method == read.method
    key = lambda entry: (entry.queue, entry.shape)  # noqa: E731
    assert sorted(written.entries, key=key) == sorted(read.entries, key=key)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"queueproof": {"format": 99}}', '{"verdict": 1}']
)
def test_another_file_is_no_report(text: str) -> None:
    """What is no report, or lacks what one should have, is an error of the user's."""
    with pytest.raises(BenchError):
        BenchReport.from_json(text)
    damaged = BenchReport({"rounds": 3, "cores": 2, "date": "2026-01-02"}, report().entries)
    with pytest.raises(BenchError, match="this is no benchmark of queueproof: UndefinedError"):
        render.section(damaged.to_json(), "a.json")


def test_a_report_with_a_limit_says_what_share_of_it_each_queue_does() -> None:
    """By batch size, at the number of workers that most were measured with; a gap is a gap."""
    found = report()
    found.method = {**found.method, "limit": "first"}
    page = render.markdown(found)
    assert "## Share of the upper bound, 4 workers\n\nThe upper bound is first = 1." in page
    assert "| second | 0.5 ±25% |" in page
    most = "**With 4 workers, second is the fastest queue that loses no job**: 0.5 times the jobs/s"
    assert f"{most} of first in batches of 1." in page
    assert "Share of the upper bound" in [one.title for one in chart.charts(found)]
    assert "upper bound" not in render.markdown(report())


def test_pytest_benchmark_reads_the_json(tmp_path: Path) -> None:
    """The file has the shape of pytest-benchmark's own, so that its tool compares runs."""
    pytest.importorskip("pytest_benchmark")
    path = tmp_path / "throughput.json"
    path.write_text(report().to_json())
    compare = (sys.executable, "-m", "pytest_benchmark", "compare", path)
    told = finished(*compare, cwd=tmp_path, check=True).stdout
    assert "second[batch1-workers16-hold5ms]" in told


def test_markdown_begins_with_the_answer() -> None:
    """Then come the machine, the chart, the figures with spread and ratio, and the method."""
    text = render.markdown(report(), "chart.svg")
    order = ["as a multiple of that: second", "2 cores", "(chart.svg)", "## Jobs/s, 4 workers"]
    order += ["## Method", "fsync=on"]
    assert order == sorted(order, key=text.index)
    assert "| first | 100 ±25% | 1,000 ±0% |" in text
    assert "| second | 20 ±50% (0.5x) | n/a |" in text
    assert "| 16 | 1 | 5 ms | second | 6.7 (1 round) | 0.067x (0.067 to 0.067) | 50% |" in text
    assert "| 16 | 1 | none | second | 25 (1 round) | 0.25x (0.25 to 0.25) | 50% |" in text
    assert "**In second 38% of the claims took a job that another worker had:**" in text
    assert "300 (**38%**)" in text
    assert "Not measured (n/a in the tables): second in batches of 10, 4 workers: it takes" in text
    # A figure without fsync is not to be taken for one with it.
    loose = BenchReport(METHOD | {"durable": False}, report().entries)
    assert ["not durable" in one for one in (text, render.markdown(loose))] == [False, True]


def test_what_is_within_the_noise_is_not_ranked_and_what_slows_down_is_named() -> None:
    """Those whose rounds overlap stand together; rates where the most workers do less than half."""
    rounds = {"first": (1.0, 1.0, 1.1), "alike": (1.0, 1.05, 1.1)}
    rounds |= {"fast": (0.50, 0.52, 0.51), "faster": (0.51, 0.51, 0.50)}
    entries = [Series(name, Shape(1, 4), runs(*each)) for name, each in rounds.items()]
    told = " ".join(render.answers(BenchReport(METHOD, entries)))
    assert "as a multiple of that: fast and faster 2.0; alike about the same." in told
    assert "the rates of their rounds overlap" in told
    assert "overlap" not in " ".join(render.answers(report()))
    loads = [(1, 1.0), (4, 1.5), (16, 4.0)]
    loaded = [Series("first", Shape(100, workers), runs(each)) for workers, each in loads]
    (told,) = render.answers(BenchReport(METHOD, loaded))
    assert "In batches of 100, first gets slower with more workers**" in told
    assert "100 with 1 worker, 67 with 4 workers, 25 with" in told
    assert "at a time" not in told
    assert not render.answers(BenchReport(METHOD, loaded[:2]))
    loaded.append(Series("first", Shape(10, 16), runs(2.0)))
    (told,) = render.answers(BenchReport(METHOD, loaded))
    assert "With 16 workers, claim at most 10 jobs at a time: that gives 50." in told


def test_the_recorded_figures_are_shown_as_they_are() -> None:
    """The page of results/ is made of its data by this code; `python -m workshop --redraw`."""
    results = ROOT / "results"
    recorded = BenchReport.from_json((results / "throughput.json").read_text(encoding="utf-8"))
    for name, page in pages(recorded).items():
        assert page == (results / name).read_text(encoding="utf-8")
    assert render.svg(drawn(named(recorded))) == (results / "throughput.svg").read_text(
        encoding="utf-8"
    )


def full(name: str = "second") -> BenchReport:
    """What every chart needs: two batch sizes and workers, an open loop, counters."""
    found = report()
    found.method = METHOD | {"pace": {"rate": 100.0}}
    paced = replace(RUN, histogram=latency.encoded([0.001, 0.002, 0.2]))
    found.entries += [
        Series(name, Shape(1, 1), runs(1.0), counted={"buffers_per_job": 9.0}),
        Series(name, Shape(5, 2), [paced, paced]),
    ]
    return found


def page(found: BenchReport) -> str:
    """The page of a report that went through its file."""
    return to_page([], benches=[render.section(found.to_json(), "a.json")])


def test_a_page_of_a_benchmark_says_what_before_how() -> None:
    """Charts, tables, method, and the file to be downloaded; nothing is loaded, nothing runs."""
    shown = page(full())
    order = ["Throughput by batch size", "Throughput by workers", "The convoy"]
    order += ["Latency under a given rate", "Latency of a claim", "Counted"]
    order += ["All figures", "Method"]
    assert order == re.findall("<h2[^>]*>([^<:]+)", shown)
    assert "<td>0.067x (0.067 to 0.067)</td>" in shown
    data = re.search('download="a.json" href="data:application/json;base64,([^"]*)"', shown)
    assert data
    assert full().to_json() == base64.b64decode(data[1]).decode()
    shown = page(full(EVIL))  # whatever a queue is called is text
    assert not re.search("<script|<img|<foreignObject", shown)
    assert shown.count("<svg") == shown.count("</svg>") > 8
    addresses = set(re.findall(r"""<[a-z][^>]*\s(?:src|href)="([^"]{9})""", shown))
    assert {"data:appl"} == {found for found in addresses if not found.startswith("#")}


def test_a_chart_has_every_queue_that_has_a_curve() -> None:
    """One report, one SVG that stands by itself; what would be a point is in the tables."""
    (panel,) = chart.charts(report())[0].panels
    assert {row["queue"] for row in panel["data"]["values"]} == {"first"}
    drawn = render.svg(report())
    assert drawn == render.svg(report())
    assert all(f"{colour}: #" in drawn for colour in set(re.findall(r"var\((--\w+)\)", drawn)))
    assert {"first", "second", "0.067x", "4 workers"} <= set(re.findall(">([^<>]+)</text>", drawn))


def test_every_axis_begins_at_zero_or_says_log() -> None:
    """A logarithmic scale is named in its axis' title, or has percentiles; any other has a zero."""
    panels = [panel for chart in chart.charts(full()) for panel in chart.panels]
    scales = 0
    for panel in panels:
        for layer in (layer for layer in panel["layer"] if "encoding" in layer):
            for name in ("x", "y"):
                axis = panel["encoding"].get(name, {}) | (layer["encoding"].get(name) or {})
                if axis.get("type") != "quantitative":
                    continue
                scales += 1
                if axis.get("scale", {}).get("type") == "log":
                    assert re.search("log|percentile", axis["axis"]["title"])
                else:
                    assert axis.get("scale", {"zero": True})["zero"]
    assert scales > len(panels)


@pytest.mark.node
def test_the_plan_has_every_strategy_and_load() -> None:
    """All at 4 workers, real queues too; the fastest at 1 and 16; the convoy with a hold."""
    found, others = strategies(), peers()
    assert {path.stem for path in STRATEGIES.glob("*.sql")} | {"at_most_once"} == set(found)
    assert len({queue.name for queue in others}) == 4
    groups = plan(found, others, quick=False)
    assert len({group.shape for group in groups}) == len(groups)
    stems = {group.shape: [Path(queue.name).stem for queue in group.queues] for group in groups}
    for batch in (1, 10, 100):
        assert len(stems[Shape(batch, 4)]) == len(found) + 4
        for workers in (1, 16):
            fast = {"skip_locked", "lease_table", "at_most_once"}
            assert fast <= set(stems[Shape(batch, workers)])
    assert stems[Shape(1, 16, HOLD)] == ["skip_locked", "for_update", "nowait"]
    assert stems[Shape(1, 16)][:3] == ["skip_locked", "for_update", "nowait"]


def test_a_comparison_at_a_batch_that_a_claim_cannot_take_names_the_remedy() -> None:
    """Both queues are named, and the batch that they take."""
    (pair,) = groups([queue(name, claim=SINGLE) for name in ("old.sql", "new.sql")], [10], [1])
    told = "old.sql: its claim .*; new.sql: its claim has no limit: .*; add --batch 1$"
    with pytest.raises(QueueError, match=told):
        compare(pair, Setting(postgres="nowhere"))
    assert not unfit(pair._replace(shape=Shape(1, 1)))
