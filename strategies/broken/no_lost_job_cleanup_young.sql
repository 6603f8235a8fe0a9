-- breaks: no-lost-job
-- Cleanup removes the young ones and keeps the old: nobody can look up what became of a job.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status IN ('completed', 'failed')
    AND COALESCE(completed_at, failed_at) > now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));
