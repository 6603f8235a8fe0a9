-- A claim is a session's advisory lock and writes nothing. The list is walked job by job, and what
-- is locked is looked at again, in a statement with a snapshot of its own. A crash frees the job at
-- once, and nobody has counted it.

-- /// queue
-- lease = "session"
-- max_attempts = 3
-- jobs_per_worker = 1
-- [breaks]
-- pooler-safe = "a claim is its connection's: a pooler has to be in session mode"
-- retry-bound = "nothing is written when a claim is made, so crashes do not count"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial PRIMARY KEY,
  payload      jsonb     NOT NULL,
  failures     int       NOT NULL DEFAULT 0,
  max_attempts int       NOT NULL,
  ended        text      CHECK (ended IN ('completed', 'failed'))
);
CREATE INDEX jobs_open_idx ON jobs (id) WHERE ended IS NULL;

CREATE FUNCTION take() RETURNS TABLE (id bigint, failures int)
LANGUAGE plpgsql AS $$
DECLARE
  job bigint;
BEGIN
  FOR job IN SELECT jobs.id FROM jobs WHERE ended IS NULL ORDER BY jobs.id LOOP
    IF pg_try_advisory_lock(job) THEN
      RETURN QUERY
      SELECT jobs.id, jobs.failures FROM jobs WHERE jobs.id = job AND ended IS NULL;
      IF found THEN
        RETURN;
      END IF;
      CONTINUE WHEN pg_advisory_unlock(job);
    END IF;
  END LOOP;
END $$;

CREATE VIEW claims AS
SELECT (classid::bigint << 32) | objid::bigint AS job, pid
FROM pg_locks
WHERE locktype = 'advisory'
  AND objsubid = 1  -- a key of one bigint, whose halves these are
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: enqueue(payload, max_attempts)
INSERT INTO jobs (payload, max_attempts) VALUES (:payload, :max_attempts) RETURNING id;

-- name: claim
-- take() looks at the job again once it has the lock. At the other levels it would look with the
-- snapshot that it began with, and answer a count that a failure has raised since.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT id, failures FROM take();
COMMIT;

-- name: complete(id, failures)
UPDATE jobs SET ended = 'completed'
WHERE id = :id
  AND failures = :failures
  AND ended IS NULL
  AND EXISTS (SELECT FROM claims WHERE job = jobs.id AND pid = pg_backend_pid())
RETURNING id;
SELECT pg_advisory_unlock(:id) AS accepted;

-- name: fail(id, failures)
UPDATE jobs
SET failures = failures + 1,
    ended    = CASE WHEN failures + 1 < max_attempts THEN NULL ELSE 'failed' END
WHERE id = :id
  AND failures = :failures
  AND ended IS NULL
  AND EXISTS (SELECT FROM claims WHERE job = jobs.id AND pid = pg_backend_pid())
RETURNING id;
SELECT pg_advisory_unlock(:id) AS accepted;

-- name: jobs
SELECT
  id,
  CASE WHEN ended IS NOT NULL THEN ended
       WHEN EXISTS (SELECT FROM claims WHERE job = jobs.id) THEN 'running'
       ELSE 'queued' END AS state,
  failures AS attempts
FROM jobs;
