-- breaks: fencing
-- differs from: ../sound/at_least_once.sql
-- At least once: a late result may count. But here a late failure does, too: it puts a job back
-- that somebody else is working on, or ends it as failed.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- delivery = "at-least-once"
-- jobs_per_worker = 1
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  worker       text,
  lease_until  timestamptz
);
CREATE INDEX jobs_queued_idx ON jobs (id) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (lease_until) WHERE status = 'running';
CREATE INDEX jobs_worker_idx ON jobs (worker) WHERE status = 'running';

-- name: enqueue(payload, max_attempts)
INSERT INTO jobs (payload, max_attempts) VALUES (:payload, :max_attempts) RETURNING id;

-- name: claim(worker, lease)
WITH mine AS MATERIALIZED (
  SELECT id FROM jobs WHERE status = 'running' AND worker = :worker LIMIT 1 FOR UPDATE
),
picked AS MATERIALIZED (
  SELECT id FROM jobs WHERE status = 'queued' AND NOT EXISTS (SELECT FROM mine) ORDER BY id
  LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status      = 'running',
    attempts    = attempts + CASE WHEN status = 'queued' THEN 1 ELSE 0 END,
    worker      = :worker,
    lease_until = now() + :lease
WHERE id = ANY (ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM picked))
RETURNING id, attempts AS attempt;

-- name: complete(id)!
UPDATE jobs SET status = 'completed', worker = NULL
-- Done is done, whoever did it.
WHERE id = :id AND status IN ('queued', 'running');

-- name: fail(id)!
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    worker = NULL
WHERE id = :id AND status = 'running';

-- name: heartbeat(id, worker, attempt, lease)!
UPDATE jobs SET lease_until = now() + :lease
WHERE id = :id AND status = 'running' AND worker = :worker AND attempts = :attempt;

-- name: recover
WITH stale AS MATERIALIZED (
  SELECT id FROM jobs WHERE status = 'running' AND lease_until < now() FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    worker = NULL
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id;

-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
