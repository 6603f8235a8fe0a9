"""Crowds on a server: what they meet, and how short it gets."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.examine.replay import replay
from queueproof.examine.work import Draws, Work, runner_under
from queueproof.guarantees.catalogue import select
from queueproof.judge.checker import declare
from queueproof.report.card import Break
from queueproof.report.story import Story
from queueproof.run.lab import Lab
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.moments import DAY
from queueproof.search.reduce import LONG, reduced
from queueproof.search.shrink import Failure, one_by_one, shrink
from tests.fix_labs import LabOf
from tests.fix_places import BROKEN, SKIP_LOCKED, reference
from tests.fix_queues import RACES, queue_file

FAR = Conditions(far=True)
MANY = 40  # crowds


def failures(lab: Lab, conditions: Conditions = PLAIN) -> Iterator[Failure]:
    """What some crowds break."""
    for tried in Work(lab, calibrate(lab), 0).tries(Draws(0, MANY, conditions)):
        yield from tried.broken


def test_a_long_program_gets_short(lab_of: LabOf) -> None:
    """Sixty stages and their jobs are reduced by halves to the few steps of the story."""
    lab = lab_of(BROKEN / "fencing_id_only.sql")
    long = next(failures(lab))
    offer = calibrate(lab)
    runner, declared = runner_under(lab, offer, PLAIN), declare(offer)
    short = reduced(runner, declared, long)
    told = shrink(short, one_by_one(runner, declared, short))
    assert long.violation.guarantee == told.violation.guarantee == "fencing"
    assert long.program.size > 3 * LONG
    assert LONG >= short.program.size >= told.program.size
    assert told.program.size <= 8


def test_ids_grow_beyond_an_int4(lab_of: LabOf) -> None:
    """A cast of the id that holds for two billion jobs is met by crowds whose ids begin there."""
    failing = "last_error = left(:error, 2000),\n    updated_at = now()\nWHERE id = "
    lab = lab_of(reference(f"{failing}:id", f"{failing}(:id)::int"))
    assert not list(failures(lab))
    first = next(failures(lab, FAR))
    assert first.violation.guarantee == "live-lease"
    assert "22003 by fail" in first.violation.because
    assert not list(failures(lab_of(SKIP_LOCKED), FAR))


def test_a_break_is_told_at_once_and_ends_the_check_where_that_is_asked(lab_of: LabOf) -> None:
    """The rest is inconclusive, as nobody looks on; and so it is with a break that is measured."""
    told: list[str] = []
    card = check_queue(
        lab_of(BROKEN / "single_claim_select_then_update.sql"),
        select(["single-claim", "fencing", "order", "concurrency-limit"]),
        profile="glance",
        told=told.append,
        fail_fast=True,
    )
    first = next(one for one in card.guarantees if one.verdict == "broken")
    assert [first.id] == told
    rest = [one for one in card.guarantees if one != first]
    assert {one.verdict for one in rest} == {"inconclusive", "not-offered"}
    assert [one.verdict for one in rest if one.left_out] == ["inconclusive"] * 2
    told.clear()
    lab = lab_of(BROKEN / "backoff_overflow.sql")
    check_queue(lab, select(["backoff"]), profile="glance", told=told.append, fail_fast=True)
    assert told == ["backoff"]


def test_a_story_is_shown_while_the_check_goes_on(lab_of: LabOf) -> None:
    """It is one that the card could have; the card itself is what it is without."""
    shown: dict[str, Break] = {}
    lab, wanted = lab_of(queue_file(claim=RACES)), select(["single-claim", "order"])
    with_it = check_queue(lab, wanted, profile="glance", shown=shown.__setitem__)
    alone = check_queue(lab, wanted, profile="glance")
    assert [*shown] == ["single-claim"]
    assert replay(lab, str(shown["single-claim"].replay)) is not None
    cards = [[asdict(one) | {"seconds": 0} for one in card.guarantees] for card in (with_it, alone)]
    assert cards[0] == cards[1]


@pytest.mark.parametrize(("header", "broken"), [("", ["stale-recovery"]), ('stale = "stays"', [])])
def test_what_a_header_excuses_is_told_as_no_break(
    lab_of: LabOf, header: str, broken: list[str]
) -> None:
    """A card accepts it; a line that says otherwise first is a false alarm."""
    told: list[str] = []
    lab = lab_of(queue_file(header=header))
    check_queue(lab, select(["stale-recovery"]), profile="glance", told=told.append)
    assert told == broken


def test_a_job_that_is_like_no_other_comes_with_the_sql_that_enqueued_it(lab_of: LabOf) -> None:
    """Where an enqueue is to blame for what a claim does, its line is not to be guessed."""
    capped = reference("now() + :delay", "now() + LEAST(:delay, interval '1 day')")
    (early,) = check_queue(lab_of(capped), select(["not-early"]), profile="quick").guarantees
    assert early.verdict == "broken"
    told = early.told
    assert isinstance(told, Story)
    (job,) = told.before
    assert job.delay > DAY
    assert ["LEAST(:delay" in told.statements[n] for n in job.statements] == [True]
