"""The clock that the harness moves, the reset to the beginning, and the gates inside statements."""

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof.errors import QueueError, ServerError, ServerUnavailableError
from queueproof.postgres import Server, open_server
from queueproof.queues.model import Step
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.run.session import Session, execute
from queueproof.schedule.conditions import PLAIN, Conditions, Gate
from tests.fix_labs import LabOf
from tests.fix_queues import queue_file
from tests.fix_server import tell

MOVED = 100_000.0  # seconds
SLACK = 10_000.0  # seconds, far more than a test takes
FORMS = [
    *("now()", "transaction_timestamp()", "statement_timestamp()", "clock_timestamp()"),
    *("pg_catalog.now()", "CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP(3)", "'now'::timestamptz"),
    *("LOCALTIMESTAMP", "LOCALTIMESTAMP(0)", "timeofday()", "CURRENT_DATE + LOCALTIME"),
    *("in_plpgsql()", "in_sql()", "pinned()", "pinned_empty()", "atomic()"),
]
MADE = (
    "CREATE TABLE new_days (LIKE jobs)",
    "CREATE TABLE new_day (PRIMARY KEY (id)) INHERITS (new_days)",
    "CREATE TABLE new_hours (id bigserial PRIMARY KEY, day bigint REFERENCES new_day)",
    "CREATE TABLE new_parts (id bigint) PARTITION BY LIST (id)",
    "CREATE TABLE new_part PARTITION OF new_parts FOR VALUES IN (1)",
    "CREATE SEQUENCE new_numbers",
    "CREATE VIEW new_view AS SELECT new_days.id FROM new_days, new_parts",
    "CREATE MATERIALIZED VIEW new_copy AS SELECT * FROM new_view",
    "CREATE TEMPORARY TABLE new_own (id bigint)",
)
LEFT_OPEN = """
SELECT pg_advisory_lock(7); CREATE TEMP TABLE mine AS SELECT 1 AS n; LISTEN news;
SET work_mem = '1MB'; PREPARE asked AS SELECT 1; DECLARE kept CURSOR WITH HOLD FOR SELECT 1
"""
LEFT = """
SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 7)
  + (SELECT count(*) FROM pg_class WHERE relname = 'mine')
  + (SELECT count(*) FROM pg_listening_channels())
  + (SELECT count(*) FROM pg_settings WHERE name = 'work_mem' AND source = 'session')
  + (SELECT count(*) FROM pg_prepared_statements WHERE name = 'asked')
  + (SELECT count(*) FROM pg_cursors WHERE name = 'kept')
"""
PLANNED = """
SELECT sum(generic_plans) || ' ' || sum(custom_plans)
FROM pg_prepared_statements WHERE statement LIKE 'SELECT extract(epoch%'
"""


def queue(schema: str) -> str:
    """A queue of which the schema is the subject."""
    claim = "SELECT id FROM jobs LIMIT 1 FOR UPDATE SKIP LOCKED;"
    return queue_file(table=schema, claim=claim, complete="", jobs="")


CLOCK = queue("""
CREATE TABLE jobs (id bigserial PRIMARY KEY, at timestamptz DEFAULT now(),
                   keyword timestamptz DEFAULT CURRENT_TIMESTAMP);
CREATE VIEW times AS SELECT now() AS at, CURRENT_TIMESTAMP AS keyword;
CREATE FUNCTION in_plpgsql() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
  RETURN CURRENT_TIMESTAMP;
END $$;
CREATE FUNCTION in_sql() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()';
CREATE FUNCTION pinned() RETURNS timestamptz LANGUAGE sql SET search_path = queue AS $$
  SELECT now()
$$;
CREATE FUNCTION pinned_empty() RETURNS timestamptz LANGUAGE plpgsql SET search_path = '' AS $$
BEGIN
  RETURN pg_catalog.clock_timestamp();
END $$;
CREATE FUNCTION atomic() RETURNS timestamptz LANGUAGE sql BEGIN ATOMIC SELECT now(); END;
""")
GATED = queue("""
CREATE TABLE jobs (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'queued');
CREATE TABLE audit (id bigint);
""")


@pytest.fixture
def moved(lab_of: LabOf) -> Lab:
    """A lab whose clock has been moved."""
    lab = lab_of(CLOCK)
    lab.advance(MOVED)
    return lab


