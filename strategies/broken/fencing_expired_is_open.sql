-- breaks: fencing
-- Complete takes a job whose lease has run out from anybody: a worker that lost it long ago ends
-- the attempt of one that is only late, and has not been recovered.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete(id, worker, attempt)!
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'
  AND (locked_by = :worker AND attempts = :attempt
       -- Whoever held it is late, so that anybody may say that it is done.
       OR locked_at < now() - interval '30 seconds');
