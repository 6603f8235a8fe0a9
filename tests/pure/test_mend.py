"""Safe forms put into a queue's file: which are offered, and that nothing else is touched."""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from queueproof.advice import search
from queueproof.advice.blocks import WHOLE
from queueproof.advice.catalogue import Fix, changed, fixes
from queueproof.advice.forms import FORMS as FORMS_OF_ONE
from queueproof.advice.reading import Draft
from queueproof.advice.remedies import cause_of, in_own_names, with_remedies
from queueproof.advice.search import Goal, Outcome, as_diff, said, source
from queueproof.errors import QueueproofError, Source
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.postgres import Server
from queueproof.queues.filetext import QueueText
from queueproof.queues.model import Queue
from queueproof.queues.sqlfile import SqlFileQueue, load, load_text
from queueproof.report.card import Break, Card, Judgement
from queueproof.report.story import Account, Part
from queueproof.report.text import with_code
from tests.fix_histories import each
from tests.fix_places import BROKEN, REFERENCE, SKIP_LOCKED
from tests.fix_programs import finished
from tests.fix_queues import CLAIM, FREE, queue_file

FORMS = {
    "single_claim_select_then_update": "claim: status = 'queued' asked instead",
    "claim_limit_in_subselect": "claim: = ANY (ARRAY(…)) instead of IN",
    "claim_limit_from_subselect": "claim: a CTE instead of FROM (SELECT …)",
    "fencing_id_only": "complete: asks for attempts = :attempt",
    "fencing_batch_attempts": "complete_many: job.attempts = batch.attempt asked instead",
    "fencing_batch_receipts": "complete: asks for attempts = :attempt, which the claim returns",
    "final_state_completed_lease": "recover: asks for status = 'running'",
    "live_lease_recover_all": "recover: asks for locked_at < now() - :lease",
    "live_lease_fresh_start": "start: asks for locked_at < now() - interval '30 seconds'",
    "live_lease_heartbeat_adds": "heartbeat: sets visible_at = now() + :lease",
    "live_lease_heartbeat_ignored": "heartbeat: sets locked_at = now()",
    "stale_recovery_last_attempt": "recover: condition `attempts < max_attempts` dropped",
    "stale_recovery_null_lease": "claim: sets locked_at = now()",
    "non_blocking_for_update": "claim: SKIP LOCKED added",
    "non_blocking_recover": "recover: SKIP LOCKED added",
    "no_starvation_nowait_held": "claim: SKIP LOCKED instead of NOWAIT",
    "no_deadlock_one_statement": "complete_many: ORDER BY id added",
    "backoff_overflow": "fail: exponent capped",
    "backoff_error_too_long": "fail: error cut to 200 characters",
    "backoff_error_by_hand": "fail: jsonb_build_object(...) instead of text put together",
    "retry_bound_off_by_one": "claim: compares attempts with max_attempts",
    "not_early_first_attempt": "claim: run_at <= now() asked instead",
    "server_clock_local_timestamp": "schema: timestamptz in the schema",
    "crash_safe_two_step_recover": "recover: BEGIN and COMMIT around it",
    "isolation_lock_after_snapshot": "claim: READ COMMITTED",
    "pooler_safe_currval": "enqueue: RETURNING id instead of currval",
    "pooler_safe_session_lock": "claim: locks and settings of the transaction",
    "pooler_safe_worker_setting": "claim: locks and settings of the transaction",
    "routing_pattern": "claim: queue = :queue asked instead",
}
"""A safe form for a broken queue."""


def draft(name: str) -> Draft:
    """A broken queue."""
    path = BROKEN / f"{name}.sql"
    return Draft(load(path).whole, path)


@cache
def offered(name: str) -> dict[str, Fix]:
    """The safe forms for what a broken queue breaks."""
    queue = draft(name)
    broken = queue.text.partition("\n")[0].removeprefix("-- breaks: ")
    return {fix.what: fix for fix in fixes(queue, broken)}


def remedies(queue: SqlFileQueue, *found: Judgement) -> list[str | None]:
    """What is said of each guarantee of a queue's card."""
    card = with_remedies(Card("q.sql", "PostgreSQL 18", 0, 1.0, found), queue)
    return [one.remedy for one in card.guarantees]


def own_names(queue: SqlFileQueue) -> dict[str, str]:
    """The remedy of each guarantee, in the names of a queue."""
    draft = Draft(source(queue).text, queue.name)
    return {name: in_own_names(one.safe, draft) for name, one in CATALOGUE.items()}


def written(folder: Path, text: str) -> SqlFileQueue:
    """A queue file that is written, and loaded."""
    (folder / "q.sql").write_text(text, encoding="utf-8")
    return load(folder / "q.sql")


@pytest.mark.parametrize("name", FORMS)
def test_the_safe_form_of_a_defect_is_offered(name: str) -> None:
    """It is among those that may mend what the queue breaks, and changes few of its lines."""
    fix = offered(name)[FORMS[name]]
    assert 0 < fix.size <= 12
    assert fix.size == changed(draft(name).text, fix.text)


