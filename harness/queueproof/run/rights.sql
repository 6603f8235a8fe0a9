-- What only a superuser may do and a run needs. Each takes no argument and does one thing, so that
-- the queue, which may call them too, gains no more than this. Nothing of the queue's is there yet.
SET search_path = pg_catalog;

-- The rest of this session: triggers and foreign keys do not act, but for what is ALWAYS or REPLICA.
CREATE FUNCTION clock.quiet() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM pg_catalog.set_config('session_replication_role', 'replica', false);
END $$;

-- The clock shows real time: now() is PostgreSQL's own, under our name.
CREATE FUNCTION clock.real() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  CREATE OR REPLACE FUNCTION clock.now() RETURNS pg_catalog.timestamptz
  LANGUAGE internal STABLE STRICT PARALLEL SAFE AS 'now';
END $$;

-- What reads a sequence is taken to be stable in this database, as it is while no clock moves: a function
-- that calls it is inlined. A function of ours that does the same would be looked up by its name each time.
UPDATE pg_catalog.pg_proc SET provolatile = 's', proparallel = 's'
WHERE oid = 'pg_catalog.pg_sequence_last_value'::regproc;

-- The planner knows nothing of the database's own tables any more.
CREATE FUNCTION clock.forget() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM pg_catalog.pg_statistic s USING pg_catalog.pg_class c
  WHERE c.oid = s.starelid AND c.oid >= 16384
$$;
