-- breaks: backoff
-- Waits grow with the failures in a row, which recover counts anew: after a crash a job that goes on
-- failing waits for as short a time as at its first failure.

-- /// queue
-- extends = "../skip_locked.sql"
-- max_attempts = 8
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
  failures     int         NOT NULL DEFAULT 0,
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
-- In the order of the claim, which then reads its batch and nothing else.
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(failures, 10)),
    failures   = failures + 1,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    failures   = 0,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;
