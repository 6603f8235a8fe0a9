-- A claim lives as long as its worker's connection: no lease, no heartbeat, and a job may take
-- days. A worker works at one job at a time. Functions do the work; what they answer says whether
-- the job was still the caller's.

-- /// queue
-- lease = "session"
-- max_attempts = 3
-- jobs_per_worker = 1
-- order = "fifo"
-- [breaks]
-- pooler-safe = "a claim is its connection's: a pooler has to be in session mode"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial PRIMARY KEY,
  payload      jsonb     NOT NULL,
  status       text      NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  attempts     int       NOT NULL DEFAULT 0,
  max_attempts int       NOT NULL,
  backend      int,         -- of the connection that has claimed it
  since        timestamptz  -- when that connection was made: process ids are used again
);
CREATE INDEX jobs_queued_idx ON jobs (id) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (id) WHERE status = 'running';

CREATE FUNCTION complete_job(job bigint, try int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE jobs SET status = 'completed', backend = NULL
  WHERE id = job AND status = 'running' AND attempts = try;
  RETURN found;
END $$;

CREATE FUNCTION fail_job(job bigint, try int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  ended int;
BEGIN
  UPDATE jobs
  SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END, backend = NULL
  WHERE id = job AND status = 'running' AND attempts = try;
  GET DIAGNOSTICS ended = ROW_COUNT;
  RETURN ended;
END $$;

-- name: enqueue(payload, max_attempts)
INSERT INTO jobs (payload, max_attempts) VALUES (:payload, :max_attempts) RETURNING id;

-- name: claim
UPDATE jobs
SET status   = 'running',
    attempts = attempts + 1,
    backend  = pg_backend_pid(),
    since    = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
WHERE id = (
  SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, attempts AS attempt;

-- name: complete(id, attempt)
SELECT complete_job(:id, :attempt) AS accepted;

-- name: fail(id, attempt)
SELECT fail_job(:id, :attempt) AS accepted;

-- name: recover
WITH orphans AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE status = 'running'
    -- OFFSET 0 keeps it from becoming a join, which a lock does not run again for a row that has
    -- changed since the snapshot.
    AND NOT EXISTS (
      SELECT FROM pg_stat_activity
      WHERE pid = jobs.backend AND backend_start = jobs.since
      OFFSET 0
    )
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status  = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    backend = NULL
FROM orphans
WHERE jobs.id = orphans.id
RETURNING jobs.id;

-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
