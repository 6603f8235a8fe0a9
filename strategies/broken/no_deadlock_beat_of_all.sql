-- breaks: no-deadlock
-- A heartbeat extends all that its worker holds, the latest first. A batch is completed in the order
-- of the ids: the heartbeat that a worker sends meanwhile, on a connection of its own, and that
-- completion each wait for what the other has locked.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: heartbeat(id, worker, attempt)
WITH held AS MATERIALIZED (
  SELECT id, attempts
  FROM jobs
  WHERE status = 'running' AND locked_by = :worker
  ORDER BY id DESC
  FOR UPDATE
),
beat AS (
  UPDATE jobs
  SET locked_at = now(), updated_at = now()
  FROM held
  WHERE jobs.id = held.id
)
SELECT count(*) AS accepted FROM held WHERE id = :id AND attempts = :attempt;
