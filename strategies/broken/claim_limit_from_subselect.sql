-- breaks: claim-limit
-- The same with a sub-select in FROM: safe under most plans, until ANALYZE has seen a nearly
-- empty table and jobs arrive (ecto_job PR 43).

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
-- Not materialized: as the inner side of a nested loop it is run again for each outer row.
FROM (
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
) AS picked
WHERE jobs.id = picked.id
RETURNING jobs.id, attempts AS attempt, payload;
