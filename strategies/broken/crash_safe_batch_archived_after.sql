-- breaks: crash-safe
-- differs from: ../sound/ready_and_claimed.sql
-- complete is one statement, and complete_many commits before it puts its batch among the finished:
-- a worker that dies in between leaves all of it in no table.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE ready (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  run_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ready_order_idx ON ready (priority DESC, run_at, id);
CREATE TABLE claimed (
  id           bigint      PRIMARY KEY,
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL,
  attempts     int         NOT NULL,
  max_attempts int         NOT NULL,
  worker       text        NOT NULL,
  seen_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX claimed_seen_idx ON claimed (seen_at);
CREATE TABLE finished (
  id           bigint      PRIMARY KEY,
  payload      jsonb       NOT NULL,
  attempts     int         NOT NULL,
  outcome      text        NOT NULL CHECK (outcome IN ('completed', 'failed')),
  finished_at  timestamptz NOT NULL DEFAULT now(),
  last_error   text
);

-- name: enqueue(payload, priority, delay, max_attempts)
INSERT INTO ready (payload, priority, run_at, max_attempts)
VALUES (:payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit)
WITH taken AS (
  DELETE FROM ready
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM ready
    WHERE run_at <= now()
    ORDER BY priority DESC, run_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, payload, priority, attempts, max_attempts
)
INSERT INTO claimed (id, payload, priority, attempts, max_attempts, worker)
SELECT id, payload, priority, attempts + 1, max_attempts, :worker
FROM taken
RETURNING id, attempts AS attempt, payload;

-- name: complete(id, worker, attempt)!
WITH done AS (
  DELETE FROM claimed
  WHERE id = :id
    AND worker = :worker
    AND attempts = :attempt
  RETURNING id, payload, attempts
)
INSERT INTO finished (id, payload, attempts, outcome)
SELECT id, payload, attempts, 'completed'
FROM done;

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

-- name: fail(id, worker, attempt, error)
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
),
ended AS (
  INSERT INTO finished (id, payload, attempts, outcome, last_error)
  SELECT id, payload, attempts, 'failed', left(:error, 2000)
  FROM returned
  WHERE attempts >= max_attempts
  RETURNING id
)
SELECT id FROM retried
UNION ALL
SELECT id FROM ended;

-- name: heartbeat(id, worker, attempt)!
UPDATE claimed
SET seen_at = now()
WHERE id = :id
  AND worker = :worker
  AND attempts = :attempt;

-- name: recover(lease)
WITH returned AS (
  DELETE FROM claimed
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM claimed
    WHERE seen_at < now() - :lease
    -- A row that is locked now is being completed, failed or extended: leave it to its worker.
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING *
),
retried AS (
  INSERT INTO ready (id, payload, priority, attempts, max_attempts)
  SELECT id, payload, priority, attempts, max_attempts
  FROM returned
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO finished (id, payload, attempts, outcome, last_error)
  SELECT id, payload, attempts, 'failed', 'lease expired'
  FROM returned
  WHERE attempts >= max_attempts
)
SELECT id, attempts, worker, seen_at
FROM returned;

-- name: cleanup(age)
DELETE FROM finished
WHERE id = ANY (ARRAY(
  SELECT id
  FROM finished
  WHERE finished_at < now() - :age
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, 'queued' AS state, attempts FROM ready
UNION ALL
SELECT id, 'running', attempts FROM claimed
UNION ALL
SELECT id, outcome, attempts FROM finished;