def value(session: Session, sql: str) -> str:
    """The one value of a query, as text."""
    return str(next(iter(execute(session, Step(sql)).rows[0].values())))


def ahead(session: Session, expression: str) -> float:
    """Seconds by which a time of the database is ahead of the real one."""
    shown = value(session, f"SELECT extract(epoch FROM ({expression})::timestamptz)")
    return float(shown) - time.time()


def is_moved(seconds: float) -> bool:
    """Whether a time is ahead by the clock's move."""
    return abs(seconds - MOVED) < SLACK


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_time_moves(moved: Lab, form: str) -> None:
    """Functions, keywords and literals of the time show the moved clock, and what calls them."""
    # Neither a function's own search_path or parsed body hides it, nor an empty path.
    session = moved.session("w1")
    assert is_moved(ahead(session, form))


@pytest.mark.parametrize("column", ["at", "keyword"])
def test_defaults_and_views_move(moved: Lab, column: str) -> None:
    """A DEFAULT and a view that name the time show the moved clock."""
    session = moved.session("w1")
    inserted = f"INSERT INTO jobs DEFAULT VALUES RETURNING extract(epoch FROM {column})"
    assert is_moved(float(value(session, inserted)) - time.time())
    assert is_moved(ahead(session, f"SELECT {column} FROM times"))


def test_a_rejected_schema_leaves_no_connection_open(server: Server) -> None:
    """SQL that PostgreSQL rejects is the user's error, and costs no connection."""
    rejected = load_text(queue("CREATE TABLE jobs (id nonsense);"), "q.sql")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(QueueError, match="nonsense"), open_lab(rejected, server):
            pass
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_transaction_keeps_its_time_over_a_move(moved: Lab, lab_of: LabOf) -> None:
    """now() stands still while the clock moves, somebody else's too; clock_timestamp() does not."""
    session = moved.session("w1")
    execute(session, Step("BEGIN"))
    before = value(session, "SELECT now()")
    for _ in range(2):  # nothing is left to be looked up in the catalogue
        ahead(session, "clock_timestamp()")
    moved.advance(MOVED)
    assert is_moved(ahead(session, "clock_timestamp()") - MOVED)
    assert value(session, "SELECT now()") == before
    assert value(session, "SELECT CURRENT_TIMESTAMP") == before
    assert is_moved(ahead(session, "SELECT max(clock_timestamp()) FROM pg_class") - MOVED)
    execute(session, Step("COMMIT"))
    assert is_moved(ahead(session, "now()") - MOVED)
    # However often it is moved beside somebody else's, before and after.
    lab = lab_of(GATED)
    lab.advance(MOVED)
    lab.session("w1").run("BEGIN")
    with psycopg.connect(lab.conninfo) as elsewhere:
        now = elsewhere.execute("SELECT now()").fetchone()
        for _ in range(3):
            lab.advance(MOVED)
            assert elsewhere.execute("SELECT now()").fetchone() == now
    assert is_moved(ahead(lab.session("w2"), "now()") - 3 * MOVED)


