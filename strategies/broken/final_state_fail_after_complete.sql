-- breaks: final-state
-- Fail may be repeated, but does not ask what was said first: one that comes after the complete,
-- sent by a handler that did not know of it, puts the completed job back.

-- /// queue
-- extends = "../sound/repeated_endings.sql"
-- ///

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued'
                      ELSE 'failed' END,
    failed_at  = CASE WHEN status <> 'running' THEN failed_at
                      WHEN attempts = max_attempts THEN now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = CASE WHEN status <> 'running' THEN run_at
                      ELSE now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)) END,
    locked_at  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND locked_by = :worker
  AND attempts = :attempt;
