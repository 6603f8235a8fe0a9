-- breaks: retry-bound
-- Whoever begins requeues what lost workers had, and gives it an attempt more, as if that had been
-- a deployment: a job that kills its worker is handed out for ever by the workers that are started
-- in its place.

-- /// queue
-- extends = "../sound/start_gives_back.sql"
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
SET status = 'queued', locked_at = NULL, locked_by = NULL, max_attempts = max_attempts + 1
FROM stale
WHERE jobs.id = stale.id;
