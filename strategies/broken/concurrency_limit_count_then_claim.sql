-- breaks: concurrency-limit
-- The running jobs are counted in the claim's own snapshot: two claims count the same number and
-- both fill the gap (pgqueuer#761, PR 774).

-- /// queue
-- extends = "../skip_locked.sql"
-- concurrency_limit = 3
-- ///

-- name: claim(worker, limit, queue)
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
-- An ARRAY is computed once; an IN (SELECT ...) may be run again for each row of the outer scan.
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  -- Claims that have not committed yet are not counted.
  LIMIT LEAST(:limit, GREATEST(0, 3 - (SELECT count(*) FROM jobs WHERE status = 'running')))
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
