-- breaks: retry-given
-- Fail counts each time that it is sent: two for one attempt, where an answer was lost and the
-- worker asked again, and the job is failed with attempts left.

-- /// queue
-- extends = "../sound/repeated_endings.sql"
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
  locked_by    text,         -- who holds it, or who ended it and may say so again
  last_error   text,
  failures     int         NOT NULL DEFAULT 0,
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
SET failures   = failures + 1,
    status     = CASE WHEN GREATEST(attempts, failures + 1) < max_attempts THEN 'queued'
                      ELSE 'failed' END,
    failed_at  = CASE WHEN status <> 'running' THEN failed_at
                      WHEN attempts = max_attempts THEN now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = CASE WHEN status <> 'running' THEN run_at
                      ELSE now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)) END,
    locked_at  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status <> 'completed'
  AND locked_by = :worker
  AND attempts = :attempt;
