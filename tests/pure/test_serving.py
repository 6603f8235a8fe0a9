"""The index that a claim would be served by, in the words of its own SQL."""

from __future__ import annotations

import pytest

from queueproof.probes.serving import serving_index


@pytest.mark.parametrize(
    ("claim", "index"),
    [
        (
            (
                "UPDATE messages SET vt = now() + :lease WHERE id = ANY (ARRAY(SELECT id"
                " FROM messages WHERE dead_at IS NULL AND reads < max_reads AND vt <= now()"
                " ORDER BY priority DESC, vt, id LIMIT :limit FOR UPDATE SKIP LOCKED)) RETURNING id"
            ),
            "ON messages (priority DESC, vt, id) WHERE dead_at IS NULL",
        ),
        (
            (
                "SELECT j.id FROM app.jobs j WHERE j.status = 'queued' AND j.queue = $1 AND $2"
                ' ORDER BY j.urgency DESC NULLS LAST, "runAt" LIMIT 5'
            ),
            "ON app.jobs (queue, urgency DESC NULLS LAST, \"runAt\") WHERE status = 'queued'",
        ),
        ("SELECT id FROM jobs ORDER BY id LIMIT 1", "ON jobs (id)"),
        (
            (
                "SELECT id FROM jobs WHERE NOT done AND state IN ('a', 'b')"
                " AND (x IS NULL OR x < $3) ORDER BY id LIMIT 1"
            ),
            "ON jobs (id) WHERE NOT done AND state IN ('a', 'b')",
        ),
    ],
)
def test_the_index_has_the_claims_own_names(claim: str, index: str) -> None:
    """What is compared with a parameter, then the order; what is always asked picks the rows."""
    assert serving_index(claim) == f"CREATE INDEX {index}"


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
    assert serving_index(claim) is None
