-- breaks: backoff
-- The time of the next attempt is cut off to whole seconds: the wait is up to a second too short.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = date_trunc('second', now() +
                 LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))),
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
