"""The queue file: what it says, what it refuses, and what its operations send."""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueproof.errors import QueueError, Source
from queueproof.queues.model import VOID, Claim, JobRow, Operation, Result, Step, Value, Values
from queueproof.queues.sqlfile import SqlFileQueue, load, load_text
from tests.fix_queues import queue_file

FILE = """\
-- A queue.
-- /// queue
-- lease = "30 seconds"
-- max_attempts = 5
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE jobs (id bigserial, note text DEFAULT ':no; -- name: no');

-- name: enqueue(payload, priority, delay, max_attempts)
INSERT INTO jobs VALUES (:payload, :priority, now() + :delay, :max_attempts) RETURNING id;

-- name: claim(worker, limit)
UPDATE jobs SET locked_by = :worker WHERE id IN (:limit) RETURNING id, attempt;

-- name: complete(id, worker)!
UPDATE jobs SET state = 'done' WHERE id = :id AND locked_by = :worker;
"""
LEASE = 'lease = "30 seconds"'
ENDS = "complete(id, worker)!"
GONE = "DELETE FROM jobs RETURNING id"
CHAINS = "attempt;\nBEGIN;\nCOMMIT AND CHAIN;"
INT4, TEXT, INT8, INTERVAL, JSONB, TIMESTAMPTZ = 23, 25, 20, 1186, 3802, 1184
PATH = Path("q.sql")
OFFERED = frozenset({"install", "enqueue", "claim", "complete"})
FAIL = "\n-- name: fail{}\nBEGIN;\nUPDATE jobs SET e = :error WHERE id = :id;\nSELECT 1;\nCOMMIT;"
MANY = "\n-- name: complete_many{}\nUPDATE jobs SET a = :worker WHERE id = ANY(:ids) AND :attempts"
BOTH = "\n-- name: complete_and_claim{}\nSELECT :ids, :attempts, :worker, :limit"
TWO_STEPS = """
BEGIN;
SELECT id AS trie, v, :worker FROM jobs;
UPDATE jobs SET a = ANY(:tries) RETURNING id, trie;
SELECT id FROM jobs WHERE id = ANY(:tries);
COMMIT;"""
THREE = """
SELECT 1 AS id; -- else: a remark
-- else
SELECT 2 -- else
  -- else
  AS id;
  --  Else
SELECT 3 AS id;
SELECT 4 AS id WHERE 0 < ALL (:ids);
"""


def queue(extra: str = "", **replaced: str) -> SqlFileQueue:
    """The file with blocks added, or with a block replaced."""
    text = FILE
    for name, block in replaced.items():
        start = text.index(f"-- name: {name}")
        end = text.find("\n-- name:", start + 1) % (len(text) + 1)
        text = f"{text[:start]}-- name: {name}{block}\n{text[end:]}"
    return load_text(text + extra, PATH)


def rows(oid: int = INT8, **columns: Sequence[str]) -> Result:
    """An answer with rows."""
    names = tuple(columns)
    values = [
        {name: Value(text.encode(), oid) for name, text in zip(names, texts, strict=True)}
        for texts in zip(*columns.values(), strict=True)
    ]
    return Result(names, (oid,) * len(names), values, len(values), command="SELECT")


def changed(count: int, command: str = "UPDATE") -> Result:
    """An answer without columns."""
    return Result(affected=count, command=command)


def run(operation: Operation[Any], *results: Result) -> tuple[list[Step], Any]:
    """Drive an operation with prepared answers; its steps and its own answer."""
    steps: list[Step] = []
    answers = iter(results)
    try:
        steps.append(next(operation))
        while True:
            steps.append(operation.send(next(answers)))
    except StopIteration as end:
        return steps, end.value


def job(number: str = "7") -> Claim:
    """A job as claim answers it."""
    return Claim(number, {"id": Value(number.encode(), INT8), "attempt": Value(b"1", INT4)})


def test_header_facts_become_the_queues() -> None:
    """The header's keys are attributes, the rest keep their defaults; a lease may be a session."""
    loaded = queue()
    assert timedelta(seconds=30) == loaded.lease
    assert (loaded.max_attempts, loaded.order, loaded.backoff) == (5, "priority, fifo", None)
    assert (loaded.name, loaded.offers) == ("q.sql", OFFERED)
    assert hashlib.sha256(FILE.encode()).hexdigest()[:12] == loaded.digest
    # Then a claim ends with its connection; without a header nothing ends or bounds it.
    loaded = load_text(FILE.replace('"30 seconds"', '"session"'), PATH)
    assert (loaded.lease, loaded.lease_time) == ("session", None)
    loaded = load_text(FILE[FILE.index("-- name: schema") :], PATH)
    assert (loaded.lease, loaded.max_attempts, loaded.order) == (None, None, "none")


