"""What PostgreSQL does with rows that are locked: the rules that every queue is built on.

Each test is the sentence that it proves. `pytest scenarios/test_server_rules.py -s` prints who did
what, and who waited for whom: who waits, the server says (`pg_blocking_pids`), not a clock.
"""

from __future__ import annotations

import pytest

from .stage import Stage

FREE = "SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT 1"
CLAIM = f"{FREE} FOR UPDATE SKIP LOCKED"
LOCKED = """
SELECT array_agg(id ORDER BY id) FROM jobs
WHERE id NOT IN (SELECT id FROM jobs FOR UPDATE SKIP LOCKED)
"""
"""Jobs that somebody has locked: those that SKIP LOCKED leaves out."""


# --- row locks ----------------------------------------------------------------------------------

WAYS = {
    "FOR KEY SHARE": "SELECT id FROM jobs WHERE id = 1 FOR KEY SHARE",
    "FOR SHARE": "SELECT id FROM jobs WHERE id = 1 FOR SHARE",
    "FOR NO KEY UPDATE": "SELECT id FROM jobs WHERE id = 1 FOR NO KEY UPDATE",
    "FOR UPDATE": "SELECT id FROM jobs WHERE id = 1 FOR UPDATE",
    "UPDATE": "UPDATE jobs SET status = 'running' WHERE id = 1",
    "UPDATE of the key": "UPDATE jobs SET id = 11 WHERE id = 1",
    "DELETE": "DELETE FROM jobs WHERE id = 1",
}
MATRIX = """
FOR KEY SHARE      . . . x . x x
FOR SHARE          . . x x x x x
FOR NO KEY UPDATE  . x x x x x x
FOR UPDATE         x x x x x x x
UPDATE             . x x x x x x
UPDATE of the key  x x x x x x x
DELETE             x x x x x x x
"""
"""Who holds a row, by who wants it, in the order of WAYS; x: waits (manual, 13.3.2)."""
ROWS = {
    row[: -2 * len(WAYS)].strip(): row.split()[-len(WAYS) :] for row in MATRIX.strip().splitlines()
}


@pytest.mark.parametrize("held", ROWS)
def test_row_locks_conflict_as_in_the_matrix(stage: Stage, held: str) -> None:
    """A row lock waits for the locks that it conflicts with, and for no other."""
    holder, other = stage.enter("holder", "other")
    for way, cell in zip(WAYS, ROWS[held], strict=True):
        holder.runs("BEGIN")
        holder.runs(WAYS[held])
        other.runs("BEGIN")
        if cell == "x":
            other.waits_for(holder, WAYS[way])
            holder.runs("ROLLBACK")
            other.goes_on()
            other.runs("ROLLBACK")
        else:
            other.runs(WAYS[way])
            other.runs("ROLLBACK")
            holder.runs("ROLLBACK")


@pytest.mark.parametrize("held", ROWS)
def test_nowait_and_skip_locked_react_where_the_default_waits(stage: Stage, held: str) -> None:
    """Where a row lock would wait, NOWAIT gets 55P03 and SKIP LOCKED no row, both at once."""
    holder, other = stage.enter("holder", "other")
    holder.runs("BEGIN")
    holder.runs(WAYS[held])
    for way, cell in zip(WAYS, ROWS[held], strict=True):
        if not way.startswith("FOR"):
            continue  # what changes a row has neither
        if cell == "x":
            assert other.fails(f"{WAYS[way]} NOWAIT") == "55P03"
            assert other.runs(f"{WAYS[way]} SKIP LOCKED") == []
        else:
            assert other.runs(f"{WAYS[way]} NOWAIT") == [1]
            assert other.runs(f"{WAYS[way]} SKIP LOCKED") == [1]


