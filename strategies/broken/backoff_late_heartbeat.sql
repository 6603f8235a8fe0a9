-- breaks: backoff
-- The heartbeat asks for the attempt, which a failure leaves as it is: one that comes late replaces
-- the five minutes of the backoff by the thirty seconds of a lease.

-- /// queue
-- extends = "../sound/visibility_timeout.sql"
-- backoff = "5 minutes"
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
RETURNING id, receipt, attempts AS attempt, payload;

-- name: fail(id, receipt, error)!
UPDATE messages
SET outcome    = CASE WHEN attempts >= max_attempts THEN 'failed' END,
    ended_at   = CASE WHEN attempts >= max_attempts THEN now() END,
    visible_at = now()
                 + LEAST(interval '1 hour', interval '5 minutes' * 2 ^ LEAST(attempts - 1, 10)),
    receipt    = NULL,
    last_error = left(:error, 2000)
WHERE id = :id
  AND receipt = :receipt;

-- name: heartbeat(id, attempt, lease)!
UPDATE messages
SET visible_at = now() + :lease
WHERE id = :id
  AND outcome IS NULL
  AND attempts = :attempt;
