-- What to watch of a jobs table as strategies/skip_locked.sql has it. It waits for no row lock. What only
-- grows (claims, completed, retries, recoveries) becomes a rate as the difference of two samples.
SELECT
  count(*) FILTER (WHERE runnable) AS runnable,
  COALESCE(extract(epoch FROM now() - min(run_at) FILTER (WHERE runnable)), 0)::int AS oldest_seconds,
  count(*) FILTER (WHERE status = 'queued' AND NOT runnable) AS scheduled,
  count(*) FILTER (WHERE status = 'running') AS running,
  -- The lease is 30 seconds.
  count(*) FILTER (WHERE status = 'running' AND locked_at < now() - interval '30 seconds') AS stuck,
  count(*) FILTER (WHERE status = 'failed') AS failed,
  count(*) FILTER (WHERE status = 'completed') AS completed,
  COALESCE(sum(attempts), 0)::int AS claims,
  COALESCE(sum(GREATEST(attempts - 1, 0)), 0)::int AS retries,
  count(*) FILTER (WHERE last_error = 'lease expired') AS recoveries,
  -- All clients of this database: a claim that waits is one that SKIP LOCKED should have spared.
  (SELECT count(*) FROM pg_stat_activity
   WHERE datname = current_database() AND wait_event_type = 'Lock') AS lock_waits,
  -- For how many transactions VACUUM has had to leave dead rows alone: the oldest still running.
  COALESCE((SELECT max(age(COALESCE(backend_xmin, backend_xid))) FROM pg_stat_activity
   WHERE datname = current_database() AND backend_type = 'client backend'
     AND pid <> pg_backend_pid()), 0) AS oldest_transaction,
  pg_table_size('jobs') AS table_bytes,
  pg_indexes_size('jobs') AS index_bytes
FROM (SELECT *, status = 'queued' AND run_at <= now() AS runnable FROM jobs) AS jobs;