def test_a_row_lock_lasts_until_its_transaction_ends(stage: Stage) -> None:
    """A row stays locked when the statement has ended, until COMMIT, ROLLBACK, or a savepoint's."""
    w1, w2 = stage.enter("w1", "w2")
    for end in ("COMMIT", "ROLLBACK", "ROLLBACK TO SAVEPOINT before"):
        w1.runs("BEGIN")
        w1.runs("SAVEPOINT before")
        assert w1.runs(CLAIM) == [1]
        w1.runs("SELECT 'work on it'")
        assert w2.runs(CLAIM) == [2]
        w1.runs(end)
        assert w2.runs(CLAIM) == [1]


def test_a_plain_select_gives_two_workers_the_same_job(stage: Stage) -> None:
    """A SELECT without a lock answers the same row to both, in open transactions too."""
    w1, w2 = stage.enter("w1", "w2")
    w1.runs("BEGIN")
    w2.runs("BEGIN")
    assert w1.runs(FREE) == [1] == w2.runs(FREE)


def test_readers_never_wait(stage: Stage) -> None:
    """A dashboard waits for no row lock, and counts what the claim has not committed as it was."""
    worker, dashboard = stage.enter("worker", "dashboard")
    count = "SELECT count(*) FROM jobs WHERE status = 'queued'"
    worker.runs("BEGIN")
    worker.runs("SELECT id FROM jobs FOR UPDATE")
    assert dashboard.runs(count) == [4]
    worker.runs("UPDATE jobs SET status = 'running'")
    assert dashboard.runs(count) == [4]
    worker.runs("COMMIT")
    assert dashboard.runs(count) == [0]


@pytest.mark.parametrize(("lock", "waits"), [("UPDATE", True), ("NO KEY UPDATE", False)])
def test_a_foreign_key_waits_for_update_only(stage: Stage, lock: str, *, waits: bool) -> None:
    """A row that refers to a job waits for who holds it FOR UPDATE, not FOR NO KEY UPDATE."""
    stage.setup("CREATE TABLE IF NOT EXISTS log (job int)", "TRUNCATE log")
    stage.setup("ALTER TABLE log ADD FOREIGN KEY (job) REFERENCES jobs")
    worker, logger = stage.enter("worker", "logger")
    worker.runs("BEGIN")
    worker.runs(f"{FREE} FOR {lock} SKIP LOCKED")
    insert = "INSERT INTO log VALUES (1)"
    if waits:
        logger.waits_for(worker, insert)
        worker.runs("COMMIT")
        logger.goes_on()
    else:
        logger.runs(insert)


# --- what SKIP LOCKED does, and what it does not ------------------------------------------------


def test_two_claims_fan_out(stage: Stage) -> None:
    """Two claims of two rows get {1, 2} and {3, 4}, a third gets nothing, and nobody waits."""
    batch = CLAIM.replace("LIMIT 1", "LIMIT 2")
    for worker, jobs in zip(stage.enter("w1", "w2", "w3"), ([1, 2], [3, 4], []), strict=True):
        worker.runs("BEGIN")
        assert worker.runs(batch) == jobs


@pytest.mark.parametrize("reaction", ["SKIP LOCKED", "NOWAIT", ""])
def test_fifty_workers_at_once(stage: Stage, reaction: str) -> None:
    """Of fifty claims at one moment SKIP LOCKED serves each with a job of its own, others one."""
    # A server of somebody's own may allow a hundred connections, and others want some as well.
    many = min(50, stage.asks("SELECT current_setting('max_connections')::int / 4"))
    stage.setup(f"INSERT INTO jobs SELECT generate_series(5, {many})")
    starter, *workers = stage.enter("starter", *(f"w{n + 1}" for n in range(many)))
    starter.runs("BEGIN")
    starter.runs("LOCK TABLE jobs")
    for worker in workers:
        worker.runs("BEGIN")
        worker.sends(f"{FREE} FOR UPDATE {reaction}")
    for worker in workers:
        worker.stands_before(starter)
    starter.runs("COMMIT")
    settled = [worker.settles() for worker in workers]
    served = sorted(job for rows in settled for job in rows or ())
    assert served == (list(range(1, many + 1)) if reaction == "SKIP LOCKED" else [1])
    assert settled.count(None) == (0 if reaction else many - 1)  # who wait


