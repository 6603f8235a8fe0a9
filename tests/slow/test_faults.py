"""Faults on a real server: lost answers, backends ended, the server killed and started again."""

import os
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from queueproof.errors import QueueproofError, ServerUnavailableError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.examine.replay import replay
from queueproof.examine.work import Exploration
from queueproof.guarantees.catalogue import select
from queueproof.postgres import Server, open_server
from queueproof.queues.sqlfile import load_text
from queueproof.report.card import Judgement
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab, twin_of
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import Program
from queueproof.search.explore import explore
from tests.fix_labs import LabOf, seen
from tests.fix_places import text_of
from tests.fix_plays import calls, play
from tests.fix_programs import Begin, eventually
from tests.fix_queues import COMPLETE, queue_file

REFERENCE = text_of("skip_locked")
HELD = text_of("hold_open")
ASYNC = text_of("broken/crash_safe_async_enqueue")
TWO_STEP = text_of("broken/crash_safe_two_step_recover")
UNLOGGED = REFERENCE.replace("CREATE TABLE", "CREATE UNLOGGED TABLE")

# The claim is an advisory lock of the session: it ends with the connection, as its worker knows.
SESSION_LOCK = queue_file(
    header="{header}",
    claim="""(ids)
WITH free AS MATERIALIZED (
  SELECT id FROM jobs
  WHERE status = 'queued' AND id NOT IN (SELECT objid FROM pg_locks WHERE classid = 4711)
  ORDER BY id
)
SELECT id FROM free WHERE pg_try_advisory_lock(4711, id::int) LIMIT 1;
-- The list may be older than the lock.
SELECT id FROM jobs WHERE id = ANY (:ids) AND status = 'queued';""",
    complete=f"(id)!\n{COMPLETE.replace('running', 'queued')}",
)
RESTARTS = """
from queueproof.postgres import open_server
import psycopg
with open_server("embedded") as server, server.database() as conninfo:
    with psycopg.connect(conninfo) as connection:
        print(*connection.execute("SHOW data_directory").fetchone(), flush=True)
    while True:
        server.restart(conninfo)
        print("again", flush=True)
"""


def tried(lab: Lab, program: Program, budget: int = 9) -> list[Run]:
    """The runs of a program, each under another schedule."""
    return [one.run for one in explore(Runner(lab), program, budget=budget)]


def judged(lab: Lab) -> Judgement:
    """The verdict on crash-safe."""
    return check_queue(lab, select(["crash-safe"]), profile="glance").guarantees[0]


@pytest.fixture(
    params=["embedded", "local", pytest.param("container", marks=pytest.mark.container)]
)
def source(request: pytest.FixtureRequest, server: Server) -> str:
    """Each kind of server that is ours to kill; as an installed one serve the embedded programs."""
    if request.param == "local":
        return f"local:{server.bin_directory}"
    return str(request.param)


def test_a_restart_keeps_what_was_committed(source: str) -> None:
    """A killed server comes back with what it had acknowledged, and without its sessions."""
    with open_server(source) as own, own.database(settings={"synchronous_commit": "on"}) as first:
        conninfo = first
        connection = psycopg.connect(conninfo, autocommit=True)
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        for _ in range(2):
            conninfo = own.restart(conninfo)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT")
            connection.close()
            connection = psycopg.connect(conninfo, autocommit=True)
            assert connection.execute("SELECT one FROM kept").fetchall() == [(1,)]
        connection.close()
        with own.database() as another:
            psycopg.connect(another).close()


def test_a_server_that_is_not_ours_is_not_killed(theirs: Server) -> None:
    """A server that is there by its DSN goes on as if nothing had been asked."""
    with psycopg.connect(theirs._admin) as session:
        assert not theirs.ours
        with pytest.raises(ServerUnavailableError, match="not ours to kill"):
            theirs.restart(str(theirs._admin))
        assert session.execute("SELECT 1").fetchall() == [(1,)]


