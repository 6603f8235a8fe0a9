-- breaks: no-lost-job
-- Cleanup takes away what has been running for as long as finished jobs are kept: nobody was left
-- to recover it, and it is gone.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status IN ('completed', 'failed', 'running')
    AND COALESCE(completed_at, failed_at, locked_at) < now() - GREATEST(:age, '1 hour')
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));