NOTE = """
CREATE TABLE log (what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log VALUES (TG_OP);
  RETURN NULL;
END $$;
"""
RESET = queue(f"""{NOTE}
CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text,
                      upper_name text GENERATED ALWAYS AS (upper(name)) STORED);
CREATE TABLE jobs (id bigserial PRIMARY KEY, parent bigint REFERENCES parents,
                   follows bigint REFERENCES jobs, state text NOT NULL DEFAULT 'queued', kind int);
CREATE TABLE kinds (id int PRIMARY KEY);
ALTER TABLE jobs ADD FOREIGN KEY (kind) REFERENCES kinds;
CREATE TABLE parts (id int, kind text) PARTITION BY LIST (kind);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_rest PARTITION OF parts DEFAULT;
CREATE TABLE base (a int);
CREATE TABLE derived (b int) INHERITS (base);
CREATE UNLOGGED TABLE "odd ""name" (x int);
CREATE TABLE bare ();
CREATE SEQUENCE numbers START 7;
CREATE SEQUENCE "it's";
INSERT INTO parents (name) VALUES ('ann'), ('bob');
INSERT INTO kinds VALUES (1);
INSERT INTO jobs (parent, kind) VALUES (1, 1), (2, 1);
INSERT INTO jobs (follows) VALUES (1);
INSERT INTO parts VALUES (1, 'a'), (2, 'b');
INSERT INTO base VALUES (1);
INSERT INTO derived VALUES (2, 3);
INSERT INTO "odd ""name" VALUES (4);
INSERT INTO bare DEFAULT VALUES;
SELECT nextval('numbers');
CREATE TRIGGER note_jobs AFTER INSERT OR UPDATE OR DELETE ON jobs
  FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER note_parents AFTER INSERT OR UPDATE OR DELETE ON parents
  FOR EACH ROW EXECUTE FUNCTION note();
""")
CONTENTS = """
SELECT jsonb_build_array(
  (SELECT jsonb_agg(t ORDER BY id) FROM parents t), (SELECT jsonb_agg(t ORDER BY id) FROM jobs t),
  (SELECT jsonb_agg(t ORDER BY id) FROM parts t), (SELECT jsonb_agg(t ORDER BY a) FROM ONLY base t),
  (SELECT jsonb_agg(t ORDER BY a) FROM derived t), (SELECT jsonb_agg(t) FROM "odd ""name" t),
  (SELECT jsonb_agg(t) FROM log t), (SELECT count(*) FROM bare))
"""
NEXT = """
SELECT ARRAY[nextval('numbers'), nextval('jobs_id_seq'), nextval('parents_id_seq')]
"""
DAMAGE = (
    "DELETE FROM jobs",
    "DELETE FROM parents WHERE id = 1",
    "UPDATE parents SET name = 'eve'",
    "INSERT INTO parents (name) VALUES ('zoe')",
    "INSERT INTO jobs DEFAULT VALUES",
    "UPDATE parts SET kind = 'a', id = 9",
    "DELETE FROM base",
    "DELETE FROM bare",
    'UPDATE "odd ""name" SET x = 5',
    NEXT,
)
CALM = queue(f"""{NOTE}
CREATE TABLE settings (name text);
INSERT INTO settings VALUES ('one'), ('two');
CREATE RULE note AS ON INSERT TO settings DO ALSO INSERT INTO log VALUES ('inserted');
CREATE RULE stay AS ON DELETE TO settings DO INSTEAD NOTHING;
ALTER TABLE settings ENABLE ALWAYS RULE note, ENABLE ALWAYS RULE stay;
ALTER TABLE settings ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON settings USING (name = current_setting('settings.name', true));
CREATE TABLE jobs (id bigserial PRIMARY KEY);
INSERT INTO jobs DEFAULT VALUES;
CREATE TRIGGER plain AFTER INSERT OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER always AFTER INSERT OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION note();
ALTER TABLE jobs ENABLE ALWAYS TRIGGER always;
CREATE TRIGGER never AFTER INSERT OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION note();
ALTER TABLE jobs DISABLE TRIGGER never;
""")


@pytest.fixture(scope="module")
def humble(server: Server) -> Iterator[Server]:
    """The same server, as a role that may only create databases."""
    with server.database() as conninfo:
        tell(conninfo, "CREATE ROLE queueproof_humble LOGIN CREATEDB")
        try:
            with open_server(make_conninfo(conninfo, user="queueproof_humble")) as humbled:
                assert not humbled.superuser
                yield humbled
        finally:
            tell(conninfo, "DROP ROLE queueproof_humble")


@pytest.fixture(scope="module")
def labs(server: Server, humble: Server) -> Iterator[dict[str, Lab]]:
    """A lab of the superuser, and one of a role without rights."""
    with (
        open_lab(load_text(f"{RESET}-- and temporary ones", "queue.sql"), server) as mighty,
        open_lab(load_text(RESET, "queue.sql"), humble) as weak,
    ):
        yield {"superuser": mighty, "role": weak}


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("who", ["superuser", "role"])
def test_a_reset_brings_back_what_there_was(labs: dict[str, Lab], who: str, *, renew: bool) -> None:
    """Rows, partitions and sequences come back, no trigger fires, and what was made goes."""
    # A table may refer to one that was created after it, whatever the role's rights.
    lab = labs[who]
    lab.reset(renew=renew)
    before = value(lab.session("w1"), CONTENTS)
    numbers = value(lab.session("w1"), NEXT)
    for statement in DAMAGE:
        execute(lab.session("w1"), Step(statement))
    assert value(lab.session("w1"), CONTENTS) != before
    lab.reset(renew=renew)
    assert value(lab.session("w1"), CONTENTS) == before
    assert value(lab.session("w1"), NEXT) == numbers
    lab.tables.rewrite()
    assert value(lab.session("w1"), CONTENTS) == before
    # Tables, partitions, views and sequences of a run are gone, so that the next makes them.
    lab.reset()
    for again in range(2):
        lab.session("w1").run("; ".join(MADE))
        lab.reset(renew=renew or bool(again))
    assert value(lab.session("w1"), "SELECT to_regclass('new_days')") == "NULL"


