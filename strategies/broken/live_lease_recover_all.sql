-- breaks: live-lease
-- Every running job counts as abandoned, as at the start of a single worker: the second worker
-- to start takes the jobs of the first (procrastinate: retry_job does not ask for staleness).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  -- No matter since when.
  WHERE status = 'running'
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
