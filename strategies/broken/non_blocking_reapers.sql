-- breaks: non-blocking
-- One recovery at a time, by a lock that the next one waits for: a reaper that hangs in its
-- transaction hangs all others. pg_try_advisory_xact_lock would let them pass.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover(lease)
BEGIN;
SELECT pg_advisory_xact_lock(7001);
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
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
COMMIT;
