-- breaks: isolation
-- The same limit over all queues, where jobs have no priority. At REPEATABLE READ two claims of one
-- queue want the same row, and one of them fails; two of two queues both count too few.

-- /// queue
-- extends = "isolation_old_count.sql"
-- order = "fifo"
-- ///

-- name: enqueue(payload, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, run_at, max_attempts)
VALUES (:queue, :payload, now() + :delay, :max_attempts)
RETURNING id;
