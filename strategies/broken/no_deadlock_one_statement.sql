-- breaks: no-deadlock
-- One statement that locks the batch's rows in the order in which they are named. Of a job that
-- somebody took over meanwhile it locks the newest version before it sees that it is not its own.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete_many(ids, worker, attempts)
WITH batch AS MATERIALIZED (
  SELECT id, attempt
  FROM unnest(:ids::bigint[], :attempts::int[]) AS named (id, attempt)
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
