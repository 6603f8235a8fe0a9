-- breaks: crash-safe
-- Enqueue answers before its commit is on disk: a crash of the server within the next moments loses
-- the job (PostgreSQL's manual, Asynchronous Commit).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue)
BEGIN;
SET LOCAL synchronous_commit = off;
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;
COMMIT;
