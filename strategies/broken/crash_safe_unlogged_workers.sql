-- breaks: crash-safe
-- The signs of life stand in an unlogged table, which a crash of the server empties: recover joins
-- it, so that it passes over the jobs of a worker that did not come back.

-- /// queue
-- extends = "../sound/process_heartbeat.sql"
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
CREATE UNLOGGED TABLE workers (
  name    text        PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT now()
);
-- In the order of the claim, which then reads its batch and nothing else.
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';
