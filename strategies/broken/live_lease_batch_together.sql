-- breaks: live-lease
-- What was claimed together is completed together: a worker that has done some of its jobs, and
-- says so, completes the others as well.

-- /// queue
-- extends = "../skip_locked.sql"
-- ///

-- name: complete_many(ids, worker, attempts)
WITH batch AS MATERIALIZED (
  SELECT id, attempt
  FROM unnest(:ids::bigint[], :attempts::int[]) AS named (id, attempt)
  -- One order for every batch: two that overlap wait, and do not deadlock.
  ORDER BY id
),
held AS MATERIALIZED (
  SELECT job.id, job.locked_at
  FROM batch
  -- Row by row through the primary key, whatever plan a prepared statement has settled on; what
  -- is compared below is the version that was locked.
  CROSS JOIN LATERAL (
    SELECT id, status, locked_at, locked_by, attempts FROM jobs WHERE jobs.id = batch.id FOR UPDATE
  ) AS job
  WHERE job.status = 'running'
    AND job.locked_by = :worker
    AND job.attempts = batch.attempt
),
done AS (
  UPDATE jobs
  SET status       = 'completed',
      locked_at    = NULL,
      locked_by    = NULL,
      completed_at = now(),
      updated_at   = now()
  WHERE status = 'running'
    AND locked_by = :worker
    AND (
      id IN (SELECT id FROM held)
      -- Where all of them are still the worker's.
      OR locked_at IN (SELECT locked_at FROM held)
        AND (SELECT count(*) FROM held) = cardinality(:ids)
    )
  RETURNING id
)
SELECT id FROM done WHERE id = ANY (:ids);
