"""A queue in several files: what one includes, and what one extends."""

import re
import textwrap
from pathlib import Path

import pytest

from queueproof.advice.mutants import mutants_of
from queueproof.cli import run
from queueproof.errors import FormatError, QueueError, Source
from queueproof.queues.sqlfile import SqlFileQueue, load, load_text
from tests.fix_histories import each
from tests.fix_places import REFERENCE, SKIP_LOCKED, STRATEGIES

BLOCKS = """
-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;

-- name: claim
DELETE FROM jobs WHERE id = (SELECT id FROM jobs LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id;
"""
README = (STRATEGIES / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^ *```sql\n(.*?)```", README, re.MULTILINE | re.DOTALL)
BASE = """\
-- What it is about.
-- /// queue
-- lease = "30 seconds"
-- retry_on = [  # two of them
--   "55P03",
--   "40001",
-- ]
-- include = ["more/tables.sql"]
-- [states]
-- done = "completed"
-- ///

-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;

-- The oldest first.
-- name: claim
SELECT id FROM jobs ORDER BY id LIMIT 1 FOR UPDATE;

-- name: complete(id)!
DELETE FROM jobs WHERE id = :id;
"""
TABLES = "CREATE TABLE jobs (id bigserial PRIMARY KEY);\n"


def including(folder: Path, patterns: str, extra: str = "") -> SqlFileQueue:
    """A queue file in a folder `queues`, which includes what some patterns name."""
    (folder / "queues").mkdir(exist_ok=True)
    path = folder / "queues" / "q.sql"
    path.write_text(f"-- /// queue\n-- include = {patterns}\n-- ///\n{extra}{BLOCKS}")
    return load(path)


def sent(queue: SqlFileQueue) -> list[str]:
    """What the schema sends, each statement in one line."""
    return [" ".join(one.text.split()) for one in queue.blocks["schema"].statements]


def dumped(folder: Path, script: str) -> SqlFileQueue:
    """A queue file that includes one file."""
    (folder / "dump.sql").write_text(script)
    return including(folder, '["../dump.sql"]')


def test_included_files_come_before_the_schemas_own_statements(tmp_path: Path) -> None:
    """Paths begin at the queue file; globs go by name, numbers in their order, each file once."""
    for name in ("10_c.sql", "2_b.sql", "1_a.sql"):
        (tmp_path / name).write_text(f"CREATE TABLE t{name[0]}();")
    (tmp_path / "types.sql").write_text("\N{BYTE ORDER MARK}CREATE TYPE t AS\r\nENUM ();")
    own = "-- name: schema#\nCREATE TABLE own();\n"
    queue = including(tmp_path, '["../types.sql", "../*_*.sql", "../t*.sql"]', own)
    tables = [f"CREATE TABLE {name}()" for name in ("t1", "t2", "t1", "own")]
    assert sent(queue) == ["CREATE TYPE t AS ENUM ()", *tables]
    assert queue.source_of("install") == Source(tmp_path / "queues" / "q.sql", 4)


def test_a_file_with_includes_needs_no_schema_of_its_own(tmp_path: Path) -> None:
    """It begins where the header names the files; breaks are written into the file alone."""
    queue = dumped(tmp_path, "CREATE TABLE jobs (id serial);")
    assert sent(queue) == ["CREATE TABLE jobs (id serial)"]
    assert queue.source_of("install") == Source(tmp_path / "queues" / "q.sql", 2)
    written = queue.with_breaks({"order": "later"})
    assert "CREATE TABLE" not in written
    assert load_text(written, tmp_path / "queues" / "q.sql").breaks == {"order": "later"}


def test_a_token_and_a_mutant_see_a_change_of_an_included_file(tmp_path: Path, base: Path) -> None:
    """The digests of a queue and its mutants are of what is sent, wherever it stands."""
    digests = []
    for width in ("int", "bigint"):
        queue = dumped(tmp_path, f"CREATE TABLE jobs (id {width});")
        digests.append({queue.digest, *(one.queue.digest for one in mutants_of(queue).mutants)})
    assert min(map(len, digests)) > 1
    assert not digests[0] & digests[1]
    # A token of a story must not outlive a change of what the queue is made of.
    path = over(base)
    before = load(path).digest
    base.write_text(BASE.replace("ORDER BY id", "ORDER BY id DESC"))
    assert load(path).digest != before


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("\nSELECT ':x', :x;", r"dump.sql:2: schema takes no parameters, and uses :x"),
        ("SELECT 1;\nSELECT 'a\n;\n", r"dump.sql:2: a string, .* never closed: SELECT 'a"),
        ("\n\\i other.sql\n", r"dump.sql:2: \\i: it is psql's, .* path in `include`"),
        ("COPY t (a) FROM stdin;\n1\n", r"dump.sql:1: the data of this COPY never ends"),
        ("GRANT ALL ON t TO x;", r"q.sql:2: include: nothing in these files makes a table"),
        ("COPY t TO STDOUT;", r"dump.sql:1: COPY from or to the client"),
    ],
)
def test_errors_are_told_where_they_stand(tmp_path: Path, script: str, says: str) -> None:
    """The message names the included file and its line."""
    with pytest.raises(QueueError, match=says):
        dumped(tmp_path, script)


