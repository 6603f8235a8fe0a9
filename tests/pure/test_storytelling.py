"""What a story leaves out, and what it adds to what was sent."""

from __future__ import annotations

import pytest

from queueproof.queues.model import Step
from queueproof.queues.sqlfile import load_text
from queueproof.report.story import Answered, Asked, Story, Turn, of_queue
from queueproof.report.text import ordinal, passages, to_text
from queueproof.schedule.conditions import PLAIN
from queueproof.schedule.moments import DAY, MOMENT
from queueproof.schedule.programs import JobSpec, Program, advance
from queueproof.search.shrink import smaller
from tests.fix_plays import play
from tests.fix_queues import queue_file

QUEUE = load_text(queue_file(), "queue.sql")


def story(*turns: Turn, statements: tuple[str, ...] = ()) -> Story:
    """A story of some turns."""
    return Story("order", "it is", (), PLAIN, turns, (), statements)


@pytest.mark.parametrize("moves", ["+18; +24", "clock advances 18, advances 24"])
def test_moves_of_the_clock_in_a_row_become_one(moves: str) -> None:
    """Of a program with eighteen moves of 18 s a story keeps one."""
    assert play("+42", 0) in smaller(play(moves, 0))


def test_moves_with_something_between_them_stay() -> None:
    """What is claimed in between may depend on when."""
    program = play("+18; w1 claims; +9", 0)
    moved = [do for one in smaller(program) for s in one.stages for _, dos in s for do in dos]
    assert advance(27) not in moved


def test_a_move_of_the_clock_becomes_shorter() -> None:
    """A story in which somebody stopped for 25 hours, for a second's wait, was not believed."""
    told = "reaper recovers | w1 fails, advances {}, claims"
    long, short = (play(told.format(one), 0) for one in (DAY, MOMENT))
    assert short in smaller(long)


ONE, TWO = (play(told, 0) for told in ("producer enqueues", "producer enqueues; producer enqueues"))
URGENT, LATER = JobSpec(priority=2), JobSpec(delay=9.0)


@pytest.mark.parametrize(
    "expected",
    [
        TWO._replace(reserve=(LATER,)),
        TWO._replace(reserve=(URGENT, JobSpec())),
        ONE._replace(jobs=(URGENT,), reserve=(LATER,)),
    ],
    ids=["one less", "one like all others", "one from the beginning"],
)
def test_jobs_that_are_enqueued_in_the_middle_become_fewer_as_well(expected: Program) -> None:
    """Fifteen jobs of a random program were left where one is enough."""
    assert expected in smaller(TWO._replace(reserve=(URGENT, LATER)))


def test_a_long_round_that_repeats_is_told_once() -> None:
    """Eight operations, five times over, are eight lines and not forty."""
    kinds = ("claim", "heartbeat", "fail", "recover", "promote", "jobs", "cleanup", "start")
    facts = [(Asked(kind, 1, (), 0.0), Answered("answer", "nothing")) for kind in kinds]
    turns = [
        Turn("w1" if n % 2 else "reaper", one) for _ in range(5) for n, one in enumerate(facts)
    ]
    last = Turn("w2", (Asked("claim", 1, (), 0.0), Answered("answer", "job 1")))
    found = list(passages(story(*turns, last)))
    assert [(one.times, len(one.columns())) for one in found] == [(5, 8), (1, 1)]


@pytest.mark.parametrize(
    ("number", "told"),
    [(6, "6th"), (11, "11th"), (13, "13th"), (21, "21st"), (22, "22nd"), (103, "103rd")],
)
def test_places_are_written_as_people_do(number: int, told: str) -> None:
    """The 21st claim is no 21th."""
    assert ordinal(number) == told


def test_a_call_is_told_with_what_it_stands_for() -> None:
    """The body of each function that a statement calls follows it, and of those that this calls."""
    schema = [
        Step(
            "-- one job\nCREATE OR REPLACE FUNCTION app.take(n int) RETURNS int AS 'SELECT due(n)'"
        ),
        Step("CREATE FUNCTION due(n int) RETURNS int LANGUAGE sql AS 'SELECT n'"),
        Step("CREATE FUNCTION never() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
        Step("CREATE TABLE jobs (id int)"),
    ]
    told = of_queue(story(statements=("SELECT * FROM app.take(:limit)",)), QUEUE, schema)
    assert [one.sql for one in schema[:2]] == list(told.functions)
    assert f"What is called there:\n    {schema[1].sql}" in to_text(told)
