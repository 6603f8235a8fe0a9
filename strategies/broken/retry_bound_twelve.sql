-- breaks: retry-bound
-- Only a failure looks at the bound, which stands in the SQL alone: what kills its workers is
-- handed out for ever. It takes twelve crashes to see.

-- /// queue
-- extends = "../skip_locked.sql"
-- max_attempts = 12
-- ///

-- name: enqueue(payload, priority, delay, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, 12)
RETURNING id;

-- name: claim(worker, limit, queue)
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    attempts   = attempts + 1,
    updated_at = now()
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = 'queued',
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
