-- breaks: order
-- So that nothing starves, a maintenance step makes jobs urgent that have waited for an hour: they
-- go before new ones of higher priority, which the declared order does not say.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: promote
UPDATE jobs
SET priority = 1000
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'queued'
    AND priority < 1000
    AND created_at < now() - interval '1 hour'
  FOR UPDATE SKIP LOCKED
));
