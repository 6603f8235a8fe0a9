-- breaks: fencing
-- Complete asks for the id alone: a worker that woke up after its lease finishes the attempt of
-- another (PgQueuer, Oban, River, graphile-worker: WHERE id = ...; pg-boss#925).

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
