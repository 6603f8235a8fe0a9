"""Rules of the fine print that decide a verdict: whose break is accepted, and whose is none."""

from __future__ import annotations

import pytest

from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from tests.fix_labs import LabOf, judged

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
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'queued' LIMIT :limit FOR UPDATE SKIP LOCKED
))
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


WORKERS_CLOCK = """
-- /// queue
-- lease = "30 seconds"
-- ///
-- name: schema#
CREATE TABLE jobs (
  id bigserial PRIMARY KEY, claims int NOT NULL DEFAULT 0,
  locked_at timestamptz NOT NULL DEFAULT '-infinity'
);
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;
-- name: claim(limit, now)
UPDATE jobs SET locked_at = :now, claims = claims + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE locked_at < {bound} - interval '30 seconds'
  ORDER BY locked_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, claims;
-- name: complete(id, claims)!
DELETE FROM jobs WHERE id = :id AND claims = :claims;
"""


@pytest.mark.parametrize("bound", [":now", "now()"])
def test_a_time_that_the_worker_sends_is_set_wrong(lab_of: LabOf, bound: str) -> None:
    """A lease by `:now` is judged with workers' clocks ahead and behind; right ones harm nobody."""
    found = judged(
        lab_of(WORKERS_CLOCK.format(bound=bound)), "server-clock", "live-lease", "stale-recovery"
    )
    assert {name: one.verdict for name, one in found.items()} == {
        "server-clock": "broken",
        "live-lease": "holds",
        "stale-recovery": "holds",
    }
    assert found["server-clock"].story is not None
    assert "clock (w1:" in found["server-clock"].story


HOOKS = """
-- /// queue
-- lease = "5 minutes"
-- max_attempts = 3
-- ///
-- name: schema#
CREATE TABLE hooks (
  id bigserial PRIMARY KEY, key text NOT NULL UNIQUE, status text NOT NULL DEFAULT 'queued',
  again boolean NOT NULL DEFAULT false, attempts int NOT NULL DEFAULT 0,
  claims int NOT NULL DEFAULT 0, locked_at timestamptz
);
-- name: enqueue(payload)
INSERT INTO hooks (key) VALUES (md5(:payload::jsonb::text))
ON CONFLICT (key) DO UPDATE SET {upsert} RETURNING id;
-- name: claim(limit)
UPDATE hooks SET status = 'running', attempts = attempts + 1, claims = claims + 1, locked_at = now()
WHERE id = ANY (ARRAY(
  SELECT id FROM hooks WHERE status = 'queued' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, claims;
-- name: complete(id, claims)!
UPDATE hooks
SET status = CASE WHEN again THEN 'queued' ELSE 'completed' END, again = false,
    attempts = CASE WHEN again THEN 0 ELSE attempts END
WHERE id = :id AND status = 'running' AND claims = :claims;
-- name: fail(id, claims)!
UPDATE hooks SET status = CASE WHEN attempts < 3 THEN 'queued' ELSE 'failed' END
WHERE id = :id AND status = 'running' AND claims = :claims;
-- name: recover(lease)
UPDATE hooks SET status = CASE WHEN attempts < 3 THEN 'queued' ELSE 'failed' END
WHERE id = ANY (ARRAY(
  SELECT id FROM hooks WHERE status = 'running' AND locked_at < now() - :lease
  FOR UPDATE SKIP LOCKED
))
RETURNING id;
-- name: jobs
SELECT id, {state} AS state, attempts FROM hooks;
"""
TOUCHED = "key = hooks.key"
ENDED_AGAIN = (
    "status = CASE WHEN hooks.status = 'running' THEN 'running' ELSE 'queued' END,"
    " attempts = CASE WHEN hooks.status = 'running' THEN hooks.attempts ELSE 0 END"
)
LATER_AGAIN = f"{ENDED_AGAIN}, again = hooks.status = 'running'"
ASKED = ("single-claim", "no-lost-job", "live-lease", "fencing", "final-state", "retry-bound")


@pytest.mark.parametrize(
    ("upsert", "broken"),
    [
        (TOUCHED, set()),
        (ENDED_AGAIN, set()),
        (LATER_AGAIN, set()),
        ("status = 'queued'", {"single-claim"}),
        ("claims = hooks.claims + 1", {"single-claim"}),
    ],
)
def test_an_enqueue_may_answer_a_job_that_is_there(
    lab_of: LabOf, upsert: str, broken: set[str]
) -> None:
    """It may run once more after its end; what its holder has is neither given away nor taken."""
    found = judged(lab_of(HOOKS.format(upsert=upsert, state="status")), *ASKED, profile="glance")
    assert {name for name, one in found.items() if one.verdict != "holds"} == broken


@pytest.mark.parametrize(
    "state",
    [
        "CASE WHEN attempts >= 3 AND status <> 'completed' THEN 'failed' ELSE status END",
        (
            "CASE WHEN status = 'running' AND locked_at < now() - interval '5 minutes'"
            " THEN 'failed' ELSE status END"
        ),
        (
            "CASE WHEN status = 'running' AND locked_at < now() - interval '5 minutes'"
            " THEN 'queued' ELSE status END"
        ),
    ],
)
def test_a_state_may_follow_from_the_clock_or_a_count(lab_of: LabOf, state: str) -> None:
    """A job whose last attempt runs, or whose lease is over, may be listed as failed."""
    asked = (*ASKED, "stale-recovery", "retry-given")
    found = judged(lab_of(HOOKS.format(upsert=TOUCHED, state=state)), *asked, profile="glance")
    assert {one.verdict for one in found.values()} == {"holds"}


