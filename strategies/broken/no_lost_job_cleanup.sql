-- breaks: no-lost-job
-- Cleanup goes by age and spares what is running: a job that waits longer than that, for its time
-- or for a worker, is deleted before it ran.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status <> 'running'
    -- Of a queued job this is when it was enqueued.
    AND COALESCE(completed_at, failed_at, created_at) < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));
