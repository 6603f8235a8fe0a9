-- Whoever begins gives back what dead workers left, as recover does, before its first claim: jobs whose
-- lease has run out, and those without an attempt left end as failed.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: start()
WITH stale AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - interval '30 seconds'
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status    = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at = NULL,
    locked_by = NULL
FROM stale
WHERE jobs.id = stale.id;
