"""Queues that own their connections, stepped from the wire: each worker is a process."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof.errors import QueueError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.examine.findings import Findings
from queueproof.examine.verdicts import judgement_of
from queueproof.examine.work import Exploration, Probing
from queueproof.guarantees.catalogue import select
from queueproof.history.calls import CallKind
from queueproof.judge.checker import check
from queueproof.postgres import Server
from queueproof.postgres.pooler import MISSING
from queueproof.queues.model import Step
from queueproof.queues.worker import WorkerError, from_command
from queueproof.report.card import Judgement
from queueproof.run.open import open_lab, twin_of
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.run.wallclock import carries_now
from queueproof.run.workers import ClientLab
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import JobSpec, Program
from queueproof.search.shrink import Failure, find
from tests import fix_labs
from tests.fix_labs import seen
from tests.fix_places import WORKER
from tests.fix_plays import play

LabOf = Callable[..., ClientLab]

ONE_STEP = """            return {"jobs": db.execute(CLAIM, message).fetchall()}"""
SELECT_THEN_UPDATE = """
            free = "SELECT id::text FROM jobs WHERE status = 'queued' ORDER BY id LIMIT %(limit)s"
            found = db.execute(free, message).fetchall()
            for row in found:
                row["attempt"] = 1
                db.execute("UPDATE jobs SET status = 'running', locked_by = %s, locked_at = now(),"
                           " attempts = 1 WHERE id = %s", [message["worker"], row["id"]])
            return {"jobs": found}"""
IN_A_TRANSACTION = """
            with db.transaction():
                return {"jobs": db.execute(CLAIM, message).fetchall()}"""
OWN_TIME = ("now() - make_interval(secs => %(lease)s)", "%(since)s")
WAIT = "run_at = now() + interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)"
TOLD_SINCE = ("db.execute(RECOVER, message)", "db.execute(RECOVER, {'since': since(), **message})")
SINCE = """
def since():
    import datetime
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=30)

