-- breaks: no-deadlock
-- A batch takes the counter first, so that two batches cannot meet half way. One job alone is
-- completed first and counted after: where a late batch names it, each has what the other wants.

-- /// queue
-- extends = "../sound/counters.sql"
-- ///

-- name: complete_many(ids, worker, attempts)
BEGIN;
SELECT name FROM counters WHERE name = 'attempts' FOR UPDATE;
SELECT status FROM jobs WHERE id = ANY (:ids) ORDER BY id FOR UPDATE;
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
FROM unnest(:ids::bigint[], :attempts::int[]) AS ended (id, attempt)
WHERE jobs.id = ended.id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = ended.attempt
RETURNING jobs.id;
UPDATE counters SET ended = ended + cardinality(:ids) WHERE name = 'attempts';
UPDATE counters SET ended = ended + cardinality(:ids) WHERE name = 'total';
COMMIT;
