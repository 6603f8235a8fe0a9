"""What a queue in production has to live with: second runs, crashes, dead rows, and its own past.

Cost is counted in shared buffers, which are the same on every machine, and never in seconds.
"""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.resources import files

import pytest

from queueproof import waits
from queueproof.postgres.server import Server
from queueproof.queues.model import Parameter

from .stage import Stage, Worker

FREE = (
    "SELECT id FROM jobs WHERE status = 'queued' ORDER BY priority, id LIMIT 1"
    " FOR UPDATE SKIP LOCKED"
)
CLAIM = f"UPDATE jobs SET status = 'running' WHERE id = ({FREE}) RETURNING id"
METRICS = (files(__package__) / "metrics.sql").read_text(encoding="utf-8")
NOW = timedelta(0)  # as a lease: it has run out
HOUR = timedelta(hours=1)


def enqueue(producer: Worker, *, delay: timedelta = NOW, max_attempts: int = 3) -> int:
    """Enqueue a job with the reference; its id."""
    of_job: dict[str, Parameter] = {"queue": "mail", "payload": "{}", "priority": 0}
    (job,) = producer.does("enqueue", **of_job, delay=delay, max_attempts=max_attempts)
    return int(job)


def claim(worker: Worker) -> tuple[int, int]:
    """Claim a job from the reference; its id and attempt."""
    ((job, attempt, _),) = worker.does("claim", worker=worker.name, limit=1, queue="mail")
    return job, attempt


# --- at least once ------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "effects"), [("UNIQUE", 1), ("", 2)])
def test_an_idempotency_key_makes_the_effect_happen_once(
    stage: Stage, key: str, effects: int
) -> None:
    """A job whose worker dies before it says so runs twice, and with a key takes effect once."""
    stage.install()
    stage.setup("DROP TABLE IF EXISTS charges", f"CREATE TABLE charges (job bigint {key})")
    w1, w2 = stage.enter("w1", "w2")
    enqueue(w1)
    job, attempt = claim(w1)
    charge = f"INSERT INTO charges VALUES ({job}) ON CONFLICT DO NOTHING"
    w1.runs(charge)
    w1.crashes()
    w2.does("recover", lease=NOW)
    assert claim(w2) == (job, attempt + 1)
    w2.runs(charge)
    w2.does("complete", id=job, worker="w2", attempt=attempt + 1)
    assert effects == stage.asks("SELECT count(*) FROM charges")
    assert stage.asks("SELECT status FROM jobs") == "completed"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_two_runs_at_the_same_time_take_effect_once(stage: Stage, end: str) -> None:
    """The second run waits for the first one's key, and counts only if that is rolled back."""
    stage.setup("DROP TABLE IF EXISTS charges", "CREATE TABLE charges (job bigint UNIQUE)")
    late, second = stage.enter("late", "second")
    charge = "INSERT INTO charges VALUES (1) ON CONFLICT DO NOTHING RETURNING job"
    late.runs("BEGIN")
    assert late.runs(charge) == [1]
    second.waits_for(late, charge)
    late.runs(end)
    assert second.goes_on() == ([] if end == "COMMIT" else [1])
    assert stage.asks("SELECT count(*) FROM charges") == 1


# --- hold the transaction open, or claim and commit ---------------------------------------------


@pytest.mark.parametrize("held", [True, False], ids=["held open", "committed"])
def test_a_crash_frees_the_job_at_once_only_where_the_claim_is_open(
    stage: Stage, *, held: bool
) -> None:
    """The crash of a worker rolls an open claim back; a committed one waits for a reaper."""
    w1, w2 = stage.enter("w1", "w2")
    w1.runs("BEGIN")
    assert w1.runs(CLAIM) == [1]
    if not held:
        w1.runs("COMMIT")
    w1.crashes()
    assert w2.runs(CLAIM) == ([1] if held else [2])