@each(r"""
    patterns => says
    ["no.sql"] => q.sql:2: include: .*no.sql: No such file or directory; a path begins at
    ["q.sql"] => q.sql:2: include: .*q.sql is this file
    ["no*.sql"] => q.sql:2: include: no file is named .*no\*.sql
    "no.sql" => q.sql:2: include: 'no.sql' is not a list of strings
""")
def test_a_missing_file_is_told_at_the_header(tmp_path: Path, patterns: str, says: str) -> None:
    """Whoever misspells a path is shown the line that names it."""
    with pytest.raises(QueueError, match=says):
        including(tmp_path, patterns)


def test_what_is_for_psql_or_about_roles_is_left_out(tmp_path: Path) -> None:
    """Of a dump remain the statements that make types, functions, tables and rows."""
    script = """
\\restrict abc
SET transaction_timeout = 0;
SET check_function_bodies = false;
SELECT pg_catalog.set_config('search_path', '', false);
CREATE DATABASE d;
\\connect d
CREATE SCHEMA public;
COMMENT ON SCHEMA public IS 'x';
ALTER SCHEMA public OWNER TO app;
CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $$
/*
\\restrict in a comment
COPY t FROM stdin;
*/
$$;
ALTER FUNCTION f() OWNER TO app;
CREATE TABLE public.jobs (id int);
ALTER TABLE ONLY public.jobs OWNER TO "The App";
ALTER TABLE public.jobs ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON public.jobs TO app;
REVOKE ALL ON public.jobs FROM app;
ALTER DEFAULT PRIVILEGES FOR ROLE app GRANT SELECT ON TABLES TO app;
CREATE PUBLICATION p FOR ALL TABLES;
SELECT * FROM pg_catalog.pg_restore_relation_stats('version', 1);
\\unrestrict abc
"""
    checks, *made = (one.partition("(")[0] for one in sent(dumped(tmp_path, script)))
    assert checks == "SET check_function_bodies = false"
    assert made == ["CREATE FUNCTION f", "CREATE TABLE public.jobs "]


def test_the_data_of_copy_becomes_rows(tmp_path: Path) -> None:
    """Escapes, NULL and quotes of COPY's text format come through; what follows is SQL again."""
    data = "1\t\\N\n2\ta\\tb\\\\c'd\\n\\x41\\101\N{NEXT LINE}\n"
    script = f"COPY public.t (id, note) FROM stdin;\n{data}\\.\n\nCREATE TABLE jobs();"
    rows, table = dumped(tmp_path, script).blocks["schema"].statements
    assert rows.text == (
        "INSERT INTO public.t (id, note) OVERRIDING SYSTEM VALUE VALUES\n"
        "('1', NULL),\n('2', 'a\tb\\c''d\nAA\N{NEXT LINE}')"
    )
    assert (rows.source.line, table.source.line) == (1, 6)


@pytest.mark.parametrize("down", ["-- +goose Down", "-- migrate:down", "-- +migrate Down"])
def test_a_migration_ends_where_it_says_how_it_is_undone(tmp_path: Path, down: str) -> None:
    """The way down, which would drop the tables again, is not taken."""
    script = f"-- up\nCREATE TABLE jobs();\n{down}\nDROP TABLE jobs;\n"
    assert sent(dumped(tmp_path, script)) == ["CREATE TABLE jobs()"]