def test_every_key_is_read() -> None:
    """Each key of the contract has its type; spelling and case are tolerant."""
    keys = {  # in the header: as a fact of the queue
        'backoff = "5 min"': ("backoff", timedelta(minutes=5)),
        "jitter = 0.25": ("jitter", 0.25),
        "concurrency_limit = 4": ("concurrency_limit", 4),
        'delivery = "at-least-once"': ("delivery", "at-least-once"),
        "leader = true": ("leader", True),
        "jobs_per_worker = 1": ("jobs_per_worker", 1),
        'stale = "fails"': ("stale", "fails"),
        'isolation = "Repeatable  READ"': ("isolation", "repeatable read"),
        'order = "Priority,FIFO"': ("order", "priority, fifo"),
        'promises = ["old-snapshot"]': ("promises", {"old-snapshot"}),
        'retry_on = ["55P03", "40001"]': ("retry_on", {"55P03", "40001"}),
        'breaks.fencing = "no token"': ("breaks", {"fencing": "no token"}),
    }
    loaded = load_text(queue_file(header="\n".join(keys)), PATH)
    assert {name: getattr(loaded, name) for name, _ in keys.values()} == dict(keys.values())


@pytest.mark.parametrize("header", ['lease = "session"', "leader = true"])
def test_lease_needs_the_header(header: str) -> None:
    """`:lease` without a time in the header is an error where it is used."""
    recovers = "\n-- name: recover(lease)\nDELETE FROM jobs WHERE now() < :lease RETURNING id;"
    with pytest.raises(
        QueueError, match=r"q\.sql:21: :lease is used, but the header declares no lease"
    ):
        load_text(FILE.replace(LEASE, header) + recovers, PATH)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30 seconds", 30),
        ("1 hour 30 minutes", 5400),
        ("5 min", 300),
        ("500 ms", 0.5),
        ("1.5s", 1.5),
        ("00:00:30", 30),
        ("1 day 01:00:00.5", 90000.5),
        ("2 weeks", 1209600),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Durations are spelled as PostgreSQL's intervals are."""
    loaded = load_text(FILE.replace('"30 seconds"', f'"{text}"'), PATH)
    assert timedelta(seconds=seconds) == loaded.lease


