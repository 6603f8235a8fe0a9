"""Rules of the fine print that decide a verdict: whose break is accepted, and whose is none."""

import pytest

from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from tests.fix_histories import each
from tests.fix_labs import LabOf, judged
from tests.fix_queues import CLAIM_MANY, COMPLETE, queue_file

RUNNING, DONE = "'running'", "'completed'"
HARD_CODED = "UPDATE jobs SET status = 'queued' WHERE status = 'running' RETURNING id;"


def forgets(header: str, claimed: str, recover: str = "") -> str:
    """A queue whose claim says in which state a job is, and nothing ends one."""
    claim = f"(limit)\n{CLAIM_MANY.replace(RUNNING, claimed)}"
    return queue_file(header=header, claim=claim, complete="", recover=recover)


@pytest.mark.parametrize(
    ("header", "claimed", "recover", "verdict"),
    [
        ('order = "none"', RUNNING, "", "broken"),
        ('order = "none"', DONE, "", "broken"),
        ('stale = "stays"', RUNNING, "", "accepted"),
        ('delivery = "at-most-once"', DONE, "", "not-offered"),
        ('order = "none"', RUNNING, HARD_CODED, "holds"),
        ('stale = "stays"', RUNNING, HARD_CODED, "holds"),
    ],
)
def test_a_crashed_worker_is_asked_after_where_no_lease_is_declared(
    lab_of: LabOf, header: str, claimed: str, recover: str, verdict: str
) -> None:
    """A job that nobody takes back is `stale-recovery`'s break, unless the header says so."""
    found = judged(lab_of(forgets(header, claimed, recover)), "stale-recovery", "crash-safe")
    assert found["stale-recovery"].verdict == verdict
    assert (found["stale-recovery"].story is not None) == (verdict in {"broken", "accepted"})
    if verdict == "accepted":
        assert 'declared: stale = "stays"' in found["stale-recovery"].reason
    assert found["crash-safe"].verdict == "holds"


def test_a_claim_that_ends_its_job_hands_it_out_once(lab_of: LabOf) -> None:
    """Delivery at most once is judged by its claims: none gets what another one has got."""
    text = forgets('delivery = "at-most-once"', DONE)
    asked = {"single-claim", "no-lost-job"}
    assert judged(lab_of(text), *asked).keys() == asked
    twice = text.replace("FOR UPDATE SKIP LOCKED", "")
    assert judged(lab_of(twice), "single-claim")["single-claim"].verdict == "broken"


WORKERS_CLOCK = queue_file(
    header='lease = "30 seconds"',
    more="""
ALTER TABLE jobs ADD claims int NOT NULL DEFAULT 0,
  ADD locked_at timestamptz NOT NULL DEFAULT '-infinity';""",
    claim="""(limit, now)
UPDATE jobs SET locked_at = :now, claims = claims + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE locked_at < {bound} - interval '30 seconds'
  ORDER BY locked_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, claims;""",
    complete="(id, claims)!\nDELETE FROM jobs WHERE id = :id AND claims = :claims;",
    jobs="",
)
BY_LEASE = WORKERS_CLOCK.format(bound="now()").replace(":now", "now()").replace(", now", "")
RACED = f"""{BY_LEASE}
-- name: heartbeat(id, claims)!
UPDATE jobs SET locked_at = now() WHERE id = :id AND claims = :claims;
-- name: recover
SELECT id FROM jobs WHERE locked_at < :now - interval '30 seconds' AND locked_at > '-infinity';
UPDATE jobs SET locked_at = '-infinity' WHERE id = ANY (:ids) RETURNING id;
"""


@pytest.mark.parametrize("bound", [":now", "now()"])
def test_a_time_that_the_worker_sends_is_set_wrong(lab_of: LabOf, bound: str) -> None:
    """A lease by `:now` is judged with workers' clocks ahead and behind; right ones harm nobody."""
    lab = lab_of(WORKERS_CLOCK.format(bound=bound))
    found = judged(lab, "server-clock", "live-lease", "stale-recovery")
    assert found["server-clock"].verdict == "broken"
    assert (found["live-lease"].verdict, found["stale-recovery"].verdict) == ("holds", "holds")
    assert found["server-clock"].story is not None
    assert "clock (w1:" in found["server-clock"].story


