"""What the rules promise every queue, whichever part of the harness acts on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.judge.checker import check, declare
from queueproof.probes import backoff
from queueproof.probes.backoff import measure
from queueproof.run.lab import Lab
from queueproof.run.runner import Runner
from queueproof.schedule.moments import HOUR
from queueproof.schedule.programs import JobSpec, Program, advance, claim, crash, in_turn, script
from queueproof.space.pieces import ONE, TWO

LabOf = Callable[[str], Lab]
STRATEGIES = Path(__file__).parents[2] / "strategies"
REFERENCE = (STRATEGIES / "skip_locked.sql").read_text(encoding="utf-8")
HELD = """
-- name: schema#
CREATE TABLE jobs (id bigserial PRIMARY KEY);

-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;

-- name: claim(limit)
BEGIN;
SELECT id FROM jobs ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: complete(id)!
DELETE FROM jobs WHERE id = :id;
COMMIT;
"""
# A claim takes back what a dead worker had, which waits for three days.
_BEFORE, _, _AFTER = REFERENCE.partition("-- name: recover(lease)")
LATER = f"{_BEFORE}-- name: cleanup{_AFTER.partition('-- name: cleanup')[2]}".replace(
    "-- name: claim(worker, limit, queue)\n",
    "-- name: claim(worker, limit, queue, lease)\nWITH back AS (UPDATE jobs SET status = 'queued',"
    " run_at = now() + interval '3 days' WHERE status = 'running' AND locked_at < now() - :lease"
    " RETURNING id) SELECT count(*) FROM back;\n",
)
# From the second failure on a recovery puts jobs in line when they are due.
STAGED = (
    REFERENCE.replace("'queued', 'running'", "'queued', 'waiting', 'running'")
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
    program = Program(TWO, in_turn(script("w1", claim(2))))
    run = Runner(lab_of(HELD), held=True).run(program)
    assert {1} == {call.limit for call in run.history.of_kind("claim")}
    assert [job for call in run.history.of_kind("claim")[:1] for job in call.ids] == ["1"]


def test_what_was_taken_back_may_wait_as_long_as_it_is_seen_to(lab_of: LabOf) -> None:
    """Rule 14: the job of a dead worker is queued for three days, and comes then."""
    lab = lab_of(LATER)
    offer = calibrate(lab)
    run = Runner(lab).run(Program(ONE, in_turn(script("w1", claim(), crash()))))
    assert check(run.history, declare(offer)).violations == []
    assert [job for call in run.history.of_kind("claim") for job in call.ids] == ["1", "1"]


def test_a_claim_that_ends_one_stale_job_at_a_time_is_asked_again(lab_of: LabOf) -> None:
    """Rule 28: the first that it ends shows in `jobs`, before which nobody had looked."""
    lab = lab_of((STRATEGIES / "sound" / "renewed_receipts.sql").read_text(encoding="utf-8"))
    offer = calibrate(lab)
    taken = (script("w1", claim(), crash()), script("w2", claim(), crash()))
    late = in_turn(*taken, script("clock", advance(HOUR)))
    run = Runner(lab).run(Program((JobSpec(bound=1), JobSpec()), late))
    assert check(run.history, declare(offer)).violations == []


def test_a_wait_that_a_recovery_ends_is_no_wait_for_ever(lab_of: LabOf) -> None:
    """Rule 28: recover runs while time passes, also where a short wait needs none."""
    lab = lab_of(STAGED)
    found = measure(lab, calibrate(lab))
    assert found.broken == ""
    assert len(found.found) == 2


def test_a_fail_that_takes_its_time_makes_no_wait_longer(
    lab_of: LabOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait of 5 s is not measured as more, and what is longer is not asked of the next one."""
    lab: Lab = lab_of(REFERENCE)
    end: Callable[..., bool] = backoff._end

    def slowly(*arguments: object, **facts: object) -> bool:
        lab.advance(0.8)
        return end(*arguments, **facts)

    monkeypatch.setattr(backoff, "_end", slowly)
    found = measure(lab, calibrate(lab))
    assert found.broken == ""
    assert found.found[0].least <= 5