def test_markers_in_strings_bodies_and_comments_are_none() -> None:
    """Only a comment that fills its line begins a block."""
    schema = "#\n/*\n-- name: recover\n*/\nSELECT $$\n-- name: fail\n$$ -- name: cleanup\n;"
    assert queue(schema=schema).offers == OFFERED


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (LEASE, 'delivery = "exactly-once"', 3, "'exactly-once' is none of 'at-least-once', 'at-m"),
        (LEASE, "leader = 1", 3, "leader: 1 is neither true nor false"),
        (LEASE, "jobs_per_worker = 2", 3, "jobs_per_worker: 2 is not known; write 1"),
        (LEASE, "jobs_per_worker = true", 3, "jobs_per_worker: True is not known; write 1"),
        (LEASE, 'stale = "dies"', 3, "stale: 'dies' is none of 'fails', 'stays'"),
        (LEASE, "job_per_worker = 1", 3, "key 'job_per_worker'; did you mean jobs_per_worker"),
        (LEASE, 'lease = "sesion"', 3, "lease: 'sesion' is no duration"),
        (LEASE, 'lease = "99999999 weeks"', 3, "lease: it is longer than 36,525 days"),
        ("lease =", "leese =", 3, "unknown key 'leese'; did you mean lease?"),
        ('"30 seconds"', "30", 3, 'write "30 seconds"'),
        ('"30 seconds"', '"1 month"', 3, "no duration"),
        ('"30 seconds"', '"-1 s"', 3, "no duration"),
        ('"30 seconds"', '"99999999999 days"', 3, "it is longer than"),
        ('"30 seconds"', '"0 s"', 3, "longer than zero"),
        ("s = 5", "s = 0", 4, "whole number from 1"),
        ("s = 5", "s = true", 4, "whole number from 1"),
        ("s = 5", "s = 3000000000", 4, "whole number from 1"),
        ("s = 5", "s = ", 4, "not TOML"),
        ("s = 5", "s = many", 4, 'text stands in quotes, as in lease = "30 seconds"'),
        ("s = 5", "s = 5\n-- max_attempts = 6", 5, "this key, or its table, stands there twice"),
        ("priority, fifo", "lifo", 5, "none of 'priority, fifo', 'priority', 'fifo', 'none'"),
        ("max_attempts = 5", "jitter = 1.5", 4, "from 0 to 1"),
        ("-- ///\n", "-- [breaks]\n-- order = 5\n-- ///\n", 7, "order: 5 says no reason"),
        ("max_attempts = 5", "jitter = nan", 4, "from 0 to 1"),
        ("max_attempts = 5", "retry_on = ['1']", 4, "no SQLSTATE"),
        ("max_attempts = 5", "retry_on = '55P03'", 4, "list of strings"),
        ("max_attempts = 5", "isolation = 'snapshot'", 4, "'serializable'"),
        ("max_attempts = 5", "promises = [\n-- 'old-snap']", 5, "did you mean old-snapshot?"),
        ("max_attempts = 5", "breaks = 1", 4, "[breaks]"),
        ("-- ///\n", "-- [breaks]\n-- fence = 'x'\n-- ///\n", 7, "did you mean fencing?"),
        ("-- ///\n", "-- [breaks]\n-- fencing = ''\n-- ///\n", 7, "no reason"),
        ("-- ///\n", "-- [states]\n-- x = 'y'\n-- ///\n", 7, 'states: x = "y": use queued, '),
        ("-- ///\n", "lease\n-- ///\n", 6, "begins with `-- `"),
        ("-- ///\n", "", 2, "never closed"),
        ("-- ///\n", "-- ///\n-- ///\n", 7, "second header"),
        ("/// queue", "/// queu", 2, "unknown header"),
        ("-- name: schema#\n", "-- name: schema#\n-- /// queue\n", 9, "before the first block"),
        ("-- name: schema#\n", "", 8, "text before the first block"),
        ("-- name: schema#", "\\connect jobs\n-- name: schema#", 8, "Is it a command of psql?"),
        ("-- name: schema#", "-- name: shema#", 8, "unknown block shema; did you mean schema?"),
        ("-- name: schema#", "-- name: schema!", 8, "drop the !"),
        ("-- name: schema#", "-- name: schema(", 8, "schema's parameters is not closed"),
        ("-- name: schema#", "-- name: schema?", 8, "only !"),
        ("-- name: schema#", "-- name schema#", 8, "a colon is missing: `-- name: schema`"),
        ("-- name: schema#", "-- name: (a) b", 8, "write a block's name as"),
        ("claim(worker, limit)", "claim(worker, limit)!", 14, "drop the !"),
        ("complete(id, worker)!", "complete!(id, worker)", 17, "name: complete(id, worker)!`"),
        ("(:limit)", "(%(limit)s)", 14, "write :limit for %(limit)s"),
        ("(:limit)", "(:'limit')", 14, "write :limit for :'limit'"),
        ("(:limit)", "(@limit)", 14, "write :limit for @limit"),
        ("(:limit)", "(sqlc.arg('limit'))", 14, "write :limit for sqlc.arg('limit')"),
        ("(:limit)", "(?)", 14, "write :limit for ?"),
        ("claim(worker, limit)", "claim(worker, limit)#", 14, "marks the schema alone"),
        ("claim(worker, limit)", "claim(worker, limit)^", 14, "only !"),
        ("claim(worker, limit)", "claim :many", 14, "drop what sqlc needs"),
        ("claim(worker, limit)", "claim(worker, limt)", 14, "did you mean limit?"),
        ("id = :id", "id = :job_id", 18, "complete has no parameter :job_id, only id, worker"),
        ("id = :id", "id = :job_id", 18, "did you mean :id?"),
        ("complete(id", "complete(idd", 17, "did you mean id?"),
        ("claim(worker, limit)", "claim(worker)", 15, "add limit to its parameter list"),
        ("claim(worker, limit)", "claim(worker, limit, limit)", 14, "declared twice"),
        ("claim(worker, limit)", "claim(worker, )", 14, "no parameter name"),
        ("(:limit)", "(:limt)", 15, "unknown parameter :limt in claim; did you mean limit?"),
        ("':no; -- name: no'", ":no", 9, "schema takes no parameters"),
        ("name: complete(id, worker)!", "name: claim\nSELECT 1;\n-- name: x", 17, "in line 14"),
        ("'done'", "'done", 18, "never closed: UPDATE jobs"),
        ("':no; -- name: no'", "'open", 9, "never closed: CREATE TABLE"),
        ("bigserial", "$$", 9, "never closed"),
        ("UPDATE", "/* UPDATE", 15, "never closed"),
        ("\n\n", "\r\n\r\n", 6, "LF line ends"),
        ("\n\n", "\r\n\r\n", 6, "git config core.autocrlf input"),
        ("-- A", "\N{BYTE ORDER MARK}-- A", 1, "byte order mark"),
        ("bigserial", "\0", 9, "NUL"),
        (ENDS, f"complete_many\nSELECT :id\n-- name: {ENDS}", 18, "and an s"),
        (ENDS, f"complete_many\nSELECT :id\n-- name: {ENDS}", 18, "did you mean :ids?"),
        (ENDS, "complete_and_claim\nSELECT :ids, :limit\n-- name: fail", 17, "needs complete or"),
        (ENDS, f"jobs\nDELETE FROM jobs RETURNING id;\n-- name: {ENDS}", 18, "jobs only reads"),
        (ENDS, f"jobs\nWITH a AS ({GONE}) TABLE a;\n-- name: {ENDS}", 18, "jobs only reads"),
        ("UPDATE jobs SET locked", "-- else\nUPDATE jobs SET locked", 15, "between two statements"),
        ("attempt;", "attempt;\n-- else\n", 16, "`-- else` stands between two statements"),
        ("(:limit)", "($1)", 15, "write :worker or the like, not"),
        ("CREATE", "COPY jobs TO STDOUT;\nCREATE", 9, "COPY from or to the client is no step"),
        ("UPDATE", "copy jobs (id) from stdin;\nUPDATE", 15, "COPY from or to the client is no"),
        ("attempt;", CHAINS, 17, "AND CHAIN leaves claim in another"),
    ],
)
def test_mistakes_are_located_and_named(old: str, new: str, line: int, says: str) -> None:
    """One clear message for each mistake, with file, line and the nearest name."""
    assert old in FILE
    with pytest.raises(QueueError) as caught:
        load_text(FILE.replace(old, new, 1), PATH)
    assert Source(PATH, line) == caught.value.source
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "claim",
    [
        "PREPARE pick AS SELECT id FROM jobs LIMIT $1;\nEXECUTE pick(1);",  # parameters of its own
        "COPY jobs FROM '/file';\nSELECT 1 AS id;",  # which the server reads
        "BEGIN;\nSELECT 1 AS id;\nCOMMIT AND CHAIN;\nSELECT 2;\nCOMMIT AND NO CHAIN;",
    ],
    ids=["PREPARE", "COPY", "CHAIN"],
)
def test_what_looks_like_a_mistake_and_is_none_is_loaded(claim: str) -> None:
    """What is refused elsewhere has a meaning here."""
    assert queue(claim=f"\n{claim}").blocks["claim"].statements