PUTS_OFF = (
    "UPDATE hooks SET status = CASE WHEN attempts < 3 THEN 'queued' ELSE 'failed' END,"
    " due_at = now() + {put_off}"
)


@pytest.mark.parametrize(
    ("put_off", "verdict"),
    [
        ("interval '30 days'", "holds"),
        ("interval '1 day' * 30", "holds"),
        (":lease * 8640", "broken"),
    ],
)
def test_a_dead_workers_job_waits_no_longer_than_the_sql_says(
    lab_of: LabOf, put_off: str, verdict: str
) -> None:
    """A span that stands there is the queue's own; thirty days of some other unit are not."""
    text = HOOKS.format(upsert=TOUCHED, state="status")
    text = text.replace("locked_at timestamptz", "locked_at timestamptz, due_at timestamptz")
    text = text.replace(
        "status = 'queued' ORDER", "status = 'queued' AND (due_at <= now()) IS NOT FALSE ORDER"
    )
    fail, recover = text.split("-- name: recover")
    recovering = recover.replace(PUTS_OFF.partition(",")[0], PUTS_OFF.format(put_off=put_off))
    assert recovering != recover
    asked = ("stale-recovery", "no-lost-job")
    found = judged(lab_of(f"{fail}-- name: recover{recovering}"), *asked, profile="glance")
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts == {"stale-recovery": verdict, "no-lost-job": "holds"}


LATE_FAIL_FREES = """
-- /// queue
-- lease = "5 minutes"
-- ///
-- name: schema#
CREATE TABLE pages (
  id bigserial PRIMARY KEY, claimed_at timestamptz NOT NULL DEFAULT '-infinity',
  claims int NOT NULL DEFAULT 0
);
-- name: enqueue
INSERT INTO pages DEFAULT VALUES RETURNING id;
-- name: claim(limit)
UPDATE pages SET claimed_at = now(), claims = claims + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM pages WHERE claimed_at < now() - interval '5 minutes'
  ORDER BY claimed_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, claims;
-- name: complete(id, claims)!
DELETE FROM pages WHERE id = :id AND claims = :claims;
-- name: fail(id)!
UPDATE pages SET claimed_at = '-infinity' WHERE id = :id;
"""
ANSWERS_ALL = """
-- /// queue
-- lease = "5 minutes"
-- max_attempts = 2
-- ///
-- name: schema#
CREATE TABLE jobs (
  id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'queued', attempts int NOT NULL DEFAULT 0,
  locked_at timestamptz, locked_by text
);
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;
-- name: claim(worker, limit)
WITH taken AS (
  UPDATE jobs
  SET status = 'running', attempts = attempts + 1, locked_at = now(), locked_by = :worker
  WHERE id = ANY (ARRAY(
    SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, attempts
)
SELECT id, attempts FROM taken
UNION ALL
SELECT id, attempts FROM jobs
WHERE status = 'running' AND locked_by = :worker AND locked_at >= now() - interval '1 minute';
-- name: complete(id, worker, attempts)!
UPDATE jobs SET status = 'completed'
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempts;
-- name: recover(lease)
UPDATE jobs SET status = CASE WHEN attempts < 2 THEN 'queued' ELSE 'failed' END
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'running' AND locked_at < now() - :lease FOR UPDATE SKIP LOCKED
))
RETURNING id;
-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
"""


@pytest.mark.parametrize(
    ("text", "cause", "words", "seen"),
    [
        (
            LATE_FAIL_FREES,
            "fencing",
            "was allowed to fail a job with a claim that had ended",
            False,
        ),
        (ANSWERS_ALL, "claim-limit", "which it had claimed before", True),
    ],
)
def test_what_another_breach_explains_is_not_broken_as_well(
    lab_of: LabOf, text: str, cause: str, words: str, *, seen: bool
) -> None:
    """Rule 21: a late fail that falls on the next claim, and a claim that answers what is held."""
    card = check_queue(lab_of(text), select(None, skip=["steady-cost"]), profile="glance")
    (broken,) = (one for one in card.guarantees if one.verdict == "broken")
    assert broken.id == cause
    assert words in broken.reason
    doubted = [one.reason for one in card.guarantees if "a consequence of" in one.reason]
    assert all(f"a consequence of the breach of {cause}" in reason for reason in doubted)
    assert bool(doubted) is seen


TIES = """
-- name: schema#
CREATE TABLE jobs (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;
-- name: claim(limit)
DELETE FROM jobs WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE at IN (SELECT at FROM jobs ORDER BY at{rest} LIMIT :limit)
  ORDER BY at{rest} LIMIT {most} FOR UPDATE SKIP LOCKED
)) RETURNING id;
"""


@pytest.mark.parametrize(("most", "verdict"), [("ALL", "broken"), (":limit", "holds")])
def test_jobs_of_one_transaction_have_equal_times(lab_of: LabOf, most: str, verdict: str) -> None:
    """A claim that takes all of one moment takes more than its limit."""
    found = judged(lab_of(TIES.format(rest="", most=most)), "claim-limit")["claim-limit"]
    assert found.verdict == verdict
    assert ("in one transaction" in (found.story or "")) == (verdict == "broken")


PINNED = """
-- name: schema#
CREATE TABLE jobs (id bigserial PRIMARY KEY);
CREATE FUNCTION take() RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
  RETURN QUERY DELETE FROM jobs WHERE id = (
    SELECT id FROM jobs ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id;
END $$;
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;
-- name: claim
SELECT take AS id FROM take();
"""


def test_a_function_that_is_pinned_to_public_finds_the_tables(lab_of: LabOf) -> None:
    """What names no schema is meant for public."""
    assert judged(lab_of(PINNED), "single-claim")["single-claim"].verdict == "holds"
