"""What the rules promise every queue, whichever part of the harness acts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from queueproof.errors import QueueError
from queueproof.examine.calibrate import calibrate
from queueproof.history.calls import Contradiction
from queueproof.judge.answers import contradiction, is_raced
from queueproof.judge.checker import check, declare
from queueproof.probes import backoff
from queueproof.probes.backoff import measure
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.runner import Runner
from queueproof.schedule.moments import HOUR
from queueproof.schedule.programs import JobSpec
from queueproof.space.pieces import LOOKS
from tests.fix_histories import Told
from tests.fix_labs import LabOf
from tests.fix_places import SKIP_LOCKED, reference, text_of
from tests.fix_plays import play
from tests.fix_queues import HOLDS, queue_file

HELD = queue_file(**HOLDS).replace("claim\n", "claim(limit)\n").replace("LIMIT 1", "LIMIT :limit")
# A claim takes back what a dead worker had, which waits for three days.
_BEFORE, _, _AFTER = SKIP_LOCKED.partition("-- name: recover(lease)")
LATER = f"{_BEFORE}-- name: cleanup{_AFTER.partition('-- name: cleanup')[2]}".replace(
    "-- name: claim(worker, limit, queue)\n",
    "-- name: claim(worker, limit, queue, lease)\nWITH back AS (UPDATE jobs SET status = 'queued',"
    " run_at = now() + interval '3 days' WHERE status = 'running' AND locked_at < now() - :lease"
    " RETURNING id) SELECT count(*) FROM back;\n",
)
# From the second failure on a recovery puts jobs in line when they are due.
STAGED = (
    SKIP_LOCKED.replace("'queued', 'running'", "'queued', 'waiting', 'running'")
    .replace("-- ///\n\n", '-- [states]\n-- waiting = "queued"\n-- ///\n\n', 1)
    .replace(
        "CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END",
        "CASE WHEN attempts >= max_attempts THEN 'failed'"
        " WHEN attempts = 1 THEN 'queued' ELSE 'waiting' END",
        1,
    )
    .replace(
        "-- name: recover(lease)\n",
        "-- name: recover(lease)\nWITH due AS (UPDATE jobs SET status = 'queued'"
        " WHERE status = 'waiting' AND run_at <= now() RETURNING id) SELECT count(*) FROM due;\n",
    )
)


def test_a_claim_in_its_transaction_is_asked_for_one_job(lab_of: LabOf) -> None:
    """Rule 19, whatever a program wants: the transaction that ends the first ends them all."""
    run = Runner(lab_of(HELD), held=True).run(play("w1 claims 2", 2))
    assert {1} == {call.limit for call in run.history.of_kind("claim")}
    assert [job for call in run.history.of_kind("claim")[:1] for job in call.ids] == ["1"]


def test_what_was_taken_back_may_wait_as_long_as_it_is_seen_to(lab_of: LabOf) -> None:
    """Rule 14: the job of a dead worker is queued for three days, and comes then."""
    lab = lab_of(LATER)
    offer = calibrate(lab)
    run = Runner(lab).run(play("w1 claims, crashes"))
    assert check(run.history, declare(offer)).violations == []
    assert [job for call in run.history.of_kind("claim") for job in call.ids] == ["1", "1"]


def test_a_claim_that_ends_one_stale_job_at_a_time_is_asked_again(lab_of: LabOf) -> None:
    """Rule 28: the first that it ends shows in `jobs`, before which nobody had looked."""
    lab = lab_of(text_of("sound/renewed_receipts"))
    offer = calibrate(lab)
    late = play(f"w1 claims, crashes; w2 claims, crashes; +{HOUR}", [JobSpec(bound=1), JobSpec()])
    assert check(Runner(lab).run(late).history, declare(offer)).violations == []


def test_a_wait_that_a_recovery_ends_is_no_wait_for_ever(lab_of: LabOf) -> None:
    """Rule 28: recover runs while time passes, also where a short wait needs none."""
    lab = lab_of(STAGED)
    found = measure(lab, calibrate(lab))
    assert found.broken == ""
    assert len(found.found) == 2


def test_a_slow_fail_makes_no_wait_longer(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of 5 s is not measured as more, and what is longer is not asked of the next one."""
    lab: Lab = lab_of(SKIP_LOCKED)
    end: Callable[..., bool] = backoff._end

    def slowly(*arguments: object, **facts: object) -> bool:
        lab.advance(0.8)
        return end(*arguments, **facts)

    monkeypatch.setattr(backoff, "_end", slowly)
    found = measure(lab, calibrate(lab))
    assert found.broken == ""
    assert found.found[0].least <= 5


# Each looks into another sixth of the line: an offset that is drawn does so by chance.
SOMEWHERE = reference(
    *("-- name: schema#\n", "-- name: schema#\nCREATE SEQUENCE turns;\n"),
    *("  LIMIT :limit\n", "  OFFSET (SELECT nextval('turns') % 6) LIMIT :limit\n"),
)


def test_a_claim_that_is_empty_now_and_then_is_told(lab_of: LabOf) -> None:
    """It starves the job that it passes by; of one that is always empty nothing can be said."""
    lab = lab_of(SOMEWHERE)
    offer = calibrate(lab)
    assert offer.misses
    found = check(Runner(lab).run(LOOKS).history, declare(offer)).violations
    assert "no-starvation" in {one.guarantee for one in found}
    with pytest.raises(QueueError, match="claim returned nothing, although a job was enqueued"):
        calibrate(lab_of(reference("  LIMIT :limit\n", "  OFFSET 1000 LIMIT :limit\n")))


@pytest.mark.parametrize(
    ("recoveries", "raced"),
    [
        ("w1 recovers; w2 recovers", False),
        ("begin w1 recovers; begin w2 recovers; end w1; end w2", True),
    ],
)
def test_a_list_that_a_race_made_wrong_is_a_break(recoveries: str, *, raced: bool) -> None:
    """Rule 30: two recoveries at once make two of a job; where nothing raced, the list is wrong."""
    history = Told(f"enqueue 1; {recoveries}; jobs 1=queued").history
    history.calls[-1] = replace(history.calls[-1], ids=("1", "1"))
    wrong = contradiction(history.calls)
    assert isinstance(wrong, Contradiction)
    assert is_raced(history.calls, wrong) is raced
    history.contradiction = wrong
    declared = declare(Offer(load_text(SKIP_LOCKED, "q.sql"), held=False))
    (found,) = check(history, declared).violations
    assert (found.guarantee, found.job, found.call) == ("single-claim", "1", 3)
