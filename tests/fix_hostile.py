"""Queues whose SQL becomes a superuser where the harness lends it the rights."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from queueproof.queues.sqlfile import SqlFileQueue, load_text
from tests.fix_histories import pairs
from tests.fix_places import reference


def after_its_tables(statement: str) -> str:
    """The reference with one more statement at the end of its schema."""
    return reference("-- name: enqueue(", f"{statement}\n\n-- name: enqueue(")


ATTACK = """
CREATE FUNCTION public.attack() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  means text;
  boss text := (SELECT quote_ident(rolname) FROM pg_roles WHERE rolsuper LIMIT 1);
BEGIN
  IF current_setting('attack.tried_as', true) = current_user THEN  -- once is enough
    RETURN true;
  END IF;
  PERFORM set_config('attack.tried_as', current_user, false);
  FOREACH means IN ARRAY ARRAY[
    'RESET SESSION AUTHORIZATION', 'RESET ROLE', 'ALTER ROLE queueproof SUPERUSER',
    'SET ROLE ' || boss, 'GRANT ' || boss || ' TO queueproof', 'CREATE ROLE guest SUPERUSER',
    'GRANT pg_execute_server_program TO queueproof', 'SET ROLE pg_execute_server_program',
    'CREATE EXTENSION dblink SCHEMA public',
    format('SELECT public.dblink_exec(%L, %L)', 'user=' || boss, 'ALTER ROLE queueproof SUPERUSER'),
    $means$COPY (SELECT session_user) TO PROGRAM 'cat >> PATH'$means$, 'RESET ROLE'
  ] LOOP
    BEGIN
      EXECUTE means;
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
  END LOOP;
  RETURN true;
