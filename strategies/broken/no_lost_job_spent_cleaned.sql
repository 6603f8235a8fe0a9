-- breaks: no-lost-job
-- The cleanup takes a job whose attempts are spent for one that has ended. It may be running its
-- last one: after a day nobody recovers it any more, and nobody is told that it failed.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE (status IN ('completed', 'failed') OR attempts >= max_attempts)
    AND COALESCE(completed_at, failed_at, locked_at) < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));