def test_a_run_killed_in_a_restart_leaves_nothing(begin: Begin) -> None:
    """Whatever the watchdog is at, the server and its directory go with the run."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = begin(sys.executable, "-c", textwrap.dedent(RESTARTS), env=environment)
    directory = Path(process.line())
    assert process.line() == "again"
    process.kill()
    eventually(lambda: not (directory.parent.exists() or serving(directory)))


def serving(directory: Path) -> bool:
    """Whether a process has a data directory on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.fsencode(directory) in path.read_bytes():
                return True
    return False


def test_what_was_lost_is_the_answer(lab_of: LabOf) -> None:
    """The server has completed, and the call is unknown; before COMMIT it has rolled back."""
    run = Runner(lab_of(REFERENCE)).run(play("w1 claims; nemesis loses 1; w1 completes"))
    (lost,) = calls(run, "complete", "w1")
    assert lost.answer == "unknown"
    assert lost.returned is not None
    assert run.history.final == {lost.refs[0].job: "completed"}
    assert calls(run, "crash", "w1")
    assert run.faults == [("lose", "complete", 1)]
    lab = lab_of(ASYNC)
    run = Runner(lab).run(play("nemesis loses 1; w1 enqueues", 0, reserve=1))
    assert run.faults == [("lose", "enqueue", 3)]
    assert run.history.final == {}
    program = play("w1 enqueues | nemesis loses 1", 0, reserve=1)
    found = {
        (fault, tuple((run.history.final or {}).values()))
        for run in tried(lab, program)
        for fault in run.faults
    }
    assert found == {(("lose", "enqueue", 3), ()), (("lose", "enqueue", 4), ("completed",))}


def test_who_waits_goes_on_without_its_client(lab_of: LabOf) -> None:
    """A backend that waits for a lock does not notice, and does its work when the lock is free."""
    program = play("w1 claims; +33.3; w1 completes | reaper recovers | nemesis loses 1")
    late = [
        run
        for run in tried(lab_of(REFERENCE), program, 60)
        if any(call.waits and call.answer == "unknown" for call in calls(run, "complete", "w1"))
    ]
    assert late
    # The reaper was first: what w1 does afterwards finds the job given back.
    assert all(calls(run, "recover", "reaper")[0].ids for run in late)


def test_a_terminated_worker_goes_on_with_its_lease(lab_of: LabOf) -> None:
    """Nothing of its call has happened, and it goes on, but without a claim by transaction."""
    program = play("w1 claims; w1 completes, completes | nemesis terminates 1")
    runs = tried(lab_of(REFERENCE), program)
    hit = [run for run in runs if ("terminate", "complete", 1) in run.faults]
    assert hit
    for run in hit:
        first, second = calls(run, "complete", "w1")
        assert (first.answer, second.answer) == ("error", "accepted")
        assert first.error.startswith("57P01")
        assert not calls(run, "crash", "w1")
    program = play("w1 claims; nemesis terminates 1; w2 claims")
    run = Runner(lab_of(HELD), held=True, tied=True).run(program)
    (mine,), (theirs,) = calls(run, "claim", "w1"), calls(run, "claim", "w2")
    assert mine.ids == theirs.ids
    assert calls(run, "crash", "w1")


@pytest.mark.parametrize("header", ['order = "fifo"', 'lease = "30 seconds"'])
def test_a_claim_that_is_a_lock_of_the_session_is_not_accused(lab_of: LabOf, header: str) -> None:
    """A worker that is told of its broken connection knows what its claim rested on."""
    # Where nothing rests on the session, it keeps its claims.
    assert not calibrate(lab_of(REFERENCE)).tied
    lab = lab_of(SESSION_LOCK.format(header=header))
    assert calibrate(lab).tied
    judgement = judged(lab)
    assert judgement.verdict == "holds", judgement.story


def killed(lab: Lab) -> Runner:
    """Who runs programs on the lab's twin."""
    return Runner(twin_of(lab), conditions=Conditions(killed=True))


