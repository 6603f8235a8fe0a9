-- breaks: crash-safe
-- The last failure takes the job out of one table and commits, and then puts it among the finished:
-- a worker that dies in between leaves it in none.

-- /// queue
-- extends = "../sound/ready_and_claimed.sql"
-- ///

-- name: fail(id, worker, attempt, error, ends)
WITH returned AS (
  DELETE FROM claimed
  WHERE id = :id
    AND worker = :worker
    AND attempts = :attempt
  RETURNING *
),
retried AS (
  INSERT INTO ready (id, payload, priority, attempts, max_attempts, run_at)
  SELECT id, payload, priority, attempts, max_attempts,
         now() + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))
  FROM returned
  WHERE attempts < max_attempts
  RETURNING id
)
SELECT to_jsonb(returned) AS "end" FROM returned;
-- Committed above: a worker that dies here leaves a job that is in no table.
INSERT INTO finished (id, payload, attempts, outcome, last_error)
SELECT id, payload, attempts, 'failed', left(:error, 2000)
FROM unnest(:ends::jsonb[]) AS found, jsonb_to_record(found)
  AS job (id bigint, payload jsonb, attempts int, max_attempts int)
WHERE attempts >= max_attempts;
