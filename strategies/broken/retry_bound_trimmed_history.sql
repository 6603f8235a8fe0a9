-- breaks: retry-bound
-- A failure counts the job's runs to see whether attempts are left. But cleanup trims old runs,
-- those of jobs that still wait for their retry too.

-- /// queue
-- extends = "../sound/runs.sql"
-- ///

-- name: fail(run, error)!
WITH ended AS (
  UPDATE runs
  SET outcome = 'failed',
      error   = left(:error, 2000)
  WHERE id = :run
    AND outcome IS NULL
  RETURNING task_id
)
UPDATE tasks
SET state    = CASE WHEN tried < max_attempts THEN 'queued' ELSE 'failed' END,
    ended_at = CASE WHEN tried < max_attempts THEN NULL ELSE now() END,
    run_at   = now()
               + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))
FROM ended
CROSS JOIN LATERAL (
  SELECT count(*) AS tried FROM runs WHERE runs.task_id = ended.task_id
) AS history
WHERE tasks.id = ended.task_id;

-- name: cleanup(age)
WITH old AS (
  DELETE FROM tasks
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM tasks
    WHERE ended_at < now() - :age
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id
)
DELETE FROM runs
WHERE task_id IN (SELECT id FROM old)
   OR outcome IS NOT NULL AND lease_until < now() - :age;
