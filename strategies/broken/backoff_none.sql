-- breaks: backoff
-- A failed job is free again at once: a dependency that is down is hammered until all attempts
-- are used up.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    run_at     = now(),  -- no wait
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