def test_a_recovery_without_a_lock_is_given_one() -> None:
    """The reaper of every blog post is one UPDATE, which waits for whoever has the row."""
    head, _, rest = SKIP_LOCKED.partition("-- name: recover(lease)\n")
    plain = (
        "UPDATE jobs\nSET status = 'queued', locked_at = NULL\n"
        "WHERE status = 'running'\n  AND locked_at < now() - :lease\nRETURNING id;\n\n"
    )
    text = f"{head}-- name: recover(lease)\n{plain}{rest[rest.index('-- name:') :]}"
    found = {fix.what: fix for fix in fixes(Draft(text, "q.sql"), "non-blocking")}
    mended = found["recover: chooses rows FOR UPDATE SKIP LOCKED first"].text
    assert "WHERE id = ANY (ARRAY(\n  SELECT id\n  FROM jobs\n  WHERE status" in mended
    locks = "    AND locked_at < now() - :lease\n  ORDER BY id\n  FOR UPDATE SKIP LOCKED\n))"
    assert locks in mended


def test_an_end_does_not_pass_by_its_own_job() -> None:
    """Its holder would be refused while somebody else has the row for a moment."""
    text = SKIP_LOCKED.replace("WHERE jobs.id = batch.id FOR UPDATE", "WHERE jobs.id = batch.id")
    found = [fix for fix in fixes(Draft(text, "q.sql"), "no-deadlock") if "SKIP" in fix.what]
    assert "complete_many" not in {fix.block for fix in found}


def test_every_form_says_what_it_may_mend() -> None:
    """Each names guarantees of the catalogue."""
    for form in (*FORMS_OF_ONE, *WHOLE):
        assert form.mends.split()
        assert set(form.mends.split()) <= set(CATALOGUE)


def test_a_change_touches_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that is not the change's own is kept; `git apply` makes the mended files of it."""
    queue = draft("fencing_id_only")
    lines = queue.text.splitlines()
    for fix in offered("fencing_id_only").values():
        matcher = difflib.SequenceMatcher(None, lines, fix.text.splitlines(), autojunk=False)
        kept = sum(block.size for block in matcher.get_matching_blocks())
        assert len(lines) - kept <= 4, fix.what
        blocks = Draft(fix.text, queue.path).queue.blocks
        for name, block in queue.queue.blocks.items():
            assert blocks[name].used.keys() >= block.used.keys()
    monkeypatch.chdir(tmp_path)
    text, path = draft("fencing_id_only").text, tmp_path / "queue.sql"
    mended = offered("fencing_id_only")[FORMS["fencing_id_only"]].text
    for before in (text, text.rstrip("\n")):
        path.write_text(before, encoding="utf-8")
        diff = as_diff(QueueText(before, path), mended, {path: before})
        finished("git", "apply", input=diff, check=True)
        assert path.read_text(encoding="utf-8") == mended
    (tmp_path / "base.sql").write_text(text, encoding="utf-8")
    own = f"-- name: schema#\n{text.partition('-- name: schema#')[2].partition('-- name:')[0]}"
    path.write_text(f'-- /// queue\n-- extends = "base.sql"\n-- ///\n\n{own}', encoding="utf-8")
    file = load(path).file
    after = file.text.replace("  AND locked_by = :worker", "  AND locked_by = :worker\n  AND true")
    after = after.replace("payload      jsonb", "payload      json ")
    texts = {one: one.read_text(encoding="utf-8") for one in file.paths}
    diff = as_diff(file, after, texts)
    assert {"+++ b/base.sql", "+++ b/queue.sql"} < set(diff.splitlines())
    finished("git", "apply", input=diff, check=True)
    assert load(path).whole == after


def test_only_an_sql_file_can_be_mended() -> None:
    """Of a class there is no SQL file to change."""
    with pytest.raises(QueueproofError, match=":Queue is none"):
        source(Queue())
    assert source(load(REFERENCE)).text == SKIP_LOCKED


LEASED = {"header": 'lease = "30 seconds"', "complete": "", "jobs": ""}
DELIVERIES = queue_file(
    **LEASED,
    table="CREATE TABLE deliveries (id bigserial, state text DEFAULT 'pending',"
    " due timestamptz, tries int, locked_until timestamptz);",
    enqueue="(delay)\nINSERT INTO deliveries (due) VALUES (now() + :delay) RETURNING id;",
    claim="""(lease)
UPDATE deliveries SET state = 'in_flight', tries = tries + 1, locked_until = now() + :lease
WHERE id = (SELECT id FROM deliveries WHERE due <= now() LIMIT 1) RETURNING id, tries AS attempt;
""",
)
NUMBERED = queue_file(
    **LEASED,
    table="CREATE TABLE jobs (id bigserial, due_at bigint, vt {kind});",
    more="CREATE FUNCTION now_ms() RETURNS bigint RETURN extract(epoch FROM now()) * 1000;",
    enqueue="""(delay)
INSERT INTO jobs (due_at) VALUES (extract(epoch FROM now() + :delay) * 1000) RETURNING id;""",
    claim="""(lease)
UPDATE jobs SET vt = now_ms() + :lease
WHERE id = (SELECT id FROM jobs WHERE due_at <= now_ms() LIMIT 1) RETURNING id;""",
    heartbeat="!\nUPDATE jobs SET vt = {anew} WHERE id = :id;",
)
FLAGGED = queue_file(
    table="CREATE TABLE inbox (id bigserial, stage text, held boolean, receipt uuid);",
    enqueue="INSERT INTO inbox (stage) VALUES ('new') RETURNING id;",
    claim="""
UPDATE inbox SET {claimed}, receipt = gen_random_uuid()
WHERE id = (SELECT id FROM inbox LIMIT 1) RETURNING id, receipt;""",
    complete="""(id, receipt)!
DELETE FROM inbox WHERE id = :id AND receipt = :receipt AND stage IN ('taken', 'begun');""",
    heartbeat="(id)!\nUPDATE inbox SET stage = 'begun' WHERE id = :id;",
    jobs="",
)