@pytest.mark.sample
def test_workers_survive_the_server(lab_of: LabOf) -> None:
    """A claim by lease is its worker's before and after; the clock keeps its moves."""
    program = play("w1 claims; +10; nemesis restarts; w1 completes", reserve=1)
    run = killed(lab_of(REFERENCE)).run(program)
    assert [call.answer for call in calls(run, "complete", "w1")] == ["accepted"]
    assert ("restart", "after claim", 0) in run.faults


def test_a_kill_in_the_middle_undoes_what_was_not_committed(lab_of: LabOf) -> None:
    """At each step of a claim: before its COMMIT nothing has happened, afterwards all of it."""
    program = play("w1 claims | nemesis restarts")
    answers = set()
    for _, run in explore(killed(lab_of(REFERENCE)), program, budget=9):
        (call,) = calls(run, "claim", "w1")
        answers.add((call.answer, len(call.ids)))
        assert list((run.history.final or {}).values()) == ["completed"]
    assert answers == {("accepted", 1), ("error", 0)}


def test_other_labs_of_the_server_are_not_disturbed(server: Server) -> None:
    """The server that is killed is the twin's own."""
    with open_lab(load_text(REFERENCE, "queue.sql"), server) as lab:
        pid = lab.session("w1").pid
        killed(lab).run(play("nemesis restarts", reserve=1))
        assert lab.execute(f"SELECT pid FROM pg_stat_activity WHERE pid = {pid}") == [(pid,)]
        with psycopg.connect(twin_of(lab).server._admin) as admin:
            home = Path(str(*admin.execute("SHOW data_directory").fetchall()[0]))
        assert home.exists()
    assert not home.parent.exists()


def test_somebodys_server_gets_a_verdict_without_kills(theirs: Server, lab_of: LabOf) -> None:
    """It holds by the other faults; what a kill would empty is open, and a kill not replayed."""
    with open_lab(load_text(REFERENCE, "queue.sql"), theirs) as lab:
        holds = judged(lab)
    with open_lab(load_text(UNLOGGED, "queue.sql"), theirs) as lab:
        unknown = judged(lab)
    assert (holds.verdict, unknown.verdict) == ("holds", "inconclusive")
    assert holds.reason.endswith("the server was not killed, because it is not ours")
    assert "UNLOGGED (public.jobs)" in unknown.reason
    token = judged(lab_of(UNLOGGED)).replay
    assert token
    refused = pytest.raises(QueueproofError, match="not ours: replay it with")
    with open_lab(load_text(UNLOGGED, "queue.sql"), theirs) as lab, refused:
        replay(lab, token)


def test_every_kind_of_fault_is_evidence(lab_of: LabOf) -> None:
    """A pass says how many of each there were, and how many distinct steps they hit."""
    evidence = judged(lab_of(REFERENCE)).evidence
    wanted = ("lost answers", "terminated backends", "server kills", "distinct steps interrupted")
    assert all(evidence[what] > 0 for what in wanted)


def test_a_story_tells_whose_answer_was_lost(lab_of: LabOf) -> None:
    """A reaper that dies between two transactions, and what it left behind."""
    dies = play("w1 claims, crashes; +lease; nemesis loses 2; w2 recovers")
    judgement = seen(lab_of(TWO_STEP), "crash-safe", Exploration(dies, PLAIN, 1, "crash-safe"))
    assert judgement.verdict == "broken"
    told = " ".join((judgement.story or "").split())
    assert "cuts w2 off from its next answer" in told
    assert "w2: recover [b] => no answer: its connection is cut 5 w2: crashes" in told
    assert judgement.place
    assert "-- name: recover" in TWO_STEP.splitlines()[judgement.place.line - 2]


def test_without_faults_a_program_is_its_plain_counterpart() -> None:
    """What breaks there as well is not counted here."""
    assert play("w1 claims | nemesis loses 1; nemesis restarts").undisturbed == play("w1 claims")
