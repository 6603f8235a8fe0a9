"""`-- else` between two statements of a block, and `:now`, the worker's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from queueproof.errors import QueueError
from queueproof.queues.model import Claim, Result, Step, Value
from queueproof.queues.sqlfile import SqlFileQueue, load_text

INT8, TIMESTAMPTZ = 20, 1184
QUEUE = """\
-- name: schema#
CREATE TABLE jobs ();
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;
-- name: claim{claim}
-- name: complete(id)!
UPDATE jobs SET done = true WHERE id = :id;
-- else
UPDATE old_jobs SET done = true WHERE id = :id;
"""
THREE = """
SELECT 1 AS id; -- else: a remark
-- else
SELECT 2 -- else
  -- else
  AS id;
  --  Else
SELECT 3 AS id;
SELECT 4 AS id WHERE 0 < ALL (:ids);
"""


def queue(claim: str = THREE) -> SqlFileQueue:
    """A queue with a claim of several statements."""
    return load_text(QUEUE.format(claim=claim), Path("q.sql"))


def answer(*ids: str, changed: int = 0, command: str = "SELECT") -> Result:
    """An answer with ids, or one without columns."""
    rows = [{"id": Value(one.encode(), INT8)} for one in ids]
    columns = ("id",) if command == "SELECT" else ()
    return Result(columns, (INT8,) if columns else (), rows, changed, command=command)


def sent(file: SqlFileQueue, answers: Sequence[Result]) -> tuple[list[str], object]:
    """The statements that a claim sends, by their first characters, and its answer."""
    steps = file.begin("claim")
    texts = []
    try:
        step = next(steps)
        for one in answers:
            texts.append(step.sql[:8])
            step = steps.send(one)
    except StopIteration as stop:
        return texts, stop.value
    raise AssertionError(step)


@pytest.mark.parametrize(
    ("answers", "texts", "found"),
    [
        (["1", "4"], ["SELECT 1", "SELECT 4"], ["4"]),
        (["", "2", "4"], ["SELECT 1", "SELECT 2", "SELECT 4"], ["4"]),
        (["", "", "3", "4"], ["SELECT 1", "SELECT 2", "SELECT 3", "SELECT 4"], ["4"]),
        (["", "", ""], ["SELECT 1", "SELECT 2", "SELECT 3"], []),
    ],
)
def test_a_statement_behind_else_is_sent_where_the_one_before_it_answered_nothing(
    answers: list[str], texts: list[str], found: list[str]
) -> None:
    """The block goes on behind the first of them that answers, and ends where none does."""
    known, claims = sent(queue(), [answer(*one) for one in answers])
    assert known == texts
    assert claims == [Claim(one, {"id": Value(one.encode(), INT8)}) for one in found]


def test_what_a_statement_changed_counts_where_it_has_no_columns() -> None:
    """An ending in one of two tables looks into the second where the first had no such row."""
    for first, second, accepted in ((1, None, True), (0, 1, True), (0, 0, False)):
        steps = queue().begin("complete", job=Claim("1", {"id": Value(b"1", INT8)}))
        next(steps)
        with pytest.raises(StopIteration) as ended:  # noqa: PT012 - it ends at one of both
            steps.send(answer(changed=first, command="UPDATE"))
            assert second is not None
            steps.send(answer(changed=second, command="UPDATE"))
        assert ended.value.value is accepted


def test_else_needs_something_that_answers_before_it() -> None:
    """Behind what neither answers nor changes rows the line says nothing, and is refused."""
    steps = queue("\nBEGIN;\n-- else\nSELECT 1 AS id;\n").begin("claim")
    next(steps)
    with pytest.raises(QueueError, match=r"q\.sql:8: `-- else` stands behind what answers rows"):
        steps.send(answer(command="BEGIN"))


@pytest.mark.parametrize("claim", ["\n-- else\nSELECT 1 AS id;", "\nSELECT 1 AS id;\n-- else\n"])
def test_else_stands_between_two_statements(claim: str) -> None:
    """A line `-- else` with nothing before or behind it in its block is refused."""
    with pytest.raises(QueueError, match=r"q.sql:\d: `-- else` stands between two statements"):
        queue(claim)


def test_now_is_what_the_worker_s_clock_shows() -> None:
    """Any block but the schema's may take the time as a timestamptz; here it is this process'."""
    file = queue("(now)\nSELECT 1 AS id WHERE :now > now();")
    assert file.sends_time
    assert not queue().sends_time
    moment = datetime(2030, 1, 2, 3, 4, 5, 678900, UTC)
    step: Step = next(file.begin("claim", now=moment))
    assert step.params == {"now": Value(b"2030-01-02 03:04:05.678900+00:00", TIMESTAMPTZ)}
    step = next(file.begin("claim"))
    shown = datetime.fromisoformat(str(step.params["now"]))
    assert abs(shown - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(QueueError, match=r"schema takes no parameters, and uses :now"):
        load_text("-- name: schema#\nSELECT :now;", Path("q.sql"))
