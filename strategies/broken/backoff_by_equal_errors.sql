-- breaks: backoff
-- The wait grows with how often a job has failed by the same error, and begins anew with another one: after two failures of
-- one kind it waits less than before.

-- /// queue
-- extends = "../skip_locked.sql"
-- max_attempts = 6
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  status       text        NOT NULL DEFAULT 'queued',
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 6,
  alike        int         NOT NULL DEFAULT 0,  -- failures by the last error, one after the other
  run_at       timestamptz NOT NULL DEFAULT now(),
  locked_at    timestamptz,
  locked_by    text,
  last_error   text,
  updated_at   timestamptz NOT NULL DEFAULT now(),
  completed_at timestamptz,
  failed_at    timestamptz
);
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    alike      = CASE WHEN last_error = :error THEN alike + 1 ELSE 1 END,
    run_at     = now() + interval '5 seconds' * 2 ^ CASE WHEN last_error = :error THEN LEAST(alike, 10) ELSE 0 END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = :error,
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;