@pytest.mark.parametrize("who", ["superuser", "role"])
def test_no_rule_policy_or_trigger_acts_on_resets(server: Server, humble: Server, who: str) -> None:
    """Rule 1: rows that a policy hides from their owner come back, and what is ALWAYS rests."""
    with open_lab(load_text(CALM, "queue.sql"), server if who == "superuser" else humble) as lab:
        lab.reset()
        lab.tables.rewrite()
        session = lab.session("w1")
        assert value(session, "SELECT count(*) FROM log") == "0"
        for row in ("one", "two"):
            session.run(f"SET settings.name = '{row}'")
            assert value(session, "SELECT count(*) FROM settings") == "1"
        session.run("INSERT INTO jobs DEFAULT VALUES")  # which triggers note that did before
        assert value(session, "SELECT count(*) FROM log") == "2"
        with pytest.raises(ServerError, match="42501"):
            session.run("INSERT INTO settings VALUES ('three')")


@pytest.mark.parametrize(
    ("ids", "found"),
    [("answered", "2"), ([1, 3], "2"), (["1", "3"], "2"), ([1, None], "1"), ([], "0")],
)
def test_a_list_is_sent_as_an_array(labs: dict[str, Lab], ids: object, found: str) -> None:
    """Of what the server answered, or of values whose type it infers; an empty one too."""
    session = labs["superuser"].session("w1")
    rows = execute(session, Step("SELECT id::bigint FROM generate_series(1, 2) AS id")).rows
    given = [row["id"] for row in rows] if ids == "answered" else ids
    sql = "SELECT count(*) FROM generate_series(1::bigint, 3) AS id WHERE id = ANY (:ids)"
    step = Step(sql, {"ids": given})  # type: ignore[dict-item]
    assert str(execute(session, step).rows[0]["count"]) == found


def test_a_reset_ends_what_sessions_left_open(labs: dict[str, Lab]) -> None:
    """A transaction that a run left open is rolled back, and its session's settings are gone."""
    lab = labs["superuser"]
    lab.reset()
    session = lab.session("w1")
    execute(session, Step("SET application_name = 'left over'"))
    execute(session, Step("BEGIN"))
    execute(session, Step("DELETE FROM jobs"))
    lab.reset()
    assert value(lab.session("w1"), "SELECT count(*) FROM jobs") == "3"
    assert value(lab.session("w1"), "SHOW application_name") != "left over"


def settle(lab: Lab, session: Session) -> bool:
    """Whether a session has answered; if not, it stands at a gate."""
    while not session.ready(0.001):
        if lab.control_pid in lab.blockers(session):
            assert not session.ready(0)  # what it said before it stopped has arrived by now
            return False
    return True


def test_a_begin_goes_with_what_it_begins(lab_of: LabOf) -> None:
    """No message is sent for it alone, and none at all where nothing follows."""
    lab = lab_of(CLOCK)
    session = lab.session("w1")
    execute(session, Step("SELECT 1"))

    def state() -> object:
        asked = f"SELECT state FROM pg_stat_activity WHERE pid = {session.pid}"
        return lab.execute(asked)[0][0]

    assert execute(session, Step("begin")).in_transaction
    assert session.in_transaction
    assert state() == "idle"
    assert execute(session, Step("SELECT 1")).in_transaction
    assert state() == "idle in transaction"
    execute(session, Step("COMMIT"))
    execute(session, Step("BEGIN"))
    assert session.quieten()
    assert not session.in_transaction
    assert not execute(session, Step("SELECT 1")).in_transaction


