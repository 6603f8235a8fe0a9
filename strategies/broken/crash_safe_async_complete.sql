-- breaks: crash-safe
-- Complete answers before its commit is on disk: after a crash of the server the job that was done
-- is running again, and is done twice (PostgreSQL's manual, Asynchronous Commit).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id, worker, attempt)
BEGIN;
SET LOCAL synchronous_commit = off;
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
  AND attempts = :attempt
RETURNING id;
COMMIT;