def test_what_breaks_by_a_wrong_clock_alone_is_told_beside_what_breaks_anyway(
    lab_of: LabOf,
) -> None:
    """A heartbeat races with the sweep; in turn, which goes one way, only its clock is to blame."""
    found = judged(lab_of(RACED), "server-clock", "live-lease")
    assert [one.verdict for one in found.values()] == ["broken"] * 2
    assert "clock (w1:" in (found["server-clock"].story or "")
    assert "clock (w1:" not in (found["live-lease"].story or "")


RETRIED = "SET status = CASE WHEN attempts < 3 THEN 'queued' ELSE 'failed' END"
HOOKS = queue_file(
    header='lease = "5 minutes"\nmax_attempts = 3',
    table="""
CREATE TABLE hooks (
  id bigserial PRIMARY KEY, key text NOT NULL UNIQUE, status text NOT NULL DEFAULT 'queued',
  again boolean NOT NULL DEFAULT false, attempts int NOT NULL DEFAULT 0,
  claims int NOT NULL DEFAULT 0, locked_at timestamptz
);""",
    enqueue="""(payload)
INSERT INTO hooks (key) VALUES (md5(:payload::jsonb::text))
ON CONFLICT (key) DO UPDATE SET {upsert} RETURNING id;""",
    claim="""(limit)
UPDATE hooks SET status = 'running', attempts = attempts + 1, claims = claims + 1, locked_at = now()
WHERE id = ANY (ARRAY(
  SELECT id FROM hooks WHERE status = 'queued' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, claims;""",
    complete="""(id, claims)!
UPDATE hooks
SET status = CASE WHEN again THEN 'queued' ELSE 'completed' END, again = false,
    attempts = CASE WHEN again THEN 0 ELSE attempts END
WHERE id = :id AND status = 'running' AND claims = :claims;""",
    fail=f"""(id, claims)!
UPDATE hooks {RETRIED} WHERE id = :id AND status = 'running' AND claims = :claims;""",
    jobs="SELECT id, {state} AS state, attempts FROM hooks;",
    recover=f"""(lease)
UPDATE hooks {RETRIED}
WHERE id = ANY (ARRAY(
  SELECT id FROM hooks WHERE status = 'running' AND locked_at < now() - :lease
  FOR UPDATE SKIP LOCKED
))
RETURNING id;""",
)
TOUCHED = "key = hooks.key"
ENDED_AGAIN = (
    "status = CASE WHEN hooks.status = 'running' THEN 'running' ELSE 'queued' END,"
    " attempts = CASE WHEN hooks.status = 'running' THEN hooks.attempts ELSE 0 END"
)
LATER_AGAIN = f"{ENDED_AGAIN}, again = hooks.status = 'running'"
ASKED = ("single-claim", "no-lost-job", "live-lease", "fencing", "final-state", "retry-bound")
OVER = "status = 'running' AND locked_at < now() - interval '5 minutes'"


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
def test_an_enqueue_may_answer_a_known_job(lab_of: LabOf, upsert: str, broken: set[str]) -> None:
    """It may run once more after its end; what its holder has is neither given away nor taken."""
    found = judged(lab_of(HOOKS.format(upsert=upsert, state="status")), *ASKED, profile="glance")
    assert {name for name, one in found.items() if one.verdict != "holds"} == broken


@pytest.mark.parametrize(
    ("which", "listed"),
    [("attempts >= 3 AND status <> 'completed'", "failed"), (OVER, "failed"), (OVER, "queued")],
    ids=["its last attempt runs", "its lease is over", "its lease is over, and it is free"],
)
def test_a_state_may_follow_from_a_clock_or_count(lab_of: LabOf, which: str, listed: str) -> None:
    """A job whose last attempt runs, or whose lease is over, may be listed as failed."""
    state = f"CASE WHEN {which} THEN '{listed}' ELSE status END"
    asked = (*ASKED, "stale-recovery", "retry-given")
    found = judged(lab_of(HOOKS.format(upsert=TOUCHED, state=state)), *asked, profile="glance")
    assert {one.verdict for one in found.values()} == {"holds"}


