"""The words of the scenarios on PostgreSQL: each of them can fail, and says how."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from queueproof.postgres import Server
from queueproof.queues.sqlfile import load
from scenarios import test_server_rules as rules
from scenarios.stage import Stage, Worker, stage
from tests.fix_places import REFERENCE

QUEUE = load(REFERENCE)
LOCK = "SELECT id FROM jobs WHERE id = 1 FOR UPDATE"
REFUSED = 'could not obtain lock on row in relation "jobs"'
Failed = pytest.fail.Exception


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    """A database of its own."""
    with server.database() as conninfo:
        yield conninfo


@contextmanager
def prepared(database: str) -> Iterator[Stage]:
    """A new stage."""
    with stage(database, "a scene", QUEUE) as opened:
        opened.prepare()
        yield opened


@pytest.fixture
def there(database: str) -> Iterator[Stage]:
    """A stage."""
    with prepared(database) as opened:
        yield opened


def holds_the_row(who: Worker) -> None:
    """Have somebody lock the row in a transaction that stays open."""
    who.runs("BEGIN")
    who.runs(LOCK)


def test_who_runs_a_statement_must_not_wait(there: Stage) -> None:
    """`runs` and `fails` fail where the server says that the statement waits, and for whom."""
    w1, w2, w3 = there.enter("w1", "w2", "w3")
    holds_the_row(w1)
    with pytest.raises(Failed, match=r"w2 waits for w1 \(transactionid\), and should not"):
        w2.runs(LOCK)
    with pytest.raises(Failed, match="w3 waits for w"):
        w3.fails(LOCK)


def test_who_waits_must_not_answer_and_waits_for_the_one_named(there: Stage) -> None:
    """`waits_for` fails where there is an answer, or somebody else is waited for."""
    w1, w2, w3 = there.enter("w1", "w2", "w3")
    with pytest.raises(Failed, match="w2 has an answer, and should wait for w1"):
        w2.waits_for(w1, LOCK)
    holds_the_row(w1)
    with pytest.raises(Failed, match=r"waits for w1 .*, and should wait for w2"):
        w3.waits_for(w2, LOCK)


def test_who_fails_must_not_succeed_and_the_other_way_round(there: Stage) -> None:
    """`fails` fails where the statement succeeds, `runs` and `goes_on` where it does not."""
    w1, w2 = there.enter("w1", "w2")
    with pytest.raises(Failed, match="w1 succeeds, and should fail"):
        w1.fails(LOCK)
    with pytest.raises(Failed, match="w1 gets ERROR 22012"):
        w1.runs("SELECT 1 / 0")
    holds_the_row(w1)
    w2.runs("BEGIN ISOLATION LEVEL REPEATABLE READ")
    w2.waits_for(w1, LOCK)
    w1.runs("UPDATE jobs SET priority = 5 WHERE id = 1")
    w1.runs("COMMIT")
    with pytest.raises(Failed, match="w2 gets ERROR 40001"):
        w2.goes_on()


def test_the_timeline_has_what_happened(there: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Each statement is printed as it ends or waits, with its values and its outcome."""
    w1, w2 = there.enter("w1", "w2")
    holds_the_row(w1)
    w2.fails(f"{LOCK} NOWAIT")
    w2.waits_for(w1, LOCK)
    w1.crashes()
    w2.goes_on()
    assert capsys.readouterr().out.splitlines() == [
        "  w1        BEGIN",
        "  w1        SELECT id FROM jobs WHERE id = 1 FOR UPDATE  ->  1",
        f"  w2        {LOCK} NOWAIT  ->  ERROR 55P03: {REFUSED}",
        f"  w2        {LOCK}  ->  waits for w1 (transactionid)",
        "  w1        (its connection ends)",
        "  w2          goes on  ->  1",
    ]


def other_cells(row: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each cell of a row, and the row that says the opposite there."""
    for n, cell in enumerate(row):
        yield cell, [*row[:n], "." if cell == "x" else "x", *row[n + 1 :]]


@pytest.mark.parametrize("held", rules.ROWS)
def test_each_row_lock_can_fail(database: str, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of the lock matrix that says the opposite fails its scenario."""
    for cell, wrong in other_cells(rules.ROWS[held]):
        monkeypatch.setitem(rules.ROWS, held, wrong)
        told = "waits for holder" if cell == "x" else "has an answer"
        with pytest.raises(Failed, match=told), prepared(database) as opened:
            rules.test_row_locks_conflict_as_in_the_matrix(opened, held)


@pytest.mark.parametrize("mode", rules.TABLE_LOCKS)
def test_each_lock_can_fail(database: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of the table locks that says the opposite fails its scenario."""
    for _, wrong in other_cells(rules.TABLE_LOCKS[mode].split()):
        monkeypatch.setitem(rules.TABLE_LOCKS, mode, " ".join(wrong))
        with pytest.raises(Failed, match="migration"), prepared(database) as opened:
            rules.test_skip_locked_skips_no_table_lock(opened, mode)
