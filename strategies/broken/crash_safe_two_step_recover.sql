-- breaks: crash-safe
-- Recover takes the lease away in one transaction and gives the job back in another: when the
-- reaper dies between them, nothing ever looks at the job again.

-- /// queue
-- extends = "../skip_locked.sql"
-- [breaks]
-- non-blocking = "follows from it: a late worker that waited for the first transaction is met by the second"
-- isolation = "follows from it: an error between the two leaves what a crash leaves"
-- ///

-- name: recover(lease, ids)
WITH stale AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id;
-- Committed above: a reaper that dies here leaves a running job without a lease.
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    updated_at = now()
WHERE id = ANY (:ids)
  AND status = 'running'
  AND locked_by IS NULL
RETURNING id, status, attempts;
