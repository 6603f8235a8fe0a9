-- breaks: fencing
-- At least once: a late result may count. But here a late heartbeat counts, too: while the worker
-- that lost the job beats for it, the death of the one that has it now stays hidden.

-- /// queue
-- extends = "../sound/at_least_once.sql"
-- ///

-- name: heartbeat(id, lease)!
UPDATE jobs SET lease_until = now() + :lease
WHERE id = :id AND status = 'running';
