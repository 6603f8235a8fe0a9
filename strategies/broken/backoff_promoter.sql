-- breaks: backoff
-- Failed jobs wait among the scheduled ones until they are promoted. But the promoter takes what
-- has been tried before for work that was left over, and makes it ready at once.

-- /// queue
-- extends = "../sound/leader_promotes.sql"
-- ///

-- name: promote
SELECT id FROM jobs WHERE status = 'scheduled' AND (run_at <= now() OR attempts > 0);
-- Nobody but the leader touches a scheduled job, so that it is still one.
UPDATE jobs SET status = 'ready' WHERE id = ANY (:ids);