def test_a_remedy_has_the_queue_s_own_names(tmp_path: Path) -> None:
    """Table, columns, states and parameters are those of the file; what it does not tell stays."""
    queue = written(tmp_path, DELIVERIES)
    own = own_names(queue)
    assert "WHERE id = :id AND state = 'in_flight' AND tries = :attempt`." in own["fencing"]
    assert "state = 'in_flight' AND locked_until < now()`, and end" in own["stale-recovery"]
    assert "(`tries = tries + 1`)" in own["retry-bound"]
    assert "tries >= max_attempts" in own["retry-bound"]
    assert "id FROM deliveries WHERE" in own["single-claim"]
    assert own_names(load(REFERENCE))["fencing"] == CATALOGUE["fencing"].safe
    found = (Judgement("fencing", "broken", "r", "story"), Judgement("order", "holds", "r"))
    assert remedies(queue, *found) == [own["fencing"], None]


def test_a_time_that_is_a_number_is_compared_with_one(tmp_path: Path) -> None:
    """Where a column has seconds or milliseconds since 1970, no remedy compares it with now()."""
    text = NUMBERED.format(kind="bigint", anew="now_ms() + :lease")
    own = own_names(written(tmp_path, text))
    assert "vt < extract(epoch FROM now()) * 1000`, and end" in own["stale-recovery"]
    assert "ceil(extract(epoch FROM clock_timestamp() + delay) * 1000)`. Every" in own["not-early"]
    assert "due_at <= extract(epoch FROM now()) * 1000`." in own["not-early"]
    assert "due_at = ceil(extract(epoch FROM clock_timestamp() + least(" in own["backoff"]
    assert "- 1, 16))) * 1000)`. What" in own["backoff"]
    seconds = own_names(written(tmp_path, text.replace(" * 1000", "")))
    assert "vt < extract(epoch FROM now())`, and end" in seconds["stale-recovery"]


@each("""
    kind => anew => advice
    timestamptz => vt + :lease => adds to vt: set it from the clock, `vt = now
    bigint => 30 + jobs.vt => vt = ceil(extract(epoch FROM now() + lease) * 1000)`. Also
    timestamptz => now() + :lease => The statement that frees a job
    timestamptz => greatest(vt, now() + :lease) => The statement that frees a job
""")
def test_a_heartbeat_should_not_add_up(tmp_path: Path, kind: str, anew: str, advice: str) -> None:
    """A late heartbeat that adds to a lease that is over leaves less than a lease."""
    queue = written(tmp_path, NUMBERED.format(kind=kind, anew=anew))
    (told,) = remedies(queue, Judgement("live-lease", "broken", "r", "story"))
    assert advice in str(told)
    assert "`FOR UPDATE SKIP LOCKED` in the sub-select" in str(told)


def test_what_stands_in_an_included_file_is_left_alone(tmp_path: Path) -> None:
    """A queue beside its schema gets its safe forms, in its own names of states."""
    text = draft("single_claim_select_then_update").text
    head, _, rest = text.partition("-- name: schema#\n")
    schema, _, blocks = rest.partition("-- name: enqueue")
    path = tmp_path / "queue.sql"
    path.with_name("schema.sql").write_text(schema)
    included = head.replace("-- lease", '-- include = ["schema.sql"]\n-- lease', 1)
    text = f"{included}-- name: enqueue{blocks}"
    found = fixes(Draft(text, path), "single-claim")
    assert FORMS["single_claim_select_then_update"] in {fix.what for fix in found}
    named = text.replace("'queued'", "'waiting'").replace(
        "-- ///\n\n", '-- [states]\n-- waiting = "queued"\n-- ///\n\n', 1
    )
    assert Draft(named, path).jobs.states["queued"] == "'waiting'"
    short = text.replace("now() - :lease", "now() - interval '10 seconds'")
    short = short.replace("recover(lease)", "recover")
    offered = {fix.what for fix in fixes(Draft(short, path), "live-lease")}
    assert "recover: locked_at < now() - :lease asked instead" in offered


@each("""
    claimed => asked
    stage = 'taken' => stage IN ('taken', 'begun')
    held = true => held = true
    held = true => receipt = :receipt
""")
def test_an_operation_asks_what_others_ask(claimed: str, asked: str) -> None:
    """In its author's words; and for the flag that a claim sets, where there is no state."""
    found = fixes(Draft(FLAGGED.format(claimed=claimed), "q.sql"), "final-state")
    beats = [fix.text for fix in found if fix.what.startswith("heartbeat: asks for")]
    assert any(f"WHERE id = :id AND {asked};" in text for text in beats)


