-- breaks: no-lost-job
-- The promoter copies what is due and then deletes what is due, in one transaction: what has been
-- committed between the two is deleted, and nobody has copied it.

-- /// queue
-- extends = "../sound/marked_lanes.sql"
-- leader = true
-- ///

-- name: promote
BEGIN;
INSERT INTO ready (id, queue, priority, payload, attempts, max_attempts, created_at, last_error)
SELECT id, queue, priority, payload, attempts, max_attempts, created_at, last_error
FROM scheduled
WHERE run_at <= now();
-- Another snapshot, and more rows in it than were copied.
DELETE FROM scheduled WHERE run_at <= now();
COMMIT;
