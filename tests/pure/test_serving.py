"""The index that a claim would be served by, in the words of its own SQL."""

import pytest

from queueproof.probes.buffers import _comparable
from queueproof.probes.serving import Join, ServingIndex, join_of_all, serving_indexes
from tests.fix_histories import pairs

# A claim => the index that serves it.
SERVED = """
UPDATE messages SET vt = now() + :lease WHERE id = ANY (ARRAY(SELECT id FROM messages
  WHERE dead_at IS NULL AND reads < max_reads AND vt <= now()
  ORDER BY priority DESC, vt, id LIMIT :limit FOR UPDATE SKIP LOCKED)) RETURNING id
  => ON messages (priority DESC, vt, id) WHERE dead_at IS NULL
SELECT j.id FROM app.jobs j WHERE j.status = 'queued' AND j.queue = $1 AND $2
  ORDER BY j.urgency DESC NULLS LAST, "runAt" LIMIT 5
  => ON app.jobs (queue, urgency DESC NULLS LAST, "runAt") WHERE status = 'queued'
SELECT id FROM jobs ORDER BY id LIMIT 1 => ON jobs (id)
SELECT id FROM jobs WHERE NOT done AND state IN ('a', 'b') AND (x IS NULL OR x < $3)
  ORDER BY id LIMIT 1
  => ON jobs (id) WHERE NOT done AND state IN ('a', 'b')
"""
JOINED = """\
Update on deliveries d
  CTE picked
    ->  Limit
          ->  LockRows
                ->  Index Scan using due on deliveries
  ->  Hash Join
        Hash Cond: (d.id = picked.id)
        ->  Seq Scan on deliveries d
        ->  Hash
              ->  CTE Scan on picked"""


@pytest.mark.parametrize(("claim", "index"), pairs(SERVED))
def test_the_index_has_the_claims_own_names(claim: str, index: str) -> None:
    """What is compared with a parameter, then the order; what is always asked picks the rows."""
    assert serving_indexes(claim) == [ServingIndex(f"CREATE INDEX {index}")]


@pytest.mark.parametrize(
    "claim",
    [
        "SELECT * FROM claim_job(:worker)",
        "SELECT id FROM jobs ORDER BY coalesce(priority, 0) LIMIT 1",
        "SELECT id FROM jobs JOIN queues USING (queue) ORDER BY id LIMIT 1",
        "SELECT id FROM (SELECT 1 AS id) ORDER BY id LIMIT 1",
        "SELECT FROM WHERE",
    ],
)
def test_no_index_is_made_up(claim: str) -> None:
    """Where the query is out of sight, or no index of one table has its order, none is named."""
    assert serving_indexes(claim) == []


def test_a_claim_of_two_queries_has_an_index_for_each() -> None:
    """The indexes that are there show which one is lacking."""
    late = "SELECT id FROM d WHERE held < now() ORDER BY held LIMIT 1"
    claim = f"WITH late AS ({late}), due AS (SELECT id FROM d ORDER BY due LIMIT 1) SELECT 1"
    indexes = ["CREATE INDEX ON d (held)", "CREATE INDEX ON d (due)"]
    assert [index.sql for index in serving_indexes(claim)] == indexes
    there = "CREATE INDEX x ON public.d USING btree (held) WHERE ({} IS NOT NULL)"
    assert _comparable(there.format("held")) == _comparable(indexes[0])
    assert _comparable(there.format("due")) != _comparable(indexes[0])


def test_states_joined_by_or_are_asked_for_together() -> None:
    """An index of both states serves a claim that asks for both before it tells them apart."""
    claim = (
        "SELECT id FROM d WHERE {} ((state = 'pending' AND due <= now())"
        " OR (state IN ('sent', 'late') AND locked < now())) ORDER BY due LIMIT 1"
    )
    states = "state IN ('pending', 'sent', 'late')"
    index = f"CREATE INDEX ON d (due) WHERE {states}"
    assert serving_indexes(claim.format("")) == [ServingIndex(index, states)]
    assert serving_indexes(claim.format(f"{states} AND")) == [ServingIndex(index)]
    other = claim.format("").replace("state = 'pending'", "kind = 'pending'")
    assert serving_indexes(other) == [ServingIndex("CREATE INDEX ON d (due)")]


def test_a_join_that_reads_all_jobs_is_seen_in_its_plan() -> None:
    """A hash join of a CTE or a temporary table with the whole table, and no other scan of it."""
    found = Join("deliveries", ("picked",), "id", "id", elsewhere=False)
    assert join_of_all(JOINED) == found
    temporary = JOINED.replace("CTE Scan", "Seq Scan")
    assert join_of_all(temporary.replace("d.id = picked.id", "picked.id = d.id")) == found
    both = JOINED.replace("Index Scan using due on deliveries", "Seq Scan on deliveries d_1")
    assert join_of_all(both) == found._replace(elsewhere=True)
    parts = "".join(f"\n          ->  Seq Scan on deliveries_{n} d_{n}" for n in (1, 2))
    parted = JOINED.replace("Seq Scan on deliveries d", f"Append{parts}")
    lists = "Append\n              ->  CTE Scan on picked\n              ->  CTE Scan on late"
    parted = parted.replace("CTE Scan on picked", lists)
    assert join_of_all(parted) == found._replace(listed=("picked", "late"))
    for old, new in (("Hash Join", "Nested Loop"), ("Seq Scan on", "Index Scan on")):
        assert join_of_all(JOINED.replace(old, new)) is None