def test_where_a_change_goes_is_told() -> None:
    """With the line before it, where one stands twice; also behind the last line, as a COMMIT."""
    place = Source(Path("q.sql"), 1)
    before = "a\n  AND due\nb\n AND due\nc\n"
    told = said(
        before, Fix("x", "claim", "a\n  AND due\nb\n AND due\n AND s\nc\n", 1, last=False), place
    )
    assert with_code(told)[1].splitlines() == ["  b", "   AND due", "+  AND s"]
    before = "-- name: fail(id)\nUPDATE jobs SET x = 1 WHERE id = :id;"
    after = before.replace("\nUPDATE", "\nBEGIN;\nUPDATE") + "\nCOMMIT;\n"
    told = said(before, Fix("fail: BEGIN and COMMIT", "fail", after, 2, last=False), place)
    assert told.startswith("fail: BEGIN and COMMIT (q.sql:1).\n\n")
    assert "This change was tried: the break is gone." in told
    begun, ended = before.splitlines()
    assert with_code(told)[1].splitlines() == [f"  {begun}", "+ BEGIN;", f"  {ended}", "+ COMMIT;"]


LISTED = """
SELECT id FROM jobs WHERE status = 'queued' AND ended IS NULL LIMIT :limit;
UPDATE jobs SET status = 'running' WHERE id = ANY (:ids) RETURNING id;"""
JOINED = """
UPDATE jobs SET status = 'running' WHERE id = (
SELECT j.id FROM jobs j JOIN bodies ON bodies.id = j.id LIMIT 1 FOR UPDATE OF bodies SKIP LOCKED)
RETURNING id;"""
NOTED = """
WITH gone AS (UPDATE jobs SET status = 'queued' WHERE beat < now() - interval '1 h' RETURNING id)
INSERT INTO lapses SELECT id FROM gone RETURNING id;"""
MERGED = """(payload)
INSERT INTO jobs (key, due) VALUES (:payload, now()) ON CONFLICT (key) DO UPDATE
SET due = EXCLUDED.due RETURNING id;"""
COUNTS = {
    "fail": "(id)!\nUPDATE jobs SET status = 'queued', tries = tries + 1 WHERE id = :id;",
    "recover": "\nUPDATE jobs SET status = 'queued' WHERE status = 'running' RETURNING id;",
}
PAIRS = """(ids, receipts)
UPDATE jobs SET status = 'completed' WHERE id = ANY (:ids) AND receipt = ANY (:receipts)
RETURNING id;"""
WHOLE_JOIN = JOINED.replace("OF bodies ", "")
EITHER = """(queue)
UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs
WHERE (lane = :queue AND status = 'queued' OR beat < now()) LIMIT 1) RETURNING id;"""
LANED = "(queue)\nINSERT INTO jobs (lane) VALUES (:queue) RETURNING id;"
SLOTS = """(id)!
WITH ended AS (UPDATE jobs SET status = 'completed' WHERE id = :id RETURNING id),
free AS (UPDATE slots SET job = NULL WHERE job = :id) SELECT id FROM ended;"""
MINUTES = """(lease)
UPDATE jobs SET ends = now() + extract(minutes FROM :lease) * interval '1 s' RETURNING id;"""
LEASE = 'lease = "1 minute"'
OTHERS = """(age)
DELETE FROM jobs WHERE status NOT IN ('queued', 'running') AND due < now() - :age;"""
FREED = """(id, worker)!
WITH {0} AS (UPDATE jobs SET status = 'completed' WHERE id = :id RETURNING id),
freed AS (UPDATE slots SET job = NULL FROM {0} WHERE {1}) SELECT id FROM {0};"""
ENDED = "\nUPDATE jobs SET status = 'completed'{} WHERE id = ANY (:ids) RETURNING id;"
BEHIND = """
UPDATE jobs SET status = 'queued' WHERE id = ANY (ARRAY(
  SELECT id FROM jobs ORDER BY id LIMIT 10
)) AND due <= now() RETURNING id;"""
BY_NUMBER = """
WITH old AS (SELECT id, tries < 3 AS again, tries >= most AS over FROM jobs) SELECT id FROM old;"""
SEEN = f"""
INSERT INTO workers (name, seen) VALUES (:worker, now()) ON CONFLICT (name) DO NOTHING;
{FREE};"""
MARKED = "({})\nUPDATE jobs SET until = {} WHERE {} RETURNING id;"
SILENT = """
WITH silent AS (SELECT name FROM workers WHERE seen < now()),
old AS (SELECT j.id FROM silent JOIN jobs j ON j.owner = silent.name FOR UPDATE OF j)
UPDATE jobs SET status = 'queued' FROM old WHERE jobs.id = old.id RETURNING jobs.id;"""
LOGGED = """CREATE FUNCTION done(n int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  UPDATE jobs SET n = n WHERE n = n;
  INSERT INTO log VALUES (n);
  RETURN FOUND;
END $$;"""
RUN = """(id)!
WITH ended AS (UPDATE runs SET outcome = 'ok' WHERE job = :id AND outcome IS NULL RETURNING job)
UPDATE jobs SET status = 'completed' WHERE id = :id;"""
LOST = """
UPDATE jobs SET status = 'queued' WHERE id IN (
SELECT jobs.id FROM runs JOIN jobs ON jobs.id = runs.job WHERE runs.ends < now()) RETURNING id;"""
TURNED = CLAIM.replace("ORDER BY id LIMIT 1", "ORDER BY due, rank, id LIMIT :limit")
TAKES_OVER = "\nUPDATE jobs SET n = n + 1 WHERE ends < now() RETURNING id;"
KEPT = """(id)!
WITH ended AS (UPDATE jobs SET status = CASE WHEN n < 3 THEN 'queued' ELSE 'failed' END
WHERE id = :id RETURNING id, status), freed AS (UPDATE slots SET job = NULL FROM ended
WHERE slots.job = ended.id AND ended.status = 'failed') SELECT id FROM ended;"""
HOLDER = (
    "(id, receipt)!\nUPDATE jobs SET status = 'completed' WHERE id = :id AND receipt = :receipt;"
)
AMONG = """
UPDATE jobs SET status = 'running'
WHERE id IN (SELECT id FROM jobs WHERE due IS NULL LIMIT 9) RETURNING id;"""
BOUNDED = {
    "header": "max_attempts = 3",
    "claim": """
UPDATE jobs SET status = 'running', tries = tries + 1 WHERE id = (SELECT id FROM jobs
WHERE tries < most LIMIT 1) RETURNING id;""",
}
NINE = "(payload)\nINSERT INTO jobs (payload, most) VALUES (:payload, 9) RETURNING id;"
UNBOUNDED = "(payload)\nINSERT INTO jobs (payload) VALUES (:payload) RETURNING id;"
BEGUN = "\nUPDATE jobs SET status = 'running', at = now() WHERE status = 'queued' RETURNING id;"
HOURLY = """()
UPDATE jobs SET status = 'queued' WHERE status = 'running' AND at < now() - interval '1 h'
RETURNING id;"""
SHARED = """
UPDATE jobs SET status = 'running'
WHERE id = (SELECT id FROM jobs WHERE status = 'queued' LIMIT 1 FOR SHARE SKIP LOCKED)
RETURNING id;"""
GONE = """(names)
SELECT name FROM workers WHERE old;
UPDATE jobs SET status = 'queued' WHERE worker = ANY (:names) RETURNING id;"""
DOUBLED = """(id, error)!
INSERT INTO failures SELECT now()::timestamp + interval '1 s' * 2 ^ (n - 1), :error FROM jobs
WHERE id = :id;"""
FAILS = """(id)!
UPDATE jobs SET s = CASE WHEN n < 3 THEN 'new' ELSE 'dead' END WHERE id = :id;"""
DELETES = """()
DELETE FROM jobs WHERE status = 'running' AND at < now() - interval '1 h' RETURNING id;"""
MADE = {
    "another number": (
        "retry-bound",
        BOUNDED | {"enqueue": NINE},
        "(payload, max_attempts)\nINSERT INTO jobs (payload, most) VALUES (:payload, :max_att",
    ),
    "no number": (
        "retry-given",
        BOUNDED | {"enqueue": UNBOUNDED},
        "(payload, most) VALUES (:payload, :max_attempts)",
    ),
    "a number in a claim": (
        "retry-bound",
        BOUNDED | {"claim": BOUNDED["claim"].replace("< most", "< 9"), "enqueue": UNBOUNDED},
        "WHERE tries < 3 LIMIT",
    ),
    "another lease": (
        "stale-recovery",
        {"header": LEASE, "claim": BEGUN, "recover": HOURLY},
        "UPDATE jobs SET status = 'queued' WHERE status = 'running' AND at < now() - :lease",
    ),
    "once": (
        "non-blocking",
        {"claim": AMONG},
        "= ANY (ARRAY(SELECT id FROM jobs WHERE due IS NULL LIMIT 9\n  FOR UPDATE SKIP LOCKED))",
    ),
    "listed": ("final-state", {"claim": LISTED}, "WHERE id = ANY (:ids) AND ended IS NULL"),
    "of another table": ("single-claim", {"claim": JOINED}, "FOR UPDATE OF j SKIP LOCKED"),
    "of all": ("no-starvation", {"claim": WHOLE_JOIN}, "FOR UPDATE OF j SKIP LOCKED"),
    "or": ("routing", {"claim": EITHER, "enqueue": LANED}, "OR beat < now())\n  AND lane = :queue"),
    "met": ("stale-recovery", {"recover": NOTED}, "FROM gone ON CONFLICT DO NOTHING RETURNING"),
    "upserted": (
        "single-claim",
        {"enqueue": MERGED, "complete": HOLDER},
        "SET due = CASE WHEN jobs.receipt IS NULL THEN EXCLUDED.due ELSE jobs.due END",
    ),
    "as a failure": (
        "retry-bound",
        COUNTS,
        "SET status = 'queued', tries = tries + 1 WHERE status = 'running'",
    ),
    "pairs": (
        "fencing",
        {"complete_many": PAIRS},
        "WHERE (id, receipt) IN (SELECT * FROM unnest(:ids::bigint[], :receipts::uuid[]))",
    ),
    "beside": ("concurrency-limit", {"complete": SLOTS}, "AND EXISTS (SELECT FROM ended))"),
    "field": (
        "live-lease",
        {"claim": MINUTES, "header": LEASE},
        "(extract(epoch FROM :lease) / 60)",
    ),
    "shared": ("single-claim", {"claim": SHARED}, "LIMIT 1 FOR UPDATE SKIP LOCKED)"),
    "gone": ("live-lease", {"recover": GONE}, "FROM workers WHERE old FOR UPDATE SKIP LOCKED;"),
    "doubled": (
        "backoff",
        {"fail": DOUBLED},
        "interval '1 s' * 2 ^ LEAST(n - 1, 10), :error FROM jobs",
    ),
    "zoneless": ("server-clock", {"fail": DOUBLED}, "SELECT now() + interval"),
    "deleted": ("stale-recovery", {"fail": FAILS, "recover": DELETES}, "DELETE FROM jobs"),
    "freed": (
        "concurrency-limit",
        {
            "complete": FREED.format("done", "slots.owner = :worker"),
            "fail": FREED.format("lost", "slots.job = lost.id AND :worker <> ''"),
        },
        "\n  AND slots.job = done.id",
    ),
    "cleared": (
        "final-state",
        {
            "complete": f"(ids){ENDED.format(', owner = NULL')}",
            "complete_many": f"(ids){ENDED.format('')}",
        },
        "-- name: complete_many(ids)\nUPDATE jobs SET status = 'completed', owner = NULL",
    ),
    "first": ("no-starvation", {"promote": BEHIND}, "FROM jobs\n  WHERE due <= now() ORDER BY id"),
    "committed": (
        "single-claim",
        {"fail": "(id)\nSELECT 1;\nCOMMIT;\nUPDATE jobs SET due = now() WHERE id = :id;"},
        "(id)\nSELECT 1;\nUPDATE jobs SET due = now() WHERE id = :id;\nCOMMIT;",
    ),
    "numbers": (
        "retry-given",
        {"fail": "\nSELECT d->>'n' < (d ->> 'max') FROM jobs;"},
        "SELECT (d->>'n')::int < (d ->> 'max')::int FROM jobs",
    ),
    "shifted": (
        "backoff",
        {"more": "CREATE FUNCTION w(n int) RETURNS int RETURN 30 * (1 << (n - 1)) + power(2, n);"},
        "(1 << LEAST(n - 1, 10))",
    ),
    "raised": (
        "backoff",
        {"more": "CREATE FUNCTION w(n int) RETURNS int RETURN 30 * (1 << (n - 1)) + power(2, n);"},
        "power(2, LEAST(n, 10))",
    ),
    "found": (
        "fencing",
        {"more": LOGGED},
        "n = n;\n  IF NOT FOUND THEN RETURN false; END IF;\n  INSERT INTO log",
    ),
    "run by run": (
        "live-lease",
        {"complete": RUN, "recover": LOST},
        "AND runs.outcome IS NULL) RETURNING id;",
    ),
    "with its run": ("fencing", {"complete": RUN}, "AND EXISTS (SELECT FROM ended)"),
    "of any end": ("no-lost-job", {"fail": KEPT}, "WHERE slots.job = ended.id) SELECT"),
    "another first": (
        "order",
        {"header": 'order = "priority, fifo"', "claim": f"(limit)\n{TURNED}"},
        "ORDER BY rank, due, id",
    ),
    "by its beat": (
        "live-lease",
        {"heartbeat": "(id)!\nUPDATE jobs SET beat = now() WHERE id = :id;", "recover": DELETES},
        "status = 'running' AND beat < now() - interval '1 h'",
    ),
    "as a claim takes over": (
        "live-lease",
        {"claim": TAKES_OVER, "recover": DELETES},
        "interval '1 h' AND ends < now() RETURNING",
    ),
    "taken along": (
        "routing",
        {
            "enqueue": "(payload, queue)\nINSERT INTO jobs (body, lane) VALUES (:payload, :queue)",
            "recover": "\nINSERT INTO jobs (body) SELECT body FROM lost RETURNING id;",
        },
        "INSERT INTO jobs (body, lane) SELECT body, lane FROM lost",
    ),
    "renewed": (
        "live-lease",
        {"claim": f"(worker){SEEN}"},
        "DO UPDATE SET seen = EXCLUDED.seen;",
    ),
    "as the claim": (
        "server-clock",
        {
            "header": LEASE,
            "claim": MARKED.format("lease", "now() + :lease", "due < now()"),
            "heartbeat": MARKED.format("id, lease, now", ":now + :lease", "id = :id"),
        },
        "-- name: heartbeat(id, lease)\nUPDATE jobs SET until = now() + :lease WHERE",
    ),
    "others' rows": (
        "live-lease",
        {"recover": SILENT},
        "WHERE seen < now()\n  FOR UPDATE SKIP LOCKED)",
    ),
    "past a joined row": ("non-blocking", {"recover": SILENT}, "FOR UPDATE OF j SKIP LOCKED"),
    "bound": ("retry-bound", {"recover": BY_NUMBER}, "tries < most AS again"),
    "less": (
        "retry-given",
        {"cleanup": OTHERS.replace("NOT IN", "IN")},
        "IN ('running')",
    ),
    "number": (
        "order",
        {"schema#": "\nCREATE TABLE d (p text GENERATED ALWAYS AS (doc ->> 'p') STORED);"},
        "p int GENERATED ALWAYS AS ((doc ->> 'p')::int) STORED",
    ),
    "ended": ("no-lost-job", {"cleanup": OTHERS}, "WHERE status IN ('completed') AND due"),
}
NOWHERE = f"\n{FREE} FOR UPDATE SKIP LOCKED;\nINSERT INTO held SELECT;"
DROPPED = "(id)!\nINSERT INTO jobs VALUES (:id) ON CONFLICT DO NOTHING;"
CASCADES = "\nCREATE TABLE jobs (l int REFERENCES lanes ON DELETE CASCADE);"
STATES = """
SELECT id, CASE s WHEN 'new' THEN 'queued' WHEN 'dead' THEN 'failed' ELSE 'running' END AS state
FROM jobs;"""
BY_ID = {
    "header": 'lease = "1 minute"',
    "claim": "\nUPDATE jobs SET status = 'running', n = n + 1 RETURNING id, n AS attempt;",
    "complete": "(id)!\nUPDATE jobs SET status = 'completed' WHERE id = :id;",
    "fail": "(id)!\nUPDATE jobs SET status = 'queued' WHERE id = :id;",
}


