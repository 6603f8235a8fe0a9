-- breaks: not-early
-- A delay is kept in whole seconds, and rounded: one of 61.4 s is over after 61 s.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority,
        now() + round(extract(epoch FROM :delay)) * interval '1 second', :max_attempts)
RETURNING id;
