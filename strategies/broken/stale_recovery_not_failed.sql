-- breaks: stale-recovery
-- What a lost worker had is to end as failed, for somebody to look at. But it is put back, and runs
-- once more unseen.

-- /// queue
-- extends = "../sound/workers_beat.sql"
-- ///

-- name: recover(lease)
WITH gone AS MATERIALIZED (
  SELECT jobs.id
  FROM jobs
  JOIN workers ON workers.name = jobs.worker
  WHERE jobs.status = 'running' AND workers.seen_at < now() - :lease
  -- Both rows: a claim that commits in between is seen when its worker's row is locked.
  FOR UPDATE OF jobs, workers SKIP LOCKED
)
UPDATE jobs SET status = 'queued' FROM gone WHERE jobs.id = gone.id
RETURNING jobs.id;
