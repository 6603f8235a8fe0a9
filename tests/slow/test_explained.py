"""A break that stands within another's story, by whole checks."""

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.examine.findings import Findings
from queueproof.examine.work import Draws, Work
from queueproof.guarantees.catalogue import select
from queueproof.schedule.conditions import PLAIN
from queueproof.search.shrink import find
from tests.fix_labs import LabOf
from tests.fix_places import SKIP_LOCKED
from tests.fix_plays import play
from tests.fix_queues import queue_file

NOWHERE = SKIP_LOCKED.replace("WHERE queue = :queue", "WHERE queue = :queue AND priority < 10")


@pytest.mark.parametrize("accepted", [False, True])
def test_what_is_in_a_story_explains_it_unless_accepted(lab_of: LabOf, *, accepted: bool) -> None:
    """A job that no claim looks at is lost; that others stand beside it is not to blame."""
    breaks = '-- [breaks]\n-- no-lost-job = "known"\n-- ///\n\n-- name: schema#'
    text = NOWHERE.replace("-- ///\n\n-- name: schema#", breaks) if accepted else NOWHERE
    card = check_queue(lab_of(text), select(["no-lost-job", "no-starvation"]), profile="glance")
    lost, starved = card.guarantees
    if accepted:
        assert (lost.verdict, starved.verdict) == ("accepted", "broken")
    else:
        assert (lost.verdict, starved.verdict) == ("broken", "inconclusive")
        told = "its story holds that of no-lost-job, which is broken: mend that first"
        assert starved.reason == told


COUNTING = {
    "header": 'lease = "30 seconds"\nmax_attempts = 5',
    "more": """
ALTER TABLE jobs ADD attempts int NOT NULL DEFAULT 0, ADD max_attempts int NOT NULL,
  ADD started timestamptz NOT NULL DEFAULT 'epoch', ADD worker text;""",
    "enqueue": """(max_attempts)
INSERT INTO jobs (max_attempts) VALUES (:max_attempts) RETURNING id;""",
    "jobs": "SELECT id, status AS state, attempts FROM jobs;",
}
AGAIN = "status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END"
STALE = "SELECT id FROM jobs WHERE status = 'running' AND started < now() - interval '30 seconds'"
MINE = "id = :id AND status = 'running' AND worker = :worker AND attempts = :attempt"
DATED_LATER = queue_file(
    **COUNTING,
    claim="""(worker, limit, ids)
UPDATE jobs SET status = 'running', attempts = attempts + 1, worker = :worker
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)) RETURNING id, attempts AS attempt;
UPDATE jobs SET started = now() WHERE id = ANY (:ids) RETURNING id, attempts AS attempt;""",
    complete=f"(id, worker, attempt)!\nUPDATE jobs SET status = 'completed' WHERE {MINE};",
    heartbeat=f"(id, worker, attempt)!\nUPDATE jobs SET started = now() WHERE {MINE};",
    recover=f"""
UPDATE jobs SET {AGAIN}, started = 'epoch'
WHERE id = ANY (ARRAY({STALE} FOR UPDATE SKIP LOCKED)) RETURNING id;""",
)
# Whoever had a job may complete it, and a recovery frees what it has listed.
LISTED = queue_file(
    **COUNTING,
    claim="""(limit)
UPDATE jobs SET status = 'running', attempts = attempts + 1, started = now()
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'queued' AND attempts < max_attempts
  ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)) RETURNING id, attempts;""",
    recover=f"""(ids)
{STALE};
UPDATE jobs SET {AGAIN} WHERE id = ANY (:ids) AND status = 'running' RETURNING id;""",
)


@pytest.mark.parametrize("fail_fast", [False, True])
def test_a_story_that_stands_alone_is_looked_for(lab_of: LabOf, *, fail_fast: bool) -> None:
    """The claim has a job before it says since when; the first story of that holds another's."""
    wanted = select(["live-lease"])
    (live,) = check_queue(lab_of(DATED_LATER), wanted, fail_fast=fail_fast).guarantees
    assert live.verdict == "broken"


@pytest.mark.sample
def test_what_only_ends_a_shorter_run_is_no_part_of_a_story(lab_of: LabOf) -> None:
    """Two recoveries at once; that who lost the job may complete it as well is another story."""
    lab = lab_of(LISTED)
    findings = Findings(lab, calibrate(lab), 0)
    meeting = "reaper recovers | w2 wholly recovers, wholly claims"
    program = play(f"w1 claims; +lease; {meeting}; w3 claims")
    failure = find(findings.runner(), findings.declared, program, "live-lease")
    assert failure is not None
    findings.record("live-lease", failure)
    findings.shorten(select(["live-lease"]))
    assert not findings.explained("live-lease")


def test_of_two_that_explain_each_other_one_stays_broken(lab_of: LabOf) -> None:
    """A break that another explains explains nothing: else a broken queue would have no break."""
    lab = lab_of(NOWHERE)
    offer = calibrate(lab)
    tried = Work(lab, offer, 0).tries(Draws(0, 40, PLAIN))
    broken = [failure for one in tried for failure in one.broken]
    for already, expected in ((False, True), (True, False)):
        findings = Findings(lab, offer, 0)
        for failure in broken:
            findings.record(failure.violation.guarantee, failure)
        assert {"no-lost-job", "no-starvation"} <= findings.failures.keys()
        if already:
            findings.within["no-lost-job"] = "no-starvation"
        findings.shorten(select(["no-starvation"]))
        assert ("no-starvation" in findings.within) == expected
