-- breaks: live-lease
-- NOT EXISTS becomes a join, and of a row that has changed a lock asks its own conditions again,
-- not the join: a recovery that comes late frees what another one did, and somebody claimed since.

-- /// queue
-- extends = "../sound/sessions.sql"
-- ///

-- name: recover
WITH orphans AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND NOT EXISTS (
      SELECT FROM pg_stat_activity WHERE pid = jobs.backend AND backend_start = jobs.since
    )
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status  = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    backend = NULL
FROM orphans
WHERE jobs.id = orphans.id
RETURNING jobs.id;
