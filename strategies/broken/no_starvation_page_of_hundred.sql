-- breaks: no-starvation
-- The claim asks a page of a hundred jobs which of them are due: a hundred that are urgent and not
-- due hide every ready one behind them.

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
  SELECT free.id
  FROM (
    SELECT id
    FROM jobs
    WHERE queue = :queue
      AND status = 'queued'
      AND attempts < max_attempts
    ORDER BY priority DESC, run_at, id
    LIMIT 100
  ) AS page
  CROSS JOIN LATERAL (
    SELECT id
    FROM jobs
    WHERE id = page.id
      AND status = 'queued'
      AND run_at <= now()
    FOR UPDATE SKIP LOCKED
  ) AS free
  LIMIT :limit
))
RETURNING id, attempts AS attempt, payload;
