-- breaks: live-lease
-- What is due at once is ready at once; what has waited is made ready by its id, if it has not
-- ended. Of two promoters the slower one takes a job back whose next attempt runs already.

-- /// queue
-- extends = "../sound/promotes_one_by_one.sql"
-- ///

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, status, run_at, max_attempts)
VALUES (
  :payload, CASE WHEN :delay > interval '0' THEN 'scheduled' ELSE 'ready' END, now() + :delay,
  :max_attempts
)
RETURNING id;

-- name: promote
SELECT id FROM jobs WHERE status IN ('scheduled', 'lost') AND run_at <= now()
ORDER BY run_at LIMIT 1;
UPDATE jobs SET status = 'ready'
WHERE id = ANY (:ids) AND status NOT IN ('completed', 'failed') AND run_at <= now();
