-- breaks: no-lost-job
-- An enqueue of what has ended runs it once more, and leaves standing when it ended: cleanup, which
-- spares only what runs, takes it while it waits.

-- /// queue
-- extends = "../sound/deduplicated.sql"
-- order = "priority"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  job_type     text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  key          text        NOT NULL,  -- what makes two jobs the same
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
CREATE UNIQUE INDEX jobs_key_idx ON jobs (queue, key);
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, key, priority, run_at, max_attempts)
VALUES (:queue, :payload, md5(:payload::text), :priority, now() + :delay, :max_attempts)
ON CONFLICT (queue, key) DO UPDATE
SET status       = CASE WHEN jobs.status = 'running' THEN 'running' ELSE 'queued' END,
    -- Attempts are counted on: they are the fencing token.
    max_attempts = CASE
                     WHEN jobs.status IN ('queued', 'running') THEN jobs.max_attempts
                     ELSE jobs.attempts + :max_attempts
                   END,
    updated_at   = now()
RETURNING id;

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status <> 'running'
    AND COALESCE(completed_at, failed_at) < now() - :age
  FOR UPDATE SKIP LOCKED
));
