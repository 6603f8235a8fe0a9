-- breaks: final-state
-- A heartbeat sets its job running, of which it only looks in a sub-query whether it still is: one
-- that waited for the job's completion, sent by the worker's other thread, brings it back to life.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    updated_at = now()
WHERE id IN (
    SELECT id FROM jobs
    WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempt
  )
  AND attempts = :attempt;
