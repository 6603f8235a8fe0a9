-- breaks: live-lease
-- The heartbeat asks for one queue, the one that was there when it was written: a worker of another
-- one is told that it has lost a job that is still its own.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET locked_at  = now(),
    updated_at = now()
WHERE id = :id AND queue = 'default'
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
