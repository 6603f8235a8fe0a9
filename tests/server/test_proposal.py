"""Tables as people have them: what `init --from-schema` proposes, and what pg_dump has written."""

from pathlib import Path

import pytest

from queueproof.advice.propose import Proposed, propose
from queueproof.advice.roles import words
from queueproof.errors import QueueError, QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.judge.checker import check, declare
from queueproof.postgres.local import find_embedded
from queueproof.queues.sqlfile import load
from queueproof.run.runner import Runner
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.moments import past
from queueproof.schedule.programs import JobSpec
from queueproof.search.explore import explore
from tests.fix_commands import Command
from tests.fix_histories import each, pairs
from tests.fix_labs import LabOf
from tests.fix_plays import play
from tests.fix_programs import finished
from tests.fix_queues import queue_file
from tests.fix_server import tell

USUAL = """
CREATE TABLE jobs (
  id bigserial PRIMARY KEY, kind text NOT NULL, payload jsonb NOT NULL,
  status text NOT NULL DEFAULT 'pending'
    CHECK (status IN ('pending', 'processing', 'done', 'failed')),
  priority int NOT NULL DEFAULT 0, attempts int NOT NULL DEFAULT 0,
  max_attempts int NOT NULL DEFAULT 5, run_at timestamptz NOT NULL DEFAULT now(),
  locked_by text, locked_at timestamptz, last_error text
);
CREATE INDEX ON jobs (priority DESC, run_at, id) WHERE status = 'pending';
"""
NOTHING_WAITS = """
CREATE TABLE thumbs (
  id serial PRIMARY KEY, photo text, result text, who text, since timestamptz, tries int DEFAULT 0
);
COMMENT ON COLUMN thumbs.result IS $$null: to do. 'ok', 'error', or 'busy'$$;
CREATE INDEX ON thumbs (id) WHERE result IS NULL;
"""
SHAPES = {
    "usual": USUAL,
    "nothing waits": NOTHING_WAITS,
    "no state runs": NOTHING_WAITS.replace("result", "status").replace(
        "'error', or 'busy'", "or 'error'"
    ),
    "enum": """
CREATE TYPE task_state AS ENUM ('queued', 'in_progress', 'succeeded', 'dead', 'cancelled');
CREATE TABLE tenants (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  plan text NOT NULL CHECK (plan IN ('free', 'pro')));
CREATE TABLE background_tasks (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), tenant_id uuid NOT NULL REFERENCES tenants,
  args json NOT NULL, state task_state NOT NULL DEFAULT 'queued', tries smallint NOT NULL DEFAULT 0,
  scheduled_for timestamptz NOT NULL DEFAULT now(), worker_id uuid, lease_expires_at timestamptz,
  finished_at timestamptz, last_err text
);
CREATE INDEX ON background_tasks (state, scheduled_for);
""",
    "numbered": """
CREATE TABLE "JobQueue" (
  "jobId" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "queueName" varchar(100) NOT NULL,
  "payload" text NOT NULL, "status" smallint NOT NULL DEFAULT 0,
  "retryCount" int NOT NULL DEFAULT 0,
  "maxRetries" int NOT NULL DEFAULT 3, "runAfter" timestamp, "lockedUntil" timestamp,
  "lockedBy" varchar(20), "errorMessage" text
);
COMMENT ON COLUMN "JobQueue".status IS '0 = pending, 1 = processing, 2 = done, 3 = failed';
CREATE INDEX ON "JobQueue" ("queueName", status, "runAfter");
""",
    "no status": """
CREATE TABLE delayed_jobs (
  id serial PRIMARY KEY, priority int NOT NULL DEFAULT 0, attempts int NOT NULL DEFAULT 0,
  handler text NOT NULL, last_error text, run_at timestamptz, locked_at timestamptz,
  failed_at timestamptz, locked_by varchar, queue varchar
);
CREATE INDEX delayed_jobs_priority ON delayed_jobs (priority, run_at);
""",
    "outbox": """
CREATE SCHEMA app;
CREATE TABLE app.outbox_events (
  event_id uuid PRIMARY KEY, aggregate_id uuid NOT NULL, body jsonb NOT NULL,
  status varchar(20) NOT NULL DEFAULT 'NEW', retry_count int NOT NULL DEFAULT 0,
  next_retry_at timestamptz, claimed_at timestamptz, processed_at timestamptz
);
CREATE INDEX ON app.outbox_events (next_retry_at) WHERE status = 'NEW';
""",
    "without attempts": """
CREATE TABLE work_items (
  id bigserial PRIMARY KEY, state text NOT NULL
    CHECK (state IN ('ready', 'running', 'complete', 'error', 'dead', 'paused')),
  started_at timestamptz, heartbeat_at timestamptz, data jsonb
);
CREATE INDEX ON work_items (id) WHERE state = 'ready';
""",
    "flags": """
CREATE TABLE print_job (
  print_job_id serial PRIMARY KEY, document bytea NOT NULL, copies int NOT NULL DEFAULT 1,
  processing boolean NOT NULL DEFAULT false, processed boolean NOT NULL DEFAULT false,
  error boolean, error_msg varchar(500), err_count int NOT NULL,
  insert_date timestamp NOT NULL DEFAULT now(), process_date timestamp
);
CREATE INDEX ON print_job (print_job_id);
""",
    "counts down": """
CREATE TABLE email_queue (
  mail_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0
    CHECK (state BETWEEN 0 AND 4), not_before timestamp NOT NULL DEFAULT now(),
  taken_at timestamp, attempts_left smallint NOT NULL DEFAULT 5, vars jsonb
);
COMMENT ON COLUMN email_queue.state IS
  '0 = new, 1 = in progress, 2 = sent, 3 = temporary error (will be retried), 4 = permanent error';
CREATE INDEX ON email_queue (not_before, mail_id) WHERE state = 0;
""",
    "epochs": """
CREATE TABLE jobs (
  id bigserial PRIMARY KEY, queue varchar(255) NOT NULL, payload text NOT NULL,
  attempts smallint NOT NULL, reserved_at int, created_at int NOT NULL, visible_ms bigint
);
""",
    "words of its own": """
CREATE TYPE runstate AS ENUM ('CREATED', 'GRABBED', 'DONE', 'ABORTED');
CREATE TABLE runs (
  id uuid PRIMARY KEY, spec json NOT NULL, state runstate NOT NULL, num_tries int NOT NULL,
  assigned_at timestamptz, earliest_start timestamptz
);
CREATE INDEX ON runs (earliest_start NULLS FIRST) WHERE state = 'CREATED';
""",
}
# What stands in the proposal for a shape, its lines joined.
WANTED = pairs("""
usual => pending = "queued" => max_attempts = 5 => TODO: values as your jobs => kind
  => TODO: replace this by the claim
enum => 'dead' END::task_state => last_err = :error => tenants (plan) VALUES ('free');
numbered => "runAfter" NULLS FIRST, "jobId") WHERE st => 2 = "completed" => AT TIME ZONE 'UTC'
flags => WHERE NOT processing AND NOT processed AND error IS NOT TRUE
counts down => 3 = "queued" => attempts_left = attempts_left - 1 => ELSE 4 END
nothing waits => WHERE result IS NULL AND tries < 3 => COALESCE(result::text, 'queued') AS state
no state runs => WHERE status IS NULL AND who IS NULL AND tries < 3
epochs => floor(extract(epoch FROM now() - :lease))::integer
words of its own => GRABBED = running. Are they so? => num_tries) => 'ABORTED' END::runstate
no status => TODO: nothing says that a job is done => DELETE FROM delayed_jobs
  => - :priority, => ORDER BY priority, run_at NULLS FIRST, id
outbox => UPDATE app.outbox_events => NEW = "queued" => processing = running
without attempts => mean? paused => dead and error are taken for
  => no column counts => AS claimed_at
""")
RACE = play("w1 claims | w2 claims")
LATE = play(f"w1 claims; +{past(300.0)}; reaper recovers; w2 claims; w1 completes")
DELIVERIES = """
CREATE DOMAIN event_name AS text CHECK (VALUE ~ '^[a-z]+\\.[a-z]+$');
CREATE TABLE webhook_deliveries (
  id bigserial PRIMARY KEY, url text NOT NULL CHECK (url LIKE 'https://%'),
  event event_name NOT NULL, secret text NOT NULL CHECK (secret <> '' AND length(secret) >= 8),
  state text NOT NULL DEFAULT 'pending'
    CHECK (state IN ('pending', 'in_flight', 'delivered', 'dead')),
  attempts int NOT NULL DEFAULT 0, next_run_at timestamptz NOT NULL DEFAULT now(),
  locked_until timestamptz{}
);
"""
STATES = "CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL CHECK (state IN ({})))"


