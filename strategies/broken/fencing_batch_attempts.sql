-- breaks: fencing
-- A batch is fenced by its attempts, but not job by job: an old token passes when another job of
-- the batch is at that attempt.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete_many(ids, worker, attempts)
WITH batch AS MATERIALIZED (
  SELECT id, attempt
  FROM unnest(:ids::bigint[], :attempts::int[]) AS named (id, attempt)
  -- One order for every batch: two that overlap wait, and do not deadlock.
  ORDER BY id
),
held AS MATERIALIZED (
  SELECT job.id
  FROM batch
  -- Row by row through the primary key, whatever plan a prepared statement has settled on; what
  -- is compared below is the version that was locked.
  CROSS JOIN LATERAL (
    SELECT id, status, locked_by, attempts FROM jobs WHERE jobs.id = batch.id FOR UPDATE
  ) AS job
  WHERE job.status = 'running'
    AND job.locked_by = :worker
    AND job.attempts = ANY (:attempts)
)
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
FROM held
WHERE jobs.id = held.id
RETURNING jobs.id;
