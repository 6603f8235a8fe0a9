-- breaks: retry-given
-- The claim that finds a lease run out asks whether a further attempt would be the last, and ends
-- the job: after a crash the last attempt is not given.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- [breaks]
-- steady-cost = "what ends in the claim is looked for among all that is over"
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
      AND receipt IS NOT NULL
      AND attempts + 1 >= max_attempts
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
    AND (receipt IS NULL OR attempts + 1 < max_attempts)
    AND visible_at <= now()
  ORDER BY priority DESC, visible_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, receipt, payload;