def test_skip_locked_answers_an_inconsistent_view(stage: Stage) -> None:
    """One snapshot, the same query twice, two answers: SKIP LOCKED sees locks, and they change."""
    w1, w2 = stage.enter("w1", "w2")
    unlocked = "SELECT count(*) FROM (SELECT id FROM jobs FOR UPDATE SKIP LOCKED) AS free"
    w1.runs("BEGIN")
    w1.runs(CLAIM)
    w2.runs("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert w2.runs("SELECT count(*) FROM jobs") == [4]
    assert w2.runs(unlocked) == [3]
    w1.runs("ROLLBACK")
    assert w2.runs(unlocked) == [4]


def test_skip_locked_locks_what_it_leaves_out_as_done(stage: Stage) -> None:
    """A claim that saw a job queued and finds it running answers without it, but has locked it."""
    w1, w2 = stage.enter("w1", "w2")
    w2.runs("BEGIN")
    w2.runs(f"DECLARE claim CURSOR FOR {CLAIM}")  # its snapshot is taken, and nothing locked
    w1.runs("UPDATE jobs SET status = 'running' WHERE id = 1")
    assert w2.runs("FETCH ALL FROM claim") == [2]
    w1.waits_for(w2, "UPDATE jobs SET status = 'completed' WHERE id = 1")
    w2.runs("COMMIT")
    w1.goes_on()


def test_a_job_that_moves_is_not_locked_by_late_claims(stage: Stage) -> None:
    """Where a claim deletes its row, as with a lease table, one that comes late locks nothing."""
    w1, w2 = stage.enter("w1", "w2")
    w2.runs("BEGIN")
    w2.runs(f"DECLARE claim CURSOR FOR {CLAIM}")
    w1.runs("DELETE FROM jobs WHERE id = 1")
    assert w2.runs("FETCH ALL FROM claim") == [2]
    assert stage.asks(LOCKED) == [2]


def test_skip_locked_can_wait(stage: Stage) -> None:
    """A claim that follows a job to a later version waits for who is changing that one."""
    w1, w2, logger = stage.enter("w1", "w2", "logger")
    w2.runs("BEGIN")
    w2.runs(f"DECLARE claim CURSOR FOR {FREE} FOR NO KEY UPDATE SKIP LOCKED")
    # As the INSERT of a row that refers to the job does. The first version is in use by it, so that
    # the claim tries the lock, gets it, and then locks the later versions, for which nothing skips.
    # Under load it may be enough that w1's first change commits between the look and the lock.
    logger.runs("BEGIN")
    logger.runs("SELECT id FROM jobs WHERE id = 1 FOR KEY SHARE")
    w1.runs("UPDATE jobs SET status = 'running' WHERE id = 1")
    w1.runs("BEGIN")
    w1.runs("UPDATE jobs SET status = 'completed' WHERE id = 1")
    w2.waits_for(w1, "FETCH ALL FROM claim")
    w1.runs("COMMIT")
    assert w2.goes_on() == [2]


# --- order, limit, offset -----------------------------------------------------------------------

PAGE = "SELECT id FROM jobs ORDER BY id LIMIT 2 OFFSET 1"
BY_PRIORITY = "SELECT id, priority FROM jobs ORDER BY priority, id"


def test_rows_are_ordered_before_they_are_locked(stage: Stage) -> None:
    """ORDER BY comes before the lock: what changed while a claim waited comes back out of order."""
    w1, w2 = stage.enter("w1", "w2")
    w1.runs("BEGIN")
    w1.runs("UPDATE jobs SET priority = 9 WHERE id = 1")
    w2.waits_for(w1, f"{BY_PRIORITY} LIMIT 2 FOR UPDATE")
    w1.runs("COMMIT")
    assert w2.goes_on() == [(1, 9), (2, 0)]


def test_rows_are_in_order_where_the_lock_is_within(stage: Stage) -> None:
    """The manual's remedy, the lock in a subquery and ORDER BY outside, locks every row."""
    w1, w2 = stage.enter("w1", "w2")
    w1.runs("BEGIN")
    w1.runs("UPDATE jobs SET priority = 9 WHERE id = 1")
    w2.runs("BEGIN")
    within = BY_PRIORITY.replace("jobs", "(SELECT * FROM jobs FOR UPDATE) AS held")
    w2.waits_for(w1, f"{within} LIMIT 2")
    w1.runs("COMMIT")
    assert w2.goes_on() == [(2, 0), (3, 0)]
    assert stage.asks(LOCKED) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "answered", "locked"),
    [
        ("SELECT id FROM jobs ORDER BY id LIMIT 2 FOR UPDATE", [1, 2], [1, 2]),
        (f"{PAGE} FOR UPDATE", [2, 3], [1, 2, 3]),
        (f"SELECT id FROM jobs WHERE id = ANY (ARRAY({PAGE})) FOR UPDATE", [2, 3], [2, 3]),
        (
            "SELECT id FROM (SELECT id FROM jobs FOR UPDATE) AS held ORDER BY id LIMIT 2",
            [1, 2],
            [1, 2, 3, 4],
        ),
    ],
    ids=["LIMIT", "OFFSET", "OFFSET within", "LIMIT outside"],
)
def test_limit_stops_locking_and_offset_does_not(
    stage: Stage, query: str, answered: list[int], locked: list[int]
) -> None:
    """Beside the lock LIMIT stops it, and outside it does not; OFFSET locks the rows it skips."""
    w1 = stage.worker("w1")
    w1.runs("BEGIN")
    assert w1.runs(query) == answered
    assert stage.asks(LOCKED) == locked