END $$;
CREATE FUNCTION public.innocent(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM public.attack(); RETURN $1; END $$;
CREATE FUNCTION public.noted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM public.attack(); RETURN COALESCE(NEW, OLD); END $$;
"""
SEEDED = "CREATE TABLE settings (name text); INSERT INTO settings VALUES ('one');"
TRIGGER = "CREATE TRIGGER t BEFORE INSERT OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION noted();"
SEES = "SELECT id, status AS state, attempts\nFROM jobs;"
# What is added to the schema. A search_path is kept as it was set, and the last is one name.
ADDED = pairs(f"""
check => ALTER TABLE jobs ADD CHECK (attack());
check on a seeded row => {SEEDED} ALTER TABLE settings ADD CHECK (attack());
index expression => CREATE INDEX ON jobs (innocent(status));
index predicate => CREATE INDEX ON jobs (id) WHERE innocent(status) = 'failed';
rule => {SEEDED} CREATE RULE r AS ON INSERT TO settings DO ALSO SELECT attack();
  INSERT INTO settings VALUES ('two');
rule, always => {SEEDED} CREATE RULE r AS ON INSERT TO settings DO ALSO SELECT attack();
  ALTER TABLE settings ENABLE ALWAYS RULE r; INSERT INTO settings VALUES ('two');
rule on delete, always => CREATE RULE r AS ON DELETE TO jobs DO ALSO SELECT attack();
  ALTER TABLE jobs ENABLE ALWAYS RULE r; INSERT INTO jobs DEFAULT VALUES; DELETE FROM jobs;
default => ALTER TABLE jobs ADD COLUMN x text DEFAULT attack()::text;
generated column => ALTER TABLE jobs ADD COLUMN x text GENERATED ALWAYS AS (innocent(status))
  STORED;
domain => CREATE DOMAIN word AS text CHECK (attack());
  ALTER TABLE jobs ADD COLUMN x word NOT NULL DEFAULT 'one'; CREATE TABLE words (x word);
  INSERT INTO words VALUES ('one');
trigger, always => {SEEDED} {TRIGGER.format("settings")} {TRIGGER.format("jobs")}
  ALTER TABLE settings ENABLE ALWAYS TRIGGER t; ALTER TABLE jobs ENABLE ALWAYS TRIGGER t;
trigger, replica => {TRIGGER.format("jobs")} ALTER TABLE jobs ENABLE REPLICA TRIGGER t;
  SELECT attack();
claim's function => CREATE VIEW free AS SELECT 1 WHERE attack();
jobs through a view => CREATE VIEW seen AS SELECT * FROM jobs WHERE attack();
shadowed catalogue => CREATE SCHEMA evil;
  CREATE VIEW evil.pg_class AS SELECT * FROM pg_catalog.pg_class WHERE public.attack();
  CREATE VIEW evil.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE public.attack();
  CREATE VIEW evil.pg_trigger AS SELECT * FROM pg_catalog.pg_trigger WHERE public.attack();
  DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil, public, clock,
  pg_catalog', current_database()); END $$;
operator => CREATE FUNCTION less(timestamptz, interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
  BEGIN PERFORM public.attack(); RETURN $1 OPERATOR(pg_catalog.-) $2; END $$;
  CREATE OPERATOR - (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = less);
cast => CREATE TYPE pair AS (one text, other text);
  CREATE FUNCTION spelt(pair) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM public.attack();
  RETURN 'x'; END $$; CREATE CAST (pair AS text) WITH FUNCTION spelt(pair) AS IMPLICIT;
  ALTER TABLE jobs ADD COLUMN x pair DEFAULT ('a', 'b') CHECK (length(x) = 1);
policy => ALTER TABLE jobs ENABLE ROW LEVEL SECURITY; ALTER TABLE jobs FORCE ROW LEVEL SECURITY;
  CREATE POLICY p ON jobs USING (attack()) WITH CHECK (attack());
  ALTER TABLE jobs ADD CHECK (attack());
statistics => CREATE STATISTICS s ON queue, (innocent(status)) FROM jobs;
  INSERT INTO jobs DEFAULT VALUES; ANALYZE jobs; DELETE FROM jobs;
partition key => CREATE TABLE parts (x text) PARTITION BY LIST (innocent(x));
  CREATE TABLE rest PARTITION OF parts DEFAULT; INSERT INTO parts VALUES ('one');
security definer => ALTER FUNCTION noted() SECURITY DEFINER; {TRIGGER.format("jobs")}
  ALTER TABLE jobs ENABLE ALWAYS TRIGGER t;
a name that is SQL => ALTER TABLE jobs ADD CHECK (attack());
  CREATE TABLE "x; ALTER ROLE queueproof SUPERUSER; --" (id int);
  CREATE FUNCTION "f; SELECT attack(); --"() RETURNS int LANGUAGE sql SET search_path = ''
  AS 'SELECT 1';
a search_path that is SQL => ALTER TABLE jobs ADD CHECK (attack());
  SELECT set_config('search_path', 'public;ALTER/**/ROLE/**/queueproof/**/SUPERUSER', false);
  CREATE FUNCTION public.pinned() RETURNS int LANGUAGE sql SET search_path FROM CURRENT
  AS 'SELECT 1';
""")
HOSTILE = {name: added[0] for name, *added in ADDED}
SHOWN = {  # what the block `jobs` is then
    "jobs through a view": SEES.replace("FROM jobs", "FROM seen"),
    "shadowed catalogue": SEES.replace(";", " WHERE EXISTS (SELECT FROM pg_class);"),
    "operator": SEES.replace(";", " WHERE run_at - interval '9 years' < run_at;"),
}
# As one schema may have them: tables, columns and triggers of one name stand apart.
TOGETHER = (
    ("check on a seeded row", "default", "index expression", "jobs through a view", "policy"),
    ("trigger, replica", "rule", "generated column", "index predicate", "shadowed catalogue"),
    ("security definer", "rule, always", "domain", "operator", "statistics", "partition key"),
    ("trigger, always", "cast", "rule on delete, always", "check", "a name that is SQL"),
    ("claim's function", "a search_path that is SQL"),
)


def hostile(path: Path, *names: str) -> SqlFileQueue:
    """The reference with code that becomes a superuser where it can, and then runs a program."""
    added = "\n".join(HOSTILE[name] for name in names)
    text = after_its_tables(ATTACK.replace("PATH", str(path)) + added)
    for name in names:
        text = text.replace(SEES, SHOWN.get(name, SEES))
    if "claim's function" in names:
        text = text.replace("    AND run_at <= now()", "    AND run_at <= now() AND attack()")
    return load_text(text, "q.sql")


@pytest.fixture
def seen() -> Iterator[Path]:
    """Where an attack leaves its mark, which may have to be as another user of the machine."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory) / "seen"
