-- breaks: crash-safe
-- One promoter at a time: it sets a flag, does its work and takes the flag down. Who dies in
-- between leaves it set, and nothing is promoted any more.

-- /// queue
-- extends = "../sound/promotes_one_by_one.sql"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'scheduled'
               CHECK (status IN ('scheduled', 'lost', 'ready', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,
  worker       text,
  since        timestamptz
);
CREATE TABLE promoter (busy boolean NOT NULL);
INSERT INTO promoter VALUES (false);
CREATE INDEX jobs_ready_idx ON jobs (id) WHERE status = 'ready';
CREATE INDEX jobs_due_idx ON jobs (run_at) WHERE status IN ('scheduled', 'lost');
CREATE INDEX jobs_running_idx ON jobs (since) WHERE status = 'running';

-- name: promote
UPDATE promoter SET busy = true WHERE NOT busy RETURNING busy;
UPDATE jobs SET status = 'ready'
WHERE id = (
  SELECT id FROM jobs WHERE status IN ('scheduled', 'lost') AND run_at <= now()
  ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED
);
UPDATE promoter SET busy = false;
