-- A job queue in one table, ready to run. Make it yours: rename, add columns, change what a
-- claim does. `queueproof check` tells what still holds, or the shortest story of what broke.
--
-- Each block below is one operation; the words in brackets are its parameters, which the
-- statement uses as :worker, :limit ... Enqueue and claim are required, the rest is optional.
-- The whole format: queueproof help file-format

-- The header declares what the queue promises. A key that is left out promises nothing.
-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- order = "priority, fifo"
-- ///

-- Runs once, in an empty database of its own.
-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued',  -- then running; in the end completed or failed
  priority     int         NOT NULL,                   -- higher first
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,                   -- not before
  locked_by    text,                                   -- who runs it ...
  locked_at    timestamptz,                            -- ... and since when: the lease begins here
  last_error   text
);
-- The order of the claim, so that a claim reads the jobs that it takes and no others.
CREATE INDEX jobs_queued ON jobs (priority DESC, run_at, id) WHERE status = 'queued';
CREATE INDEX jobs_running ON jobs (locked_at) WHERE status = 'running';

-- Answers one row with the new job's id.
-- name: enqueue(payload, priority, delay, max_attempts)
INSERT INTO jobs (payload, priority, run_at, max_attempts)
VALUES (:payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- Answers a row per job that the worker now holds. Each column of it is a parameter of the
-- operations below: here :id and :attempt.
-- name: claim(worker, limit)
UPDATE jobs
SET status    = 'running',
    locked_by = :worker,
    locked_at = now(),
    attempts  = attempts + 1  -- counted at the start, so that a crash counts
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'queued'
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Passes over jobs that another claim is taking at this moment, instead of waiting for it.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;

-- The ! says: count the rows changed. None means that the worker has lost the job.
-- name: complete(id, worker, attempt)!
UPDATE jobs
SET status = 'completed'
WHERE id = :id
  -- Still this worker's, and still this attempt: a worker that was paused beyond its lease
  -- must not finish what another has started since.
  AND status = 'running' AND locked_by = :worker AND attempts = :attempt;

-- Back to the queue with a pause that doubles, or to the end after the last attempt.
-- name: fail(id, worker, attempt, error)!
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    run_at     = now() + interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10),
    last_error = :error
WHERE id = :id
  AND status = 'running' AND locked_by = :worker AND attempts = :attempt;

-- For jobs that take longer than the lease: the worker says in time that it is alive.
-- name: heartbeat(id, worker, attempt)!
UPDATE jobs
SET locked_at = now()
WHERE id = :id
  AND status = 'running' AND locked_by = :worker AND attempts = :attempt;

-- Run every few seconds by anybody: gives back the jobs whose worker has died.
-- name: recover(lease)
UPDATE jobs
SET status     = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    last_error = 'lease expired'
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'running'
    AND locked_at < now() - :lease
  FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- Not part of the queue: lets the check see what became of every job.
-- name: jobs
SELECT id, status AS state, attempts
FROM jobs;
