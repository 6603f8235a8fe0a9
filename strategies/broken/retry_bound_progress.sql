-- breaks: retry-bound
-- A heartbeat is progress, and who makes progress gets its attempts back: a job that beats once
-- before it fails is tried for ever.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- ///

-- name: heartbeat(id, receipt, lease)!
UPDATE messages
SET visible_at = now() + :lease,
    attempts   = 1
WHERE id = :id
  AND receipt = :receipt;
