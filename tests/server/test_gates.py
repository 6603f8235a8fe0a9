"""Where a session can be stopped inside one statement, and which defects only that shows."""

from collections.abc import Sequence
from dataclasses import replace

import psycopg
import pytest

from queueproof import waits
from queueproof.history.calls import History
from queueproof.judge.checker import check, declare
from queueproof.queues.sqltext import only_selects
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.run.session import LibpqSession
from queueproof.schedule.conditions import Conditions, Gate, Isolation
from queueproof.search.explore import explore
from tests.fix_labs import LabOf, offered
from tests.fix_places import STRATEGIES, text_of
from tests.fix_plays import play
from tests.fix_queues import FREE, queue_file

GATES: tuple[Gate | None, ...] = (None, "statement", "query")
BUDGET = 25  # schedules of a program: half as many as in the default profile
RACE = play("w1 claims, completes | w2 claims, completes", 2)

# Locked, but chosen from the snapshot: whoever stops between the two works on yesterday's list.
LISTED = (
    f"WITH seen AS MATERIALIZED ({FREE}) SELECT id FROM jobs WHERE id IN (SELECT id FROM seen) "
    "AND status IN ('queued', 'running') FOR UPDATE SKIP LOCKED"
)
TAKE = "UPDATE {relation} SET status = 'running' WHERE id = ANY ({ids}) RETURNING id"
WAITS_OR_IDLE = """
SELECT FROM pg_stat_activity WHERE pid = %s AND (state <> 'active' OR wait_event_type = 'Lock')
"""


def queue(claim: str, schema: str = "") -> str:
    """A queue of one table that claims in a certain way."""
    return queue_file(claim=claim, more=schema)


def function(language: str, body: str) -> str:
    """A claim that is a call."""
    return f"CREATE FUNCTION take() RETURNS SETOF bigint LANGUAGE {language} AS $f$ {body} $f$;"


def one_statement(select: str, relation: str = "jobs") -> str:
    """A claim of a single statement."""
    return TAKE.format(relation=relation, ids=f"ARRAY({select})")


def two_statements(select: str) -> str:
    """A claim of two statements in one transaction."""
    take = TAKE.format(relation="jobs", ids=":ids")
    return f"BEGIN;\n{select};\n{take};\nCOMMIT;"


VIEW = "CREATE VIEW live AS SELECT id, status FROM jobs;"
INSTEAD = f"""
{VIEW}
CREATE FUNCTION live_update() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN UPDATE jobs SET status = NEW.status WHERE id = OLD.id; RETURN NEW; END $f$;
CREATE TRIGGER live_update INSTEAD OF UPDATE ON live
FOR EACH ROW EXECUTE FUNCTION live_update();
"""
CALL = "SELECT take() AS id;"
IN_PLPGSQL = """
DECLARE chosen bigint; BEGIN
  {begin}
  SELECT id INTO chosen FROM jobs WHERE status = 'queued' ORDER BY id LIMIT 1 {lock};
  RETURN QUERY UPDATE jobs SET status = 'running' WHERE id = chosen RETURNING id;
  {end}
END
"""


def in_plpgsql(lock: str = "", begin: str = "", end: str = "") -> str:
    """A function that selects and then updates."""
    return function("plpgsql", IN_PLPGSQL.format(lock=lock, begin=begin, end=end))


SKIPS = "FOR UPDATE SKIP LOCKED"
MUTEX = in_plpgsql(SKIPS, "PERFORM pg_advisory_lock(7);", "PERFORM pg_advisory_unlock(7);")
PROCEDURE = """
CREATE TABLE granted (pid int, id bigint);
CREATE PROCEDURE take() LANGUAGE plpgsql AS $f$
DECLARE chosen bigint; BEGIN
  SELECT jobs.id INTO chosen FROM jobs WHERE status = 'queued' ORDER BY id LIMIT 1 {lock};
  {commit}
  UPDATE jobs SET status = 'running' WHERE jobs.id = chosen;
  INSERT INTO granted SELECT pg_backend_pid(), chosen WHERE chosen IS NOT NULL;
END $f$;
"""
CALLED = "CALL take();\nDELETE FROM granted WHERE pid = pg_backend_pid() RETURNING id;"

