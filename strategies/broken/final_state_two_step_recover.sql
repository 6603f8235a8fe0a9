-- breaks: final-state
-- Recover reads the stale jobs, then requeues them by id: one that its late worker completes in
-- between runs again (river#1302, fixed by PR 1373: completed flipped back to retryable).

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
  -- A lease that was extended is asked again; whether the job still runs is not.
  WHERE id = ANY (:ids)
    AND (locked_at IS NULL OR locked_at < now() - :lease)
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
