-- breaks: not-early
-- A delayed job is made due five seconds earlier, which is what workers sleep between two polls.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + greatest('0', :delay - interval '5 seconds'),
  :max_attempts)
RETURNING id;