def proposal(folder: Path, dsn: str, schema: str, table: str | None = None) -> Proposed:
    """What is proposed as `q.sql` for a schema beside it."""
    path = folder / "schema.sql"
    path.write_text(schema)
    return propose(folder / "q.sql", [path], table=table, postgres=dsn, trust=False)


def proposed(folder: Path, dsn: str, schema: str, table: str | None = None) -> str:
    """A schema's proposal, written to `q.sql`, of which every operation must work."""
    found = proposal(folder, dsn, schema, table)
    assert found.rejected is None
    (folder / "q.sql").write_text(found.text)
    return found.text


@pytest.mark.sample(4)
@pytest.mark.parametrize(("shape", "parts"), [(shape, parts) for shape, *parts in WANTED])
def test_a_proposed_queue_is_safe_and_marks_what_cannot_be_known(
    lab_of: LabOf, dsn: str, tmp_path: Path, shape: str, parts: list[str]
) -> None:
    """Values, types and names are those of the schema; what is guessed has a TODO."""
    text = " ".join(proposed(tmp_path, dsn, SHAPES[shape]).split())
    assert [part for part in parts if part not in text] == []
    lab = lab_of(load(tmp_path / "q.sql"))
    declared = declare(calibrate(lab))
    runs = [run for _, run in explore(Runner(lab), RACE, budget=20)]
    found = [check(run.history, declared) for run in (*runs, Runner(lab).run(LATE))]
    assert [one.violations for one in found] == [[]] * len(found)
    assert any(one.evidence["single-claim", "overlapping claims"] for one in found)
    assert found[-1].evidence["fencing", "late calls refused"]


