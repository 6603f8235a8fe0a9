-- breaks: live-lease
-- Recover reads the stale jobs, then ends by id those without another attempt: a heartbeat that was
-- accepted in between does not save its job.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover(lease, ids)
SELECT id
FROM jobs
WHERE status = 'running'
  AND locked_at < now() - :lease;
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE id = ANY (:ids)
    AND status = 'running'
    -- A job that is to end here is not asked again.
    AND (locked_at < now() - :lease OR attempts >= max_attempts)
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
