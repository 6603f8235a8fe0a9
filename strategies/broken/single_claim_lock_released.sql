-- breaks: single-claim
-- FOR UPDATE SKIP LOCKED without a transaction around it: the lock ends with its own statement,
-- before the job is marked (good_job#802: the lock was not held where the claim relied on it).

-- /// queue
-- extends = "../for_update.sql"
-- [breaks]
-- ///

-- name: claim(worker, limit, queue, ids)
SELECT id
FROM jobs
WHERE queue = :queue
  AND status = 'queued'
  AND attempts < max_attempts
  AND run_at <= now()
ORDER BY priority DESC, run_at, id
LIMIT :limit
-- Held until the end of the transaction, and this statement is a transaction of its own.
FOR UPDATE SKIP LOCKED;
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE id = ANY (:ids)
    -- Locked, due, not finished, not used up: but free is not asked again.
    AND status IN ('queued', 'running')
    AND attempts < max_attempts
    AND run_at <= now()
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