def test_a_session_whose_backend_has_ended_is_replaced(lab_of: LabOf) -> None:
    """Whatever ended it between runs; and a dead worker's, where a queue reads pg_stat_activity."""
    lab = lab_of(GATED)
    pid = lab.session("w1").pid
    lab.execute(f"SELECT pg_terminate_backend({pid}, 60000)")
    lab.reset()
    assert lab.session("w1").pid != pid
    lab.session("w1").run("SELECT 1")
    lab = lab_of(GATED + "\n-- name: recover\nSELECT pid AS id FROM pg_stat_activity LIMIT 0;\n")
    dead = lab.session("w1")
    lab.drop("w1")
    assert dead.closed
    assert lab.session("w2").pid != dead.pid


def test_a_dead_workers_connection_is_emptied_for_another(lab_of: LabOf) -> None:
    """Nothing of it is left, in a transaction or out of one; it keeps its backend."""
    lab = lab_of(f"{GATED}-- {' '.join(LEFT_OPEN.split())}")
    for end in ("", "BEGIN; INSERT INTO jobs DEFAULT VALUES"):
        dead = lab.session("w1")
        dead.run(LEFT_OPEN)
        dead.run(end)
        assert value(dead, LEFT) == "6"
        lab.drop("w1")
        another = lab.session("w2")
        assert another.pid == dead.pid
        assert not another.in_transaction
        assert value(another, LEFT) == "0"
        assert value(another, "SELECT count(*) FROM jobs") == "0"
        lab.drop("w2")


def test_a_statement_is_planned_once_for_all_runs(lab_of: LabOf) -> None:
    """Yet it shows the clock as it was moved; it is planned anew where its plan is what matters."""
    lab = lab_of(GATED)
    for conditions, renew in (
        (PLAIN, False),
        (PLAIN, False),
        (Conditions(planner="no index"), False),
        (PLAIN, True),
    ):
        lab.reset(conditions, renew=renew)
        shown = ahead(lab.session("w1"), "now()")
        for _ in range(2):
            lab.advance(MOVED)
        assert abs(ahead(lab.session("w1"), "now()") - shown - 2 * MOVED) < SLACK
    assert value(lab.session("w1"), PLANNED) == "4 0"


def test_nothing_of_the_harness_is_left_for_the_next_run(lab_of: LabOf) -> None:
    """Neither what a measurement tells the planner nor a gate's trigger is there afterwards."""
    lab = lab_of(CLOCK)
    lab.reset(renew=True)
    [jobs] = lab.tables.names
    lab.execute(f"INSERT INTO {jobs} DEFAULT VALUES; ANALYZE {jobs}")
    known = "SELECT count(*) FROM pg_stats WHERE tablename = 'jobs'"
    assert value(lab.session("w1"), known) != "0"
    lab.reset()
    assert value(lab.session("w1"), known) == "0"
    lab = lab_of(GATED)
    count = "SELECT count(*) FROM pg_trigger WHERE tgname ^@ '~queueproof'"
    lab.reset(Conditions(gate="row"))
    assert lab.execute(count) == [(2,)]
    lab.reset()
    assert lab.execute(count) == [(0,)]


def test_a_run_that_is_done_again_draws_the_same_lots(lab_of: LabOf) -> None:
    """Same seed, same verdict: where waits differ by random(), each session's are its seed's."""
    lab = lab_of(queue("CREATE TABLE jobs (id bigserial PRIMARY KEY, x float DEFAULT random())"))

    def drawn(seed: int, key: str) -> str:
        lab.reset(seed=seed)
        return value(lab.session(key), "SELECT array[random(), random()]")

    first = drawn(1, "w1")
    assert drawn(1, "w1") == first
    assert len({first, drawn(2, "w1"), drawn(1, "w2")}) == 3


