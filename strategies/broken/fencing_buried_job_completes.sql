-- breaks: fencing
-- A worker that was too slow may still say that its job is done, even where a recovery has ended the job as failed: whoever
-- was told of the failure is not told of this.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id, worker, attempt)!
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status IN ('running', 'failed')
  AND locked_by = :worker
  -- The worker's name alone would let it finish a later attempt of its own.
  AND attempts = :attempt;

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
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