@pytest.mark.parametrize("held", [True, False], ids=["held open", "committed"])
def test_a_claim_held_open_keeps_every_dead_row(stage: Stage, *, held: bool) -> None:
    """While a claim is open VACUUM removes nothing that died since, and later claims pay for it."""
    fill(stage)
    stage.setup(RUNNABLE)
    worker, others, w2 = stage.enter("worker", "others", "w2")
    worker.runs("BEGIN")
    worker.runs(CLAIM.replace("id LIMIT", "id DESC LIMIT"))
    if not held:
        worker.runs("COMMIT")
    others.runs(FINISH)
    others.crashes()  # its statistics are there then, and VACUUM has the last word
    stage.setup("VACUUM jobs")
    dead = stage.asks("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'jobs'")
    # It passes over a page that is pinned just then, as by who writes the pages out.
    assert dead == FINISHED if held else dead < FINISHED / 20
    xid = f"SELECT backend_xid::text FROM pg_stat_activity WHERE pid = {worker.pid}"
    assert (stage.asks(xid) is not None) == held  # behind which VACUUM stays
    assert price(w2.costs(CLAIM)) == ("dear" if held else "cheap")


# --- what becomes of finished jobs --------------------------------------------------------------

FINISHED, READY = 4_000, 20
CHEAP, DEAR = 40, 100  # buffers, at most and at least
RUNNABLE = "CREATE INDEX ON jobs (priority, id) WHERE status = 'queued'"
FINISH = f"UPDATE jobs SET status = 'completed' WHERE id <= {FINISHED}"
DELETE = "DELETE FROM jobs WHERE status = 'completed'"
CLEANUPS = {
    "kept": [],
    "kept, VACUUM": ["VACUUM jobs"],
    "deleted": [DELETE],
    "deleted, VACUUM": [DELETE, "VACUUM jobs"],
    "deleted, VACUUM FULL": [DELETE, "VACUUM FULL jobs"],
    "some kept, VACUUM": [f"{DELETE} AND id % 100 > 0", "VACUUM jobs"],  # as if they had failed
    "archived, VACUUM": [
        "CREATE TABLE archive (LIKE jobs)",
        f"WITH done AS ({DELETE} RETURNING *) INSERT INTO archive SELECT * FROM done",
        "VACUUM jobs",
    ],
    "partition dropped": ["DROP TABLE yesterday"],
}
COSTS = """
                      index  none
kept                  dear   dear
kept, VACUUM          cheap  dear
deleted               dear   dear
deleted, VACUUM       cheap  dear
deleted, VACUUM FULL  cheap  cheap
some kept, VACUUM     cheap  dear
archived, VACUUM      cheap  dear
partition dropped     cheap  cheap
"""
"""What a claim costs after 4,000 finished jobs, with an index of the runnable ones and without."""
CELLS = [
    (cleanup, index, told)
    for cleanup, row in zip(CLEANUPS, COSTS.strip().splitlines()[1:], strict=True)
    for index, told in zip((True, False), row.removeprefix(cleanup).split(), strict=True)
]


@pytest.mark.parametrize(("cleanup", "index", "told"), CELLS)
def test_what_a_claim_costs_after_a_cleanup(
    stage: Stage, cleanup: str, told: str, *, index: bool
) -> None:
    """With an index VACUUM is what makes claims cheap; without, only what gives the pages back."""
    fill(stage, partitioned=cleanup == "partition dropped")
    if index:
        stage.setup(RUNNABLE)
    worker, cleaner = stage.enter("worker", "cleaner")
    assert price(worker.costs(CLAIM)) == ("cheap" if index else "dear")  # 4,000 are still waiting
    worker.runs(FINISH)
    for statement in CLEANUPS[cleanup]:
        stage.until_nobody_is_older()  # of other tests' databases
        cleaner.runs(statement)
    assert price(worker.costs(CLAIM)) == told


@pytest.mark.parametrize(("vacuum", "told"), [("VACUUM", "cheap"), ("VACUUM FULL", "dear")])
def test_a_transaction_of_another_database_holds_up_vacuum_full_alone(
    stage: Stage, server: Server, vacuum: str, told: str
) -> None:
    """VACUUM removes what nobody here can see; VACUUM FULL keeps what somebody elsewhere could."""
    fill(stage)
    stage.setup(RUNNABLE)
    worker, cleaner = stage.enter("worker", "cleaner")
    with server.database() as elsewhere:
        stranger = stage.worker("stranger", elsewhere)
        stranger.runs("BEGIN")
        stranger.runs("SELECT pg_current_xact_id() IS NOT NULL")  # it is going to write
        worker.runs(FINISH)

        def as_told() -> bool:
            cleaner.runs(f"{vacuum} jobs")
            return price(worker.costs(CLAIM)) == told

        # A session that is just beginning has a snapshot before its database is known, and counts
        # as one of all: another test's may hold up VACUUM, too, for that moment.
        waits.until(as_told, waits.OWN, f"a claim to be {told} after {vacuum}")
        stranger.crashes()
    stage.until_nobody_is_older()  # of other tests' databases
    cleaner.runs(f"{vacuum} jobs")
    assert price(worker.costs(CLAIM)) == "cheap"


