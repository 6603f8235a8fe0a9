-- breaks: stale-recovery
-- differs from: ../sound/workers_beat.sql
-- What a lost worker had is to end as failed, for somebody to look at. But it is put back, and runs
-- once more unseen.

-- /// queue
-- lease = "30 seconds"
-- stale = "fails"
-- ///

-- name: schema#
CREATE TABLE workers (
  name    text        PRIMARY KEY,
  seen_at timestamptz NOT NULL
);
CREATE TABLE jobs (
  id        bigserial PRIMARY KEY,
  payload   jsonb     NOT NULL,
  status    text      NOT NULL DEFAULT 'queued'
            CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  worker    text,
  attempts  int       NOT NULL DEFAULT 0
);
CREATE INDEX jobs_queued_idx ON jobs (id) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (worker) WHERE status = 'running';

-- name: enqueue(payload)
INSERT INTO jobs (payload) VALUES (:payload) RETURNING id;

-- name: claim(worker, limit)
WITH seen AS (
  INSERT INTO workers VALUES (:worker, now())
  ON CONFLICT (name) DO UPDATE SET seen_at = now()
)
UPDATE jobs
SET status = 'running', worker = :worker, attempts = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt;

-- name: complete(id, worker, attempt)!
UPDATE jobs SET status = 'completed'
WHERE id = :id AND status = 'running' AND worker = :worker AND attempts = :attempt;

-- name: recover(lease)
WITH gone AS MATERIALIZED (
  SELECT jobs.id
  FROM jobs
  JOIN workers ON workers.name = jobs.worker
  WHERE jobs.status = 'running' AND workers.seen_at < now() - :lease
  -- Both rows: a claim that commits in between is seen when its worker's row is locked.
  FOR UPDATE OF jobs, workers SKIP LOCKED
)
UPDATE jobs SET status = 'queued' FROM gone WHERE jobs.id = gone.id
RETURNING jobs.id;

-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
