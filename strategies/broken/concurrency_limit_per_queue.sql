-- breaks: concurrency-limit
-- The slots are counted queue by queue: with two queues twice as many jobs run as the dependency
-- behind both can bear.

-- /// queue
-- extends = "../sound/concurrency_limit.sql"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  job_type     text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  status       text        NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3 CHECK (max_attempts > 0),
  run_at       timestamptz NOT NULL DEFAULT now(),
  locked_at    timestamptz,  -- when the lease began: the claim, or the last heartbeat
  locked_by    text,
  last_error   text,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  completed_at timestamptz,
  failed_at    timestamptz
);
CREATE TABLE slots (
  id     text   PRIMARY KEY,
  queue  text   NOT NULL,
  job_id bigint
);
-- In the order of the claim, which then reads its batch and nothing else.
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';

-- name: enqueue(payload, priority, delay, max_attempts, queue)
WITH known AS (
  INSERT INTO slots (id, queue)
  SELECT :queue || n, :queue FROM generate_series(1, 3) AS n
  ON CONFLICT DO NOTHING
)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, queue)
WITH free_slots AS MATERIALIZED (
  SELECT id
  FROM slots
  WHERE job_id IS NULL
    AND queue = :queue
  ORDER BY id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
),
free_jobs AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT (SELECT count(*) FROM free_slots)
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
),
pairs AS MATERIALIZED (
  SELECT slot.id AS slot_id, job.id AS job_id
  FROM (SELECT id, row_number() OVER () AS n FROM free_slots) AS slot
  JOIN (SELECT id, row_number() OVER () AS n FROM free_jobs) AS job USING (n)
),
filled AS (
  UPDATE slots
  SET job_id = pairs.job_id
  FROM pairs
  WHERE slots.id = pairs.slot_id
)
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
FROM pairs
WHERE jobs.id = pairs.job_id
RETURNING jobs.id, jobs.attempts AS attempt, jobs.payload;