@pytest.mark.parametrize("example", FENCED)
def test_the_examples_of_the_reference_are_queue_files(tmp_path: Path, example: str) -> None:
    """Each loads, with the blocks that it leaves out and the files that it includes beside it."""
    beside = {
        "db/schema.sql": "CREATE TABLE jobs ();",
        "migrations/1.up.sql": "CREATE TABLE more ();",
        "queues/skip_locked.sql": SKIP_LOCKED,
    }
    for name, text in beside.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    missing = {"schema": "#\nSELECT;", "enqueue": "\nSELECT 1 AS id;", "claim": "\nSELECT 1 AS id;"}
    blocks = {f"-- name: {name}": sql for name, sql in missing.items()}
    others = [name + sql for name, sql in blocks.items() if name not in example]
    whole = "\n".join([textwrap.dedent(example), *others])
    assert load_text(whole, tmp_path / "queues" / "q.sql").blocks


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A queue whose tables stand in a file beside it."""
    (tmp_path / "queues" / "more").mkdir(parents=True)
    (tmp_path / "queues" / "more" / "tables.sql").write_text(TABLES)
    path = tmp_path / "queues" / "base.sql"
    path.write_text(BASE)
    return path


def over(base: Path, header: str = "", blocks: str = "", name: str = "over.sql") -> Path:
    """A file in the folder above that extends a queue."""
    lines = ["/// queue", f'extends = "queues/{base.name}"', *header.splitlines(), "///"]
    path = base.parent.parent / name
    path.write_text("".join(f"-- {line}\n" for line in lines) + blocks)
    return path


def test_what_does_not_stand_here_stands_there(base: Path) -> None:
    """Keys, tables, blocks and what is included, each known by its own file and line."""
    claim = "\n-- Any.\n-- name: claim\nSELECT id FROM jobs LIMIT 1 FOR UPDATE;\n"
    path = over(base, 'lease = "1 minute"\nmax_attempts = 2\n[breaks]\norder = "none"', claim)
    queue, other = load(path), load(base)
    assert (queue.lease_seconds, queue.max_attempts) == (60, 2)
    assert queue.retry_on == other.retry_on == {"55P03", "40001"}
    assert queue.states == {"done": "completed"}
    assert load(over(base, 'states.ready = "queued"')).states == {"ready": "queued"}
    assert queue.offers == other.offers
    assert queue.blocks["schema"].statements[0].text == TABLES.strip().rstrip(";")
    assert "ORDER BY" not in queue.blocks["claim"].statements[0].text
    assert queue.source_of("claim") == Source(path, 10)
    assert queue.source_of("complete") == Source(base, 20)
    assert queue.source_of_break("order") == Source(path, 6)
    assert "The oldest first" not in queue.whole
    assert set(queue.files) == {path, base, base.parent / "more" / "tables.sql"}


def test_a_block_that_is_empty_here_is_not_offered(base: Path) -> None:
    """Elsewhere an empty block is a mistake."""
    assert "complete" not in load(over(base, blocks="-- name: complete\n")).offers
    base.write_text(f"{BASE}\n-- name: fail\n")
    with pytest.raises(FormatError, match="block fail is empty"):
        load(base)
    base.write_text(BASE)
    with pytest.raises(FormatError, match=r"over\.sql:4: an empty block .* is without claim"):
        load(over(base, blocks="-- name: claim\n"))


def test_what_a_file_extends_may_extend_another(base: Path, tmp_path: Path) -> None:
    """As far as it goes; a circle ends, also over links, and so does a file that is not there."""
    path = base.with_name("middle.sql")
    path.write_text('-- /// queue\n-- extends = "base.sql"\n-- lease = "1 minute"\n-- ///\n')
    assert load(over(path, "max_attempts = 2")).lease_seconds == 60
    base.write_text('-- /// queue\n-- extends = "middle.sql"\n-- ///\n')
    with pytest.raises(FormatError, match=r"base\.sql:2: extends: .*middle\.sql is this file, or"):
        load(path)
    base.write_text("# A page about queues\n")
    with pytest.raises(FormatError, match=r"middle\.sql:2: extends: .*base\.sql is no queue file"):
        load(path)
    base.unlink()
    told = r"middle\.sql:2: extends: .*base\.sql: No such file or directory; a path begins at the"
    with pytest.raises(FormatError, match=told):
        load(path)
    for n in range(60):
        (tmp_path / f"{n}.sql").write_text(f'-- /// queue\n-- extends = "{n + 1}.sql"\n-- ///\n')
    with pytest.raises(FormatError, match="more than 50 files extend one another"):
        load(tmp_path / "0.sql")


def test_a_mistake_is_told_where_it_stands(base: Path) -> None:
    """In whichever of the files."""
    base.write_text(BASE.replace("WHERE id = :id", "WHERE id = :idd OR $1"))
    with pytest.raises(QueueError, match=r"queues/base\.sql:21: parameters have names here"):
        load(over(base))
    with pytest.raises(QueueError, match=r"over\.sql:3: unknown key 'leases'; did you mean lease"):
        load(over(base, "leases = 1"))
    for key, value in (("include", '["a\\u0000b"]'), ("extends", '"a\\u0000b"')):
        (nul := base.with_name("nul.sql")).write_text(f"-- /// queue\n-- {key} = {value}\n-- ///\n")
        with pytest.raises(QueueError, match=rf"nul\.sql:2: {key}: no name of a file has a NUL"):
            load(nul)
    twice = "-- name: complete(id)!\nDELETE FROM jobs WHERE id = :id;\n" * 2
    with pytest.raises(QueueError, match=r"over\.sql:6: block complete stands already in line 4"):
        load(over(base, blocks=twice))


def test_a_break_is_accepted_in_the_file_itself(base: Path) -> None:
    """With those that stood in the other one, which a table here goes before."""
    base.write_text(BASE.replace("-- [states]", '-- [breaks]\n-- order = "known"\n-- [states]'))
    path = over(base)
    text = load(path).with_breaks({"fencing": "later"})
    path.write_text(text)
    assert load(path).breaks == {"order": "known", "fencing": "later"}
    assert len(text.splitlines()) == 6
    assert "TODO" not in base.read_text()


def test_a_queue_is_shown_whole(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed text is a queue file, and the same queue; what extends nothing is as it was."""
    assert run(["show", str(over(base, 'lease = "1 minute"'))]) == 0
    shown = base.parent.parent / "shown.sql"
    shown.write_text(capsys.readouterr().out)
    assert isinstance(whole := load(shown), SqlFileQueue)
    assert whole.lease_seconds == 60
    assert set(whole.blocks) == {"enqueue", "claim", "complete", "schema"}
    assert run(["show", "json:loads"]) == 4
    assert load(REFERENCE).whole == REFERENCE.read_text()
