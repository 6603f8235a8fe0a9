-- breaks: no-deadlock
-- Enqueue and complete keep two counters, in opposite orders. To be compared with
-- sound/counters.sql.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  job_type     text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  status       text        NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3 CHECK (max_attempts > 0),
  run_at       timestamptz NOT NULL DEFAULT now(),
  locked_at    timestamptz,  -- when the lease began: the claim, or the last heartbeat
  locked_by    text,
  last_error   text,
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  completed_at timestamptz,
  failed_at    timestamptz
);
-- In the order of the claim, which then reads its batch and nothing else.
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';
CREATE TABLE counters (name text PRIMARY KEY, jobs bigint NOT NULL DEFAULT 0);
INSERT INTO counters (name) VALUES ('queued'), ('total');

-- name: enqueue(payload, priority, delay, max_attempts, queue)
BEGIN;
UPDATE counters SET jobs = jobs + 1 WHERE name = 'total';
UPDATE counters SET jobs = jobs + 1 WHERE name = 'queued';
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;
COMMIT;

-- name: complete(id, worker, attempt)
BEGIN;
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  -- The worker's name alone would let it finish a later attempt of its own.
  AND attempts = :attempt
RETURNING id;
-- The other way round than enqueue.
UPDATE counters SET jobs = jobs - 1 WHERE name = 'queued';
UPDATE counters SET jobs = jobs - 1 WHERE name = 'total';
COMMIT;
