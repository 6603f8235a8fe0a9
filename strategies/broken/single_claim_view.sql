-- breaks: single-claim
-- Claimed through a view whose trigger gets each row as the snapshot showed it: neither the lock
-- nor the trigger asks whether the job is still free.

-- /// queue
-- extends = "../sound/view.sql"
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

-- Workers know this view alone.
CREATE VIEW live AS
SELECT id, queue, payload, status, priority, attempts, max_attempts, run_at, locked_at, locked_by
FROM jobs
WHERE status IN ('queued', 'running');
CREATE FUNCTION live_update() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
  UPDATE jobs
  SET status     = NEW.status,
      locked_at  = NEW.locked_at,
      locked_by  = NEW.locked_by,
      attempts   = NEW.attempts,
      updated_at = now()
  -- Whatever has become of it.
  WHERE id = OLD.id
    AND status IN ('queued', 'running');
  IF FOUND THEN
    RETURN NEW;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER live_update INSTEAD OF UPDATE ON live
FOR EACH ROW EXECUTE FUNCTION live_update();

-- name: claim(worker, limit, queue)
WITH seen AS MATERIALIZED (
  SELECT id
  FROM live
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
)
UPDATE live
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- Counted here, so that a crash counts. It is also the fencing token of what follows.
    attempts   = attempts + 1
-- An ARRAY is computed once; an IN (SELECT ...) may be run again for each row of the outer scan.
WHERE id = ANY (ARRAY(
  SELECT id
  FROM live
  WHERE id = ANY (ARRAY(SELECT id FROM seen))
    AND attempts < max_attempts
    AND run_at <= now()
  -- Locked, but free is not asked again.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
