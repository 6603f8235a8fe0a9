-- breaks: retry-bound
-- The bound is asked in one path and assumed in another: recover knows a default of 3 and not the
-- job's own max_attempts, and claim trusts it (eliza#10854: max_attempts = 1 ran three times).

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
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts < GREATEST(3, max_attempts) THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < GREATEST(3, max_attempts) THEN NULL ELSE now() END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
