-- breaks: no-lost-job
-- So that old partitions are left out, the claim looks at the last ninety days: what has waited for
-- longer, or was to wait for so long, is never claimed.

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
    AND created_at > now() - interval '90 days'
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
