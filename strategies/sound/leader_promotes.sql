-- A leader does what is to be done now and then: it makes due jobs ready, and takes back the jobs
-- of workers that are gone. Workers register when they start, and beat for themselves, also while
-- they have nothing to do; a claim looks at ready jobs alone.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- leader = true
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
  locked_by    text        REFERENCES workers,
  finished_at  timestamptz
);
CREATE INDEX jobs_ready_idx ON jobs (id) WHERE status = 'ready';
CREATE INDEX jobs_scheduled_idx ON jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX jobs_running_idx ON jobs (locked_by) WHERE status = 'running';

-- name: start(worker)
INSERT INTO workers (name) VALUES (:worker);

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, status, run_at, max_attempts)
VALUES (
  :payload,
  CASE WHEN :delay > interval '0' THEN 'scheduled' ELSE 'ready' END,
  now() + :delay,
  :max_attempts
)
RETURNING id;

-- name: promote
SELECT id FROM jobs WHERE status = 'scheduled' AND run_at <= now();
-- Nobody but the leader touches a scheduled job, so that it is still one.
UPDATE jobs SET status = 'ready' WHERE id = ANY (:ids);

-- name: claim(worker, limit)
UPDATE jobs
SET status    = 'running',
    locked_at = now(),
    locked_by = :worker,
    attempts  = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'ready'
  ORDER BY id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt;

-- name: complete(id, worker, attempt)!
UPDATE jobs
SET status = 'completed', locked_by = NULL, finished_at = now()
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempt;

-- name: fail(id, worker, attempt)!
UPDATE jobs
SET status      = CASE WHEN attempts < max_attempts THEN 'scheduled' ELSE 'failed' END,
    finished_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    run_at      = now() + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts, 10)),
    locked_by   = NULL
WHERE id = :id AND status = 'running' AND locked_by = :worker AND attempts = :attempt;

-- name: heartbeat(worker)!
UPDATE workers SET seen_at = now() WHERE name = :worker;

-- name: recover(lease)
WITH orphans AS MATERIALIZED (
  SELECT jobs.id
  FROM jobs
  JOIN workers ON workers.name = jobs.locked_by
  WHERE jobs.status = 'running'
    AND jobs.locked_at < now() - :lease
    AND workers.seen_at < now() - :lease
  -- Both rows: a worker that beats just now is alive. Its claims refer to its row all the same.
  FOR NO KEY UPDATE OF jobs, workers SKIP LOCKED
)
UPDATE jobs
SET status      = CASE WHEN attempts < max_attempts THEN 'ready' ELSE 'failed' END,
    finished_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_by   = NULL
FROM orphans
WHERE jobs.id = orphans.id
RETURNING jobs.id;

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status IN ('completed', 'failed') AND finished_at < now() - :age
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT
  id,
  CASE WHEN status IN ('scheduled', 'ready') THEN 'queued' ELSE status END AS state,
  attempts
FROM jobs;