@pytest.mark.parametrize(("guarantee", "blocks", "lines"), MADE.values(), ids=MADE)
def test_a_form_has_the_files_words(guarantee: str, blocks: Mapping[str, str], lines: str) -> None:
    """Of what it asks elsewhere, of the count that fail has, of the types in its schema."""
    text = queue_file(**({"more": "ALTER TABLE jobs ADD\n receipt uuid;"} | dict(blocks)))
    found = fixes(Draft(text, "q.sql"), guarantee)
    assert any(lines in fix.text for fix in found), [fix.what for fix in found]


def test_a_cause_may_need_what_the_story_says() -> None:
    """A unique index on what waits is no cause of a break in which it refused nothing."""
    index = "\nCREATE UNIQUE INDEX ON app.jobs (key) WHERE status = 'queued';"
    draft = Draft(queue_file(more=index), "q.sql")
    told = cause_of("live-lease", draft, "w1 was answered 23505 by fail although it holds the job")
    assert "the unique index on app.jobs allows one of both" in str(told)
    assert cause_of("live-lease", draft, "w1 was refused fail") is None
    upsert = "\nINSERT INTO j ON CONFLICT (k) DO UPDATE SET a = 1;"
    draft = Draft(queue_file(enqueue=upsert), "q.sql")
    told = cause_of("single-claim", draft, "it holds the job, which had been enqueued again")
    assert "An enqueue that meets a job which runs leaves its state" in str(told)
    assert "enqueue" not in str(cause_of("single-claim", draft, "w1 got a job that w2 holds"))
    late = "3 jobs were running at once\n6  w1: complete job 1 [c] => rejected"
    told = cause_of("concurrency-limit", Draft(queue_file(), "q.sql"), late)
    assert "that is refused frees no place" in str(told)
    late = "4  w1: heartbeat job 1 [b] => accepted"
    told = cause_of("concurrency-limit", Draft(queue_file(heartbeat="\nSELECT 1;"), "q.sql"), late)
    assert "extends that of its place" in str(told)


