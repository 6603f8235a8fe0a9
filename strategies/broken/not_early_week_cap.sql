-- breaks: not-early
-- A delay is capped at a week, as other services cap theirs: what was to wait for ten days runs
-- after seven.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + LEAST(:delay, interval '7 days'), :max_attempts)
RETURNING id;
