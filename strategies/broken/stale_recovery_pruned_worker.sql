-- breaks: stale-recovery
-- Workers that were not heard of for a lease are removed once they hold nothing. One that only was
-- slow claims on; its jobs belong to nobody that recover knows (solid_queue PR 244).

-- /// queue
-- extends = "../sound/leader_promotes.sql"
-- ///

-- name: schema#
CREATE TABLE workers (
  name    text        PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL
               CHECK (status IN ('scheduled', 'ready', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,
  locked_at    timestamptz,
  locked_by    text,
  finished_at  timestamptz
);
CREATE INDEX jobs_ready_idx ON jobs (id) WHERE status = 'ready';
CREATE INDEX jobs_scheduled_idx ON jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX jobs_running_idx ON jobs (locked_by) WHERE status = 'running';

-- name: recover(lease)
WITH orphans AS MATERIALIZED (
  SELECT jobs.id
  FROM jobs
  JOIN workers ON workers.name = jobs.locked_by
  WHERE jobs.status = 'running'
    AND jobs.locked_at < now() - :lease
    AND workers.seen_at < now() - :lease
  -- Both rows: a worker that beats just now is alive. Its claims refer to its row all the same.
  FOR NO KEY UPDATE OF jobs, workers SKIP LOCKED
),
pruned AS (
  DELETE FROM workers
  WHERE name = ANY (ARRAY(
    SELECT name
    FROM workers
    WHERE seen_at < now() - :lease
      AND NOT EXISTS (SELECT FROM jobs WHERE status = 'running' AND locked_by = name)
    FOR UPDATE SKIP LOCKED
  ))
)
UPDATE jobs
SET status      = CASE WHEN attempts < max_attempts THEN 'ready' ELSE 'failed' END,
    finished_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    locked_by   = NULL
FROM orphans
WHERE jobs.id = orphans.id
RETURNING jobs.id;
