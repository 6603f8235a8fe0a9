-- A lease per batch. A claim moves its rows from `ready` into one row of `leases`, as an array; the
-- completion of the whole batch moves that row to `history`. A batch is two rows written and one
-- deleted, however many jobs it has.
-- What it costs: the jobs of a batch share a lease, so that a heartbeat extends them all and they
-- come back together; a job that ends alone waits for another of its batch that does, and the array
-- is read for it; a job that runs or is over is found by its id only through its batch, whose id
-- the claim answers as lease_id.

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
-- A type of its own: a column of type ready[] would stand in the way of changes to that table.
CREATE TYPE job AS (
  id           bigint,
  payload      jsonb,
  priority     int,
  attempts     int,
  max_attempts int,
  created_at   timestamptz
);
CREATE TABLE leases (
  -- The sequence gives no value twice, so that it is the fencing token: a job that is claimed again
  -- has another lease.
  id        bigserial   PRIMARY KEY,
  worker    text        NOT NULL,
  queue     text        NOT NULL,
  locked_at timestamptz NOT NULL DEFAULT now(),  -- the claim, or the last heartbeat
  live      bigint[]    NOT NULL,  -- the jobs that are not over, by their ids
  size      int         NOT NULL,  -- how many were claimed
  -- All of these, compressed where they are many: that takes less time than to write them twice.
  jobs      job[]       NOT NULL
-- A heartbeat, and the end of one job, change no indexed column: they stay within the page (HOT).
-- A plan that is made while nothing runs has to use the index, for it will be there when many have
-- run: pages that are kept tell it that the table may be large.
) WITH (fillfactor = 70, vacuum_truncate = off);
-- The first of those pages.
INSERT INTO leases (id, worker, queue, live, size, jobs)
SELECT -n, repeat('-', 1000), '', '{}', 0, '{}'
FROM generate_series(1, 500) AS n;
DELETE FROM leases;
-- A CHECK of a text would be read and compiled anew by every statement that writes a row.
CREATE TYPE outcome AS ENUM ('completed', 'failed');
-- One row for what ended together. It has no index: whoever asks for finished jobs adds one on
-- lease_id, or on ended_at.
CREATE TABLE history (
  lease_id   bigint      NOT NULL,
  queue      text        NOT NULL,
  outcome    outcome     NOT NULL,
  last_error text,
  ended_at   timestamptz NOT NULL DEFAULT now(),
  jobs       job[]       NOT NULL
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
  -- Counted here, so that a crash counts.
  RETURNING id, payload, priority, attempts + 1 AS attempt, max_attempts, created_at
),
leased AS (
  INSERT INTO leases (worker, queue, live, size, jobs)
  SELECT :worker, :queue, array_agg(id), count(*),
         array_agg(ROW(id, payload, priority, attempt, max_attempts, created_at)::job)
  FROM taken
  HAVING count(*) > 0
  RETURNING id
)
SELECT taken.id, attempt, payload, leased.id AS lease_id
FROM leased, taken;

-- name: complete(id, worker, lease_id)!
WITH held AS MATERIALIZED (
  SELECT id, queue, live, jobs
  FROM leases
  WHERE id = :lease_id
    AND worker = :worker
    AND :id = ANY (live)
  -- Two that end parts of one batch go one after the other: the second sees what the first left.
  FOR UPDATE
),
emptied AS (
  DELETE FROM leases
  WHERE id = ANY (ARRAY(SELECT id FROM held WHERE cardinality(live) = 1))
),
kept AS (
  UPDATE leases
  SET live = array_remove(live, :id)
  WHERE id = ANY (ARRAY(SELECT id FROM held WHERE cardinality(live) > 1))
)
INSERT INTO history (lease_id, queue, outcome, jobs)
SELECT id, queue, 'completed', ARRAY(SELECT j FROM unnest(jobs) AS j WHERE j.id = :id)
FROM held;

