-- breaks: retry-given
-- What was to run later, such as a reminder, is given two attempts, whatever was asked for.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (
  :queue, :payload, :priority, now() + :delay,
  CASE WHEN :delay > interval '0' THEN LEAST(:max_attempts, 2) ELSE :max_attempts END
)
RETURNING id;
