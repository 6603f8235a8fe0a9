-- breaks: stale-recovery
-- A heartbeat adds a lease to what is left of the last one, and does not set its end anew: a worker
-- that beats often and dies keeps its job for many leases.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- ///

-- name: heartbeat(id, receipt, lease)!
UPDATE messages
SET visible_at = GREATEST(visible_at, now()) + :lease
WHERE id = :id
  AND receipt = :receipt;
