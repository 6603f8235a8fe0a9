-- breaks: not-early
-- A delay is put together from its minutes and its seconds: what was to wait for hours or days
-- begins within the first one.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + make_interval(
  mins => extract(minute FROM :delay)::int,
  secs => extract(second FROM :delay)::float
), :max_attempts)
RETURNING id;
