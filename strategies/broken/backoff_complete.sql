-- breaks: backoff
-- A completed job is taken for a sign that what was down is up: every job that waits after a
-- failure is due at once, whatever it failed of.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id, worker, attempt)!
WITH due AS (
  UPDATE jobs
  SET run_at = now()
  WHERE id = ANY (ARRAY(
    SELECT id FROM jobs
    WHERE status = 'queued' AND attempts > 0 AND run_at > now()
    FOR UPDATE SKIP LOCKED
  ))
)
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  -- The worker's name alone would let it finish a later attempt of its own.
  AND attempts = :attempt;
