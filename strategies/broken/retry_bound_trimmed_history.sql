-- breaks: retry-bound
-- differs from: ../sound/runs.sql
-- A failure counts the job's runs to see whether attempts are left. But cleanup trims old runs,
-- those of jobs that still wait for their retry too.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE tasks (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  state        text        NOT NULL DEFAULT 'queued'
               CHECK (state IN ('queued', 'running', 'completed', 'failed')),
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  run_at       timestamptz NOT NULL DEFAULT now(),
  ended_at     timestamptz
);
CREATE INDEX tasks_queued_idx ON tasks (priority DESC, run_at, id) WHERE state = 'queued';
CREATE TABLE runs (
  id          bigserial   PRIMARY KEY,
  task_id     bigint      NOT NULL,
  worker      text        NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz NOT NULL,
  outcome     text CHECK (outcome IN ('completed', 'failed', 'expired')),
  error       text
);
-- At most one open run per task, whatever the code does.
CREATE UNIQUE INDEX runs_open_idx ON runs (task_id) WHERE outcome IS NULL;
CREATE INDEX runs_lease_idx ON runs (lease_until) WHERE outcome IS NULL;

-- name: enqueue(payload, priority, delay, max_attempts)
INSERT INTO tasks (payload, priority, run_at, max_attempts)
VALUES (:payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, lease)
WITH picked AS (
  UPDATE tasks
  SET state    = 'running',
      attempts = attempts + 1
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM tasks
    WHERE state = 'queued'
      AND run_at <= now()
    ORDER BY priority DESC, run_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, payload
),
started AS (
  INSERT INTO runs (task_id, worker, lease_until)
  SELECT id, :worker, now() + :lease
  FROM picked
  RETURNING id, task_id
)
SELECT picked.id, started.id AS run, picked.payload
FROM picked
JOIN started ON started.task_id = picked.id;

-- name: complete(run)!
WITH ended AS (
  UPDATE runs
  SET outcome = 'completed'
  WHERE id = :run
    AND outcome IS NULL
  RETURNING task_id
)
-- Only the open run's end touches a running task: no further condition is needed.
UPDATE tasks
SET state    = 'completed',
    ended_at = now()
FROM ended
WHERE tasks.id = ended.task_id;

-- name: fail(run, error)!
WITH ended AS (
  UPDATE runs
  SET outcome = 'failed',
      error   = left(:error, 2000)
  WHERE id = :run
    AND outcome IS NULL
  RETURNING task_id
)
UPDATE tasks
SET state    = CASE WHEN tried < max_attempts THEN 'queued' ELSE 'failed' END,
    ended_at = CASE WHEN tried < max_attempts THEN NULL ELSE now() END,
    run_at   = now()
               + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))
FROM ended
CROSS JOIN LATERAL (
  SELECT count(*) AS tried FROM runs WHERE runs.task_id = ended.task_id
) AS history
WHERE tasks.id = ended.task_id;

-- name: heartbeat(run, lease)!
UPDATE runs
SET lease_until = now() + :lease
WHERE id = :run
  AND outcome IS NULL;

-- name: recover
WITH stale AS MATERIALIZED (
  SELECT runs.id, runs.task_id, runs.worker, runs.lease_until
  FROM runs
  JOIN tasks ON tasks.id = runs.task_id
  WHERE runs.outcome IS NULL
    AND runs.lease_until < now()
  -- Both rows, or neither: nothing below can wait.
  FOR UPDATE SKIP LOCKED
),
expired AS (
  UPDATE runs
  SET outcome = 'expired'
  FROM stale
  WHERE runs.id = stale.id
)
UPDATE tasks
SET state    = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    ended_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END
FROM stale
WHERE tasks.id = stale.task_id
RETURNING tasks.id, tasks.state, tasks.attempts, stale.worker, stale.lease_until;

-- name: cleanup(age)
WITH old AS (
  DELETE FROM tasks
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM tasks
    WHERE ended_at < now() - :age
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id
)
DELETE FROM runs
WHERE task_id IN (SELECT id FROM old)
   OR outcome IS NOT NULL AND lease_until < now() - :age;

-- name: jobs
SELECT id, state, attempts
FROM tasks;
