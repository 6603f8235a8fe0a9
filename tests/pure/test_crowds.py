"""Crowds: what is drawn depends on the seed and the queue alone, and has the queue's own values."""

from __future__ import annotations

import pytest

from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load_text
from queueproof.schedule.programs import Program
from queueproof.space.constants import Constants, constants_in
from queueproof.space.crowds import numbered
from queueproof.space.pieces import Pieces
from tests.fix_places import SKIP_LOCKED


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("LIMIT 50", Constants((50,), (50.0,))),
        (
            "interval '2 days' + make_interval(mins => 5)",
            Constants((2, 5), (2.0, 5.0, 300.0, 172800.0)),
        ),
        ("'00:01:30'", Constants((0, 1, 30), (30.0, 90.0))),
        ("<> 'bulk-mail' -- 17 'no'", Constants((), (), ("bulk-mail",))),
        ("x1 /* 9\n8 */ $2 1.5", Constants()),
    ],
)
def test_the_values_of_some_sql_are_found(sql: str, found: Constants) -> None:
    """Numbers, spans of any spelling and names; nothing of comments, names or parameters."""
    assert constants_in(sql) == found


def pieces_of(*, sql: str = "") -> Pieces:
    """What a queue offers in whose SQL something stands."""
    return Pieces(Offer(load_text(SKIP_LOCKED + sql, "q.sql"), held=False))


def test_a_program_is_given_no_queue_that_it_may_not_know() -> None:
    """A literal of an adapter was taken for one, and the library's error for a break."""
    pieces = pieces_of(sql="\n-- 'later'\nSELECT 'bulk-mail';")
    assert "bulk-mail" in {name for one in drawn(pieces) for name in one.queues}
    pieces.offer.queue.takes_any_queue = False
    assert {name for one in drawn(pieces) for name in one.queues} == {"default", "other"}


def drawn(pieces: Pieces, seed: int = 0, many: int = 40) -> list[Program]:
    """Some crowds."""
    return [numbered(pieces, seed, number).program for number in range(many)]


def test_a_seed_draws_the_same_crowds() -> None:
    """Each number has its own crowd, whatever was drawn before it; another seed has others."""
    assert drawn(pieces_of()) == drawn(pieces_of())
    assert numbered(pieces_of(), 0, 7).program == drawn(pieces_of())[7]
    assert not set(drawn(pieces_of(), 1)) & set(drawn(pieces_of()))


def test_a_crowd_has_the_values_of_the_queue() -> None:
    """A number of the SQL is a priority, a batch and a population; a word is a queue's name."""
    page = pieces_of(sql="SELECT 71, 'urgent-mail';")
    crowds = drawn(page, many=400)  # half are duels, and each crowd has few of the SQL's words
    jobs = [job for crowd in crowds for job in crowd.jobs]
    assert {71, 72, -71} <= {job.priority for job in jobs}
    assert "urgent-mail" in {job.queue for job in jobs}
    assert 72 in {len(crowd.jobs) for crowd in crowds} | {len(crowd.jobs) - 1 for crowd in crowds}


def test_a_crowd_is_data_of_a_token() -> None:
    """It is read back as it was written."""
    for crowd in drawn(pieces_of()):
        assert Program.from_data(crowd.to_data()) == crowd
