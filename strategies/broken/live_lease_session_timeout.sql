-- breaks: live-lease
-- A claim lives as long as its worker's connection, and a job may take days. But the reaper takes a
-- job back from a connection that is older than an hour.

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
        AND backend_start > now() - interval '1 hour'
    )
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status  = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    backend = NULL
FROM orphans
WHERE jobs.id = orphans.id
RETURNING jobs.id;
