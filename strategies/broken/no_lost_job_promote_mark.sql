-- breaks: no-lost-job
-- differs from: ../sound/marked_lanes.sql
-- The promoter asks for what has become due since it last looked: a job whose enqueue commits after
-- its due time, and after that look, is never made ready.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
-- promises = ["old-snapshot", "steady-cost"]
-- ///

-- name: schema#
CREATE SEQUENCE job_ids;
-- A job stands in line by the number of the transaction that put it there. A time or an id is drawn
-- before its transaction commits, so that a job may yet appear below any of them. Of transactions
-- the server knows the oldest that runs: below its number nothing can appear any more.
CREATE TABLE ready (
  id           bigint      NOT NULL,
  queue        text        NOT NULL,
  priority     int         NOT NULL,
  entered      bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
  payload      jsonb       NOT NULL,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  last_error   text
);
CREATE INDEX ready_line_idx ON ready (queue, priority, entered, id);
-- What is not due has no place in line yet.
CREATE TABLE scheduled (
  id           bigint      NOT NULL,
  queue        text        NOT NULL,
  priority     int         NOT NULL,
  payload      jsonb       NOT NULL,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  last_error   text,
  run_at       timestamptz NOT NULL
);
CREATE INDEX scheduled_run_at_idx ON scheduled (run_at, id);
-- Few rows, each changed once in 500 transactions. A mark that is too low only costs time: one that
-- writes has a number, and holds the marks there as long as it runs; a report or a dump has none.
-- Where a dump is restored transactions have other numbers: UPDATE lanes SET mark = 0, looked = 0.
CREATE TABLE lanes (
  queue    text   NOT NULL,
  priority int    NOT NULL,
  mark     bigint NOT NULL DEFAULT 0,
  looked   bigint NOT NULL DEFAULT 0,  -- the oldest transaction that ran when the mark was moved
  PRIMARY KEY (queue, priority)
);
CREATE TABLE looks (last timestamptz NOT NULL);
INSERT INTO looks VALUES ('-infinity');
CREATE TABLE leases (
  id           bigint      PRIMARY KEY,
  queue        text        NOT NULL,
  priority     int         NOT NULL,
  payload      jsonb       NOT NULL,
  attempts     int         NOT NULL,
  max_attempts int         NOT NULL,
  created_at   timestamptz NOT NULL,
  worker       text        NOT NULL,
  locked_at    timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE history (
  id         bigint      PRIMARY KEY,
  queue      text        NOT NULL,
  payload    jsonb       NOT NULL,
  attempts   int         NOT NULL,
  outcome    text        NOT NULL CHECK (outcome IN ('completed', 'failed')),
  last_error text,
  created_at timestamptz NOT NULL,
  ended_at   timestamptz NOT NULL DEFAULT now()
);

-- name: enqueue(payload, priority, delay, max_attempts, queue)
WITH job AS (
  SELECT nextval('job_ids') AS id
),
lane AS (
  INSERT INTO lanes (queue, priority)
  SELECT :queue, :priority
  WHERE NOT EXISTS (SELECT FROM lanes WHERE queue = :queue AND priority = :priority)
  ON CONFLICT DO NOTHING
),
due AS (
  INSERT INTO ready (id, queue, priority, payload, max_attempts)
  SELECT id, :queue, :priority, :payload, :max_attempts
  FROM job
  WHERE :delay <= interval '0'
),
later AS (
  INSERT INTO scheduled (id, queue, priority, payload, max_attempts, run_at)
  SELECT id, :queue, :priority, :payload, :max_attempts, now() + :delay
  FROM job
  WHERE :delay > interval '0'
)
SELECT id FROM job;

-- name: promote
WITH look AS MATERIALIZED (
  SELECT last FROM looks FOR UPDATE SKIP LOCKED
),
moved AS (
  UPDATE looks SET last = now() FROM look
),
due AS (
  DELETE FROM scheduled
  WHERE ctid = ANY (ARRAY(
    SELECT scheduled.ctid FROM scheduled, look WHERE run_at > last AND run_at <= now()
    FOR UPDATE OF scheduled SKIP LOCKED
  ))
  RETURNING *
)
INSERT INTO ready (id, queue, priority, payload, attempts, max_attempts, created_at, last_error)
SELECT id, queue, priority, payload, attempts, max_attempts, created_at, last_error
FROM due;

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
  LIMIT :limit
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

-- name: complete(id, worker, attempt)!
WITH held AS (
  DELETE FROM leases
  WHERE id = :id AND worker = :worker AND attempts = :attempt
  RETURNING *
)
INSERT INTO history (id, queue, payload, attempts, outcome, created_at)
SELECT id, queue, payload, attempts, 'completed', created_at
FROM held;

-- name: fail(id, worker, attempt, error)
WITH held AS (
  DELETE FROM leases
  WHERE id = :id AND worker = :worker AND attempts = :attempt
  RETURNING *
),
retried AS (
  INSERT INTO scheduled (
    id, queue, priority, payload, attempts, max_attempts, created_at, last_error, run_at
  )
  SELECT id, queue, priority, payload, attempts, max_attempts, created_at, left(:error, 2000),
         now() + (1 + 0.1 * random())
           * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))
  FROM held
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO history (id, queue, payload, attempts, outcome, created_at, last_error)
  SELECT id, queue, payload, attempts, 'failed', created_at, left(:error, 2000)
  FROM held
  WHERE attempts >= max_attempts
)
SELECT id FROM held;

-- name: heartbeat(id, worker, attempt)!
UPDATE leases
SET locked_at = now()
WHERE id = :id AND worker = :worker AND attempts = :attempt;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id FROM leases WHERE locked_at < now() - :lease FOR UPDATE SKIP LOCKED
),
held AS (
  DELETE FROM leases USING stale WHERE leases.id = stale.id RETURNING leases.*
),
retried AS (
  -- At the end of its lane: to come in below the mark is what no row may.
  INSERT INTO ready (id, queue, priority, payload, attempts, max_attempts, created_at, last_error)
  SELECT id, queue, priority, payload, attempts, max_attempts, created_at, 'lease expired'
  FROM held
  WHERE attempts < max_attempts
),
ended AS (
  INSERT INTO history (id, queue, payload, attempts, outcome, created_at, last_error)
  SELECT id, queue, payload, attempts, 'failed', created_at, 'lease expired'
  FROM held
  WHERE attempts >= max_attempts
)
SELECT id FROM held;

-- name: cleanup(age)
DELETE FROM history
WHERE id = ANY (ARRAY(
  SELECT id FROM history WHERE ended_at < now() - :age FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, 'queued' AS state, attempts FROM ready
UNION ALL
SELECT id, 'queued', attempts FROM scheduled
UNION ALL
SELECT id, 'running', attempts FROM leases
UNION ALL
SELECT id, outcome, attempts FROM history;