# What a queue breaks, and where sessions must stop for that to show (None: between statements is
# enough); what it does, with how it claims, and its schema's functions and views.
DEFECTS: dict[tuple[str, Gate | None], dict[str, str]] = {
    ("single-claim", None): {
        "a statement that locks nothing": queue(f"{one_statement(FREE)};"),
        "a function that selects, then updates": queue(CALL, in_plpgsql()),
    },
    ("non-blocking", None): {
        "a statement that waits": queue(f"{one_statement(f'{FREE} FOR UPDATE')};")
    },
    ("single-claim", "statement"): {
        "a statement that does not ask again": queue(f"{one_statement(LISTED)};"),
        "the same in an SQL function": queue(CALL, function("sql", one_statement(LISTED))),
        "the same in a plpgsql function": queue(
            CALL, function("plpgsql", f"BEGIN RETURN QUERY {one_statement(LISTED)}; END")
        ),
        "the same through a view": queue(f"{one_statement(LISTED, 'live')};", VIEW),
        "the same through a view's trigger": queue(f"{one_statement(LISTED, 'live')};", INSTEAD),
        "a procedure that selects, then updates": queue(
            CALLED, PROCEDURE.format(lock="", commit="")
        ),
        "a procedure that commits in between": queue(
            CALLED, PROCEDURE.format(lock=SKIPS, commit="COMMIT;")
        ),
    },
    ("non-blocking", "statement"): {
        "a procedure that waits": queue(CALLED, PROCEDURE.format(lock="FOR UPDATE", commit="")),
        "a mutex within a function": queue(CALL, MUTEX),
    },
    ("single-claim", "query"): {"a query that does not ask again": queue(two_statements(LISTED))},
}


def broken(lab: Lab, gate: Gate | None) -> set[str]:
    """What some schedule of two claims breaks, for one job or two."""
    declared = declare(offered(lab))
    runner = Runner(lab, conditions=Conditions(gate=gate))
    return {
        violation.guarantee
        for jobs in (1, 2)
        for _, run in explore(runner, play("w1 claims | w2 claims", jobs), budget=BUDGET)
        for violation in check(run.history, declared).violations
    }


@pytest.mark.parametrize(
    ("text", "guarantee", "needed"),
    [
        pytest.param(text, *shows, id=what)
        for shows, queues in DEFECTS.items()
        for what, text in queues.items()
    ],
)
def test_where_defects_show(lab_of: LabOf, text: str, guarantee: str, needed: Gate | None) -> None:
    """Each defect is found at its gate, and not at those that stop elsewhere."""
    lab = lab_of(text)
    assert guarantee in broken(lab, needed)
    if needed is not None:
        others: Sequence[Gate | None] = [gate for gate in GATES if gate != needed]
        assert all(guarantee not in broken(lab, gate) for gate in others)


