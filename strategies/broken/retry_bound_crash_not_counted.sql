-- breaks: retry-bound
-- A crash is taken for no fault of the job and does not count, so that a job which kills its
-- worker is handed out for ever (PgQueuer: attempts stay at 0).

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
SET status       = 'queued',
    max_attempts = max_attempts + 1,  -- gives the attempt back; attempts itself is the fence
    locked_at    = NULL,
    locked_by    = NULL,
    last_error   = 'lease expired',
    updated_at   = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
