-- At most two jobs run at once: one claim at a time counts what runs, with a snapshot from after
-- the lock. Who does not get the lock goes away with nothing, and waits for nobody.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- concurrency_limit = 2
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued',
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  worker       text,
  leased_until timestamptz
);
CREATE INDEX jobs_queued_idx ON jobs (id) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (leased_until) WHERE status = 'running';

-- name: enqueue(payload, max_attempts)
INSERT INTO jobs (payload, max_attempts)
VALUES (:payload, :max_attempts)
RETURNING id;

-- name: claim(worker, limit)
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT 1 AS alone
WHERE pg_try_advisory_xact_lock(4711);
UPDATE jobs
SET status       = 'running',
    worker       = :worker,
    leased_until = now() + interval '30 seconds',
    attempts     = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'queued'
  ORDER BY id
  LIMIT LEAST(:limit, GREATEST(0, 2 - (
    SELECT count(*)
    FROM jobs
    -- Those whose lease has run out, too: their workers may still beat.
    WHERE status = 'running'
  )))
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt;
COMMIT;

-- name: complete(id, worker, attempt)!
UPDATE jobs
SET status = 'completed'
WHERE id = :id
  AND status = 'running'
  AND worker = :worker
  AND attempts = :attempt;

-- name: fail(id, worker, attempt)!
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END
WHERE id = :id
  AND status = 'running'
  AND worker = :worker
  AND attempts = :attempt;

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET leased_until = now() + interval '30 seconds'
WHERE id = :id
  AND status = 'running'
  AND worker = :worker
  AND attempts = :attempt;

-- name: recover
WITH stale AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND leased_until < now()
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id;

-- name: jobs
SELECT id, status AS state, attempts
FROM jobs;
