-- breaks: concurrency-limit
-- Who completes a job frees its slot, even when it has lost the job: the next holder runs without
-- one. To be compared with sound/concurrency_limit.sql.

-- /// queue
-- extends = "../sound/concurrency_limit.sql"
-- ///

-- name: complete(id, worker, attempt)!
WITH freed AS (
  UPDATE slots SET job_id = NULL WHERE job_id = :id
)
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  -- The worker's name alone would let it finish a later attempt of its own.
  AND attempts = :attempt;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
),
freed AS (
  UPDATE slots
  SET job_id = NULL
  FROM stale
  WHERE slots.job_id = stale.id
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
