-- breaks: retry-bound
-- A worker that gets the job back that it let run out goes on with it, and that is no new attempt.
-- A job that always takes too long is tried for ever.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- ///

-- name: schema#
CREATE TABLE messages (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  priority     int         NOT NULL DEFAULT 0,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 3,
  visible_at   timestamptz NOT NULL DEFAULT now(),
  worker       text,
  receipt      uuid,  -- of whoever holds it, or let its lease run out
  outcome      text CHECK (outcome IN ('completed', 'failed')),
  ended_at     timestamptz,
  last_error   text
);
CREATE INDEX messages_visible_idx ON messages (priority DESC, visible_at, id)
  WHERE outcome IS NULL AND attempts < max_attempts;
CREATE INDEX messages_exhausted_idx ON messages (visible_at)
  WHERE outcome IS NULL AND attempts >= max_attempts;

-- name: claim(worker, limit, lease)
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
SET attempts   = attempts + CASE WHEN worker = :worker THEN 0 ELSE 1 END,
    worker     = :worker,
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

-- name: fail(id, receipt, error)!
UPDATE messages
SET outcome    = CASE WHEN attempts >= max_attempts THEN 'failed' END,
    ended_at   = CASE WHEN attempts >= max_attempts THEN now() END,
    visible_at = now()
                 + LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
    receipt    = NULL,
    worker     = NULL,
    last_error = left(:error, 2000)
WHERE id = :id
  AND receipt = :receipt;
