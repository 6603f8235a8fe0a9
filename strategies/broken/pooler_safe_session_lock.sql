-- breaks: pooler-safe
-- The locks of the list are the session's, and are given back after the commit. A pooler sends
-- that to another session, and whoever gets the first one keeps the locks for ever.

-- /// queue
-- extends = "../advisory_lock.sql"
-- [breaks]
-- non-blocking = "a late worker's row lock makes a claim wait: it is no advisory lock"
-- isolation = "the same defect: a session keeps its locks when SERIALIZABLE refuses the commit"
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
WHERE pg_try_advisory_lock(hashtextextended('jobs', id))
LIMIT :limit;
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
WHERE id = ANY (:ids)
  -- The list was read before the locks were held; this statement's snapshot is newer.
  AND status = 'queued'
  AND attempts < max_attempts
  AND run_at <= now();
COMMIT;
SELECT count(pg_advisory_unlock(hashtextextended('jobs', id))) AS given_back
FROM unnest(:ids) AS named (id);
SELECT id, attempts AS attempt, payload
FROM jobs
WHERE id = ANY (:ids)
  AND status = 'running'
  AND locked_by = :worker;