def test_a_remedy_knows_the_states_by_the_list_of_jobs() -> None:
    """A job that runs may have several; what a fail writes last may be one that waits."""
    draft = Draft(
        queue_file(
            claim="\nUPDATE jobs SET s = 'taken' RETURNING id;",
            heartbeat="(id)!\nUPDATE jobs SET s = 'begun' WHERE id = :id;",
            fail=FAILS,
            jobs=STATES,
        ),
        "q.sql",
    )
    assert draft.running == ["'taken'", "'begun'"]
    told = in_own_names("`WHERE status = 'running' AND a`, `WHERE status IN ('failed')`", draft)
    assert told == "`WHERE s IN ('taken', 'begun') AND a`, `WHERE s IN ('dead')`"
    parks = draft.text.replace("THEN 'new' ELSE 'dead'", "THEN 'dead' ELSE 'parked'")
    waits = parks.replace("ELSE 'running'", "WHEN 'taken' THEN 'running' ELSE 'queued'")
    assert Draft(waits, "q.sql").jobs.states["failed"] == "'dead'"
    asks = draft.text.replace("n < 3", "n < 3 AND at > now() - interval '1 h'")
    asks = asks.replace("WHEN 'dead' THEN 'failed' ELSE 'running'", "ELSE 'failed'")
    assert Draft(asks, "q.sql").jobs.states["failed"] == "'dead'"


