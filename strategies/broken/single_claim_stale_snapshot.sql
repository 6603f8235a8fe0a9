-- breaks: single-claim
-- One statement, yet the list is made without a lock: by the time a job is locked, another
-- claim may have committed (dbos-transact-py#742: a decision from an old snapshot).

-- /// queue
-- extends = "../for_update.sql"
-- [breaks]
-- ///

-- name: claim(worker, limit, queue)
WITH seen AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
)
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
  WHERE id = ANY (ARRAY(SELECT id FROM seen))
    -- Locked, due, not finished, not used up: but free is not asked again.
    AND status IN ('queued', 'running')
    AND attempts < max_attempts
    AND run_at <= now()
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
