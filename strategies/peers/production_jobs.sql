-- Models the jobs table of "PostgreSQL Job Queues with SKIP LOCKED", a guide for production
-- (https://codenotes.tech/blog/postgresql-job-queues-with-skip-locked): owner, attempts, due time
-- and last error in one table, partial indexes for runnable, stuck and failed jobs, a claim by CTE.
--
-- What it documents: at-least-once, not exactly-once, so that a handler needs an idempotency key.
-- Completion, failure and heartbeat check the owner (locked_by). A stale job is recovered by its
-- lease, a live one never. Retries are bounded; their waits grow, are capped and have jitter. Error
-- texts are cut. Finished jobs are removed, failed ones are kept to be seen.
--
-- Different here: the lease, the waits and where an error text is cut are figures of our choice.
-- The idempotency key is the handler's, and not in the table.

-- /// queue
-- delivery = "at-least-once"
-- lease = "5 minutes"
-- max_attempts = 5
-- backoff = "10 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  type         text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  status       text        NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 5,
  run_at       timestamptz NOT NULL DEFAULT now(),
  locked_at    timestamptz,
  locked_by    text,
  last_error   text,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  completed_at timestamptz
);
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
CREATE INDEX jobs_failed_idx ON jobs (updated_at) WHERE status = 'failed';

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, queue)
WITH next_jobs AS (
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = 'running',
    attempts   = jobs.attempts + 1,
    locked_at  = now(),
    locked_by  = :worker,
    updated_at = now()
FROM next_jobs
WHERE jobs.id = next_jobs.id
RETURNING jobs.id, jobs.type, jobs.payload, jobs.attempts;

-- name: complete(id, worker)!
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'
  -- The owner, and not which of its attempts.
  AND locked_by = :worker;

-- name: fail(id, worker, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '10 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker;

-- name: heartbeat(id, worker)!
UPDATE jobs
SET locked_at  = now(),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker;

-- name: recover(lease)
WITH stuck AS (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'recovered: its lease had run out',
    updated_at = now()
FROM stuck
WHERE jobs.id = stuck.id
-- How many, whose they were and since when.
RETURNING jobs.id, jobs.status, stuck.locked_by, stuck.locked_at;

-- name: cleanup(age)
DELETE FROM jobs
WHERE status = 'completed'
  AND completed_at < now() - :age;

-- name: jobs
SELECT id, status AS state, attempts
FROM jobs;
