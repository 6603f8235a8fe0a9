-- breaks: no-deadlock
-- A trigger counts each completed job in its queue's row. A worker that serves two queues completes
-- a batch of both, and two such batches reach the two rows in two orders.

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
CREATE TABLE completed_counts (
  queue text   PRIMARY KEY,
  n     bigint NOT NULL DEFAULT 0
);
CREATE FUNCTION count_completed() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
  INSERT INTO completed_counts AS known VALUES (NEW.queue, 1)
  ON CONFLICT (queue) DO UPDATE SET n = known.n + 1;
  RETURN NULL;
END
$$;
CREATE TRIGGER jobs_completed
AFTER UPDATE OF status ON jobs
FOR EACH ROW WHEN (OLD.status <> 'completed' AND NEW.status = 'completed')
EXECUTE FUNCTION count_completed();
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';
