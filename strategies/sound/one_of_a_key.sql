-- Of jobs with the same key no two run at once, in any queue: the next one waits until the first has ended. Here the key
-- is the payload; nothing in the header says so.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  payload      jsonb       NOT NULL DEFAULT '{}',
  key          text        NOT NULL GENERATED ALWAYS AS (md5(payload::text)) STORED,
  status       text        NOT NULL DEFAULT 'queued',
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  run_at       timestamptz NOT NULL DEFAULT now(),
  locked_at    timestamptz,
  locked_by    text,
  last_error   text,
  updated_at   timestamptz NOT NULL DEFAULT now(),
  completed_at timestamptz,
  failed_at    timestamptz
);
CREATE INDEX jobs_runnable_idx ON jobs (queue, priority DESC, run_at, id) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (key) WHERE status = 'running';
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';

-- name: claim(worker, limit, queue, ids)
BEGIN;
SELECT id
FROM jobs
WHERE queue = :queue
  AND status = 'queued'
  AND attempts < max_attempts
  AND run_at <= now()
  AND NOT EXISTS (SELECT FROM jobs AS other WHERE other.key = jobs.key AND other.status = 'running')
  -- Who claims another job with this key at the same time is the one that gets it.
  AND pg_try_advisory_xact_lock(hashtextextended(key, 0))
ORDER BY priority DESC, run_at, id
LIMIT :limit
FOR UPDATE SKIP LOCKED;
-- A second statement sees what has been claimed until the key was locked.
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    attempts   = attempts + 1,
    updated_at = now()
WHERE id = ANY (:ids)
  AND NOT EXISTS (
    SELECT FROM jobs AS other
    WHERE other.key = jobs.key
      AND (other.status = 'running' OR other.id = ANY (:ids) AND other.id < jobs.id)
  )
RETURNING id, attempts AS attempt, payload;
COMMIT;
