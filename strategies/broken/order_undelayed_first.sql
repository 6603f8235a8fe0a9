-- breaks: order
-- A job without a delay has always been due, so that it goes before one that was enqueued earlier
-- and has waited for its time.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority,
        CASE WHEN :delay > interval '0' THEN now() + :delay ELSE '-infinity' END, :max_attempts)
RETURNING id;
