-- Each heartbeat gives a new receipt, and the one before is worth nothing. There is no reaper:
-- before a claim looks for work, it takes one job back whose lease has run out. That job waits as a
-- failed one does, or ends if its attempts are used up; the claim has then done its work, and
-- answers nothing.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,  -- of a running job: when its lease runs out
  receipt      uuid
);
CREATE INDEX jobs_queued_idx ON jobs (run_at) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (run_at) WHERE status = 'running';

CREATE FUNCTION backoff(attempts int) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
SELECT LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts, 10))
$$;

CREATE FUNCTION claim_jobs(most int, hold interval)
RETURNS TABLE (id bigint, receipt uuid, attempt int)
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE jobs
  SET status  = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
      run_at  = now() + backoff(attempts),
      receipt = NULL
  WHERE jobs.id = (
    SELECT jobs.id FROM jobs WHERE status = 'running' AND run_at < now() ORDER BY run_at
    LIMIT 1 FOR UPDATE SKIP LOCKED
  );
  IF found THEN
    RETURN;
  END IF;
  RETURN QUERY
  UPDATE jobs
  SET status   = 'running',
      attempts = attempts + 1,
      run_at   = now() + hold,
      receipt  = gen_random_uuid()
  WHERE jobs.id = ANY (ARRAY(
    SELECT jobs.id FROM jobs WHERE status = 'queued' AND run_at <= now() ORDER BY run_at
    LIMIT most FOR UPDATE SKIP LOCKED
  ))
  RETURNING jobs.id, jobs.receipt, jobs.attempts;
END $$;

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, run_at, max_attempts)
VALUES (:payload, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(limit, lease)
SELECT id, receipt FROM claim_jobs(:limit, :lease);

-- name: complete(id, receipt)
WITH done AS (
  UPDATE jobs SET status = 'completed', receipt = NULL
  WHERE id = :id AND receipt = :receipt AND status = 'running'
  RETURNING id
)
SELECT count(*) AS accepted FROM done;

-- name: fail(id, receipt)
UPDATE jobs
SET status  = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    run_at  = now() + backoff(attempts),
    receipt = NULL
WHERE id = :id AND receipt = :receipt AND status = 'running'
RETURNING id;

-- name: heartbeat(id, receipt, lease)
UPDATE jobs
SET receipt = gen_random_uuid(), run_at = now() + :lease
WHERE id = :id AND receipt = :receipt AND status = 'running'
RETURNING id, receipt;

-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
