-- breaks: no-deadlock
-- complete_and_claim locks its batch in the order in which its worker names it, before the fence is
-- asked: a late batch and the next holder's lock the same leases the other way round.

-- /// queue
-- extends = "../lease_table.sql"
-- ///

-- name: schema#
-- Rows come and go whole, so that no lock waits for a newer version of one: an UPDATE of a status
-- column leaves claims behind it that must follow the row to its successor (Lock:transactionid).
CREATE TABLE ready (
  id           bigserial   NOT NULL,
  queue        text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3 CHECK (max_attempts > 0),
  run_at       timestamptz NOT NULL DEFAULT now(),
  created_at   timestamptz NOT NULL DEFAULT now(),
  last_error   text
);
-- The only index: in the order of the claim, which reads its batch and stops. Nothing looks a ready
-- job up by its id, and the sequence keeps ids apart.
CREATE INDEX ready_order_idx ON ready (queue, priority DESC, run_at, id);
-- One row for each running job. Their number is that of the workers' hands, so recover reads them
-- all, and a heartbeat changes no indexed column: it stays within its page (HOT).
CREATE TABLE leases (
  id           bigint      PRIMARY KEY,
  queue        text        NOT NULL,
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL,
  attempts     int         NOT NULL,
  max_attempts int         NOT NULL,
  created_at   timestamptz NOT NULL,
  worker       text        NOT NULL,
  locked_at    timestamptz NOT NULL DEFAULT now()  -- the claim, or the last heartbeat
) WITH (fillfactor = 70);
CREATE TABLE history (
  id           bigint      PRIMARY KEY,
  queue        text        NOT NULL,
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL,
  attempts     int         NOT NULL,
  outcome      text        NOT NULL CHECK (outcome IN ('completed', 'failed')),
  last_error   text,
  created_at   timestamptz NOT NULL,
  ended_at     timestamptz NOT NULL DEFAULT now()
);

-- A loop, as an ORM writes it: one row after the other, as they come.
CREATE FUNCTION touch(ids bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
  job bigint;
BEGIN
  FOREACH job IN ARRAY ids LOOP
    UPDATE leases SET locked_at = locked_at WHERE id = job;
  END LOOP;
END
$$;

-- name: complete_and_claim(ids, worker, attempts, limit, queue)
-- One round trip and one commit for a batch instead of two. It touches leases and ready rows, which
-- stand in different tables: on a status column the two halves would lock each other's rows.
BEGIN;
SELECT touch(:ids);
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
    SELECT ctid
    FROM ready
    WHERE queue = :queue
      AND run_at <= now()
    ORDER BY priority DESC, run_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
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
COMMIT;
