-- breaks: live-lease
-- The heartbeat is accepted and moves a column that recover does not look at, so that every job
-- longer than one lease is started again (oban#1141, hexpm PR 1825: rescue by start time).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET updated_at = now()  -- recover asks locked_at
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