def test_a_bare_schema_is_told_how_to_become_a_queue_file() -> None:
    """Whoever checks a dump is told what makes a queue file of it."""
    with pytest.raises(QueueError, match=r"q.sql:1: .*init jobs.sql --from-schema q.sql"):
        load_text("CREATE TABLE jobs (id bigserial PRIMARY KEY);\n", PATH)


@pytest.mark.parametrize(
    ("recover", "seconds"),
    [
        ("interval '30 days'", 30 * 86400),
        ("interval '1 hour' * 48", 48 * 3600),
        ("make_interval(days => 2)", 2 * 86400),
        ("(2 || ' days')::interval", 2 * 86400),
        ("interval '2' day", 2 * 86400),
        ("'02:00:00'::interval", 2 * 3600),
        ("to_timestamp(172800)", 172800),
        (":lease", 1),
        ("interval '1 second' * 2 ^ attempts", None),
        ("'1 month'", None),
        ("'P2D'", None),
    ],
)
def test_the_longest_span_is_what_the_sql_can_say(recover: str, seconds: float | None) -> None:
    """A span counts as often as the largest number says; a power and a month have no length."""
    more = (
        f"\n-- name: recover\nUPDATE jobs SET at = now() + {recover} RETURNING id;"
        "\n-- name: fail!\nUPDATE jobs SET at = now() + interval '900 days' * 2 ^ 3 WHERE id = :id;"
    )
    assert queue(more).longest_span == seconds


