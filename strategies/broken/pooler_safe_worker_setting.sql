-- breaks: pooler-safe
-- The worker's name goes ahead as a setting of the session, as audit triggers like to have it. The
-- claim may then run in another session: with no name, or with that of somebody else.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: claim(worker, limit, queue)
SELECT set_config('app.worker', :worker, false);
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = current_setting('app.worker'),
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
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
