-- breaks: routing
-- A worker that completes a batch and finds nothing more in its own queue is given jobs of the
-- default one: where it claims without completing it is not.

-- /// queue
-- extends = "../lease_table.sql"
-- ///

-- name: complete_and_claim(ids, worker, attempts, limit, queue)
-- One round trip and one commit for a batch instead of two. It touches leases and ready rows, which
-- stand in different tables: on a status column the two halves would lock each other's rows.
WITH held AS (
  DELETE FROM leases
  WHERE id = ANY (:ids::bigint[])
    AND worker = :worker
    AND attempts = (:attempts::int[])[array_position(:ids::bigint[], id)]
  RETURNING *
),
ended AS (
  INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at)
  SELECT id, queue, payload, priority, attempts, 'completed', created_at
  FROM held
  RETURNING id
),
taken AS (
  DELETE FROM ready
  WHERE ctid = ANY (ARRAY(
    SELECT job.address
    FROM unnest(ARRAY[:queue, 'default']) AS mine (queue)
    CROSS JOIN LATERAL (
      SELECT ctid AS address
      FROM ready
      WHERE queue = mine.queue
        AND run_at <= now()
      ORDER BY priority DESC, run_at, id
      LIMIT :limit
      FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT :limit
  ))
  RETURNING id, queue, payload, priority, attempts, max_attempts, created_at
),
claimed AS (
  INSERT INTO leases (id, queue, payload, priority, attempts, max_attempts, created_at, worker)
  SELECT id, queue, payload, priority, attempts + 1, max_attempts, created_at, :worker
  FROM taken
  RETURNING id, attempts, payload
)
-- The completed ones first: what may have to wait does so before it holds a ready row.
SELECT id, NULL::int AS attempt, NULL::jsonb AS payload, true AS completed
FROM ended
UNION ALL
SELECT id, attempts, payload, false
FROM claimed;
