-- breaks: no-lost-job
-- A payload may say how often its job was tried before it came here. One that has such a key for a
-- purpose of its own begins with no attempt left, and is never claimed.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts, attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts,
        COALESCE((:payload->>'attempts')::int, 0))
RETURNING id;
