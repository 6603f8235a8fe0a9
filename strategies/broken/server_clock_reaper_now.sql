-- breaks: server-clock
-- The reaper sends its own time, and compares it with leases that began by the database's: one whose
-- clock is fast takes jobs from workers that live.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover(now, lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < :now - :lease
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