def main("""
TWO_CLAIMS = play("w1 claims | w2 claims")
LOOKS_UP = """
            global known
            if not known:  # as drivers do that ask for a type once in their life
                known = db.execute("SELECT oid FROM pg_type WHERE typname = 'jsonb'").fetchall()
            free ="""
COMPLETES = "db.execute(COMPLETE, {**job, **message}).rowcount == 1"
FLUSH = "        sys.stdout.flush()\n"
COMMITS = f"{FLUSH}        if message['op'] == 'claim': db.execute('COMMIT')\n"
WRONG = {
    "it cannot claim": (
        [("SET status = 'running', locked_by", "SET state = 'running', locked_by")],
        r"(?s)claim failed .* 42703: .*UPDATE jobs",
    ),
    "it dies": ([(ONE_STEP, '            sys.exit("no such luck")')], "no such luck"),
    "it leaves its transaction open": (  # only a claim that got a job may
        [(COMPLETES, f"bool(db.execute('BEGIN')) and {COMPLETES}")],
        "complete leaves its transaction open",
    ),
    "it answers before its commit": (  # the job may be lost with the connection
        [('return {"jobs": db', 'db.execute("BEGIN"); return {"jobs": db'), (FLUSH, COMMITS)],
        "answer when the database has",
    ),
    "its claim answers what no enqueue did": (
        [("RETURNING id::text, attempts", "RETURNING '1000' || id AS id, attempts")],
        "claim answered the id 10001, which no enqueue",
    ),
}
REGISTERS = """
        case "start":
            db.execute("INSERT INTO workers VALUES (%(worker)s)", message)
            db.execute("UPDATE workers SET name = name")
            return {}
        case "claim":"""
BEGINS = (
    ('        case "claim":', REGISTERS),
    ('"operations": [', '"operations": ["start", '),
    ("CREATE INDEX jobs_queued", "CREATE TABLE workers (name text); CREATE INDEX jobs_queued"),
)


@pytest.fixture
def lab_of(lab_of: fix_labs.LabOf, tmp_path: Path) -> LabOf:
    """Installs the template's queue, with some of its text replaced, in a database of its own."""

    def opened(*changes: tuple[str, str]) -> ClientLab:
        text, path = WORKER.read_text(), tmp_path / "worker.py"
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        lab = lab_of(from_command(f"exec: {sys.executable} {path}"))
        assert isinstance(lab, ClientLab)
        return lab

    return opened


def run(lab: ClientLab, given: Program, *schedule: int) -> Run:
    """One run, as calibrated."""
    return Runner(lab).run(given, schedule)


def answers(made: Run, kind: CallKind) -> list[tuple[str, str, tuple[str, ...]]]:
    """Who was answered what."""
    return [(call.actor, call.answer, call.ids) for call in made.history.of_kind(kind)]


def events(made: Run, actor: str) -> list[str]:
    """What happened to an actor."""
    return [beat.event for beat in made.trace if beat.actor == actor]


def judged(lab: ClientLab, name: str) -> Judgement:
    """One guarantee, at a glance."""
    return fix_labs.judged(lab, name, profile="glance")[name]


@pytest.mark.sample
def test_a_statement_and_its_commit_are_steps_of_their_own(lab_of: LabOf) -> None:
    """Between the statement and the Sync behind it another worker acts, and passes the job over."""
    made = run(lab_of(), TWO_CLAIMS, 0, 1)
    assert events(made, "w1")[:3] == ["start", "sql", "done"]
    assert answers(made, "claim")[:2] == [("w1", "accepted", ("1",)), ("w2", "accepted", ())]


def test_a_story_knows_the_statements_and_their_parameters(lab_of: LabOf) -> None:
    """The library's statements are read from the wire; its own BEGIN and COMMIT are some."""
    made = run(lab_of(), TWO_CLAIMS)
    step = next(beat.step for beat in made.trace if beat.event == "sql" and beat.actor == "w1")
    assert step is not None
    assert "FOR UPDATE SKIP LOCKED" in step.sql
    assert step.params["2"] == "1"
    made = run(lab_of((ONE_STEP, IN_A_TRANSACTION)), TWO_CLAIMS, 0, 1)
    sent = [b.text.split()[0] for b in made.trace if b.event == "sql" and b.actor == "w1"]
    assert sent[:3] == ["BEGIN", "UPDATE", "COMMIT"]


def test_a_claim_that_waits_is_seen_to_wait(lab_of: LabOf) -> None:
    """Who waits for whom is the server's word, by the process ids of the workers' backends."""
    made = run(lab_of(("SKIP LOCKED", "")), TWO_CLAIMS, 0, 1)
    (waits,) = [call.waits for call in made.history.of_kind("claim")[1:2]]
    assert [wait.blocker for wait in waits] == ["w1"]


@pytest.mark.parametrize("time", ["now()", "CURRENT_TIMESTAMP"])
def test_the_clock_moves_for_workers_too(lab_of: LabOf, time: str) -> None:
    """A delayed job is claimed once it is due; a keyword is rewritten, and shown as it was."""
    lab = lab_of(("run_at <= now()", f"run_at <= {time}"))
    made = run(lab, play("w1 claims; +61.7; w2 claims", [JobSpec(delay=60.0)]))
    assert answers(made, "claim")[:2] == [("w1", "accepted", ()), ("w2", "accepted", ("1",))]
    assert any(time in beat.text for beat in made.trace if beat.event == "sql")


def test_a_crashed_worker_is_another_one_afterwards(lab_of: LabOf) -> None:
    """A kill ends its backend with its transaction; a lost answer leaves what the server did."""
    lab = lab_of()
    crashes = play("w1 claims, crashes; w2 claims", 2)
    first = run(lab, crashes)
    assert answers(first, "claim")[:2] == [("w1", "accepted", ("1",)), ("w2", "accepted", ("2",))]
    assert answers(run(lab, crashes), "claim") == answers(first, "claim")
    # The job is claimed, and nobody knows.
    made = run(lab, play("nemesis loses 1; w1 claims; w2 claims"))
    assert [answer for _, answer, _ in answers(made, "claim")[:2]] == ["unknown", "accepted"]
    assert answers(made, "claim")[1][2] == ()


def test_a_terminated_backend_is_told_by_the_worker(lab_of: LabOf) -> None:
    """Its library sees the error; it answers with it, and the next run has a working worker."""
    lab = lab_of()
    made = run(lab, play("w1 claims; nemesis terminates 1; w1 completes"))
    assert [answer for _, answer, _ in answers(made, "complete")[:1]] == ["error"]
    assert answers(run(lab, TWO_CLAIMS), "claim")[0] == ("w1", "accepted", ("1",))


def test_the_server_may_be_killed_under_workers(lab_of: LabOf) -> None:
    """What was acknowledged is there when it is back, and other workers find it."""
    lab = lab_of()
    calibrate(lab)
    runner = Runner(twin_of(lab), conditions=Conditions(killed=True))
    made = runner.run(play("w1 claims; nemesis restarts; w2 claims", 2))
    assert answers(made, "claim")[:2] == [("w1", "accepted", ("1",)), ("w2", "accepted", ("2",))]


def test_a_race_of_workers_that_begin_with_a_lookup_is_found(lab_of: LabOf) -> None:
    """What only the first claim of a life sends shifts the schedule, and hides no double claim."""
    claims = SELECT_THEN_UPDATE.replace("\n            free =", LOOKS_UP)
    lab = lab_of((ONE_STEP, claims), ("\ndef main(", "\nknown = []\n\ndef main("))
    findings = Findings(lab, calibrate(lab), 0)
    run(lab, TWO_CLAIMS)  # now w1 and w2 have looked up what they want to know
    found = find(Runner(lab), findings.declared, TWO_CLAIMS, "single-claim")
    assert found is not None
    shifted = Runner(lab, anew=True).run(TWO_CLAIMS, found.schedule)
    assert check(shifted.history, findings.declared).violations == []
    findings.record("single-claim", found)
    (judgement,) = (judgement_of(findings, g) for g in select(["single-claim"]))
    assert judgement.verdict == "broken"
    assert judgement.story
    assert "SELECT oid FROM pg_type" in judgement.story
    fix_labs.happens_again(lab, judgement)


def test_a_race_inside_one_statement_of_a_worker_is_found(lab_of: LabOf) -> None:
    """Without a lock the snapshot is old when the statement gets to its row."""
    rest = "))\nRETURNING id::text, a"
    lab = lab_of((f"  FOR UPDATE SKIP LOCKED\n{rest}", rest))
    assert seen(lab, "single-claim", Exploration(TWO_CLAIMS, PLAIN, 9)).verdict == "broken"


def test_time_that_a_worker_brings_along_is_not_judged(lab_of: LabOf) -> None:
    """It stays behind when the database's clock is moved: no verdict could be trusted."""
    lab = lab_of(OWN_TIME, TOLD_SINCE, ("\ndef main(", SINCE))
    crashes = play("w1 claims, crashes; +lease; reaper recovers; w2 claims")
    found = seen(lab, "stale-recovery", Exploration(crashes, PLAIN, 1))
    assert (found.verdict, "now()" in found.reason) == ("inconclusive", True)
    # A wait seems too short by what the clock was moved while the job was worked on.
    told = ("db.execute(FAIL, {**job", "db.execute(FAIL, {'since': since(), **job")
    soon = SINCE.replace("- datetime.timedelta(seconds=30)", "+ datetime.timedelta(seconds=6)")
    lab = lab_of((WAIT, "run_at = %(since)s"), told, ("\ndef main(", soon))
    found = seen(lab, "backoff", Probing("backoff", 0))
    assert (found.verdict, found.reason) == ("inconclusive", lab.unmoved)
    assert "now()" in found.reason


@pytest.mark.parametrize(("changes", "told"), WRONG.values(), ids=WRONG)
def test_a_broken_worker_says_why(lab_of: LabOf, changes: list[tuple[str, str]], told: str) -> None:
    """Nobody has disturbed it: with the server's error and the statement, or its last words."""
    with pytest.raises(QueueError, match=told):
        calibrate(lab_of(*changes))


def test_a_worker_without_a_word_is_told_with_its_exit_status(server: Server) -> None:
    """Neither order of init and install works; the message says what each came to."""
    with pytest.raises(WorkerError, match="exit"), open_lab(from_command("exec: true"), server):
        pass


@pytest.mark.parametrize("factor", [1, 1_000, 1_000_000, 1_000_000_000])
def test_a_time_of_a_process_is_seen_in_any_unit(factor: int) -> None:
    """Seconds since 1970, and what languages make of them."""
    assert carries_now(Step("SELECT $1", {"1": str(int(time.time() * factor))}))
    assert not carries_now(Step("SELECT $1", {"1": str(123_456 * factor)}))


def test_a_worker_begins_before_any_gate_is_shut(lab_of: LabOf) -> None:
    """Each registers in each run anew, and waits for no gate; beside others where told."""
    lab = lab_of(*BEGINS)
    for gate in ("statement", "row"):
        made = Runner(lab, conditions=Conditions(gate=gate)).run(TWO_CLAIMS)
        assert answers(made, "claim")[0] == ("w1", "accepted", ("1",))
        assert lab.execute("SELECT count(*) FROM public.workers") == [(3,)]
    lab.reset()
    lab.session("w1")  # as what measures without a runner has it
    assert lab.execute("SELECT count(*) FROM public.workers") == [(1,)]
    made = Runner(lab_of(*BEGINS)).run(play("w1 claims | w2 starts, claims"), [1, 1])
    assert [(c.actor, c.kind) for c in made.history.calls if c.actor in {"w1", "w2"}][:2] == [
        ("w2", "start"),
        ("w1", "claim"),
    ]
    assert [kind for kind, _, _ in answers(made, "start")] == ["w2"]


def test_a_table_that_a_worker_makes_is_refused(lab_of: LabOf) -> None:
    """A library may remember that it is there, so it stays; the message says what to do."""
    made = 'db.execute("CREATE TABLE IF NOT EXISTS day (id bigint)"); '
    lab = lab_of((ONE_STEP, ONE_STEP.replace("return", f"{made}return")))
    lab.reset()
    run(lab, TWO_CLAIMS)
    with pytest.raises(QueueError, match=r"created a table .*: public\.day\..*as a partition"):
        lab.reset(renew=True)


@pytest.mark.parametrize("late", [False, True])
def test_a_worker_may_end_with_its_connection(lab_of: LabOf, *, late: bool) -> None:
    """Whoever starts workers starts another one: it is a crash, in an operation or between two."""
    handles = "        except psycopg.Error as error:\n"
    ends = f"{handles}            if db is not None and db.closed: sys.exit('gone')\n"
    lab = lab_of((handles, ends))
    cut = "nemesis terminates 1"
    told = f"w1 claims; {cut}; w1 completes" if late else f"w1 claims | {cut}"
    made = run(lab, play(told), 0, 1)
    assert "crash" in events(made, "w1")
    drained = [ids for actor, _, ids in answers(made, "claim") if actor == "drainer" and ids]
    assert drained == [("1",)]


def test_a_breach_that_new_workers_do_not_repeat_is_no_pass(lab_of: LabOf) -> None:
    """What a worker keeps from run to run accuses nobody, and excuses nobody either."""
    keeps = """
            global claims
            claims += 1
            if claims > 10:  # by then it has lived through several runs
                message["limit"] += 1
            return {"jobs": db.execute(CLAIM, message).fetchall()}"""
    lab = lab_of((ONE_STEP, keeps), ("\ndef main(", "\nclaims = 0\n\ndef main("))
    findings = Findings(lab, calibrate(lab), 0)
    program = play("w1 claims", 2)
    runner = Runner(lab)
    made = [runner.run(program) for _ in range(12)][-1]
    (breach,) = check(made.history, findings.declared).violations
    findings.record(breach.guarantee, Failure(program, (), made, breach, PLAIN))
    assert findings.failures == {}
    (judgement,) = (judgement_of(findings, g) for g in select([breach.guarantee]))
    assert judgement.verdict == "inconclusive"
    assert "not again with programs started anew" in judgement.reason


BY_SESSION_LOCK = """
            job = "SELECT id FROM jobs WHERE status = 'queued' AND run_at <= now() ORDER BY id"
            found = []
            for row in db.execute(job).fetchall():
                lock = "SELECT pg_try_advisory_lock(%s) AS got"
                if not found and db.execute(lock, [row["id"]]).fetchone()["got"]:
                    found = db.execute(CLAIM, {**message, "limit": 1}).fetchall()
            return {"jobs": found}"""
ENDS = """            return {{"accepted": db.execute({0}, {{**job, **message}}).rowcount == 1}}"""
UNLOCKS = """
            done = db.execute({0}, {{**job, **message}}).rowcount == 1
            db.execute("SELECT 1")
            db.execute("SELECT pg_advisory_unlock(%s)", [int(job["id"])])
            return {{"accepted": done}}"""


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("pgbouncer")
def test_what_a_worker_leaves_in_a_session_is_found_behind_pgbouncer(lab_of: LabOf) -> None:
    """The lock stays on one connection and is looked for on another: jobs cannot be claimed."""
    ends = [(ENDS.format(how), UNLOCKS.format(how)) for how in ("COMPLETE", "FAIL")]
    found = judged(lab_of((ONE_STEP, BY_SESSION_LOCK), *ends), "pooler-safe")
    assert found.verdict == "broken"
    assert "(pgbouncer 1." in found.reason
    shown = ("and more without the pooler", "neither ended nor can be claimed")
    assert any(one in found.reason for one in shown)


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("pgbouncer")
def test_the_worker_that_init_writes_works_behind_pgbouncer(lab_of: LabOf) -> None:
    """Its statements have no names, so that no PgBouncer has to carry them along."""
    assert judged(lab_of(), "pooler-safe").verdict == "holds"


def test_without_pgbouncer_nothing_is_said_of_a_workers_own_connections(
    lab_of: LabOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 25: not offered, with the way to get the tool; inconclusive where it is named."""
    monkeypatch.setattr("queueproof.probes.pooling.find_pgbouncer", lambda: None)
    lab = lab_of()
    card = check_queue(lab, select(["server-clock", "pooler-safe"]), profile="glance")
    clock, pooler = card.guarantees
    assert (clock.verdict, pooler.verdict, pooler.reason) == ("holds", "not-offered", MISSING)
    assert card.exit_code == 0
    card = check_queue(lab, select(["pooler-safe"]), profile="glance", named=["pooler-safe"])
    assert (card.guarantees[0].verdict, card.exit_code) == ("inconclusive", 2)
