-- breaks: no-lost-job
-- The promoter asks for the retries that have become due since it last looked: a failure that
-- commits after its wait, and after that look, is never tried again.

-- /// queue
-- extends = "../sound/promotes_one_by_one.sql"
-- ///

-- name: schema#
CREATE TABLE looks (last timestamptz NOT NULL);
INSERT INTO looks VALUES ('-infinity');
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'scheduled'
               CHECK (status IN ('scheduled', 'lost', 'ready', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,
  worker       text,
  since        timestamptz
);
CREATE INDEX jobs_ready_idx ON jobs (id) WHERE status = 'ready';
CREATE INDEX jobs_due_idx ON jobs (run_at) WHERE status IN ('scheduled', 'lost');
CREATE INDEX jobs_running_idx ON jobs (since) WHERE status = 'running';

-- name: promote
WITH look AS MATERIALIZED (
  SELECT last FROM looks FOR UPDATE SKIP LOCKED
),
moved AS (
  UPDATE looks SET last = now() FROM look
)
UPDATE jobs SET status = 'ready'
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status IN ('scheduled', 'lost')
    AND run_at <= now()
    AND (attempts = 0 OR status = 'lost' OR run_at > (SELECT last FROM look))
  FOR UPDATE SKIP LOCKED
));
