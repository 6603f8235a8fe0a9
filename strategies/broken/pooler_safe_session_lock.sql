-- breaks: pooler-safe
-- differs from: ../advisory_lock.sql
-- The locks of the list are the session's, and are given back after the commit. A pooler sends
-- that to another session, and whoever gets the first one keeps the locks for ever.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
-- [breaks]
-- non-blocking = "a late worker's row lock makes a claim wait: it is no advisory lock"
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

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO jobs (queue, payload, priority, run_at, max_attempts)
VALUES (:queue, :payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, queue, ids)
BEGIN;
SELECT id
-- OFFSET 0, so that locks are tried in the order of the list and only until LIMIT is reached; in
-- the list's own WHERE or ORDER BY they would be taken on every job that it passes.
FROM (
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  OFFSET 0
) AS free
WHERE pg_try_advisory_lock(hashtextextended('jobs', id))
LIMIT :limit;
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
WHERE id = ANY (:ids)
  -- The list was read before the locks were held; this statement's snapshot is newer.
  AND status = 'queued'
  AND attempts < max_attempts
  AND run_at <= now();
COMMIT;
SELECT count(pg_advisory_unlock(hashtextextended('jobs', id))) AS given_back
FROM unnest(:ids) AS named (id);
SELECT id, attempts AS attempt, payload
FROM jobs
WHERE id = ANY (:ids)
  AND status = 'running'
  AND locked_by = :worker;

-- name: complete(id, worker, attempt)!
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
  AND attempts = :attempt;

-- name: complete_many(ids, worker, attempts)
WITH batch AS MATERIALIZED (
  SELECT id, attempt
  FROM unnest(:ids::bigint[], :attempts::int[]) AS named (id, attempt)
  -- One order for every batch: two that overlap wait, and do not deadlock.
  ORDER BY id
),
held AS MATERIALIZED (
  SELECT job.id
  FROM batch
  -- Row by row through the primary key, whatever plan a prepared statement has settled on; what
  -- is compared below is the version that was locked.
  CROSS JOIN LATERAL (
    SELECT id, status, locked_by, attempts FROM jobs WHERE jobs.id = batch.id FOR UPDATE
  ) AS job
  WHERE job.status = 'running'
    AND job.locked_by = :worker
    AND job.attempts = batch.attempt
)
UPDATE jobs
SET status       = 'completed',
    locked_at    = NULL,
    locked_by    = NULL,
    completed_at = now(),
    updated_at   = now()
FROM held
WHERE jobs.id = held.id
RETURNING jobs.id;

-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    -- 5 s, 10 s, 20 s ... 1 h, and up to a tenth more so that failures do not return together.
    -- The exponent is capped before the power is taken: 2 ^ 1024 is out of range.
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = left(:error, 2000),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;

-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET locked_at  = now(),
    updated_at = now()
WHERE id = :id
  AND status = 'running'
  AND locked_by = :worker
  AND attempts = :attempt;

-- name: recover(lease)
WITH stale AS MATERIALIZED (
  SELECT id, locked_by, locked_at
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  -- A job that is locked now is being completed, failed or extended: leave it to its worker.
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    failed_at  = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_at  = NULL,
    locked_by  = NULL,
    last_error = 'lease expired',
    updated_at = now()
FROM stale
WHERE jobs.id = stale.id
RETURNING jobs.id, jobs.status, jobs.attempts, stale.locked_by, stale.locked_at;

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status IN ('completed', 'failed')
    AND COALESCE(completed_at, failed_at) < now() - :age
  -- Two cleanups share the work instead of deadlocking over it.
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, status AS state, attempts
FROM jobs;