@pytest.mark.parametrize(
    ("guarantee", "blocks", "safe"),
    [
        ("not-early", {"schema#": "\nCREATE TABLE j (\n  due timestamptz(0));"}, "due is rounded"),
        ("crash-safe", {"schema#": "\nCREATE UNLOGGED TABLE held ();"}, "CREATE TABLE held`: an"),
        ("claim-limit", {"claim": "\n(SELECT 1 LIMIT 1) UNION (SELECT 2 LIMIT 1);"}, "One LIMIT"),
        ("claim-limit", {"claim": "\nSELECT 1 IN (SELECT 2 LIMIT :limit);"}, ""),
        ("claim-limit", {"claim": "\nSELECT 1 FETCH FIRST 1 ROW WITH TIES;"}, "adds every job"),
        ("claim-limit", {"claim": "\nSELECT 1 WHERE a = :worker;"}, "not all that the worker"),
        ("server-clock", {"claim": "\nSELECT 1 WHERE at < :now;"}, "`now()` instead of `:now`"),
        ("claim-limit", {"claim": "\nSELECT id FROM j WHERE ctid IS NULL;"}, "by the key"),
        ("order", {"schema#": "\nCREATE TABLE j (score real);"}, "score has too few digits"),
        ("order", {"schema#": "\nCREATE TABLE j (at timestamptz(0));"}, "at is rounded, so that"),
        ("live-lease", {"heartbeat": "!\nUPDATE j SET b=1 WHERE b < now() - a;"}, "sets the lease"),
        ("no-lost-job", {"promote": "\nSELECT 1 WHERE i > (SELECT m FROM l);"}, "A mark at the"),
        ("isolation", {"claim": NOWHERE}, "open rows of held refuse"),
        ("single-claim", {}, "Lock and mark the same row in one statement"),
        ("concurrency-limit", {"claim": "\nSELECT id FROM j HAVING count(*) < 3;"}, "two claims"),
        ("retry-given", {"fail": DROPPED}, "ON CONFLICT DO NOTHING drops"),
        ("no-lost-job", {"schema#": CASCADES}, "the row of lanes"),
        ("no-lost-job", {"schema#": CASCADES.replace("jobs", "log")}, ""),
        ("no-lost-job", {"promote": DROPPED[5:].replace(":id", "1")}, "a job that is moved"),
        (
            "crash-safe",
            {"claim": f"\nBEGIN;\nSET LOCAL synchronous_commit = off;\n{FREE};\nCOMMIT;"},
            "Leave out `SET LOCAL synchronous_commit = off`",
        ),
        (
            "crash-safe",
            {"schema#": "\nSELECT set_config('synchronous_commit', 'off', false);"},
            "Leave out `set_config('synchronous_commit', 'off', false)`",
        ),
        ("fencing", {}, ""),
    ],
)
def test_a_cause_has_its_own_remedy(guarantee: str, blocks: Mapping[str, str], safe: str) -> None:
    """It names that, and not what the file has already."""
    told = cause_of(guarantee, Draft(queue_file(**blocks), "q.sql")) or ""
    assert safe in told
    assert bool(safe) == bool(told)


