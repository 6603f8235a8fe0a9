-- breaks: backoff
-- differs from: ../hold_open.sql
-- now() stands still while the claim's transaction is open: after a job that took long, a backoff
-- that is counted from it is over before it begins.

-- /// queue
-- max_attempts = 3
-- backoff = "5 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
-- [breaks]
-- retry-bound = "a crash rolls the attempt back with the claim, so crashes do not count"
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
  locked_at    timestamptz,
  locked_by    text,
  last_error   text,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  completed_at timestamptz,
  failed_at    timestamptz
);
-- In the order of the claim, which then reads its batch and nothing else.
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, queue)
-- Not committed here: complete and fail end what this begins.
BEGIN;
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- A crash takes this back with the rest.
    attempts   = attempts + 1,
    updated_at = now()
-- An ARRAY is computed once; an IN (SELECT ...) may be run again for each row of the outer scan.
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT 1
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;

-- name: complete(id, worker, attempt)
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    -- now() still is the moment of the claim.
    completed_at = clock_timestamp(),
    updated_at   = clock_timestamp()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  -- Only the transaction that made the claim sees the job as its own.
  AND attempts = :attempt
-- No row, no COMMIT: the transaction is rolled back and the job is free again.
RETURNING id;
COMMIT;

-- name: fail(id, worker, attempt, error)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE clock_timestamp() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = clock_timestamp()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt
RETURNING id;
COMMIT;

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
