-- breaks: not-early
-- The delay is put together from its hours, minutes and seconds. '1 day' has none of them: it is
-- due at once. A client that sends '24:00:00' never sees that.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + make_interval(
  hours => extract(hour FROM :delay::interval)::int,
  mins => extract(minute FROM :delay::interval)::int,
  secs => extract(second FROM :delay::interval)::double precision), :max_attempts)
RETURNING id;
