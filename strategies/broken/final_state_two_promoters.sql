-- breaks: final-state
-- The promoter reads a due job and makes it ready by its id, if it does not run. Of two promoters
-- the slower one makes a job ready that the other one had promoted, and that is completed by now.

-- /// queue
-- extends = "../sound/promotes_one_by_one.sql"
-- ///

-- name: promote
SELECT id FROM jobs WHERE status IN ('scheduled', 'lost') AND run_at <= now()
ORDER BY run_at LIMIT 1;
UPDATE jobs SET status = 'ready'
WHERE id = ANY (:ids) AND status <> 'running' AND run_at <= now();
