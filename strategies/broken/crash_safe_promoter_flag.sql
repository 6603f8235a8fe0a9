-- breaks: crash-safe
-- differs from: ../sound/promotes_one_by_one.sql
-- One promoter at a time: it sets a flag, does its work and takes the flag down. Who dies in
-- between leaves it set, and nothing is promoted any more.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
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

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, run_at, max_attempts)
VALUES (:payload, now() + :delay, :max_attempts)
RETURNING id;

-- name: promote
UPDATE promoter SET busy = true WHERE NOT busy RETURNING busy;
UPDATE jobs SET status = 'ready'
WHERE id = (
  SELECT id FROM jobs WHERE status IN ('scheduled', 'lost') AND run_at <= now()
  ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED
);
UPDATE promoter SET busy = false;

-- name: claim(worker, limit)
UPDATE jobs
SET status = 'running', attempts = attempts + 1, worker = :worker, since = now()
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt;

-- name: complete(id, worker, attempt)!
UPDATE jobs SET status = 'completed'
WHERE id = :id AND status = 'running' AND worker = :worker AND attempts = :attempt;

-- name: fail(id, worker, attempt)!
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'scheduled' ELSE 'failed' END,
    run_at = now() + interval '5 seconds' * attempts
WHERE id = :id AND status = 'running' AND worker = :worker AND attempts = :attempt;

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs SET since = now()
WHERE id = :id AND status = 'running' AND worker = :worker AND attempts = :attempt;

-- name: recover(lease)
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'lost' ELSE 'failed' END,
    run_at = now() + interval '15 seconds'
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'running' AND since < now() - :lease FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: jobs
SELECT
  id,
  CASE WHEN status IN ('scheduled', 'lost', 'ready') THEN 'queued' ELSE status END AS state,
  attempts
FROM jobs;
