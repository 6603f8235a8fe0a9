-- breaks: live-lease
-- Completion tells listeners of the payload, cut to what NOTIFY takes: 7,999 bytes, but left()
-- counts characters. A long payload with a few of several bytes cannot be completed.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id, worker, attempt)
WITH ended AS (
  UPDATE jobs
  SET status       = 'completed',
      locked_at    = NULL,
      locked_by    = NULL,
      completed_at = now(),
      updated_at   = now()
  WHERE id = :id
    AND status = 'running'
    AND locked_by = :worker
    AND attempts = :attempt
  RETURNING id, payload
)
SELECT id, pg_notify('jobs_completed', left(payload::text, 7900)) AS told
FROM ended;
