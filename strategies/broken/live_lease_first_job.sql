-- breaks: live-lease
-- A worker beats once for all that it holds, but the first of its jobs alone is extended: the
-- others of its batch run out under its hands.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(worker)!
UPDATE jobs
SET locked_at  = now(),
    updated_at = now()
WHERE id = (SELECT min(id) FROM jobs WHERE status = 'running' AND locked_by = :worker)
  AND status = 'running'
  AND locked_by = :worker;
