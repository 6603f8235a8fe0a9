-- breaks: live-lease
-- differs from: ../sound/visibility_timeout.sql
-- A late heartbeat adds a lease to where the last one ended, not to the time: accepted because
-- nobody else has the job, it is over before its worker believes.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- backoff = "5 seconds"
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE messages (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  visible_at   timestamptz NOT NULL DEFAULT now(),
  receipt      uuid,  -- of whoever holds it, or let its lease run out
  outcome      text CHECK (outcome IN ('completed', 'failed')),
  ended_at     timestamptz,
  last_error   text
);
CREATE INDEX messages_visible_idx ON messages (priority DESC, visible_at, id)
  WHERE outcome IS NULL AND attempts < max_attempts;
CREATE INDEX messages_exhausted_idx ON messages (visible_at)
  WHERE outcome IS NULL AND attempts >= max_attempts;

-- name: enqueue(payload, priority, delay, max_attempts)
INSERT INTO messages (payload, priority, visible_at, max_attempts)
VALUES (:payload, :priority, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(limit, lease)
-- The last attempt crashed: nobody will take these, so they end here.
WITH exhausted AS (
  UPDATE messages
  SET outcome    = 'failed',
      ended_at   = now(),
      receipt    = NULL,
      last_error = 'lease expired'
  WHERE id = ANY (ARRAY(
    SELECT id
    FROM messages
    WHERE outcome IS NULL
      AND attempts >= max_attempts
      AND visible_at <= now()
    FOR UPDATE SKIP LOCKED
  ))
)
UPDATE messages
SET attempts   = attempts + 1,
    visible_at = now() + :lease,
    -- A new one each time: no late operation can know it.
    receipt    = gen_random_uuid()
WHERE id = ANY (ARRAY(
  SELECT id
  FROM messages
  WHERE outcome IS NULL
    AND attempts < max_attempts
    AND visible_at <= now()
  ORDER BY priority DESC, visible_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, receipt, payload;

-- name: complete(id, receipt)!
UPDATE messages
SET outcome  = 'completed',
    ended_at = now(),
    receipt  = NULL
WHERE id = :id
  AND receipt = :receipt;

-- name: fail(id, receipt, error)!
UPDATE messages
SET outcome    = CASE WHEN attempts >= max_attempts THEN 'failed' END,
    ended_at   = CASE WHEN attempts >= max_attempts THEN now() END,
    visible_at = now()
                 + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    receipt    = NULL,
    last_error = left(:error, 2000)
WHERE id = :id
  AND receipt = :receipt;

-- name: heartbeat(id, receipt, lease)!
UPDATE messages
SET visible_at = LEAST(visible_at, now()) + :lease
WHERE id = :id
  AND receipt = :receipt;

-- name: cleanup(age)
DELETE FROM messages
WHERE id = ANY (ARRAY(
  SELECT id
  FROM messages
  WHERE outcome IS NOT NULL
    AND ended_at < now() - :age
  FOR UPDATE SKIP LOCKED
));

-- name: jobs
SELECT id,
       COALESCE(outcome, CASE WHEN receipt IS NULL THEN 'queued' ELSE 'running' END) AS state,
       attempts
FROM messages;
