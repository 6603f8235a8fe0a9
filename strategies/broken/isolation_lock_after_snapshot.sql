-- breaks: isolation
-- What the lock guards is read with a snapshot from before the lock, once the database's default is
-- REPEATABLE READ; nothing conflicts, so nothing is refused.

-- /// queue
-- extends = "../sound/claims_by_insert.sql"
-- ///

-- name: claim(worker, limit, lease, queue)
BEGIN;
SELECT 1 AS active
WHERE NOT EXISTS (SELECT FROM paused_queues WHERE queue = :queue);
SELECT 1 AS alone
WHERE pg_try_advisory_xact_lock(hashtext('tasks'), hashtext(:queue));
WITH started AS (
  INSERT INTO runs (task_id, worker, lease_until)
  SELECT id, :worker, now() + :lease
  FROM tasks
  WHERE queue = :queue
    AND outcome IS NULL
    AND run_at <= now()
    AND NOT EXISTS (SELECT FROM runs WHERE task_id = tasks.id AND outcome IS NULL)
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  RETURNING id, task_id
)
SELECT tasks.id, started.id AS run, tasks.payload
FROM started
JOIN tasks ON tasks.id = started.task_id;
COMMIT;