# --- table locks --------------------------------------------------------------------------------

USES = {
    "SELECT": "SELECT count(*) FROM jobs",
    "FOR UPDATE SKIP LOCKED": CLAIM,
    "FOR UPDATE NOWAIT": f"{FREE} FOR UPDATE NOWAIT",
    "UPDATE": "UPDATE jobs SET status = 'running' WHERE id = 1",
}
TABLE_LOCKS = {
    "ACCESS SHARE": ". . . .",
    "ROW SHARE": ". . . .",
    "ROW EXCLUSIVE": ". . . .",
    "SHARE UPDATE EXCLUSIVE": ". . . .",  # VACUUM, ANALYZE, CREATE INDEX CONCURRENTLY
    "SHARE": ". . . x",  # CREATE INDEX
    "SHARE ROW EXCLUSIVE": ". . . x",  # CREATE TRIGGER, ADD FOREIGN KEY
    "EXCLUSIVE": ". x x x",
    "ACCESS EXCLUSIVE": "x x x x",  # most of ALTER TABLE, DROP, TRUNCATE, VACUUM FULL
}
"""Who holds the table, by who wants to use it, in the order of USES; x: waits."""


@pytest.mark.parametrize("mode", TABLE_LOCKS)
def test_skip_locked_skips_no_table_lock(stage: Stage, mode: str) -> None:
    """SKIP LOCKED and NOWAIT are about rows: for the table they wait as any SELECT FOR UPDATE."""
    migration, worker = stage.enter("migration", "worker")
    for use, cell in zip(USES, TABLE_LOCKS[mode].split(), strict=True):
        migration.runs("BEGIN")
        migration.runs(f"LOCK TABLE jobs IN {mode} MODE")
        if cell == "x":
            worker.waits_for(migration, USES[use])
            migration.runs("COMMIT")
            worker.goes_on()
        else:
            worker.runs(USES[use])
            migration.runs("COMMIT")


