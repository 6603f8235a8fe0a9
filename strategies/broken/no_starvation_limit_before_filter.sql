-- breaks: no-starvation
-- The LIMIT is used up before it is asked which jobs are due: a delayed job of high priority hides
-- every ready one behind it (oban#1498; procrastinate#1599; river PR 1318).

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
-- An ARRAY is computed once; an IN (SELECT ...) may be run again for each row of the outer scan.
WHERE id = ANY (ARRAY(
  SELECT id
  FROM (
    SELECT id, run_at
    FROM jobs
    WHERE queue = :queue
      AND status = 'queued'
      AND attempts < max_attempts
    ORDER BY priority DESC, run_at, id
    LIMIT :limit
    -- Locks and re-checks the latest version of each row, and passes over what others hold.
    FOR UPDATE SKIP LOCKED
  ) AS head
  WHERE run_at <= now()  -- of the the first few, not the first few of these
))
RETURNING id, attempts AS attempt, payload;
