-- breaks: non-blocking
-- A second attempt's claim takes a lock that all second attempts share. First attempts and later
-- ones never wait, and neither does one job that comes back alone.

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
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
-- What failed once goes one by one, to spare the service that failed: its claim waits for another
-- such claim that has not committed, whichever job that took.
RETURNING id, attempts AS attempt, payload, CASE WHEN attempts = 2 THEN pg_advisory_xact_lock(2) END;