def test_functions_are_planned_under_the_settings_of_their_run(lab_of: LabOf) -> None:
    """A plan made for another run would hide what these settings show, or hold time still."""
    first = """FUNCTION first() RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN RETURN (SELECT id FROM jobs WHERE id > 0 LIMIT 1); END $$;"""
    lab = lab_of(GATED.replace("CREATE TABLE audit", f"CREATE {first}CREATE TABLE audit"))
    for planner, found in (("no index", "2"), ("no sequential scan", "1"), ("no index", "2")):
        lab.reset(Conditions(planner=planner))
        execute(lab.session("w1"), Step("INSERT INTO jobs (id) VALUES (2), (1)"))
        assert value(lab.session("w1"), "SELECT first()") == found
    # A constant of a plan, because its function says so, would be another run's moment.
    moment = "FUNCTION moment() RETURNS timestamptz LANGUAGE sql IMMUTABLE AS 'SELECT now()'"
    lab = lab_of(GATED.replace("CREATE TABLE audit", f"CREATE {moment};\nCREATE TABLE audit"))
    for moves in range(3):
        lab.reset()
        for _ in range(moves):
            lab.advance(MOVED)
        assert abs(ahead(lab.session("w1"), "moment()") - moves * MOVED) < SLACK


def test_what_was_cancelled_before_it_was_prepared_is_prepared_anew(lab_of: LabOf) -> None:
    """A statement can wait for a table's lock while it is read."""
    lab = lab_of(GATED)
    asked = Step("SELECT count(*) FROM jobs")
    one, other = lab.session("w1"), lab.session("w2")
    other.run("BEGIN; LOCK TABLE jobs")
    one.send(asked)
    while other.pid not in lab.blockers(one):
        assert not one.ready(0.001)
    assert one.quieten()
    other.run("ROLLBACK")
    assert execute(one, asked).rows


@pytest.mark.parametrize(("gate", "gates"), [("statement", 2), ("row", 3)])
def test_opening_a_gate_passes_exactly_one(lab_of: LabOf, gate: Gate, gates: int) -> None:
    """A session that may go on stops again at the next gate: no key lets it through two."""
    lab = lab_of(GATED)
    lab.reset(Conditions(gate=gate))
    producer = lab.session("producer")
    producer.run("INSERT INTO jobs SELECT FROM generate_series(1, 2)")
    producer.run("INSERT INTO audit VALUES (1)")
    lab.stops = True
    session = lab.session("w1")
    done = "WITH done AS (UPDATE jobs SET state = 'completed' RETURNING id)"
    count = "(SELECT count(*) FROM done)"
    session.send(Step(f"{done} UPDATE audit SET id = id + 1 WHERE {count} = 2"))
    passed = 0
    while not settle(lab, session):
        assert session.said  # so that nobody asks the server again and again
        passed += 1
        lab.open_gate(session)
        assert not session.said
    assert passed == gates
    assert session.result().affected == 1


@pytest.mark.parametrize(
    ("by", "told", "why"),
    [
        (signal.SIGSEGV, "signal 11: Segmentation fault", "No statement may crash it"),
        (signal.SIGKILL, "signal 9: Killed", "Somebody has killed it, or the kernel"),
    ],
)
def test_a_crash_of_postgresql_itself_is_told(by: signal.Signals, told: str, why: str) -> None:
    """With its signal and the statement, and not as what somebody has done to a connection."""
    message = rf"crashed \({told}; .*was running: SELECT 4711\), so there is no verdict\. {why}"
    refused = pytest.raises(ServerUnavailableError, match=message)
    with (
        open_server("embedded") as server,
        refused,
        open_lab(load_text(CLOCK, "clock.sql"), server) as lab,
    ):
        session = lab.session("w1")
        session.run("SELECT 4711")
        os.kill(session.pid, by)
        session.run("SELECT 4712")


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (Mock(side_effect=FileNotFoundError), "somebody has dropped the database of this"),
        (lambda _: SimpleNamespace(free=2**20), r"the disk is full in /.*TMPDIR chooses"),
    ],
    ids=["somebody", "a full disk"],  # a server that such a disk ends says so in its log alone
)
def test_who_has_taken_the_database_away_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch, usage: Callable[[str], object], told: str
) -> None:
    """A connection that is lost looks as any other, and a server that goes on has not gone."""
    monkeypatch.setattr("shutil.disk_usage", usage)
    refused = pytest.raises(ServerUnavailableError, match=told)
    with refused, open_lab(load_text(CLOCK, "clock.sql"), server) as lab:
        name = conninfo_to_dict(lab.conninfo)["dbname"]
        server.administer(f'DROP DATABASE "{name}" WITH (FORCE)')
        lab.reset()
