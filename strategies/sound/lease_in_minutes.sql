-- A lease lasts to the next full minute: at least as long as declared, and up to a minute longer.
-- Leases that end together are found by one look at a small index. Delays and backoff are exact.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- order = "fifo"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'completed', 'failed')),
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  due          timestamptz NOT NULL,
  lease_until  timestamptz,
  ended_at     timestamptz
);
CREATE INDEX jobs_due_idx ON jobs (due, id) WHERE status = 'queued';
CREATE INDEX jobs_running_idx ON jobs (lease_until) WHERE status = 'running';

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, due, max_attempts)
VALUES (:payload, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(limit, lease)
UPDATE jobs
SET status      = 'running',
    lease_until = date_bin('1 minute', now() + :lease + interval '59.999999 seconds', 'epoch'),
    attempts    = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'queued' AND due <= now()
  ORDER BY due, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt;

-- name: complete(id, attempt)!
UPDATE jobs
SET status = 'completed', ended_at = now()
WHERE id = :id AND status = 'running' AND attempts = :attempt;

-- name: fail(id, attempt)!
UPDATE jobs
SET status   = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    ended_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END,
    due      = now() + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10))
WHERE id = :id AND status = 'running' AND attempts = :attempt;

-- name: heartbeat(id, attempt, lease)!
UPDATE jobs
SET lease_until = date_bin('1 minute', now() + :lease + interval '59.999999 seconds', 'epoch')
WHERE id = :id AND status = 'running' AND attempts = :attempt;

-- name: recover
UPDATE jobs
SET status   = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    ended_at = CASE WHEN attempts < max_attempts THEN NULL ELSE now() END
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'running' AND lease_until < now()
  FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: cleanup(age)
DELETE FROM jobs
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE ended_at < now() - :age FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