def test_what_checks_ask_of_a_text_is_kept(tmp_path: Path, dsn: str) -> None:
    """A text is proposed that the server takes, and a good end is a state and no DELETE."""
    text = proposed(tmp_path, dsn, DELIVERIES.format(""))
    assert "'https://example.org/x', 'a.b', 'xxxxxxxx'" in text
    assert "SET state = 'delivered'" in text
    assert "DELETE" not in text
    assert '-- delivered = "completed"' in text


@pytest.mark.usefixtures("on_server")
def test_a_check_that_no_proposal_keeps_is_shown(tmp_path: Path, command: Command) -> None:
    """The message says what the constraint asks, and to mend that line first."""
    schema = tmp_path / "schema.sql"
    schema.write_text(DELIVERIES.format(", CONSTRAINT signed CHECK (secret = md5(url))"))
    ran = command("init", tmp_path / "q.sql", "--from-schema", schema)
    assert ran.code == 0
    assert "That constraint is: CHECK ((secret = md5(url)))\n" in ran.out
    assert "Fix that line first. The SQL in its blocks is ours: replace it" in ran.out


def test_the_table_that_looks_like_jobs_is_taken(tmp_path: Path, dsn: str) -> None:
    """Among several, unless the user names one."""
    both = USUAL + USUAL.replace("jobs", "job_history").replace("priority", "rank")
    assert "A queue in the table jobs," in (text := proposed(tmp_path, dsn, both))
    assert "look like one of jobs, too: job_history" in text
    assert "A queue in the table job_history," in proposed(tmp_path, dsn, both, table="job_history")


@pytest.mark.parametrize(
    ("schema", "table", "says"),
    [
        ("CREATE TABLE a (x int);", None, "no table looks like one of jobs, .* There are: a"),
        ("CREATE TABLE a (x int);", "b", "--table b: there is no such table; there are: a"),
        ("CREATE TABLE a (x int);", "a", "a has no primary key"),
        ("SELECT 1;", None, "There are: none"),
        ("-- later", None, "schema.sql: there is no statement in it; give pg_dump's output"),
        ("CREATE TABLE a (x ints);", None, "schema.sql:1: PostgreSQL rejected this SQL"),
        (STATES.format("'new', 'done'"), "jobs", r"\(new, done\) says that a job runs"),
        (STATES.format("'done'"), "jobs", r"\(done\) says that a job waits"),
    ],
)
def test_no_job_schema(tmp_path: Path, dsn: str, schema: str, table: str | None, says: str) -> None:
    """One message, with what there is, and with what is missing where states tell too little."""
    with pytest.raises(QueueproofError, match=says):
        proposal(tmp_path, dsn, schema, table)


@pytest.mark.usefixtures("on_server")
def test_a_running_database_is_read(database: str, tmp_path: Path, command: Command) -> None:
    """Its schema is written beside the queue file, which includes it; existing files stay."""
    tell(database, USUAL)
    path = tmp_path / "q.sql"
    ran = command("init", path, "--from-schema", database)
    assert (ran.code, "a queue in jobs, with " in ran.out) == (0, True)
    assert '-- include = ["q.schema.sql"]' in path.read_text()
    assert load(path).offers >= {"enqueue", "claim", "complete", "fail", "heartbeat", "recover"}
    again = tmp_path / "again.sql"
    assert command("init", again, "--from-schema", database, "--table", "no").code == 4
    assert command("init", path, "--from-schema", database).code == 4
    assert sorted(one.name for one in tmp_path.iterdir()) == ["q.schema.sql", "q.sql"]


@pytest.mark.usefixtures("on_server")
def test_a_folder_of_migrations(tmp_path: Path, command: Command) -> None:
    """They are taken in the order of their numbers; what takes one back is left out."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for name, text in {
        "V10__due.up.sql": "ALTER TABLE jobs RENAME run_at TO run_after;",
        "V2__jobs.up.sql": USUAL,
        "V2__jobs.down.sql": "DROP TABLE jobs;",
    }.items():
        (folder / name).write_text(text)
    assert command("init", tmp_path / "q.sql", "--from-schema", folder).code == 0
    text = (tmp_path / "q.sql").read_text()
    assert '["migrations/V2__jobs.up.sql", "migrations/V10__due.up.sql"]' in text
    assert "run_after <= now()" in text


@each("""
    name => spelled
    lockedAt => locked_at
    jobId => job_id
    run_at => run_at
    Run At => run_at
""")
def test_names_are_read_in_every_spelling(name: str, spelled: str) -> None:
    """Snake and camel case are the same words."""
    assert words(name) == spelled


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
    """Objects that a schema names and nobody made are told as stubs, which let it be installed."""
    # Also where it is one transaction, which the first of them ends.
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
