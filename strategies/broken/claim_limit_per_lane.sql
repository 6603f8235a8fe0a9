-- breaks: claim-limit
-- The LIMIT stands in the query of each lane and nowhere else: a claim takes as many jobs as it
-- asked for of every priority.

-- /// queue
-- extends = "../sound/marked_lanes.sql"
-- order = "none"
-- ///

-- name: claim(worker, limit, queue)
WITH head AS MATERIALIZED (
  SELECT job.address
  FROM (
    SELECT * FROM lanes WHERE queue = :queue ORDER BY priority DESC
  ) AS lane
  -- Lane by lane, as long as a row is wanted.
  CROSS JOIN LATERAL (
    SELECT ready.ctid AS address
    FROM ready
    WHERE ready.queue = lane.queue
      AND ready.priority = lane.priority
      AND ready.entered >= lane.mark
    ORDER BY ready.entered, ready.id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
  ) AS job
),
taken AS (
  -- By the row's address, which cannot change: a ready row is never updated.
  DELETE FROM ready
  USING head
  WHERE ready.ctid = head.address
  RETURNING ready.*
),
look AS MATERIALIZED (
  SELECT queue, priority, mark, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest
  FROM lanes
  WHERE queue = :queue
    AND looked < pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 500
  -- One claim moves a mark, and no other waits for it.
  FOR UPDATE SKIP LOCKED
),
moved AS (
  UPDATE lanes
  SET looked = oldest,
      -- Without locking: what another claim has locked may yet come back.
      mark = LEAST(oldest, (
        SELECT entered
        FROM ready
        WHERE ready.queue = look.queue
          AND ready.priority = look.priority
          AND ready.entered >= look.mark
        ORDER BY entered
        LIMIT 1
      ))
  FROM look
  WHERE lanes.queue = look.queue AND lanes.priority = look.priority
)
INSERT INTO leases (id, queue, priority, payload, attempts, max_attempts, created_at, worker)
SELECT id, queue, priority, payload, attempts + 1, max_attempts, created_at, :worker
FROM taken
RETURNING id, attempts AS attempt, payload;
