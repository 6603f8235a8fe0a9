-- breaks: no-lost-job
-- AND binds closer than OR: cleanup also takes what waits for its last attempt, if that was longer
-- ago than it was told.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status IN ('completed', 'failed')
    AND COALESCE(completed_at, failed_at) < now() - :age
     OR attempts >= max_attempts - 1 AND status = 'queued' AND updated_at < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));