def test_a_migration_that_waits_holds_up_every_claim(stage: Stage) -> None:
    """Behind a long claim an ALTER TABLE waits, and behind that each later claim and reader."""
    slow, migration, w2, dashboard = stage.enter("slow", "migration", "w2", "dashboard")
    slow.runs("BEGIN")
    assert slow.runs(CLAIM) == [1]
    assert w2.runs(CLAIM) == [2]
    migration.waits_for(slow, "ALTER TABLE jobs ADD note text")
    w2.waits_for(migration, CLAIM)
    dashboard.waits_for(migration, "SELECT count(*) FROM jobs")
    slow.runs("COMMIT")
    migration.goes_on()
    assert w2.goes_on() == [1]
    assert dashboard.goes_on() == [4]


def test_a_migration_that_does_not_wait_holds_up_nobody(stage: Stage) -> None:
    """With NOWAIT (or a lock_timeout) the migration fails with 55P03, and the claims go on."""
    slow, migration, w2 = stage.enter("slow", "migration", "w2")
    slow.runs("BEGIN")
    assert slow.runs(CLAIM) == [1]
    migration.runs("BEGIN")
    assert migration.fails("LOCK TABLE jobs NOWAIT") == "55P03"
    assert w2.runs(CLAIM) == [2]


# --- isolation ----------------------------------------------------------------------------------

OUTCOMES = [("READ COMMITTED", [2]), ("REPEATABLE READ", "40001"), ("SERIALIZABLE", "40001")]


@pytest.mark.parametrize(("level", "answer"), OUTCOMES)
def test_what_a_claim_that_waited_gets(stage: Stage, level: str, answer: object) -> None:
    """After the wait READ COMMITTED looks again and takes the next job; the other levels fail."""
    w1, w2 = stage.enter("w1", "w2")
    w1.runs("BEGIN")
    w1.runs("UPDATE jobs SET status = 'running' WHERE id = 1")
    w2.runs(f"BEGIN ISOLATION LEVEL {level}")
    w2.waits_for(w1, f"{FREE} FOR UPDATE")
    w1.runs("COMMIT")
    assert answer == (w2.refused() if isinstance(answer, str) else w2.goes_on())


@pytest.mark.parametrize(("level", "answer"), OUTCOMES)
def test_skip_locked_does_not_relax_isolation(stage: Stage, level: str, answer: object) -> None:
    """A job changed since the snapshot is not locked, so not skipped: higher levels fail on it."""
    w1, w2 = stage.enter("w1", "w2")
    w2.runs(f"BEGIN ISOLATION LEVEL {level}")
    assert w2.runs("SELECT count(*) FROM jobs") == [4]
    w1.runs("UPDATE jobs SET status = 'running' WHERE id = 1")
    assert answer == (w2.fails(CLAIM) if isinstance(answer, str) else w2.runs(CLAIM))


@pytest.mark.parametrize(
    ("level", "order", "refused"),
    [
        ("READ COMMITTED", "priority, id", False),
        ("REPEATABLE READ", "priority, id", False),
        ("SERIALIZABLE", "priority, id", True),
        ("SERIALIZABLE", "id", False),
    ],
)
def test_two_claims_at_once_by_isolation_level(
    stage: Stage, level: str, order: str, *, refused: bool
) -> None:
    """Claims of two jobs both commit, but if they are SERIALIZABLE and read the whole table."""
    free = CLAIM.replace("ORDER BY id", f"ORDER BY {order}")  # by priority it sorts, without index
    w1, w2 = stage.enter("w1", "w2")
    for worker, job in ((w1, 1), (w2, 2)):
        worker.runs(f"BEGIN ISOLATION LEVEL {level}")
        running = f"UPDATE jobs SET status = 'running' WHERE id = ({free}) RETURNING id"
        assert worker.runs(running) == [job]
    w1.runs("COMMIT")
    if refused:
        assert w2.fails("COMMIT") == "40001"
    else:
        w2.runs("COMMIT")
    assert stage.asks("SELECT count(*) FROM jobs WHERE status = 'running'") == 2 - refused
