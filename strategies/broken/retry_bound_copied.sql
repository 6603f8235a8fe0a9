-- breaks: retry-bound
-- fail writes the row anew, and the default into its max_attempts: a job that may run three times
-- runs six times. One that may run once, or as often as the default says, does not show it.

-- /// queue
-- extends = "../skip_locked.sql"
-- max_attempts = 6
-- ///

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    max_attempts = 6,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
