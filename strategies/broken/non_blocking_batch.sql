-- breaks: non-blocking
-- complete_many locks all that runs and looks for its own jobs then: while it is at it, other
-- workers' heartbeats wait.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete_many(ids, worker, attempts)
WITH running AS MATERIALIZED (
  SELECT id, locked_by, attempts
  FROM jobs
  WHERE status = 'running'
  -- One order for every batch: two that overlap wait, and do not deadlock.
  ORDER BY id
  FOR UPDATE
),
held AS MATERIALIZED (
  SELECT running.id
  FROM unnest(:ids::bigint[], :attempts::int[]) AS batch (id, attempt)
  JOIN running ON running.id = batch.id AND running.attempts = batch.attempt
  WHERE running.locked_by = :worker
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