def test_no_index_on_a_view_is_advised(tmp_path: Path) -> None:
    """What the plan's probe would write is for a table."""
    queue = written(tmp_path, queue_file(more="CREATE VIEW ready AS SELECT * FROM jobs;"))
    told = Account("steady-cost", (Part("prose", "`CREATE INDEX ON ready (id)`"),))
    (remedy,) = remedies(queue, Judgement("steady-cost", "broken", "r", "story", told=told))
    assert "ready is a view" in str(remedy)


def test_a_lucky_form_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A story of drawn ids fails to happen now and then, with whatever form."""
    queue = written(tmp_path, queue_file())
    asked = Counter[str]()

    def judged(text: str, **_: object) -> Outcome:
        asked[text] += 1
        gone = text != queue_file() and asked[text] == 1
        return Outcome() if gone else Outcome(("token",), reason="the story happens again")

    monkeypatch.setattr(search, "_judged", judged)
    broken = Judgement("fencing", "broken", "r", "story", "token")
    card = Card(queue.name, "PostgreSQL 18", 0, 1.0, (broken,))
    server = cast("Server", None)  # which `judged` does not ask
    assert search.advise(queue, card, server, lambda _what, _done: None) == {}
    assert max(asked.values()) > 1


@pytest.mark.parametrize("known", [("complete", "fail"), ("complete",)], ids=["both", "one"])
def test_a_break_in_two_blocks_has_a_change_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Sequence[str]
) -> None:
    """The change of one ends its story; the other's is told too, or comes to light with it."""
    queue = written(tmp_path, queue_file(**BY_ID))

    def judged(text: str, *, goal: Goal, **_: object) -> Outcome:
        blocks = load_text(text, "q.sql").blocks
        open_ = [one for one in ("complete", "fail") if "attempt" not in blocks[one].used]
        if told := tuple(one for one in goal.stories if one in open_):
            return Outcome(told, "fencing", "the story happens again", frozenset(told))
        flawed = bool(goal.wanted and open_)
        return Outcome((), "fencing", "another one", token=open_[0]) if flawed else Outcome()

    monkeypatch.setattr(search, "_judged", judged)
    first, *more = (Break("r", "story", one) for one in known)
    broken = Judgement("fencing", "broken", "r", "story", first.replay, more=tuple(more))
    card = Card(queue.name, "PostgreSQL 18", 0, 1.0, (broken,))
    told = search.advise(queue, card, cast("Server", None), lambda _what, _done: None)["fencing"]
    for block in ("complete", "fail"):
        assert re.search(rf"Let {block} also ask for .*n = :attempt", told.text)
