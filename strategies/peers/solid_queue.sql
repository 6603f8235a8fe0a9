-- Models Solid Queue 1.5 on PostgreSQL: app/models/solid_queue and its schema at commit 29e818d.
--
-- What it documents (https://github.com/rails/solid_queue#readme): jobs are picked by priority. A
-- job that fails is kept until somebody retries it: automatic retries are Active Job's. Processes
-- send heartbeats; the jobs of one whose heartbeat has expired are marked as failed. Since 1.5 a
-- claimed execution is finalized exactly once (https://github.com/rails/solid_queue/issues/589).
--
-- Different here:
-- * Lower numbers are more urgent there: a priority is stored negated here.
-- * A dispatcher makes due jobs ready there, once a second. Each claim does it here.
-- * A process beats by a timer there. A claim younger than the threshold is a sign of life too here:
--   a worker of the harness has no timer. One that was pruned and claims again is registered again;
--   there it stops, and its supervisor starts another.
-- * The jobs of all pruned processes fail in one transaction here, each in its own there. `pruned`,
--   and the answer of `recover`, are there for the harness alone.
-- * Times are the client's there and the server's here, so that `server-clock` says nothing about
--   Solid Queue.
-- * Concurrency controls, recurring tasks, batches and pauses are left out, and so is what a
--   supervisor does when it starts: fail the executions of processes that are gone. A job that is
--   claimed while its process is being pruned waits for that.

-- /// queue
-- lease = "5 minutes"
-- stale = "fails"
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue_name   text        NOT NULL,
  class_name   text        NOT NULL DEFAULT 'default',
  arguments    jsonb,
  priority     int         NOT NULL DEFAULT 0,
  scheduled_at timestamptz NOT NULL,
  finished_at  timestamptz,
  created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX jobs_finished_at_idx ON jobs (finished_at);
CREATE TABLE ready_executions (
  id         bigserial PRIMARY KEY,
  job_id     bigint    NOT NULL UNIQUE REFERENCES jobs ON DELETE CASCADE,
  queue_name text      NOT NULL,
  priority   int       NOT NULL
);
CREATE INDEX ready_executions_poll_by_queue_idx ON ready_executions (queue_name, priority, job_id);
CREATE TABLE scheduled_executions (
  id           bigserial   PRIMARY KEY,
  job_id       bigint      NOT NULL UNIQUE REFERENCES jobs ON DELETE CASCADE,
  queue_name   text        NOT NULL,
  priority     int         NOT NULL,
  scheduled_at timestamptz NOT NULL
);
CREATE INDEX scheduled_executions_dispatch_idx
  ON scheduled_executions (scheduled_at, priority, job_id);
CREATE TABLE claimed_executions (
  id         bigserial   PRIMARY KEY,
  job_id     bigint      NOT NULL UNIQUE REFERENCES jobs ON DELETE CASCADE,
  process    text        NOT NULL,  -- need not exist
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX claimed_executions_process_idx ON claimed_executions (process, job_id);
CREATE TABLE failed_executions (
  id         bigserial   PRIMARY KEY,
  job_id     bigint      NOT NULL UNIQUE REFERENCES jobs ON DELETE CASCADE,
  error      text,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE processes (
  name              text        PRIMARY KEY,
  last_heartbeat_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX processes_last_heartbeat_at_idx ON processes (last_heartbeat_at);

-- name: start(worker)
INSERT INTO processes (name)
VALUES (:worker);

-- name: enqueue(payload, priority, delay, queue)
WITH job AS (
  INSERT INTO jobs (queue_name, arguments, priority, scheduled_at)
  VALUES (:queue, :payload, - :priority, now() + :delay)
  RETURNING id, queue_name, priority, scheduled_at
),
ready AS (
  INSERT INTO ready_executions (job_id, queue_name, priority)
  SELECT id, queue_name, priority
  FROM job
  WHERE scheduled_at <= now()
),
scheduled AS (
  INSERT INTO scheduled_executions (job_id, queue_name, priority, scheduled_at)
  SELECT id, queue_name, priority, scheduled_at
  FROM job
  WHERE scheduled_at > now()
)
SELECT id
FROM job;

-- name: claim(worker, limit, queue, job_ids)
WITH process AS (
  INSERT INTO processes (name)
  SELECT :worker
  -- Not ON CONFLICT, which would wait for a supervisor that is about to prune this process.
  WHERE NOT EXISTS (SELECT FROM processes WHERE name = :worker)
),
due AS (
  DELETE FROM scheduled_executions
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM scheduled_executions
    WHERE scheduled_at <= now()
    ORDER BY scheduled_at, priority, job_id
    LIMIT 500
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING job_id, queue_name, priority
)
INSERT INTO ready_executions (job_id, queue_name, priority)
SELECT job_id, queue_name, priority
FROM due;
BEGIN;
SELECT job_id
FROM ready_executions
WHERE queue_name = :queue
ORDER BY priority, job_id
LIMIT :limit
FOR UPDATE SKIP LOCKED;
INSERT INTO claimed_executions (job_id, process)
SELECT unnest(:job_ids), :worker
RETURNING job_id AS id, id AS execution;
DELETE FROM ready_executions
WHERE job_id = ANY (:job_ids);
COMMIT;

-- name: complete(id, execution)
BEGIN;
-- Finalized once: whoever finds it gone does nothing.
SELECT id
FROM claimed_executions
WHERE id = :execution
FOR UPDATE;
UPDATE jobs
SET finished_at = now()
WHERE id = :id;
DELETE FROM claimed_executions
WHERE id = :execution;
COMMIT;

-- name: fail(id, execution, error)
BEGIN;
SELECT id
FROM claimed_executions
WHERE id = :execution
FOR UPDATE;
INSERT INTO failed_executions (job_id, error)
VALUES (:id, :error);
DELETE FROM claimed_executions
WHERE id = :execution;
COMMIT;

-- name: heartbeat(worker)!
UPDATE processes
SET last_heartbeat_at = now()
WHERE name = :worker;

-- name: recover(lease, process_names, executions, job_ids)
-- The supervisor's maintenance. The locks of this SELECT end with it.
SELECT processes.name AS process_name, claimed_executions.id AS execution, claimed_executions.job_id
FROM processes
LEFT JOIN claimed_executions ON claimed_executions.process = processes.name
WHERE processes.last_heartbeat_at <= now() - :lease
  AND NOT EXISTS (
    SELECT
    FROM claimed_executions AS recent
    WHERE recent.process = processes.name
      AND recent.created_at > now() - :lease
  )
FOR UPDATE OF processes SKIP LOCKED;
WITH pruned AS (
  DELETE FROM claimed_executions
  WHERE id = ANY (:executions)
  RETURNING job_id
)
INSERT INTO failed_executions (job_id, error)
SELECT job_id, 'pruned'
FROM pruned;
WITH gone AS (
  DELETE FROM processes
  WHERE name = ANY (:process_names)
  RETURNING name
),
-- Claimed since: these go back.
released AS (
  DELETE FROM claimed_executions
  USING gone
  WHERE claimed_executions.process = gone.name
  RETURNING claimed_executions.job_id
),
ready AS (
  INSERT INTO ready_executions (job_id, queue_name, priority)
  SELECT jobs.id, jobs.queue_name, jobs.priority
  FROM jobs
  JOIN released ON released.job_id = jobs.id
)
SELECT job_id AS id
FROM released
UNION ALL
SELECT job_id
FROM failed_executions
WHERE error = 'pruned'
  AND job_id = ANY (:job_ids);

-- name: cleanup(age)
DELETE FROM jobs
WHERE finished_at < now() - :age;

-- name: jobs
SELECT jobs.id,
       CASE
         WHEN jobs.finished_at IS NOT NULL THEN 'completed'
         WHEN failed_executions.job_id IS NOT NULL THEN 'failed'
         WHEN claimed_executions.job_id IS NOT NULL THEN 'running'
         ELSE 'queued'
       END AS state,
       CASE WHEN COALESCE(claimed_executions.job_id, failed_executions.job_id) IS NOT NULL
                 OR jobs.finished_at IS NOT NULL THEN 1 ELSE 0 END AS attempts
FROM jobs
LEFT JOIN failed_executions ON failed_executions.job_id = jobs.id
LEFT JOIN claimed_executions ON claimed_executions.job_id = jobs.id;
