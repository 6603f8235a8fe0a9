-- breaks: pooler-safe
-- The new job's id is asked for in a second statement: of whichever session that one runs in.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts);
SELECT currval('jobs_id_seq') AS id;
