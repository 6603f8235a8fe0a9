"""Schemas that pg_dump has written, installed as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.errors import QueueError
from queueproof.examine.calibrate import calibrate
from queueproof.judge.checker import check, declare
from queueproof.postgres.local import find_embedded
from queueproof.queues.sqlfile import load
from queueproof.run.runner import Runner
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.programs import JobSpec
from tests.fix_histories import each
from tests.fix_labs import LabOf
from tests.fix_plays import play
from tests.fix_programs import finished
from tests.fix_queues import queue_file
from tests.fix_server import tell

TEAM = r"""
CREATE TYPE job_status AS ENUM ('pending', 'processing', 'done', 'dead');
CREATE TABLE accounts (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL);
INSERT INTO accounts (name) VALUES (E'tab\tback\\slash ''quote''\nline'), ('other');
CREATE TABLE jobs (
  id bigserial PRIMARY KEY, account_id bigint NOT NULL DEFAULT 1 REFERENCES accounts,
  status job_status NOT NULL DEFAULT 'pending', attempts int NOT NULL DEFAULT 0,
  run_at timestamptz NOT NULL DEFAULT now(), locked_at timestamptz, locked_by text
);
CREATE FUNCTION due(at timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE AS $$ BEGIN
/*
\. stands here
*/
RETURN at <= now(); END $$;
COMMENT ON TABLE jobs IS 'the
\restrict of jobs';
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
"""
QUEUE = """
-- /// queue
-- include = ["dump.sql"]
-- lease = "30 seconds"
-- order = "fifo"
-- [states]
-- pending = "queued"
-- processing = "running"
-- done = "completed"
-- ///
-- name: enqueue(delay)
INSERT INTO jobs (run_at) VALUES (now() + :delay) RETURNING id;
-- name: claim(worker, limit)
UPDATE public.jobs SET status = 'processing', locked_at = now(), locked_by = :worker,
  attempts = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE (status = 'pending' OR status = 'processing' AND locked_at < now() - interval '30 s')
    AND due(run_at) AND account_id = (SELECT id FROM accounts WHERE name LIKE '%quote%')
  ORDER BY run_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
)) RETURNING id, attempts AS attempt;
-- name: complete(id, attempt)!
UPDATE jobs SET status = 'done' WHERE id = :id AND attempts = :attempt AND status = 'processing';
-- name: jobs
SELECT id, status AS state, attempts FROM jobs;
"""


@pytest.mark.parametrize("options", [[], ["--create"], ["--schema=public", "--inserts"]])
def test_a_dump_is_taken(database: str, lab_of: LabOf, tmp_path: Path, options: list[str]) -> None:
    """Tables, rows and DEFAULTs of a dump are there, and its times are the moved clock's."""
    tell(database, TEAM)
    pg_dump = find_embedded("").directory / "pg_dump"
    dump = finished(pg_dump, *options, "-d", database, check=True).stdout
    (tmp_path / "dump.sql").write_text(dump)
    (tmp_path / "q.sql").write_text(QUEUE)
    lab = lab_of(load(tmp_path / "q.sql"))
    declared = declare(calibrate(lab))
    lives = "w1 claims, crashes; +lease; w2 claims, crashes; +lease; w3 claims 2"
    run = Runner(lab).run(play(lives, [JobSpec(delay=20.0)]))
    claims = [call.ids for call in run.history.of_kind("claim") if call.actor != DRAINER]
    assert [len(ids) for ids in claims] == [0, 1, 1]  # not due, due, and its lease run out
    assert check(run.history, declared).violations == []


def test_what_needs_a_missing_extension_is_told_where_it_is(lab_of: LabOf, tmp_path: Path) -> None:
    """A dump's extension that nothing needs is nothing to the queue; else the message names it."""
    dump = "CREATE EXTENSION IF NOT EXISTS no_such WITH SCHEMA public;\nCREATE TABLE jobs ();\n"
    (tmp_path / "dump.sql").write_text(dump)
    (tmp_path / "q.sql").write_text(QUEUE)
    lab_of(load(tmp_path / "q.sql"))
    (tmp_path / "dump.sql").write_text(f"{dump}ALTER TABLE jobs ADD x uuid DEFAULT public.f();")
    says = r"dump.sql:3: (.|\n)*no_such: name a server that has it"
    with pytest.raises(QueueError, match=says):
        lab_of(load(tmp_path / "q.sql"))


HOSTED = """
CREATE TABLE profiles (
  id uuid PRIMARY KEY REFERENCES auth.users (id), mail citext, org bigint,
  FOREIGN KEY (org) REFERENCES orgs (nr)
);
CREATE TABLE notes (
  id int PRIMARY KEY, kind text, key uuid NOT NULL DEFAULT extensions.new_key(),
  owner uuid REFERENCES profiles (id)
);
CREATE POLICY own ON notes USING (owner = auth.uid() AND kind = (SELECT auth.role('x')));
INSERT INTO storage.buckets (id, public) VALUES ('a', true);
CREATE POLICY mine ON storage.buckets USING (size > '0');
CREATE TRIGGER touched BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION extensions.touch();
"""


@pytest.mark.parametrize("schema", [HOSTED, f"BEGIN;{HOSTED}COMMIT;"], ids=["", "in one"])
def test_all_that_a_host_would_bring_is_told_at_once(lab_of: LabOf, schema: str) -> None:
    """What a schema names and nobody made is told as stubs, with which it can be installed.

    Also where it is one transaction, which the first of them ends.
    """
    with pytest.raises(QueueError, match=r'q.*sql:\d+: .*type "citext" does not') as refused:
        lab_of(queue_file(more=schema))
    told = str(refused.value).partition("as they are there:")[2]
    assert len(told.splitlines()) == 1 + 3 + 1 + 3 + 4  # schemas, types, tables, functions
    assert lab_of(queue_file(more=told + schema)).tables.names


@each(r"""
    schema => told
    a transaction that it leaves open
        BEGIN; CREATE TABLE t (); => sql:\d+: schema leaves a transaction open: end it
    jobs that nobody has enqueued
        INSERT INTO jobs DEFAULT VALUES; => answered: does the schema put jobs into a table
    a setting that no worker has
        CREATE SCHEMA a; SET search_path = a; DROP TABLE public.jobs; CREATE TABLE jobs ();
        => SET search_path ends with its connection: name the table's schema
    a temporary table, of which PostgreSQL says no more than that it is not there
        DROP TABLE jobs; CREATE TEMP TABLE jobs (id bigserial PRIMARY KEY);
        => schema makes jobs a temporary table, which no other
    a role that a host brings is the server's: the grant is to be left out
        GRANT SELECT ON jobs TO anon; => role "anon" does not .*\n.*: leave this line out
    a mistake, which no stub helps, as it is
        CREATE TABEL notes (); => rejected this SQL: syntax error(.|\n)*\^\Z
    a message of its own as far as somebody reads, and the place
        DO $$ BEGIN RAISE EXCEPTION 'begins %', repeat('x', 100000); END $$;
        => rejected this SQL: begins x+ … \(P0001\)
""")
def test_what_is_wrong_with_a_schema_is_told(lab_of: LabOf, schema: str, told: str) -> None:
    """In a message that somebody can read to its end, be it rejected or found out later."""
    with pytest.raises(QueueError, match=told) as refused:
        calibrate(lab_of(queue_file(more=schema)))
    assert len(str(refused.value)) < 3_000
