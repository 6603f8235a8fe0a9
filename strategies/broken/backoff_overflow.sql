-- breaks: backoff
-- The cap is applied after the power: from attempt 42 on the product is no interval any more, and
-- fail itself fails (pgqueuer at 47, river PR 698 at 310, hatchet PR 4719).

-- /// queue
-- extends = "../skip_locked.sql"
-- max_attempts = 60
-- ///

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The cap comes too late: out of range is an error before LEAST is asked.
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ (attempts - 1)),
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
