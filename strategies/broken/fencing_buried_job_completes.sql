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
    completed_at = now(),
    failed_at    = NULL,
    updated_at   = now()
WHERE id = :id
  AND status IN ('running', 'failed')
  AND locked_by = :worker
  AND attempts = :attempt;

-- name: complete_many

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at  = NULL,  -- who had it last is left for people to see
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id;
