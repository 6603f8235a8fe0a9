-- breaks: fencing
-- `complete` checks only the id. A worker that wakes up after its lease finishes another worker's
-- attempt. PgQueuer, Oban, River and graphile-worker complete a job by its id alone
-- (graphile-worker's fail also asks for the owner).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id)!
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'; -- whoever holds it
