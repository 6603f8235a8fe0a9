"""Rules of the fine print that decide a verdict: whose break is accepted, and whose is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.report.card import Judgement
from queueproof.run.lab import Lab

LabOf = Callable[[str], Lab]


def judged(lab: Lab, *ids: str) -> dict[str, Judgement]:
    """The verdicts of a quick check on some guarantees, by their ids."""
    card = check_queue(lab, select(ids), profile="quick")
    return {one.id: one for one in card.guarantees}


FORGETS = """
-- /// queue
{header}
-- ///
-- name: schema#
CREATE TABLE jobs (id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'queued');
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;
-- name: claim(limit)
UPDATE jobs SET status = {claimed}
WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE status = 'queued' LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING id;
{recover}
-- name: jobs
SELECT id, status AS state FROM jobs;
"""
RUNNING, DONE = "'running'", "'completed'"
HARD_CODED = """
-- name: recover
UPDATE jobs SET status = 'queued' WHERE status = 'running' RETURNING id;
"""


@pytest.mark.parametrize(
    ("header", "claimed", "recover", "verdict"),
    [
        ('-- order = "none"', RUNNING, "", "broken"),
        ('-- order = "none"', DONE, "", "broken"),
        ('-- stale = "stays"', RUNNING, "", "accepted"),
        ('-- delivery = "at-most-once"', DONE, "", "not-offered"),
        ('-- order = "none"', RUNNING, HARD_CODED, "holds"),
        ('-- stale = "stays"', RUNNING, HARD_CODED, "holds"),
    ],
)
def test_a_crashed_worker_is_asked_after_where_no_lease_is_declared(
    lab_of: LabOf, header: str, claimed: str, recover: str, verdict: str
) -> None:
    """A job that nobody takes back is `stale-recovery`'s break, unless the header says so."""
    lab = lab_of(FORGETS.format(header=header, claimed=claimed, recover=recover))
    found = judged(lab, "stale-recovery", "crash-safe")
    assert found["stale-recovery"].verdict == verdict
    assert (found["stale-recovery"].story is not None) == (verdict in {"broken", "accepted"})
    if verdict == "accepted":
        assert 'declared: stale = "stays"' in found["stale-recovery"].reason
    assert found["crash-safe"].verdict == "holds"


def test_a_claim_that_ends_its_job_hands_it_out_once(lab_of: LabOf) -> None:
    """Delivery at most once is judged by its claims: none gets what another one has got."""
    text = FORGETS.format(header='-- delivery = "at-most-once"', claimed=DONE, recover="")
    assert judged(lab_of(text), "single-claim", "no-lost-job").keys() == {
        "single-claim",
        "no-lost-job",
    }
    twice = text.replace("FOR UPDATE SKIP LOCKED", "")
    found = judged(lab_of(twice), "single-claim")["single-claim"]
    assert found.verdict == "broken"
