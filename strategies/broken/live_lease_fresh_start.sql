-- breaks: live-lease
-- Whoever begins requeues all that runs, as if a crash had come before and nobody else were
-- there: the second worker, or a deployment, starts again what the first one is working on.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: start()
UPDATE jobs
SET status    = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at = NULL,
    locked_by = NULL
WHERE status = 'running';
