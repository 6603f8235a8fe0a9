-- breaks: stale-recovery
-- A claim ends with its worker's connection. But the reaper gives a lost worker an hour to come
-- back, which it cannot: its connection is gone.

-- /// queue
-- extends = "../sound/sessions.sql"
-- ///

-- name: recover
WITH orphans AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND since < now() - interval '1 hour'
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
