-- breaks: claim-limit
-- IN (SELECT ... LIMIT n): a nested loop runs the sub-select once per outer row, and each run
-- passes over the rows just taken (oban#4, odd-jobs#115, delayed_job_active_record#143).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: claim(worker, limit, queue)
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
-- The LIMIT holds for one run of the sub-select, and the plan decides how often it runs.
WHERE id IN (
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
)
RETURNING id, attempts AS attempt, payload;
