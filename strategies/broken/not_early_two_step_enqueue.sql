-- breaks: not-early
-- A job is put in first, and told its time afterwards, in a transaction of its own: between the two
-- it is due.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: enqueue(payload, priority, delay, max_attempts, queue, ids)
INSERT INTO jobs (queue, payload, priority, max_attempts)
VALUES (:queue, :payload, :priority, :max_attempts)
RETURNING id;
-- Committed above, with run_at = now(): whoever claims now gets it.
UPDATE jobs SET run_at = now() + :delay
WHERE id = ANY (:ids)
RETURNING id;
