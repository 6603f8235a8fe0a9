-- breaks: non-blocking
-- The claim ends jobs whose last attempt crashed, and does not pass over those that are locked: it
-- waits for a late worker's complete, although other jobs are free.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- ///

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
    -- Waits for the late worker that is completing one of them.
    FOR UPDATE
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