SOUND = {
    "a statement": queue(f"{one_statement(f'{FREE} {SKIPS}')};"),
    "two statements": queue(two_statements(f"{FREE} {SKIPS}")),
    "a plpgsql function": queue(CALL, in_plpgsql(SKIPS)),
    "a function with a subtransaction": queue(
        CALL, in_plpgsql(SKIPS, end="EXCEPTION WHEN unique_violation THEN RETURN;")
    ),
    "an SQL function": queue(CALL, function("sql", one_statement(f"{FREE} {SKIPS}"))),
    "a view": queue(f"{one_statement(f'{FREE} {SKIPS}', 'live')};", VIEW),
    "a view's trigger": queue(f"{one_statement(f'{FREE} {SKIPS}', 'live')};", INSTEAD),
    "a procedure": queue(CALLED, PROCEDURE.format(lock=SKIPS, commit="")),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("form", SOUND)
def test_skip_locked_is_not_accused(lab_of: LabOf, form: str, gate: Gate | None) -> None:
    """A claim that skips what others hold breaks nothing, wherever its sessions stop."""
    assert broken(lab_of(SOUND[form]), gate) == set()


def test_a_wait_with_an_old_snapshot_is_no_breach(lab_of: LabOf) -> None:
    """The same wait counts where the statement was fresh, and not where others acted meanwhile."""
    lab = lab_of(DEFECTS["non-blocking", None]["a statement that waits"])
    waited = next(
        run
        for _, run in explore(Runner(lab), RACE, budget=BUDGET)
        if any(call.waits for call in run.history.calls)
    )
    declared = declare(offered(lab))
    assert [v.guarantee for v in check(waited.history, declared).violations] == ["non-blocking"]
    calls = [
        replace(call, waits=tuple(wait._replace(stale=True) for wait in call.waits))
        for call in waited.history.calls
    ]
    assert check(History(calls, waited.history.final), declared).violations == []


def stopped(lab: Lab) -> Run:
    """Two workers that claim and complete, and stop inside their statements."""
    return Runner(lab, conditions=Conditions(gate="statement")).run(RACE)


@pytest.mark.parametrize("gate", ["statement", "row", "every", "query"])
@pytest.mark.parametrize("form", SOUND)
def test_a_gate_changes_no_answer(lab_of: LabOf, form: str, gate: Gate) -> None:
    """Workers are told the same with a gate; they stop where somebody else may act."""
    lab = lab_of(SOUND[form])
    later = "clock advances 1"
    program = play(f"w1 claims, completes | {later}; w2 claims, claims | {later}", 2)
    runs = [Runner(lab, conditions=Conditions(gate=one)).run(program) for one in (None, gate)]
    plain, gated = (
        [(c.kind, c.actor, c.answer, c.ids, c.states) for c in run.history.calls] for run in runs
    )
    assert plain == gated
    stops = gate != "query" or form == "two statements"
    assert any(beat.event == "stops" for beat in runs[1].trace) == stops


@pytest.mark.parametrize("level", [None, "repeatable read"])
def test_a_function_stops_where_its_snapshot_is_old(lab_of: LabOf, level: Isolation | None) -> None:
    """Where all of a transaction has one snapshot, a query that only calls a function stops."""
    conditions = Conditions(gate="query", isolation=level)
    run = Runner(lab_of(SOUND["a plpgsql function"]), conditions=conditions).run(RACE)
    assert any(beat.event == "stops" for beat in run.trace) == (level is not None)


def test_a_notice_that_is_late_is_one_stop(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that already waits is not taken to have stopped before it has said so."""
    lab = lab_of(STRATEGIES / "skip_locked.sql")
    conditions = Conditions(gate="every")
    known = Runner(lab, conditions=conditions).run(RACE)
    ready, late = LibpqSession.ready, set[str]()

    def hear_late(session: LibpqSession, seconds: float) -> bool:
        if session.gate and not session.said and session.name not in late:
            waits.until(
                lambda: bool(observer.execute(WAITS_OR_IDLE, [session.pid]).rowcount),
                waits.OWN,
                "a backend to wait or to be idle",
            )
            late.add(session.name)
            return False
        late.discard(session.name)
        return ready(session, seconds)

    monkeypatch.setattr(LibpqSession, "ready", hear_late)
    with psycopg.connect(lab.conninfo, autocommit=True) as observer:
        again = Runner(lab, conditions=conditions).run(RACE)
    assert [beat.event for beat in again.trace] == [beat.event for beat in known.trace]


def test_sessions_stop_in_partitions_and_in_functions_of_others(lab_of: LabOf) -> None:
    """Once, however many partitions, be it named itself; and in a SECURITY DEFINER function."""
    begin, text = "-- name: claim(worker, limit, queue)\nUPDATE jobs", text_of("sound/partitioned")
    assert begin in text
    for claim in (begin, f"{begin}_open AS jobs"):
        run = stopped(lab_of(text.replace(begin, claim)))
        claims = run.history.of_kind("claim")[:2]
        stops = [beat.call for beat in run.trace if beat.event == "stops"]
        assert [stops.count(call.index) for call in claims] == [1, 1]
    # One that finds nothing by a bare name stops as any other.
    body = (
        "BEGIN RETURN QUERY UPDATE public.jobs SET status = 'running' WHERE id = ("
        "SELECT id FROM public.jobs WHERE status = 'queued' LIMIT 1) RETURNING id; END"
    )
    apart = "SECURITY DEFINER SET search_path = '' LANGUAGE"
    definer = function("plpgsql", body).replace("LANGUAGE", apart)
    assert any(beat.event == "stops" for beat in stopped(lab_of(queue(CALL, definer))).trace)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id FROM jobs FOR UPDATE SKIP LOCKED", True),
        ("SELECT id FROM jobs FOR NO KEY UPDATE", True),
        ("(SELECT 1) UNION SELECT 2", True),
        ("VALUES (1)", True),
        ("SELECT 'DELETE' AS \"update\"", True),
        ("WITH gone AS (DELETE FROM jobs RETURNING id) SELECT id FROM gone", False),
        ("WITH a AS (SELECT 1 FOR UPDATE), b AS (UPDATE jobs SET id = 1) TABLE a", False),
        ("SELECT id INTO other FROM jobs", False),
        ("UPDATE jobs SET id = 1", False),
        ("CALL take()", False),
    ],
)
def test_which_statements_a_cursor_takes(sql: str, *, expected: bool) -> None:
    """Queries that change nothing by themselves, locks included."""
    assert only_selects(sql) is expected
