-- breaks: fencing
-- Complete asks for the id alone: a worker that woke up after its lease finishes the attempt of
-- another worker. PgQueuer, Oban, River and graphile-worker complete a job by WHERE id = ... alone;
-- pg-boss#925 tells what comes of it.

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
