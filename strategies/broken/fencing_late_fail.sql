-- breaks: fencing
-- At least once: a late result may count. But here a late failure does, too: it puts a job back
-- that somebody else is working on, or ends it as failed.

-- /// queue
-- extends = "../sound/at_least_once.sql"
-- ///

-- name: fail(id)!
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    worker = NULL
WHERE id = :id AND status = 'running';
