-- breaks: no-starvation
-- The claim reads a page of twenty jobs that are due and not over, and leaves out those that run:
-- where so many run at once, nobody gets another one.

-- /// queue
-- extends = "../skip_locked.sql"
-- [breaks]
-- steady-cost = "the index of what waits does not hold what runs, which the page reads too"
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
    AND id IN (
      SELECT id FROM jobs WHERE queue = :queue AND status IN ('queued', 'running') AND run_at <= now()
      ORDER BY priority DESC, run_at, id LIMIT 20
    )
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
