-- breaks: isolation
-- differs from: ../sound/claims_by_insert.sql
-- What the lock guards is read with a snapshot from before the lock, once the database's default is
-- REPEATABLE READ; nothing conflicts, so nothing is refused.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE tasks (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  run_at       timestamptz NOT NULL DEFAULT now(),
  outcome      text CHECK (outcome IN ('completed', 'failed')),
  ended_at     timestamptz
);
CREATE INDEX tasks_open_idx ON tasks (queue, priority DESC, run_at, id) WHERE outcome IS NULL;
CREATE TABLE runs (
  id          bigserial   PRIMARY KEY,
  task_id     bigint      NOT NULL,
  worker      text        NOT NULL,
  lease_until timestamptz NOT NULL,
  outcome     text CHECK (outcome IN ('completed', 'failed', 'expired')),
  error       text
);
CREATE INDEX runs_task_idx ON runs (task_id);
CREATE INDEX runs_lease_idx ON runs (lease_until) WHERE outcome IS NULL;
CREATE TABLE paused_queues (queue text PRIMARY KEY);

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO tasks (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, lease, queue)
BEGIN;
SELECT 1 AS active
WHERE NOT EXISTS (SELECT FROM paused_queues WHERE queue = :queue);
SELECT 1 AS alone
WHERE pg_try_advisory_xact_lock(hashtext('tasks'), hashtext(:queue));
WITH started AS (
  INSERT INTO runs (task_id, worker, lease_until)
  SELECT id, :worker, now() + :lease
  FROM tasks
  WHERE queue = :queue
    AND outcome IS NULL
    AND run_at <= now()
    AND NOT EXISTS (SELECT FROM runs WHERE task_id = tasks.id AND outcome IS NULL)
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  RETURNING id, task_id
)
SELECT tasks.id, started.id AS run, tasks.payload
FROM started
JOIN tasks ON tasks.id = started.task_id;
COMMIT;

-- name: complete(run)!
WITH ended AS (
  UPDATE runs
  SET outcome = 'completed'
  WHERE id = :run
    AND outcome IS NULL
  RETURNING task_id
)
UPDATE tasks
SET outcome  = 'completed',
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
  RETURNING task_id, (SELECT count(*) FROM runs AS mine WHERE mine.task_id = runs.task_id) AS n
)
UPDATE tasks
SET outcome  = CASE WHEN n >= max_attempts THEN 'failed' END,
    ended_at = CASE WHEN n >= max_attempts THEN now() END,
    run_at   = now() + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(n - 1, 10))
FROM ended
WHERE tasks.id = ended.task_id;

-- name: heartbeat(run, lease)!
UPDATE runs
SET lease_until = now() + :lease
WHERE id = :run
  AND outcome IS NULL;

-- name: recover
WITH stale AS MATERIALIZED (
  SELECT runs.id, runs.task_id, runs.worker, runs.lease_until,
         (SELECT count(*) FROM runs AS mine WHERE mine.task_id = runs.task_id) AS n
  FROM runs
  JOIN tasks ON tasks.id = runs.task_id
  WHERE runs.outcome IS NULL
    AND runs.lease_until < now()
  FOR UPDATE SKIP LOCKED
),
expired AS (
  UPDATE runs
  SET outcome = 'expired'
  FROM stale
  WHERE runs.id = stale.id
)
UPDATE tasks
SET outcome  = CASE WHEN n >= max_attempts THEN 'failed' END,
    ended_at = CASE WHEN n >= max_attempts THEN now() END
FROM stale
WHERE tasks.id = stale.task_id
RETURNING tasks.id, tasks.outcome, stale.worker, stale.lease_until;

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
USING old
WHERE runs.task_id = old.id;

-- name: jobs
SELECT id,
       COALESCE(outcome, CASE
         WHEN EXISTS (SELECT FROM runs WHERE task_id = tasks.id AND outcome IS NULL) THEN 'running'
         ELSE 'queued'
       END) AS state,
       (SELECT count(*) FROM runs WHERE task_id = tasks.id) AS attempts
FROM tasks;