def fill(stage: Stage, *, partitioned: bool = False) -> None:
    """Make a table of jobs with those that are going to be finished, and a few more."""
    columns = (
        "id int PRIMARY KEY, status text DEFAULT 'queued', priority int DEFAULT 0,"
        " payload text DEFAULT repeat('x', 200)"
    )
    stage.setup("DROP TABLE IF EXISTS jobs, archive CASCADE")
    if partitioned:
        stage.setup(
            f"CREATE TABLE jobs ({columns}) PARTITION BY RANGE (id)",
            f"CREATE TABLE yesterday PARTITION OF jobs FOR VALUES FROM (1) TO ({FINISHED + 1})",
            "CREATE TABLE today PARTITION OF jobs DEFAULT",
        )
    else:
        stage.setup(f"CREATE TABLE jobs ({columns}) WITH (autovacuum_enabled = off)")
    stage.setup(f"INSERT INTO jobs SELECT generate_series(1, {FINISHED + READY})")


def price(buffers: int) -> str:
    """What a claim is that touches so many buffers."""
    return "cheap" if buffers <= CHEAP else "dear" if buffers >= DEAR else f"{buffers} buffers"


# --- what to watch ------------------------------------------------------------------------------


def test_the_metrics_count_what_happened(stage: Stage) -> None:
    """Each job that is runnable, late, running, stuck, failed or done is counted in metrics.sql."""
    stage.install()
    producer, w1, w2, dashboard = stage.enter("producer", "w1", "w2", "dashboard")
    enqueue(producer)
    job, attempt = claim(w1)
    w1.does("complete", id=job, worker="w1", attempt=attempt)
    for most in (1, 3):  # one that fails for good, and one that is tried again later
        enqueue(producer, max_attempts=most)
        job, attempt = claim(w1)
        w1.does("fail", id=job, worker="w1", attempt=attempt, error="no such address")
    enqueue(producer)
    claim(w1)
    w2.does("recover", lease=NOW)
    claim(w2)
    enqueue(producer, delay=HOUR)
    late = enqueue(producer), enqueue(producer)
    dashboard.runs("BEGIN")  # in which it is always the same time
    dashboard.runs(f"UPDATE jobs SET run_at = now() - interval '90 seconds' WHERE id IN {late}")
    dashboard.runs("UPDATE jobs SET locked_at = now() - interval '31 seconds' WHERE id = 4")
    seen = metrics(dashboard)
    assert seen.pop("table_bytes") > 0 < seen.pop("index_bytes")
    assert seen == {
        "runnable": 2,
        "oldest_seconds": 90,
        "scheduled": 2,
        "running": 1,
        "stuck": 1,
        "failed": 1,
        "completed": 1,
        "claims": 5,
        "retries": 1,
        "recoveries": 1,
        "lock_waits": 0,
        "oldest_transaction": 0,
    }


def test_the_metrics_see_who_waits_and_wait_for_nobody(stage: Stage) -> None:
    """A claim that waits is counted, and so is the transaction that holds it and VACUUM up."""
    stage.install()
    holder, w2, dashboard = stage.enter("holder", "w2", "dashboard")
    enqueue(holder)
    holder.runs("BEGIN")
    holder.runs("SELECT id FROM jobs FOR UPDATE")
    w2.waits_for(holder, "SELECT id FROM jobs FOR UPDATE")
    seen = metrics(dashboard)
    assert seen["lock_waits"] == 1
    assert seen["oldest_transaction"] > 0


def metrics(dashboard: Worker) -> dict[str, int]:
    """The row of metrics.sql."""
    query = METRICS[METRICS.index("SELECT") : METRICS.index(";")]
    (row,) = dashboard.runs(f"SELECT to_json(metrics) FROM ({query}) AS metrics")
    found: dict[str, int] = json.loads(row)
    return found
