-- breaks: non-blocking
-- FOR UPDATE without SKIP LOCKED: each claim waits for the one before it, a convoy however many
-- workers there are.

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
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Waits for whoever holds the first job, although the second is free.
  FOR UPDATE
))
RETURNING id, attempts AS attempt, payload;
