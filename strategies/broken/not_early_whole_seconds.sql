-- breaks: not-early
-- Times are kept in whole seconds, and what is left of one is cut off: a job may run up to a second
-- before it is due.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, date_trunc('second', now() + :delay), :max_attempts)
RETURNING id;
