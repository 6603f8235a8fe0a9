-- breaks: fencing
-- The worker's name is asked, the attempt is not: a worker that lost the job and claimed it again
-- finishes its second attempt with the late answer of its first (Inferable: machine id and status).

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id, worker)!
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker; -- whichever attempt
