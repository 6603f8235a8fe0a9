-- breaks: stale-recovery
-- The reaper looks at the first twenty running jobs and chooses among them. Long jobs that are
-- alive fill the page, and a crashed one behind them is not seen.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT jobs.id, locked_by, locked_at
  FROM (SELECT id FROM jobs WHERE status = 'running' ORDER BY id LIMIT 20) AS page
  JOIN jobs USING (id)
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE OF jobs SKIP LOCKED
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