@pytest.mark.parametrize("name", ["schema", "enqueue", "claim"])
def test_required_blocks_are_missed(name: str) -> None:
    """Schema, enqueue and claim must stand in the file, and not be empty."""
    without = re.sub(rf"-- name: {name}.*?(?=\n-- name:)", "", FILE, flags=re.DOTALL)
    with pytest.raises(QueueError, match=f"there is no block {name}"):
        load_text(without, PATH)
    with pytest.raises(QueueError, match=f"block {name} is empty"):
        queue(**{name: "\n-- nothing\n;"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"-- x\n\xff", ":2: the file is not UTF-8"),
        (b"\xef\xbb\xbf-- x", ":1: the file begins with a byte order mark"),
        (b"", ":1: there is no block schema; write `-- name: schema#`, or include ="),
        (b"\x1f\x8b\x08\xff", ":1: this is compressed by gzip; make it SQL: gunzip"),
        (b"PGDMP\x01\0", ":1: this is pg_dump's custom format; make it SQL: pg_restore -f"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, says: str) -> None:
    """A missing, binary or empty file is one message that names it, as a directory is."""
    path = tmp_path / "q.sql"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(QueueError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    with pytest.raises(QueueError, match="Is a directory"):
        load(tmp_path)


def test_takes_names_the_arguments_a_block_uses() -> None:
    """A job is taken where a parameter is not the operation's own."""
    loaded = queue("\n-- name: heartbeat!\nUPDATE jobs SET a = :lease WHERE locked_by = :worker;")
    assert frozenset() == loaded.takes("install")
    assert {"worker", "limit"} == loaded.takes("claim")
    assert {"worker", "job"} == loaded.takes("complete")
    assert {"worker", "lease"} == loaded.takes("heartbeat")


def test_parameters_have_the_contracts_types() -> None:
    """Values are int4, jsonb, interval or text; a step holds exactly the names it uses."""
    delay = timedelta(seconds=30.5)
    spec = {"payload": "{}", "priority": 2, "delay": delay, "max_attempts": 1}
    operation = queue().begin("enqueue", **spec, queue="unused")
    (step,), answer = run(operation, rows(id=["7"]))
    assert {
        "payload": Value(b"{}", JSONB),
        "priority": Value(b"2", INT4),
        "delay": Value(b"30.5 seconds", INTERVAL),
        "max_attempts": Value(b"1", INT4),
    } == step.params
    assert answer == ["7"]
    assert Source(PATH, 12) == step.source


def test_what_is_not_given_is_the_headers() -> None:
    """`:lease` is, unless the harness works with a shorter one; a silent file counts on 3."""
    silent = load_text(FILE.replace("-- max_attempts = 5\n", ""), PATH)
    operation = silent.begin("enqueue", payload="{}", priority=0, delay=timedelta())
    assert Value(b"3", INT4) == next(operation).params["max_attempts"]
    loaded = queue(claim="\nSELECT id FROM jobs WHERE a < :lease")
    assert Value(b"30 seconds", INTERVAL) == next(loaded.begin("claim")).params["lease"]
    shorter = loaded.begin("claim", lease=timedelta(milliseconds=500))
    assert Value(b"0.5 seconds", INTERVAL) == next(shorter).params["lease"]


def test_a_claims_columns_travel_as_its_token() -> None:
    """Every column goes back as it came, but for a name that is the operation's own."""
    _, (claimed,) = run(queue().begin("claim", worker="w1", limit=1), rows(id=["7"], attempt=["1"]))
    assert Claim("7", {"id": Value(b"7", INT8), "attempt": Value(b"1", INT8)}) == claimed
    steps, accepted = run(queue().begin("complete", worker="w1", job=claimed), changed(1))
    assert {"id": Value(b"7", INT8), "worker": Value(b"w1", TEXT)} == steps[0].params
    assert accepted is True
    token = {**job().token, "worker": Value(b"column", TEXT)}
    (step,), _ = run(queue().begin("complete", worker="w1", job=Claim("7", token)), changed(0))
    assert Value(b"w1", TEXT) == step.params["worker"]


def test_a_column_that_claim_does_not_return() -> None:
    """An unknown parameter is an error at its line, with what there is, or an array's rule."""
    loaded = queue(complete="!\nUPDATE jobs\nSET a = :attemt")
    with pytest.raises(QueueError) as caught:
        run(loaded.begin("complete", job=job()))
    assert Source(PATH, 19) == caught.value.source
    assert "no parameter :attemt, only id, attempt; did you mean :attempt?" in str(caught.value)
    # :batchs is no English, so whoever writes :batch or :batches is told how names are made.
    two = "\n-- name: promote\nSELECT 1 AS batch;\nUPDATE jobs SET a = 1 WHERE b = ANY ({});"
    rule = r"under the column's name and an s, whatever it ends in"
    with pytest.raises(QueueError, match=rf":batch in promote; .*{rule}: did you mean :batchs\?"):
        queue(two.format(":batch"))
    promoting = queue(two.format(":batches")).begin("promote")
    with pytest.raises(QueueError, match=rf":batches, only batchs; .*{rule}; did you mean :batchs"):
        run(promoting, rows(batch=["1"]))


def test_columns_of_a_step_are_arrays_for_later_ones() -> None:
    """Arrays carry the column's type and replace earlier ones; void columns give none."""
    found = [{"trie": Value(t, INT4), "v": Value(b"", VOID)} for t in (b"1", None)]
    first = Result(("trie", "v"), (INT4, VOID), found)
    answers = changed(0), first, rows(id=["7"], trie=["3"]), rows(id=["8", "9"]), changed(0)
    steps, claims = run(queue(claim=TWO_STEPS).begin("claim", worker="w"), *answers)
    assert Values((b"1", None), INT4) == steps[2].params["tries"]
    assert Values((b"3",), INT8) == steps[3].params["tries"]
    assert [claimed.id for claimed in claims] == ["8", "9"]
    assert len(steps) == 5
    loaded = queue(claim="\nSELECT f() AS a, id FROM jobs;\nSELECT :as;")
    row = {"a": Value(b"", VOID), "id": Value(b"7", INT8)}
    with pytest.raises(QueueError, match=r"q.sql:16: claim has no parameter :as, only ids"):
        run(loaded.begin("claim"), Result(("a", "id"), (VOID, INT8), [row]))


@pytest.mark.parametrize("in_transaction", [False, True])
def test_no_row_skips_the_rest(in_transaction: bool) -> None:  # noqa: FBT001
    """A statement with columns and no row ends the block; an open transaction is rolled back."""
    empty = Result(("trie",), (INT4,), in_transaction=in_transaction)
    claim = queue(claim=TWO_STEPS).begin("claim", worker="w")
    steps, claims = run(claim, changed(0), empty, changed(0))
    assert claims == []
    assert ["ROLLBACK"] * in_transaction == [step.sql for step in steps[2:]]


@pytest.mark.parametrize("operation", ["enqueue", "claim", "recover"])
def test_an_answer_without_id_is_an_error(operation: str) -> None:
    """What must carry `id` and does not is named with the columns that came instead."""
    loaded = queue("\n-- name: recover\nSELECT 1;", enqueue="\nSELECT 1", claim="\nSELECT 1")
    with pytest.raises(QueueError, match=f"{operation} must return a column id; .*returned jid"):
        run(loaded.begin(operation), rows(jid=["7"]))
    with pytest.raises(QueueError, match="returned no columns; add RETURNING id") as caught:
        run(loaded.begin(operation), changed(1))
    assert Source(PATH, loaded.blocks[operation].source.line) == caught.value.source
    with pytest.raises(QueueError, match="returns two columns named id: give one another name"):
        run(loaded.begin(operation), Result(columns=("id", "id")))


@pytest.mark.parametrize(
    ("mode", "count", "found", "accepted"),
    [
        ("!", 1, 1, True),
        ("!", 0, 1, False),
        ("!", 1, 0, False),
        ("", 0, 1, True),
        ("", 1, 0, False),
    ],
)
def test_accepted_or_rejected(mode: str, count: int, found: int, accepted: bool) -> None:  # noqa: FBT001
    """With `!` the last change counts, without it the last answer's rows; no row means no."""
    operation = queue(FAIL.format(mode)).begin("fail", job=job(), error="why", worker="w")
    results = changed(0, "BEGIN"), changed(count), rows(x=["1"] * found), changed(0, "COMMIT")
    assert accepted is run(operation, *results)[1]


def test_an_answer_that_can_never_do_is_an_error() -> None:
    """A change without RETURNING and `!`, `!` without a change and a late answer are slips."""
    with pytest.raises(QueueError, match=r"q.sql:17: complete returned no columns.*complete!"):
        run(queue(complete="\nDELETE FROM jobs").begin("complete", job=job()), changed(1))
    with pytest.raises(QueueError, match=r"q.sql:17: complete! changed no data"):
        run(queue(complete="!\nSELECT f()").begin("complete", job=job()), rows(f=["1"]))
    # As where a notification follows the jobs that it is about.
    loaded = queue(enqueue="\nINSERT INTO jobs RETURNING id;\nSELECT pg_notify('', '');")
    told = "returned pg_notify; of several statements the last one with columns answers: put id"
    with pytest.raises(QueueError, match=told):
        run(loaded.begin("enqueue"), rows(id=["7"]), rows(pg_notify=[""]))


def test_complete_many_takes_arrays() -> None:
    """Claim's columns are arrays, the worker one value; none asks nothing, rows are accepted."""
    loaded = queue(MANY.format(""))
    assert {"worker", "jobs"} == loaded.takes("complete_many")
    operation = loaded.begin("complete_many", worker="w", jobs=[job("7"), job("8")])
    (step,), accepted = run(operation, rows(id=["8"]))
    assert {
        "worker": Value(b"w", TEXT),
        "ids": Values((b"7", b"8"), INT8),
        "attempts": Values((b"1", b"1"), INT4),
    } == step.params
    assert frozenset({"8"}) == accepted
    assert run(queue(MANY.format("")).begin("complete_many", worker="w", jobs=[])) == (
        [],
        frozenset(),
    )


@pytest.mark.parametrize(
    ("count", "accepted"), [(2, frozenset({"7", "8"})), (0, frozenset()), (1, None)]
)
def test_complete_many_by_count(count: int, accepted: frozenset[str] | None) -> None:
    """With `!` the batch's size means all, 0 none, another count an unknown subset."""
    loaded = queue(MANY.format("!"))
    operation = loaded.begin("complete_many", worker="w", jobs=[job("7"), job("8")])
    assert accepted == run(operation, changed(count))[1]


def test_complete_and_claim_answers_both() -> None:
    """Rows that say `completed` are accepted, the others claimed with the rest of the columns."""
    loaded = queue(BOTH.format(""))
    assert {"worker", "limit", "jobs"} == loaded.takes("complete_and_claim")
    operation = loaded.begin("complete_and_claim", worker="w", limit=2, jobs=[job("7"), job("8")])
    (step,), (accepted, (claimed,)) = run(operation, rows(id=["8", "9"], completed=["1", "0"]))
    assert Values((b"7", b"8"), INT8) == step.params["ids"]
    assert frozenset({"8"}) == accepted
    assert (claimed.id, list(claimed.token)) == ("9", ["id"])


def test_jobs_are_observed() -> None:
    """`jobs` answers id, state and attempts, if any; a misspelt state is told at its line."""
    loaded = queue("\n-- name: jobs\nSELECT 1;")
    both = rows(id=["1", "2"], state=["queued", "failed"], attempts=["0", "3"])
    _, seen = run(loaded.begin("jobs"), both)
    assert [JobRow("1", "queued", 0), JobRow("2", "failed", 3)] == seen
    _, seen = run(loaded.begin("jobs"), rows(id=["1"], state=["running"]))
    assert [JobRow("1", "running")] == seen
    text = FILE.replace("-- ///\n\n", '-- [states]\n-- pendign = "queued"\n-- ///\n\n')
    jobs = load_text(f"{text}\n-- name: jobs\nSELECT 1;", PATH).begin("jobs")
    with pytest.raises(QueueError, match=r"did you mean pending\?") as caught:
        run(jobs, rows(id=["1"], state=["pending"]))
    assert Source(PATH, 7) == caught.value.source


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (rows(id=["1"], state=["done"]), "the state done; use queued, running"),
        (rows(id=["1"], state=["queued"], attempts=["-1"]), "attempts -1, not a whole number"),
        (rows(id=["1"], status=["queued"]), "a column state; it returned id, status"),
        (rows(id=["1"], state=["queued"], attempts=["x"]), "the attempts x"),
    ],
)
def test_observations_that_are_none(answer: Result, says: str) -> None:
    """An unknown state, a missing column or no number is an error at the block's line."""
    with pytest.raises(QueueError, match=says) as caught:
        run(queue("\n-- name: jobs\nSELECT 1;").begin("jobs"), answer)
    assert Source(PATH, 20) == caught.value.source


