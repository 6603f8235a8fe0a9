-- A job belongs to a backend: its process id, and the moment at which it began. When that backend
-- is gone the job ends as failed, for somebody to look at. So whoever loses a job is not there any
-- more.

-- /// queue
-- lease = "session"
-- stale = "fails"
-- order = "priority, fifo"
-- [breaks]
-- pooler-safe = "a job belongs to a backend, which a pooler gives to others"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id       bigserial   PRIMARY KEY,
  payload  jsonb       NOT NULL,
  priority int         NOT NULL,
  run_at   timestamptz NOT NULL,
  pid      int,
  since    timestamptz,
  outcome  text        CHECK (outcome IN ('completed', 'failed'))
);
CREATE INDEX jobs_ready_idx ON jobs (priority DESC, run_at, id)
  WHERE pid IS NULL AND outcome IS NULL;
CREATE INDEX jobs_running_idx ON jobs (pid) WHERE pid IS NOT NULL;
CREATE VIEW me AS
  SELECT pid, backend_start AS since FROM pg_stat_activity WHERE pid = pg_backend_pid();

-- name: enqueue(payload, priority, delay)
INSERT INTO jobs (payload, priority, run_at)
VALUES (:payload, :priority, now() + :delay)
RETURNING id;

-- name: claim(limit)
UPDATE jobs
SET (pid, since) = (SELECT pid, since FROM me)
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE pid IS NULL AND outcome IS NULL AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, pid, since;

-- name: complete(id, pid, since)!
UPDATE jobs SET outcome = 'completed', pid = NULL WHERE id = :id AND pid = :pid AND since = :since;

-- name: fail(id, pid, since)!
UPDATE jobs SET outcome = 'failed', pid = NULL WHERE id = :id AND pid = :pid AND since = :since;

-- name: recover
WITH gone AS MATERIALIZED (
  SELECT id
  FROM jobs
  WHERE pid IS NOT NULL
    -- A process id is given out again.
    AND NOT EXISTS (
      SELECT FROM pg_stat_activity AS backend
      WHERE backend.pid = jobs.pid AND backend.backend_start = jobs.since
    )
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs SET outcome = 'failed', pid = NULL
FROM gone
WHERE jobs.id = gone.id
RETURNING jobs.id;

-- name: jobs
SELECT
  id,
  COALESCE(outcome, CASE WHEN pid IS NULL THEN 'queued' ELSE 'running' END) AS state,
  CASE WHEN pid IS NULL AND outcome IS NULL THEN 0 ELSE 1 END AS attempts
FROM jobs;
