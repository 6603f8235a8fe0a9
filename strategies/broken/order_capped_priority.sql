-- breaks: order
-- Priorities go up to 9 here, and what is above is cut off: of two urgent jobs the older one comes
-- first, whatever their priorities.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, LEAST(:priority, 9), now() + :delay, :max_attempts)
RETURNING id;
