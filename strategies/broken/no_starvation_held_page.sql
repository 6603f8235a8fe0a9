-- breaks: no-starvation
-- The claim chooses among the first ten rows: as many workers that hold a job fill the page, and
-- the next one finds nothing, whatever waits behind it.

-- /// queue
-- extends = "../hold_open.sql"
-- [breaks]
-- retry-bound = "a crash rolls the attempt back with the claim, so crashes do not count"
-- steady-cost = "the page is put in order before it is cut off: no index serves that"
-- ///

-- name: claim(worker, queue)
-- Not committed here: complete and fail end what this begins.
BEGIN;
UPDATE jobs
SET status     = 'running',
    locked_at  = now(),
    locked_by  = :worker,
    -- A crash takes this back with the rest.
    attempts   = attempts + 1,
    updated_at = now()
-- An ARRAY is computed once; an IN (SELECT ...) may be run again for each row of the outer scan.
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE queue = :queue
    AND status = 'queued'
    AND attempts < max_attempts
    AND run_at <= now()
    AND id IN (SELECT id FROM jobs WHERE status = 'queued' ORDER BY priority DESC, run_at, id LIMIT 10)
  ORDER BY priority DESC, run_at, id
  LIMIT 1
  -- Locks and re-checks the latest version of each row, and passes over what others hold.
  FOR UPDATE SKIP LOCKED
))
RETURNING id, attempts AS attempt, payload;
