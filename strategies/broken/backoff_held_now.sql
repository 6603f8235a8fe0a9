-- breaks: backoff
-- now() stands still while the claim's transaction is open: after a job that took long, a backoff
-- that is counted from it is over before it begins.

-- /// queue
-- extends = "../hold_open.sql"
-- ///

-- name: fail(id, worker, attempt, error)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE clock_timestamp() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = clock_timestamp()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt
RETURNING id;
COMMIT;
