-- A clock that the harness moves. This schema stands ahead of pg_catalog in the database's
-- search_path, so that now() and its kin, DEFAULTs included, bind to it.
CREATE SCHEMA clock;

-- A row is a move: from the real moment `since` on, the clock shows real time plus `shift`.
CREATE TABLE clock.moves (since timestamptz PRIMARY KEY, shift interval NOT NULL);

CREATE FUNCTION clock.at(actual timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT actual + COALESCE(
    (SELECT m.shift FROM clock.moves m WHERE m.since <= actual ORDER BY m.since DESC LIMIT 1),
    interval '0');
$$;

-- What stands still in a transaction. Being one expression it is inlined, so that a call costs no lookup
-- and indexes are used as ever. See `clock.move` and `clock.py` for its other bodies.
CREATE FUNCTION clock.now() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT pg_catalog.now()';

-- By how many microseconds the clock is ahead, where now() reads it here: see `clock.py`.
CREATE SEQUENCE clock.ahead MINVALUE 0;
SELECT pg_catalog.setval('clock.ahead', 0);

-- Shows `shift` more than real time from this moment on, and answers the moment. No transaction is open
-- that began before, and now() reads the sequence: whoever has planned a statement need not do so anew.
CREATE FUNCTION clock.hop(shift text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  since constant timestamptz(6) := pg_catalog.clock_timestamp();
BEGIN
  INSERT INTO clock.moves VALUES (since, shift::interval);
  PERFORM pg_catalog.setval('clock.ahead', (extract(epoch FROM shift::interval) * 1000000)::bigint);
  RETURN since;
END $$;

-- The same for open transactions too, each of which keeps its now(), as it must: the body of now() becomes
-- a CASE over the moments of the moves, of which `earlier` are those that a transaction may have begun
-- before. It may go on using the old body, where now() cannot tell the difference.
CREATE FUNCTION clock.move(shift text, earlier text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  since constant timestamptz(6) := pg_catalog.clock_timestamp();
BEGIN
  INSERT INTO clock.moves VALUES (since, shift::interval);
  EXECUTE pg_catalog.format(
    'CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS '
    '$now$SELECT pg_catalog.now() + CASE WHEN pg_catalog.now() >= %L THEN interval %L %s'
    ' ELSE interval ''0'' END$now$', since, shift, earlier);
  RETURN since;
END $$;

CREATE FUNCTION clock.transaction_timestamp() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT clock.now()';

CREATE FUNCTION clock.statement_timestamp() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS
  'SELECT clock.at(pg_catalog.statement_timestamp())';

CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz
LANGUAGE sql VOLATILE AS
  'SELECT clock.at(pg_catalog.clock_timestamp())';

CREATE FUNCTION clock.timeofday() RETURNS text
LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.to_char(clock.clock_timestamp(), ''Dy Mon DD HH24:MI:SS.US YYYY TZ'')';

-- What the keyword forms CURRENT_TIMESTAMP(p) and LOCALTIMESTAMP(p) are rewritten to.
CREATE FUNCTION clock.now(digits int) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT pg_catalog.date_trunc('second', t)
    + pg_catalog.make_interval(secs => pg_catalog.round(
        extract(epoch FROM t - pg_catalog.date_trunc('second', t)), digits)::float8)
  FROM clock.now() AS t;
$$;

CREATE FUNCTION clock.local_now() RETURNS timestamp
LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT clock.now()::timestamp';

CREATE FUNCTION clock.local_now(digits int) RETURNS timestamp
LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT clock.now(digits)::timestamp';

GRANT USAGE ON SCHEMA clock TO PUBLIC;
GRANT SELECT ON clock.moves, clock.ahead TO PUBLIC;