def test_install_cleanup_and_start_answer_nothing() -> None:
    """Each runs all its statements; promote alone tells how many."""
    loaded = queue("\n-- name: cleanup\nDELETE FROM jobs WHERE a < now() - :age; SELECT 1")
    assert None is run(loaded.begin("install"), changed(0, "CREATE"))[1]
    steps, answer = run(loaded.begin("cleanup", age=timedelta(days=1)), changed(3), rows(x=["1"]))
    assert (len(steps), answer) == (2, None)
    assert Value(b"1 days", INTERVAL) == steps[0].params["age"]
    loaded = queue(
        "\n-- name: promote\nUPDATE jobs SET id = id;"
        "\n-- name: start(worker)\nINSERT INTO workers VALUES (:worker);"
    )
    assert frozenset({"promote", "start"}) < loaded.offers
    assert run(loaded.begin("promote"), changed(3))[1] == 3
    steps, answer = run(loaded.begin("start", worker="w"), changed(1))
    assert "w" in str(steps[0].params["worker"])
    assert answer is None


STATEMENTS = [
    *("SELECT ':no', $$ ; :no $$", "BEGIN", "SELECT :worker -- ; :no\n"),
    "UPDATE jobs SET a = :worker::text /* ; */ RETURNING id",
]
BODIES = st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4)
SNIPPETS = st.sampled_from(
    ["'", "$$", "/*", "*/", "--", "\n", ";", ":x", "-- name: ", "-- ///\n", '"', "(", "]", "[", "="]
)
PLACES = st.integers(0, len(FILE))


