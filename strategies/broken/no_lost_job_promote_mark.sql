-- breaks: no-lost-job
-- The promoter asks for what has become due since it last looked: a job whose enqueue commits after
-- its due time, and after that look, is never made ready.

-- /// queue
-- extends = "../sound/marked_lanes.sql"
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
