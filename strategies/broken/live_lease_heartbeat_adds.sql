-- breaks: live-lease
-- A late heartbeat adds a lease to where the last one ended, not to the time: accepted because
-- nobody else has the job, it is over before its worker believes.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- ///

-- name: heartbeat(id, receipt, lease)!
UPDATE messages
SET visible_at = LEAST(visible_at, now()) + :lease
WHERE id = :id
  AND receipt = :receipt;
