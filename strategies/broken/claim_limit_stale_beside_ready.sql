-- breaks: claim-limit
-- The limit is applied to what is ready and to what is stale, one by one: a claim with both in
-- front of it takes twice as many.

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
  receipt      uuid,  -- of whoever holds it, or let its lease run out
  outcome      text CHECK (outcome IN ('completed', 'failed')),
  ended_at     timestamptz,
  last_error   text
);
CREATE INDEX messages_visible_idx ON messages (priority DESC, visible_at, id)
  WHERE outcome IS NULL AND attempts < max_attempts;
CREATE INDEX messages_held_idx ON messages (priority DESC, visible_at, id)
  WHERE outcome IS NULL AND attempts < max_attempts AND receipt IS NOT NULL;
CREATE INDEX messages_exhausted_idx ON messages (visible_at)
  WHERE outcome IS NULL AND attempts >= max_attempts;

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
    AND receipt IS NULL
  ORDER BY priority DESC, visible_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
) || ARRAY(
  SELECT id
  FROM messages
  WHERE outcome IS NULL
    AND attempts < max_attempts
    AND visible_at <= now()
    AND receipt IS NOT NULL
  ORDER BY priority DESC, visible_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, receipt, payload;
