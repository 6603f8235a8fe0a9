-- A job goes into a lane by lot. A worker looks into a lane of its own first, and into all where that has none: how many
-- jobs a claim gets is a matter of luck.

-- /// queue
-- extends = "../skip_locked.sql"
-- order = "none"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  queue        text        NOT NULL DEFAULT 'default',
  lane         smallint    NOT NULL DEFAULT floor(random() * 4),
  payload      jsonb       NOT NULL DEFAULT '{}',
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
CREATE INDEX jobs_lane_idx ON jobs (queue, lane, run_at) WHERE status = 'queued';
CREATE INDEX jobs_runnable_idx ON jobs (queue, run_at) WHERE status = 'queued';
CREATE INDEX jobs_stuck_idx ON jobs (locked_at) WHERE status = 'running';

-- name: claim(worker, limit, queue)
UPDATE jobs
SET status = 'running', locked_at = now(), locked_by = :worker, attempts = attempts + 1, updated_at = now()
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND lane = hashtext(:worker) & 3
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY run_at
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
-- else
UPDATE jobs
SET status = 'running', locked_at = now(), locked_by = :worker, attempts = attempts + 1, updated_at = now()
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY run_at
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
