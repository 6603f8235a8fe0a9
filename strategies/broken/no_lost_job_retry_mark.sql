-- breaks: no-lost-job
-- differs from: ../sound/promotes_one_by_one.sql
-- The promoter asks for the retries that have become due since it last looked: a failure that
-- commits after its wait, and after that look, is never tried again.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- ///

-- name: schema#
CREATE TABLE looks (last timestamptz NOT NULL);
INSERT INTO looks VALUES ('-infinity');
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
CREATE INDEX jobs_ready_idx ON jobs (id) WHERE status = 'ready';
CREATE INDEX jobs_due_idx ON jobs (run_at) WHERE status IN ('scheduled', 'lost');
CREATE INDEX jobs_running_idx ON jobs (since) WHERE status = 'running';

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, run_at, max_attempts)
VALUES (:payload, now() + :delay, :max_attempts)
RETURNING id;

-- name: promote
WITH look AS MATERIALIZED (
  SELECT last FROM looks FOR UPDATE SKIP LOCKED
),
moved AS (
  UPDATE looks SET last = now() FROM look
)
UPDATE jobs SET status = 'ready'
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status IN ('scheduled', 'lost')
    AND run_at <= now()
    AND (attempts = 0 OR status = 'lost' OR run_at > (SELECT last FROM look))
  FOR UPDATE SKIP LOCKED
));

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
