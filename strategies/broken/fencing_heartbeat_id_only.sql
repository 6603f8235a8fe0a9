-- breaks: fencing
-- The heartbeat asks for the id alone: a worker that lost the job extends the lease of the next,
-- is told that all is well, and works on (PgQueuer: update_heartbeat by id).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(id)!
UPDATE jobs
SET locked_at  = now(),
    updated_at = now()
WHERE id = :id
  AND status = 'running'; -- whoever holds it
