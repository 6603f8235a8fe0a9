-- breaks: no-deadlock
-- The batch is locked in the order in which its worker names it, before the fence is asked: a late
-- batch and the next holder's lock the same rows the other way round (pg-boss#282).

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
-- For people: what failed lately.
CREATE INDEX jobs_failed_idx ON jobs (failed_at) WHERE status = 'failed';

-- A loop, as an ORM writes it: one row after the other, as they come.
CREATE FUNCTION touch(ids bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
  job bigint;
BEGIN
  FOREACH job IN ARRAY ids LOOP
    UPDATE jobs SET updated_at = now() WHERE id = job;
  END LOOP;
END
$$;

-- name: complete_many(ids, worker, attempts)
BEGIN;
SELECT touch(:ids);
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
COMMIT;
