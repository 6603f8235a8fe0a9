-- breaks: concurrency-limit
-- A job whose lease has run out is not counted, but its worker may still beat: it runs beside the
-- one that took its place.

-- /// queue
-- extends = "../sound/counted_under_lock.sql"
-- ///

-- name: claim(worker, limit)
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT 1 AS alone
WHERE pg_try_advisory_xact_lock(4711);
UPDATE jobs
SET status       = 'running',
    worker       = :worker,
    leased_until = now() + interval '30 seconds',
    attempts     = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE status = 'queued'
  ORDER BY id
  LIMIT LEAST(:limit, GREATEST(0, 2 - (
    SELECT count(*)
    FROM jobs
    WHERE status = 'running'
      AND leased_until > now()
  )))
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt;
COMMIT;
