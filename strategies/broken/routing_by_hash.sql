-- breaks: routing
-- A queue's name is compared by a hash of ten bits, which is short in the index: two names may have the same one.

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
CREATE INDEX jobs_runnable_idx ON jobs ((hashtext(queue) & 1023), priority DESC, run_at, id)
  WHERE status = 'queued';
-- For recover: the oldest lease first.
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';

-- name: claim(worker, limit, queue)
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1,
    updated_at = now()
-- An ARRAY is computed once; an IN (SELECT ...) may be run again for each row of the outer scan.
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE hashtext(queue) & 1023 = hashtext(:queue) & 1023
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
