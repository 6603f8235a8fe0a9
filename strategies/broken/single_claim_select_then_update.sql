-- breaks: single-claim
-- Two workers read the same job before either has marked it (the race of every first
-- hand-written queue): what was read is claimed by its id.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: claim(worker, limit, queue, ids)
SELECT id
FROM jobs
WHERE queue = :queue
  AND status = 'queued'
  AND attempts < max_attempts
  AND run_at <= now()
ORDER BY priority DESC, run_at, id
LIMIT :limit;
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
