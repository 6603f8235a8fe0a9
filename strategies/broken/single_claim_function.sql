-- breaks: single-claim
-- Select, then lock and update, inside one function: to the client it is one statement. To the
-- server it is two, and others claim between them too.

-- /// queue
-- extends = "../sound/plpgsql_function.sql"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued',
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  run_at       timestamptz NOT NULL DEFAULT now(),
  lease_until  timestamptz,
  locked_by    text,
  last_error   text,
  ended_at     timestamptz
);
CREATE INDEX jobs_runnable_idx ON jobs (priority DESC, run_at, id) WHERE status = 'queued';
CREATE INDEX jobs_stuck_idx ON jobs (lease_until) WHERE status = 'running';

-- Doubles from 5 s to an hour. The exponent is capped first: a late cap is an overflow.
CREATE FUNCTION backoff(attempt int) RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempt - 1, 10));

CREATE FUNCTION job_enqueue(payload jsonb, priority int, delay interval, max_attempts int)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
  new_id bigint;
BEGIN
  INSERT INTO jobs (payload, priority, run_at, max_attempts)
  VALUES (payload, priority, now() + delay, max_attempts)
  RETURNING jobs.id INTO new_id;
  RETURN new_id;
END
$$;

CREATE FUNCTION job_claim(worker text, most int, lease interval)
RETURNS TABLE (id bigint, attempt int, payload jsonb)
LANGUAGE plpgsql
-- The schema of this moment, whatever the caller's search_path is.
SET search_path FROM CURRENT
AS $body$
DECLARE
  now_at timestamptz := now();
  chosen bigint[];
BEGIN
  chosen := ARRAY(
    SELECT j.id
    FROM jobs AS j
    WHERE j.status = 'queued'
      AND j.run_at <= now_at
    ORDER BY j.priority DESC, j.run_at, j.id
    LIMIT most
  );
  RETURN QUERY
  UPDATE jobs
  SET status      = 'running',
      locked_by   = worker,
      lease_until = now_at + lease,
      attempts    = jobs.attempts + 1
  WHERE jobs.id = ANY (ARRAY(
    SELECT j.id
    FROM jobs AS j
    WHERE j.id = ANY (chosen)
      -- Locked, but free is not asked again.
      AND j.status IN ('queued', 'running')
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING jobs.id, jobs.attempts, jobs.payload;
END
$body$;

CREATE FUNCTION job_complete(job bigint, worker text, attempt int) RETURNS SETOF bigint
BEGIN ATOMIC
  UPDATE jobs
  SET status      = 'completed',
      ended_at    = now(),
      locked_by   = NULL,
      lease_until = NULL
  WHERE jobs.id = job
    AND jobs.status = 'running'
    AND jobs.locked_by = worker
    AND jobs.attempts = attempt
  RETURNING jobs.id;
END;

CREATE FUNCTION job_fail(job bigint, worker text, attempt int, error text) RETURNS SETOF bigint
BEGIN ATOMIC
  UPDATE jobs
  SET status      = CASE WHEN jobs.attempts < jobs.max_attempts THEN 'queued' ELSE 'failed' END,
      ended_at    = CASE WHEN jobs.attempts < jobs.max_attempts THEN NULL ELSE now() END,
      run_at      = now() + backoff(jobs.attempts),
      locked_by   = NULL,
      lease_until = NULL,
      last_error  = left(error, 2000)
  WHERE jobs.id = job
    AND jobs.status = 'running'
    AND jobs.locked_by = worker
    AND jobs.attempts = attempt
  RETURNING jobs.id;
END;

CREATE FUNCTION job_heartbeat(job bigint, worker text, attempt int, lease interval)
RETURNS SETOF bigint
LANGUAGE sql
AS $$
  UPDATE jobs
  SET lease_until = now() + lease
  WHERE jobs.id = job
    AND jobs.status = 'running'
    AND jobs.locked_by = worker
    AND jobs.attempts = attempt
  RETURNING jobs.id
$$;

CREATE FUNCTION job_recover() RETURNS SETOF jobs
LANGUAGE plpgsql
AS $$
BEGIN
  RETURN QUERY
  UPDATE jobs
  SET status      = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
      ended_at    = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
      locked_by   = NULL,
      lease_until = NULL,
      last_error  = 'lease expired: no heartbeat'
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM jobs
    WHERE status = 'running'
      AND lease_until < now()
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING *;
END
$$;
