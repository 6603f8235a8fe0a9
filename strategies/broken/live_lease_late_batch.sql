-- breaks: live-lease
-- A batch is completed only in the first 20 seconds of a lease of 30: what took longer was done,
-- and is done once more.

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
    SELECT id, status, locked_by, attempts, locked_at FROM jobs WHERE jobs.id = batch.id FOR UPDATE
  ) AS job
  WHERE job.status = 'running' AND job.locked_at > now() - interval '20 seconds'
    AND job.locked_by = :worker
    AND job.attempts = batch.attempt
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
