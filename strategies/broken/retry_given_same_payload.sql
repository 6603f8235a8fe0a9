-- breaks: retry-given
-- Jobs that are alike are enqueued once while they wait. A failed one finds its twin, which came in
-- while it ran, in its place: it is dropped, with the attempts that it had left.

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
  last_error   text,
  UNIQUE (queue, payload)
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
ON CONFLICT (queue, payload) DO UPDATE SET payload = EXCLUDED.payload
RETURNING id;

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
  ON CONFLICT (queue, payload) DO NOTHING
),
ended AS (
  INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at, last_error)
  SELECT id, queue, payload, priority, attempts, 'failed', created_at, left(:error, 2000)
  FROM held
  WHERE attempts >= max_attempts
)
SELECT id
FROM held;

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
  ON CONFLICT (queue, payload) DO NOTHING
),
ended AS (
  INSERT INTO history (id, queue, payload, priority, attempts, outcome, created_at, last_error)
  SELECT id, queue, payload, priority, attempts, 'failed', created_at, 'lease expired'
  FROM held
  WHERE attempts >= max_attempts
)
SELECT id, attempts, worker, locked_at
FROM held;
