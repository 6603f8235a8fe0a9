-- breaks: no-starvation
-- The transaction that took a job stays open while it runs, and the next claim asks for that row
-- with NOWAIT: it gets an error, as often as it tries, until the job ends. The jobs behind it wait.

-- /// queue
-- extends = "../hold_open.sql"
-- retry_on = ["55P03"]
-- ///

-- name: claim(worker, queue)
BEGIN;
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
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT 1
  FOR UPDATE NOWAIT
))
RETURNING id, attempts AS attempt, payload;