@each("""
    put_off => verdict
    interval '30 days' => holds
    interval '1 day' * 30 => holds
    :lease * 8640 => broken
""")
def test_a_dead_workers_job_waits_as_sql_says(lab_of: LabOf, put_off: str, verdict: str) -> None:
    """A span that stands there is the queue's own; thirty days of some other unit are not."""
    text = HOOKS.format(upsert=TOUCHED, state="status")
    text = text.replace("locked_at timestamptz", "locked_at timestamptz, due_at timestamptz")
    due = "status = 'queued' AND (due_at <= now()) IS NOT FALSE ORDER"
    text, recovers, rest = text.replace("status = 'queued' ORDER", due).rpartition(RETRIED)
    text = f"{text}{recovers}, due_at = now() + {put_off}{rest}"
    found = judged(lab_of(text), "stale-recovery", "no-lost-job", profile="glance")
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts == {"stale-recovery": verdict, "no-lost-job": "holds"}


LATE_FAIL_FREES = f"""{BY_LEASE}
-- name: fail(id)!
UPDATE jobs SET locked_at = '-infinity' WHERE id = :id;
"""
ANSWERS_ALL = queue_file(
    header='lease = "5 minutes"\nmax_attempts = 2',
    more="""
ALTER TABLE jobs ADD attempts int NOT NULL DEFAULT 0, ADD locked_at timestamptz,
  ADD locked_by text;""",
    claim="""(worker, limit)
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
WHERE status = 'running' AND locked_by = :worker AND locked_at >= now() - interval '1 minute';""",
    complete=f"""(id, worker, attempts)!
{COMPLETE[:-1]} AND locked_by = :worker AND attempts = :attempts;""",
    recover="""(lease)
UPDATE jobs SET status = CASE WHEN attempts < 2 THEN 'queued' ELSE 'failed' END
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'running' AND locked_at < now() - :lease FOR UPDATE SKIP LOCKED
))
RETURNING id;""",
    jobs="SELECT id, status AS state, attempts FROM jobs;",
)


@pytest.mark.parametrize(
    ("text", "cause", "words", "seen"),
    [
        (LATE_FAIL_FREES, "fencing", "fail was accepted, although its claim had ended", False),
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
    doubted = [one.reason for one in card.guarantees if "follows from" in one.reason]
    assert all(f"follows from the break of {cause}" in reason for reason in doubted)
    assert bool(doubted) is seen


TIES = queue_file(
    more="ALTER TABLE jobs ADD at timestamptz NOT NULL DEFAULT now();",
    claim="""(limit)
DELETE FROM jobs WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE at IN (SELECT at FROM jobs ORDER BY at LIMIT :limit)
  ORDER BY at LIMIT {most} FOR UPDATE SKIP LOCKED
)) RETURNING id;""",
    complete="",
    jobs="",
)
PINNED = """
CREATE FUNCTION take() RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = {path} AS $$
BEGIN
  RETURN QUERY DELETE FROM {jobs} WHERE id = (
    SELECT id FROM {jobs} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id;
END $$;
CREATE SCHEMA queue;"""


@pytest.mark.parametrize(("most", "verdict"), [("ALL", "broken"), (":limit", "holds")])
def test_jobs_of_one_transaction_have_equal_times(lab_of: LabOf, most: str, verdict: str) -> None:
    """A claim that takes all of one moment takes more than its limit."""
    found = judged(lab_of(TIES.format(most=most)), "claim-limit")["claim-limit"]
    assert found.verdict == verdict
    assert ("in one transaction" in (found.story or "")) == (verdict == "broken")


@pytest.mark.parametrize(("path", "jobs"), [("public", "jobs"), ("''", "public.jobs")])
def test_what_names_no_schema_is_meant_for_public(lab_of: LabOf, path: str, jobs: str) -> None:
    """So a function finds the tables that is pinned there, or one that names it, and a block."""
    # And no name of a schema is taken.
    more, claim = PINNED.format(path=path, jobs=jobs), "SELECT take AS id FROM public.take();"
    lab = lab_of(queue_file(more=more, claim=claim, complete="", jobs=""))
    assert judged(lab, "single-claim")["single-claim"].verdict == "holds"
