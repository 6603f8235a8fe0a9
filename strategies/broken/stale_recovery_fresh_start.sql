-- breaks: stale-recovery
-- Whoever begins removes the workers that were not heard of for a lease, and claimed nothing since.
-- What those had running belongs to nobody then, and recover joins the worker: it never finds it.

-- /// queue
-- extends = "../sound/leader_promotes.sql"
-- ///

-- name: schema#
CREATE TABLE workers (
  name    text        PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL
               CHECK (status IN ('scheduled', 'ready', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,
  locked_at    timestamptz,
  locked_by    text        REFERENCES workers ON DELETE SET NULL,
  finished_at  timestamptz
);
CREATE INDEX jobs_ready_idx ON jobs (id) WHERE status = 'ready';
CREATE INDEX jobs_scheduled_idx ON jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX jobs_running_idx ON jobs (locked_by) WHERE status = 'running';

-- name: start(worker)
DELETE FROM workers
WHERE seen_at < now() - interval '30 seconds'
  AND NOT EXISTS (
    SELECT FROM jobs WHERE locked_by = name AND locked_at > now() - interval '30 seconds'
  );
INSERT INTO workers (name) VALUES (:worker);
