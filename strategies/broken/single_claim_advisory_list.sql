-- breaks: single-claim
-- An advisory lock knows nothing of snapshots: between the snapshot of the list and the lock
-- another worker may have taken the job and let its lock go. Only a pause inside the query shows
-- it.

-- /// queue
-- extends = "../advisory_lock.sql"
-- ///

-- name: claim(worker, limit, queue, ids)
BEGIN;
SELECT id
-- OFFSET 0, so that locks are tried in the order of the list and only until LIMIT is reached; in
-- the list's own WHERE or ORDER BY they would be taken on every job that it passes.
FROM (
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  OFFSET 0
) AS free
-- Until the end of the transaction, not of the session: a crash or a pooler leaves none behind.
WHERE pg_try_advisory_xact_lock(hashtextextended('jobs', id))
LIMIT :limit;
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
WHERE id = ANY (:ids)
  -- Not finished, not used up, due: but free is not asked again.
  AND status IN ('queued', 'running')
  AND attempts < max_attempts
  AND run_at <= now()
RETURNING id, attempts AS attempt, payload;
COMMIT;
