-- breaks: routing
-- differs from: ../lease_table.sql
-- A worker that completes a batch and finds nothing more in its own queue is given jobs of the
-- default one: where it claims without completing it is not.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
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

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO ready (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, queue)
WITH taken AS (
  DELETE FROM ready
  -- By the row's address, which cannot change: a ready row is never updated. An ARRAY is computed
  -- once; an IN (SELECT ...) may be run again for each row of the outer scan.
  WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM ready
    WHERE queue = :queue
      AND run_at <= now()
    ORDER BY priority DESC, run_at, id
    LIMIT :limit
    -- Locks each row, and passes over what others hold.
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, queue, payload, priority, attempts, max_attempts, created_at
)
INSERT INTO leases (id, queue, payload, priority, attempts, max_attempts, created_at, worker)
-- Counted here, so that a crash counts. It is also the fencing token of what follows.
SELECT id, queue, payload, priority, attempts + 1, max_attempts, created_at, :worker
FROM taken
RETURNING id, attempts AS attempt, payload;

-- name: complete(id, worker, attempt)!
WITH held AS (
  DELETE FROM leases
  WHERE id = :id
    AND worker = :worker
    -- The worker's name alone would let it finish a later attempt of its own.
    AND attempts = :attempt
  RETURNING *
)
INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at)
SELECT id, queue, payload, priority, attempts, 'completed', created_at
FROM held;

-- name: complete_many(ids, worker, attempts)
WITH held AS (
  DELETE FROM leases
  -- Its own rows alone, whose attempt no other batch can name: two that overlap do not deadlock.
  -- One scan, without a join: a prepared statement may have settled on a plan while leases was
  -- empty, and would read all of it for each job.
  WHERE id = ANY (:ids::bigint[])
    AND worker = :worker
    AND attempts = (:attempts::int[])[array_position(:ids::bigint[], id)]
  RETURNING *
)
INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at)
SELECT id, queue, payload, priority, attempts, 'completed', created_at
FROM held
RETURNING id;

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

-- name: fail(id, worker, attempt, error)
WITH held AS (
  DELETE FROM leases
  WHERE id = :id
    AND worker = :worker
    AND attempts = :attempt
  RETURNING *
),
retried AS (
  INSERT INTO ready (
    id, queue, payload, priority, attempts, max_attempts, created_at, last_error, run_at
  )
  SELECT id, queue, payload, priority, attempts, max_attempts, created_at, left(:error, 2000),
         -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
         -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
         now() + (1 + 0.1 * random())
           * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))
  FROM held
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at, last_error)
  SELECT id, queue, payload, priority, attempts, 'failed', created_at, left(:error, 2000)
  FROM held
  WHERE attempts >= max_attempts
)
SELECT id
FROM held;

-- name: heartbeat(id, worker, attempt)!
UPDATE leases
SET locked_at = now()
WHERE id = :id
  AND worker = :worker
  AND attempts = :attempt;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id
  FROM leases
  WHERE locked_at < now() - :lease
  -- A lease that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
),
held AS (
  DELETE FROM leases
  USING stale
  WHERE leases.id = stale.id
  RETURNING leases.*
),
retried AS (
  INSERT INTO ready (
    id, queue, payload, priority, attempts, max_attempts, created_at, last_error
  )
  SELECT id, queue, payload, priority, attempts, max_attempts, created_at, 'lease expired'
  FROM held
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at, last_error)
  SELECT id, queue, payload, priority, attempts, 'failed', created_at, 'lease expired'
  FROM held
  WHERE attempts >= max_attempts
)
SELECT id, attempts, worker, locked_at
FROM held;

-- name: cleanup(age)
DELETE FROM history
WHERE id = ANY (ARRAY(
  SELECT id
  FROM history
  WHERE ended_at < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, 'queued' AS state, attempts FROM ready
UNION ALL
SELECT id, 'running', attempts FROM leases
UNION ALL
SELECT id, outcome, attempts FROM history;
