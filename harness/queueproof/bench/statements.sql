-- What a benchmark asks the server, and tells it, for itself.

-- name: totals
-- PostgreSQL counts by relation. The catalogue, whose oids are lower, is nobody's cost.
SELECT COALESCE(sum(pg_catalog.pg_stat_get_blocks_fetched(c.oid)), 0)::bigint,
  pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::bigint,
  COALESCE(sum(pg_catalog.pg_stat_get_tuples_inserted(c.oid)
    + pg_catalog.pg_stat_get_tuples_updated(c.oid)
    + pg_catalog.pg_stat_get_tuples_deleted(c.oid)), 0)::bigint,
  COALESCE(sum(pg_catalog.pg_stat_get_dead_tuples(c.oid)), 0)::bigint,
  COALESCE(sum(pg_catalog.pg_stat_get_tuples_updated(c.oid)
    + pg_catalog.pg_stat_get_tuples_deleted(c.oid)), 0)::bigint
FROM pg_catalog.pg_class c
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'i', 't', 'm', 'S')

-- name: counted_tables
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind = 'r' ORDER BY c.oid

-- name: next_transaction
SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint % 4294967296

-- name: locked
-- xmax stays in a row when the transaction that has locked it has ended (manual, 5.6); the new
-- version of a row that was locked before has it as well.
SELECT count(*) FROM ONLY {}
WHERE xmax::text::bigint >= %(first)s AND xmin::text::bigint < %(first)s

-- name: others
SELECT count(*) FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND backend_type = 'client backend'
  AND pid <> pg_catalog.pg_backend_pid()

-- name: vacuumed
SELECT COALESCE(sum(n_dead_tup), 0)::bigint,
  COALESCE(sum(pg_catalog.pg_total_relation_size(relid)), 0)::bigint,
  COALESCE(sum(autovacuum_count), 0)::bigint
FROM pg_catalog.pg_stat_user_tables

-- name: schemas
SELECT nspname FROM pg_catalog.pg_namespace
WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'

-- name: tables
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND NOT c.relispartition
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'

-- name: end_others
SELECT pg_catalog.pg_terminate_backend(pid, %s) FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND backend_type = 'client backend'
  AND pid <> pg_catalog.pg_backend_pid()

-- name: doing
SELECT CASE WHEN wait_event_type IS NULL THEN 'none'
  ELSE wait_event_type || ':' || wait_event END, count(*)
FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND backend_type = 'client backend'
  AND pid <> pg_catalog.pg_backend_pid()
GROUP BY 1