-- name: complete_many(ids, worker, lease_ids)
-- A whole batch in the order of its claim: one row goes, one comes, and nothing takes the array
-- apart.
WITH whole AS (
  DELETE FROM leases
  WHERE id = (:lease_ids::bigint[])[1]
    AND worker = :worker
    AND id = ALL (:lease_ids::bigint[])
    AND live = :ids::bigint[]
    AND size = cardinality(live)
  RETURNING id, queue, live, jobs
),
ended AS (
  INSERT INTO history (lease_id, queue, outcome, jobs)
  SELECT id, queue, 'completed', jobs
  FROM whole
)
SELECT unnest(live) AS id
FROM whole;
-- Any other: parts of a batch, several batches, or jobs that are lost.
-- else
WITH held AS MATERIALIZED (
  SELECT id, queue, live, size, jobs
  FROM leases
  WHERE id = ANY (:lease_ids::bigint[])
    AND worker = :worker
  -- Each waits for the next in one order, so that two that overlap do not deadlock.
  ORDER BY id
  FOR UPDATE
),
parts AS (
  SELECT id, queue, size, jobs, done,
         ARRAY(SELECT unnest(live) EXCEPT SELECT unnest(done)) AS rest
  FROM held, LATERAL (
    SELECT ARRAY(
      SELECT asked.id
      FROM unnest(:ids::bigint[], :lease_ids::bigint[]) AS asked (id, lease_id)
      WHERE asked.lease_id = held.id
      INTERSECT
      SELECT unnest(live)
    )
  ) AS found (done)
  WHERE cardinality(done) > 0
),
emptied AS (
  DELETE FROM leases
  WHERE id = ANY (ARRAY(SELECT id FROM parts WHERE cardinality(rest) = 0))
),
kept AS (
  UPDATE leases
  SET live = rest
  FROM parts
  WHERE leases.id = parts.id
    AND cardinality(rest) > 0
),
ended AS (
  INSERT INTO history (lease_id, queue, outcome, jobs)
  SELECT id, queue, 'completed',
         CASE WHEN cardinality(done) = size THEN jobs
           ELSE ARRAY(SELECT j FROM unnest(jobs) AS j WHERE j.id = ANY (done))
         END
  FROM parts
)
SELECT unnest(done) AS id
FROM parts;

-- name: complete_and_claim(ids, worker, lease_ids, limit, queue)
-- One round trip and one commit for a batch instead of two. It touches leases and ready rows, which
-- stand in different tables: on a status column the two halves would lock each other's rows.
WITH whole AS (
  DELETE FROM leases
  WHERE id = (:lease_ids::bigint[])[1]
    AND worker = :worker
    AND id = ALL (:lease_ids::bigint[])
    AND live = :ids::bigint[]
    AND size = cardinality(live)
  RETURNING id, queue, live, jobs
),
ended AS (
  INSERT INTO history (lease_id, queue, outcome, jobs)
  SELECT id, queue, 'completed', jobs
  FROM whole
),
taken AS (
  DELETE FROM ready
  WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM ready
    WHERE queue = :queue
      AND run_at <= now()
      -- Where the batch is not whole, the other statement claims.
      AND EXISTS (SELECT FROM whole)
    ORDER BY priority DESC, run_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, payload, priority, attempts + 1 AS attempt, max_attempts, created_at
),
leased AS (
  INSERT INTO leases (worker, queue, live, size, jobs)
  SELECT :worker, :queue, array_agg(id), count(*),
         array_agg(ROW(id, payload, priority, attempt, max_attempts, created_at)::job)
  FROM taken
  HAVING count(*) > 0
  RETURNING id
)
-- The completed ones first: what may have to wait does so before it holds a ready row.
SELECT unnest(live) AS id, NULL::int AS attempt, NULL::jsonb AS payload, NULL::bigint AS lease_id,
       true AS completed
