-- breaks: non-blocking
-- Recover without SKIP LOCKED: while one late worker is in the middle of its complete, the reaper
-- waits, and with it every other job that is to be freed. A plain UPDATE ... WHERE locked_at < ...
-- does the same.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- Waits for the late worker that is completing or failing one of them.
  FOR UPDATE
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

-- name: heartbeat(id, worker, attempt)!
-- not offered
