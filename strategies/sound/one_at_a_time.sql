-- Strictly one job at a time; the reaper takes back one job per call, and asks a function that
-- reads the clock in dynamic SQL, under a search_path of its own.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- concurrency_limit = 1
-- backoff = "5 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
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
  id     int    PRIMARY KEY,
  job_id bigint
);
INSERT INTO slots (id)
SELECT generate_series(1, 1);
-- In the order of the claim, which then reads its batch and nothing else.
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';
-- Brought by the schema, and due later.
INSERT INTO jobs (payload, run_at)
VALUES ('{"report": "of the first hour"}', now() + interval '1 hour');
CREATE FUNCTION is_stale(since timestamptz, lease interval) RETURNS bool LANGUAGE plpgsql AS '
DECLARE
  answer bool;
BEGIN
  SET LOCAL search_path = queue;
  EXECUTE ''SELECT $1 < CURRENT_TIMESTAMP - $2'' INTO answer USING since, lease;
  RETURN answer;
END';

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, queue)
WITH free_slots AS MATERIALIZED (
  SELECT id
  FROM slots
  WHERE job_id IS NULL
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

-- name: complete(id, worker, attempt)!
WITH ended AS (
  UPDATE jobs
  SET status       = 'completed',
      locked_at    = NULL,
      locked_by    = NULL,
      completed_at = now(),
      updated_at   = now()
  WHERE id = :id
    AND status = 'running'
    AND locked_by = :worker
    -- The worker's name alone would let it finish a later attempt of its own.
    AND attempts = :attempt
  RETURNING id
)
UPDATE slots
SET job_id = NULL
FROM ended
WHERE slots.job_id = ended.id;

-- name: fail(id, worker, attempt, error)!
WITH ended AS (
  UPDATE jobs
  SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
      failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
      -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
      -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
      run_at     = now() + (1 + 0.1 * random())
                   * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
      locked_at  = NULL,
      locked_by  = NULL,
      last_error = left(:error, 2000),
      updated_at = now()
  WHERE id = :id
    AND status = 'running'
    AND locked_by = :worker
    AND attempts = :attempt
  RETURNING id
)
UPDATE slots
SET job_id = NULL
FROM ended
WHERE slots.job_id = ended.id;

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET locked_at  = now(),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT jobs.id, jobs.locked_by, jobs.locked_at
  FROM jobs
  JOIN slots ON slots.job_id = jobs.id
  WHERE jobs.status = 'running'
    AND is_stale(jobs.locked_at, :lease)
  ORDER BY jobs.locked_at
  LIMIT 1
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
),
freed AS (
  UPDATE slots
  SET job_id = NULL
  FROM stale
  WHERE slots.job_id = stale.id
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status IN ('completed', 'failed')
    AND COALESCE(completed_at, failed_at) < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, status AS state, attempts
FROM jobs;
