-- breaks: fencing
-- A claim has one receipt for all its jobs, and a batch is fenced by its receipts, but not job by
-- job: a lost job passes with the receipt of the claim that got it anew.

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
    FOR UPDATE SKIP LOCKED
  ))
)
UPDATE messages
SET attempts   = attempts + 1,
    visible_at = now() + :lease,
    -- A new one each time, for all that is claimed together.
    receipt    = (SELECT gen_random_uuid())
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

-- name: complete_many(ids, receipts)
WITH held AS MATERIALIZED (
  SELECT id FROM messages WHERE id = ANY (:ids) AND receipt = ANY (:receipts)
  ORDER BY id FOR UPDATE
)
UPDATE messages
SET outcome  = 'completed',
    ended_at = now(),
    receipt  = NULL
FROM held
WHERE messages.id = held.id
RETURNING messages.id;