@given(st.dictionaries(st.sampled_from(["claim", "complete", "fail", "heartbeat"]), BODIES))
def test_a_generated_file_comes_back(bodies: dict[str, list[str]]) -> None:
    """Blocks, statements, parameters and lines are those that were written."""
    bodies = {"schema": ["SELECT 1"], "enqueue": ["SELECT 1"], "claim": ["SELECT 1"], **bodies}
    text = "".join(
        f"-- name: {name}\n-- about\n" + ";\n\n".join(statements) + ";\n"
        for name, statements in bodies.items()
    )
    loaded = load_text(text, PATH)
    assert list(bodies) == list(loaded.blocks)
    lines = text.split("\n")
    for name, block in loaded.blocks.items():
        written = [s.partition("--")[0].strip() for s in bodies[name]]
        assert written == [s.text for s in block.statements]
        assert f"-- name: {name}" == lines[block.source.line - 1]
        for statement in block.statements:
            assert lines[statement.source.line - 1].startswith(statement.text)
            assert (":worker" in statement.text) == ("worker" in statement.parameters)


def refusal(text: str) -> QueueError | None:
    """Why a text is no queue file; any other exception is a bug."""
    try:
        load_text(text, PATH)
    except QueueError as error:
        return error
    return None


@given(PLACES, st.integers(0, 30), SNIPPETS | st.text(max_size=5), PLACES, SNIPPETS)
def test_a_mutated_file(start: int, removed: int, inserted: str, second: int, snippet: str) -> None:
    """Whatever is cut out or put in: a queue, or a `QueueError` with a line of the file."""
    text = FILE[:start] + inserted + FILE[start + removed :]
    text = text[:second] + snippet + text[second:]
    error = refusal(text)
    if error is not None:
        assert error.source is not None
        assert 1 <= error.source.line <= text.count("\n") + 1


@given(st.text())
def test_random_text_is_refused(text: str) -> None:
    """Text that is no queue file is a `QueueError` and nothing else."""
    assert refusal(text) is not None


@pytest.mark.parametrize(
    ("text", "oid", "accepted"),
    [("t", 16, True), ("f", 16, False), ("1", INT4, True), ("0", INT8, False), (None, 16, False)],
)
def test_a_column_accepted_decides(text: str | None, oid: int, *, accepted: bool) -> None:
    """A function that always answers a row can say no, by a boolean or a count; text is neither."""
    loaded = queue(complete="(id)\nSELECT done(:id) AS accepted;")
    value = Value(None if text is None else text.encode(), oid)
    row = Result(("accepted",), (oid,), [{"accepted": value}], 1, command="SELECT")
    assert run(loaded.begin("complete", job=job()), row)[1] is accepted
    told = "returned accepted = maybe, neither a boolean nor a count"
    with pytest.raises(QueueError, match=told):
        run(loaded.begin("complete", job=job()), rows(accepted=["maybe"]))


def test_a_heartbeat_replaces_columns_of_the_claim() -> None:
    """What it answers under a claim's name is the token from then on; other columns are not."""
    loaded = queue("\n-- name: heartbeat(id, attempt)\nSELECT beat(:id, :attempt);")
    answer = rows(id=["6", "7"], attempt=["8", "9"], seen=["x", "y"])
    _, renewed = run(loaded.begin("heartbeat", job=job()), answer)
    assert (str(renewed.token["attempt"]), renewed.id) == ("9", "7")
    assert renewed.token.keys() == job().token.keys()
    assert run(loaded.begin("heartbeat", job=job()), rows(seen=["x"]))[1] is True
    assert run(loaded.begin("heartbeat", job=job()), rows(id=[]))[1] is False


