-- breaks: retry-given
-- The claim counts an attempt, and the recovery counts the one that crashed again: a job of three
-- attempts fails after two (inferable does so).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts + 1 < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts + 1 < max_attempts THEN NULL ELSE now() END,
    attempts   = attempts + 1,  -- the one that crashed
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
