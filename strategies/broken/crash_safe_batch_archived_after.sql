-- breaks: crash-safe
-- complete is one statement, and complete_many commits before it puts its batch among the finished:
-- a worker that dies in between leaves all of it in no table.

-- /// queue
-- extends = "../sound/ready_and_claimed.sql"
-- ///

-- name: complete_many(ids, worker, attempts, ends)
WITH held AS MATERIALIZED (
  SELECT claimed.id
  FROM claimed
  JOIN unnest(:ids::bigint[], :attempts::int[]) AS batch (id, attempt)
    ON claimed.id = batch.id AND claimed.attempts = batch.attempt
  WHERE claimed.worker = :worker
  -- One order for every batch: two that overlap wait, and do not deadlock.
  ORDER BY claimed.id
  FOR UPDATE OF claimed
),
done AS (
  DELETE FROM claimed
  USING held
  WHERE claimed.id = held.id
  RETURNING claimed.id, claimed.payload, claimed.attempts
)
SELECT to_jsonb(done) AS "end" FROM done;
-- Committed above: a worker that dies here leaves its batch in no table.
INSERT INTO finished (id, payload, attempts, outcome)
SELECT id, payload, attempts, 'completed'
FROM unnest(:ends::jsonb[]) AS found, jsonb_to_record(found)
  AS job (id bigint, payload jsonb, attempts int)
RETURNING id;