FROM whole
UNION ALL
SELECT taken.id, attempt, payload, leased.id, false
FROM leased, taken;
-- else
WITH held AS MATERIALIZED (
  SELECT id, queue, live, size, jobs
  FROM leases
  WHERE id = ANY (:lease_ids::bigint[])
    AND worker = :worker
  ORDER BY id
  FOR UPDATE
),
parts AS (
  SELECT id, queue, size, jobs, done,
         ARRAY(SELECT unnest(live) EXCEPT SELECT unnest(done)) AS rest
  FROM held, LATERAL (
    SELECT ARRAY(
      SELECT asked.id
      FROM unnest(:ids::bigint[], :lease_ids::bigint[]) AS asked (id, lease_id)
      WHERE asked.lease_id = held.id
      INTERSECT
      SELECT unnest(live)
    )
  ) AS found (done)
  WHERE cardinality(done) > 0
),
emptied AS (
  DELETE FROM leases
  WHERE id = ANY (ARRAY(SELECT id FROM parts WHERE cardinality(rest) = 0))
),
kept AS (
  UPDATE leases
  SET live = rest
  FROM parts
  WHERE leases.id = parts.id
    AND cardinality(rest) > 0
),
ended AS (
  INSERT INTO history (lease_id, queue, outcome, jobs)
  SELECT id, queue, 'completed',
         CASE WHEN cardinality(done) = size THEN jobs
           ELSE ARRAY(SELECT j FROM unnest(jobs) AS j WHERE j.id = ANY (done))
         END
  FROM parts
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
  RETURNING id, payload, priority, attempts + 1 AS attempt, max_attempts, created_at
),
leased AS (
  INSERT INTO leases (worker, queue, live, size, jobs)
  SELECT :worker, :queue, array_agg(id), count(*),
         array_agg(ROW(id, payload, priority, attempt, max_attempts, created_at)::job)
  FROM taken
  HAVING count(*) > 0
  RETURNING id
)
SELECT unnest(done) AS id, NULL::int AS attempt, NULL::jsonb AS payload, NULL::bigint AS lease_id,
       true AS completed
FROM parts
UNION ALL
SELECT taken.id, attempt, payload, leased.id, false
FROM leased, taken;

-- name: fail(id, worker, lease_id, error)
WITH held AS MATERIALIZED (
  SELECT id, queue, live, jobs
  FROM leases
  WHERE id = :lease_id
    AND worker = :worker
    AND :id = ANY (live)
  FOR UPDATE
),
emptied AS (
  DELETE FROM leases
  WHERE id = ANY (ARRAY(SELECT id FROM held WHERE cardinality(live) = 1))
),
kept AS (
  UPDATE leases
  SET live = array_remove(live, :id)
  WHERE id = ANY (ARRAY(SELECT id FROM held WHERE cardinality(live) > 1))
),
failed AS (
  SELECT held.id AS lease_id, queue, j AS job, j.*
  FROM held, unnest(jobs) AS j
  WHERE j.id = :id
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
  FROM failed
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO history (lease_id, queue, outcome, last_error, jobs)
  SELECT lease_id, queue, 'failed', left(:error, 2000), ARRAY[job]
  FROM failed
  WHERE attempts >= max_attempts
)
SELECT id
FROM failed;

-- name: heartbeat(id, worker, lease_id)!
UPDATE leases
SET locked_at = now()
WHERE id = :lease_id
  AND worker = :worker
  -- The worker is told of this job, whatever else of the batch it still holds.
  AND :id = ANY (live);

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
lost AS (
  SELECT held.id AS lease_id, worker, locked_at, queue, j AS job, j.*
  FROM held, unnest(jobs) AS j
  -- The others ended before: they are in history, or ready again.
  WHERE j.id = ANY (live)
),
retried AS (
  INSERT INTO ready (
    id, queue, payload, priority, attempts, max_attempts, created_at, last_error
  )
  SELECT id, queue, payload, priority, attempts, max_attempts, created_at, 'lease expired'
  FROM lost
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO history (lease_id, queue, outcome, last_error, jobs)
  SELECT lease_id, queue, 'failed', 'lease expired', array_agg(job)
  FROM lost
  WHERE attempts >= max_attempts
  GROUP BY lease_id, queue
)
SELECT id, attempts, worker, locked_at
FROM lost;

-- name: cleanup(age)
DELETE FROM history
-- A row of history is never updated, so that its address is its own.
WHERE ctid = ANY (ARRAY(
  SELECT ctid
  FROM history
  WHERE ended_at < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, 'queued' AS state, attempts
FROM ready
UNION ALL
SELECT j.id, 'running', j.attempts
FROM leases, unnest(jobs) AS j
WHERE j.id = ANY (live)
UNION ALL
SELECT j.id, outcome::text, j.attempts
FROM history, unnest(jobs) AS j;