@pytest.mark.parametrize(
    ("answers", "texts", "found"),
    [
        (["1", "4"], ["SELECT 1", "SELECT 4"], ["4"]),
        (["", "2", "4"], ["SELECT 1", "SELECT 2", "SELECT 4"], ["4"]),
        (["", "", "3", "4"], ["SELECT 1", "SELECT 2", "SELECT 3", "SELECT 4"], ["4"]),
        (["", "", ""], ["SELECT 1", "SELECT 2", "SELECT 3"], []),
    ],
)
def test_a_statement_behind_else_is_sent_where_the_one_before_it_answered_nothing(
    answers: list[str], texts: list[str], found: list[str]
) -> None:
    """The block goes on behind the first of them that answers, and ends where none does."""
    steps, claims = run(queue(claim=THREE).begin("claim"), *(rows(id=one) for one in answers))
    assert [step.sql[:8] for step in steps] == texts
    assert claims == [Claim(one, {"id": Value(one.encode(), INT8)}) for one in found]


@pytest.mark.parametrize(("counts", "accepted"), [([1], True), ([0, 1], True), ([0, 0], False)])
def test_changes_count_where_there_are_no_columns(counts: list[int], *, accepted: bool) -> None:
    """An ending in one of two tables looks into the second where the first had no such row."""
    update = "UPDATE {}jobs SET done = true WHERE id = :id;\n"
    ends = f"(id)!\n{update.format('')}-- else\n{update.format('old_')}"
    steps, found = run(queue(complete=ends).begin("complete", job=job()), *map(changed, counts))
    assert (len(steps), found) == (len(counts), accepted)


def test_else_needs_something_that_answers_before_it() -> None:
    """Behind what neither answers nor changes rows the line says nothing, and is refused."""
    begun = queue(claim="\nBEGIN;\n-- else\nSELECT 1 AS id;\n").begin("claim")
    with pytest.raises(QueueError, match=r"q\.sql:17: `-- else` stands behind what answers rows"):
        run(begun, changed(0, "BEGIN"))


def test_now_is_what_the_worker_s_clock_shows() -> None:
    """Any block but the schema's may take the time as a timestamptz; here it is this process'."""
    file = queue(claim="(now)\nSELECT 1 AS id WHERE :now > now();")
    assert file.sends_time
    assert not queue().sends_time
    step = next(file.begin("claim", now=datetime(2030, 1, 2, 3, 4, 5, 678900, UTC)))
    assert step.params == {"now": Value(b"2030-01-02 03:04:05.678900+00:00", TIMESTAMPTZ)}
    shown = datetime.fromisoformat(str(next(file.begin("claim")).params["now"]))
    assert abs(shown - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(QueueError, match=r"schema takes no parameters, and uses :now"):
        load_text("-- name: schema#\nSELECT :now;", PATH)


ENTRY = "-- order = {}\n"
HEADERS = {
    "no header": ("-- A queue.\n", f"-- /// queue\n-- [breaks]\n{ENTRY}-- ///\n\n-- A queue.\n"),
    "no table": (
        '-- A queue.\n-- /// queue\n-- lease = "5 s" # why\n-- ///\n',
        f'-- A queue.\n-- /// queue\n-- lease = "5 s" # why\n-- [breaks]\n{ENTRY}-- ///\n',
    ),
    "a table with comments": (
        '-- /// queue\n-- [breaks]\n-- # one\n-- fencing = "why"\n--\n-- # end\n-- ///\n',
        f'-- /// queue\n-- [breaks]\n-- # one\n-- fencing = "why"\n{ENTRY}--\n-- # end\n-- ///\n',
    ),
    "a key of the same name": (
        '-- /// queue\n-- order = "fifo"\n-- [breaks]\n-- ///\n',
        f'-- /// queue\n-- order = "fifo"\n-- [breaks]\n{ENTRY}-- ///\n',
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_break_is_added_and_nothing_else_changes(name: str) -> None:
    """Comments, order and layout stay; the file that results is read with both its old and new."""
    before, after = HEADERS[name]
    body = FILE[FILE.index("-- name: schema#") :].replace(":lease", "now()")
    read = load_text(before + body, PATH)
    text = read.with_breaks({"order": 'TODO: "why"'})
    assert text == after.format('"TODO: \\"why\\""') + body
    again = load_text(text, PATH)
    assert again.breaks == {**read.breaks, "order": 'TODO: "why"'}
    source = again.source_of_break("order")
    assert source is not None
    assert "TODO" in text.splitlines()[source.line - 1]


def test_a_header_that_takes_no_entry_is_refused_with_its_line() -> None:
    """Breaks that stand in one line are no table that could grow."""
    header = '-- /// queue\n-- breaks = {fencing = "why"}\n-- ///\n'
    body = FILE[FILE.index("-- name: schema#") :]
    with pytest.raises(QueueError, match=r"q\.sql:3: no entry can be added to \[breaks\]"):
        load_text(header + body, PATH).with_breaks({"order": "TODO: why"})
