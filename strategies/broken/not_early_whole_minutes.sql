-- breaks: not-early
-- `extract(second FROM ...)` is the field of an interval, not its length: 0 for a minute or an hour.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (
  :queue, :payload, :priority,
  CASE WHEN extract(second FROM :delay) > 0 THEN now() + :delay ELSE now() END,
  :max_attempts
)
RETURNING id;
