-- breaks: live-lease
-- A heartbeat in the first half of a lease is accepted and writes nothing, to spare dead rows.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(id, worker, attempt)
WITH mine AS (
  SELECT id, locked_at FROM jobs
  WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempt
  FOR UPDATE
), beat AS (
  UPDATE jobs SET locked_at = now() FROM mine
  WHERE jobs.id = mine.id AND mine.locked_at < now() - interval '15 seconds'
)
SELECT id FROM mine;
