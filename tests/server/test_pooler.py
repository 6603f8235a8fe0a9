"""A transaction pooler, played by the step scheduler, and PgBouncer itself."""

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queueproof.errors import ServerUnavailableError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.judge.checker import declare
from queueproof.postgres.pooler import MISSING, open_pooler
from queueproof.probes.probe import untold
from queueproof.probes.probes import PROBES
from queueproof.queues.offer import Offer
from queueproof.report.story import tell_found
from queueproof.report.text import to_text
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.run.state import POOL
from queueproof.schedule.conditions import Conditions, Pooled
from queueproof.schedule.programs import JobSpec
from queueproof.search.shrink import breaches
from tests.fix_labs import LabOf, happens_again, offered
from tests.fix_places import STRATEGIES
from tests.fix_plays import play
from tests.fix_programs import Begin, eventually
from tests.fix_queues import COMPLETE, HOLDS, queue_file

POLICIES: tuple[Pooled, ...] = ("first idle", "round robin")
ONLY = ("pooler-safe",)
HELD = queue_file(**HOLDS)
PREPARES = {"before": "PREPARE p AS SELECT 1; EXECUTE p; DEALLOCATE p;"}


def queue(*, before: str = "", also: str = "", after: str = "") -> str:
    """A queue whose claim does something before, in, or after its statement."""
    return queue_file(
        header='lease = "30 seconds"',
        more="ALTER TABLE jobs ADD locked_at timestamptz;",
        claim=f"""
{before}
UPDATE jobs SET status = 'running', locked_at = now()
WHERE id = (
  SELECT id FROM jobs WHERE status = 'queued' {also} LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, locked_at;
{after}""",
        complete=f"(id, locked_at)!\n{COMPLETE[:-1]} AND locked_at = :locked_at;",
        recover="""(lease)
UPDATE jobs SET status = 'queued'
WHERE status = 'running' AND locked_at < now() - :lease RETURNING id;""",
    )


def connections(run: Run, actor: str) -> list[str]:
    """The connections that an actor's transactions ran on."""
    return [b.text for b in run.trace if b.event == "connection" and b.actor == actor]


def pooled(lab: Lab, policy: Pooled, *, held: bool = False) -> Runner:
    """A runner that plays a pooler."""
    return Runner(lab, held=held, conditions=Conditions(pooled=policy))


@pytest.mark.parametrize("policy", POLICIES)
def test_each_transaction_has_a_connection_and_keeps_it(lab_of: LabOf, policy: Pooled) -> None:
    """Each transaction is sent on another connection than its last; an open one keeps its own."""
    lab = lab_of(queue())
    work = "w1 claims, completes 0, claims, completes 1, claims, completes 2"
    ran_on = connections(pooled(lab, policy).run(play(work, 3)), "w1")
    assert len(ran_on) == 6
    assert all(one != other for one, other in itertools.pairwise(ran_on))
    # A claim that is held in its transaction is completed there.
    lab = lab_of(HELD)
    run = pooled(lab, policy, held=True).run(play("w1 claims, completes | w2 claims, completes", 2))
    assert [len(connections(run, worker)) for worker in ("w1", "w2")] == [1, 1]
    assert breaches(run, declare(Offer(lab.queue, held=True))) == []


def test_workers_share_the_connections(lab_of: LabOf) -> None:
    """The first idle connection is the one that somebody else has just used; turns spread them."""
    lab = lab_of(queue())
    program = play("w1 claims; w2 claims", 2)
    near = pooled(lab, "first idle").run(program)
    assert connections(near, "w1")[0] == connections(near, "w2")[0]
    far = pooled(lab, "round robin").run(program)
    used = [b.text for b in far.trace if b.event == "connection"]
    assert used[:POOL] == ["1", "2", "3", "4", "5"]


def test_a_crash_rolls_back_and_leaves_the_session_of_others(lab_of: LabOf) -> None:
    """A dead client's transaction is rolled back; what it left in an idle session stays there."""
    run = pooled(lab_of(HELD), "first idle", held=True).run(play("w1 claims, crashes; w2 claims"))
    first, second = (c for c in run.history.of_kind("claim") if c.actor in {"w1", "w2"})
    assert first.ids == second.ids != ()

    lab = lab_of(queue(also="AND pg_try_advisory_lock(id)"))
    program = play("w1 claims, crashes; +lease; reaper recovers; w2 claims")
    runs = [Runner(lab).run(program), pooled(lab, "round robin").run(program)]
    taken = [[c.ids for c in r.history.of_kind("claim") if c.actor == "w2"] for r in runs]
    assert taken == [[first.ids], [()]]
    assert [violation.guarantee for violation in breaches(runs[1], declare(offered(lab)))]


@pytest.mark.parametrize(
    ("defect", "error"),
    [
        ({"before": "SET app.name = 'x'; ", "also": "AND current_setting('app.name') = 'x'"}, "42"),
        ({"before": "CREATE TEMP TABLE IF NOT EXISTS t (); SELECT count(*) FROM t;"}, "42P01"),
        (PREPARES, "26000"),
    ],
    ids=["setting", "temporary table", "prepared statement"],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_lives_in_a_session_breaks(
    lab_of: LabOf, defect: dict[str, str], error: str, policy: Pooled
) -> None:
    """What a statement leaves in its session is not there in the next one."""
    lab = lab_of(queue(**defect))
    program = play("w1 claims")
    assert breaches(Runner(lab).run(program), declare(offered(lab))) == []
    (first, *_) = pooled(lab, policy).run(program).history.of_kind("claim")
    assert first.error.startswith(error)


def test_what_lives_in_a_transaction_is_safe(lab_of: LabOf) -> None:
    """SET LOCAL, a lock and a temporary table of one transaction are not what a pooler breaks."""
    own = "SET LOCAL app.name = 'x'; CREATE TEMP TABLE t () ON COMMIT DROP;"
    safe = f"BEGIN; {own} SELECT pg_advisory_xact_lock(1);"
    lab = lab_of(queue(before=safe, also="AND current_setting('app.name') = 'x'", after="COMMIT;"))
    program = play("w1 claims, completes; w2 claims", 2)
    for policy in POLICIES:
        assert breaches(pooled(lab, policy).run(program), declare(offered(lab))) == []


@pytest.mark.parametrize("late", [[0.3], [0.3, 0.0, 0.0, 0.0, 0.3]])
def test_a_run_that_stood_still_for_a_moment_is_asked_again(
    lab_of: LabOf, monkeypatch: pytest.MonkeyPatch, late: list[float]
) -> None:
    """A queue that cuts seconds off hands a job out too early, or not: by when it was enqueued."""
    told = queue(also="AND locked_at <= now()").replace("enqueue\n", "enqueue(delay)\n")
    cuts = "(locked_at) VALUES (date_trunc('second', now() + :delay))"
    lab = lab_of(told.replace("DEFAULT VALUES", cuts))
    program = play("clock aligns; producer enqueues; clock waits 61.47; w1 claims", 0)
    program = program._replace(reserve=(JobSpec(delay=61.47),))
    aligned = lab.until_aligned
    left = late.copy()  # of the run with the pooler, three without, and the one with it again
    monkeypatch.setattr(lab, "until_aligned", lambda: aligned() + (left.pop(0) if left else 0.0))
    found = pooled(lab, "round robin").run(program)
    assert not left
    assert bool(found.short) is (len(late) > 1)


@pytest.fixture
def _no_pgbouncer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks it."""
    monkeypatch.setattr("queueproof.probes.pooling.find_pgbouncer", lambda: None)


@pytest.mark.usefixtures("_no_pgbouncer")
def test_without_pgbouncer_the_harness_own_dealing_decides(lab_of: LabOf) -> None:
    """Rule 25: it holds or breaks all the same, and says what was not there; luck is no break."""
    card = check_queue(lab_of(queue()), select(ONLY), profile="glance")
    (judgement,) = card.guarantees
    assert (judgement.verdict, card.exit_code) == ("holds", 0)
    itself = [what for what in judgement.evidence if "PgBouncer itself" in what]
    assert [judgement.evidence[what] for what in itself] == [0]
    assert "not installed: apt-get install pgbouncer" in judgement.reason
    lab = lab_of(queue(**PREPARES))
    (judgement,) = check_queue(lab, select(ONLY), profile="glance").guarantees
    assert judgement.verdict == "broken", judgement.reason
    for told in ("A pooler in transaction mode", "ERROR 26000", "on connection 2"):
        assert told in (judgement.story or "")
    happens_again(lab, judgement)
    assert not any(n for what, n in judgement.evidence.items() if "PgBouncer itself" in what)
    # A connection draws lots of its own: that is not the pooler's doing.
    lab = lab_of(STRATEGIES / "sound" / "own_lane_first.sql")
    (judgement,) = check_queue(lab, select(ONLY), profile="quick").guarantees
    assert judgement.verdict == "holds", judgement.story


@pytest.mark.usefixtures("_no_pgbouncer")
@pytest.mark.parametrize(("named", "required"), [(ONLY, ()), ((), ONLY)])
def test_without_pgbouncer_a_pass_that_was_asked_for_by_name_is_inconclusive(
    lab_of: LabOf, named: Sequence[str], required: Sequence[str]
) -> None:
    """Rule 25: whoever names it wants PgBouncer itself, and is told how to get it."""
    lab = lab_of(queue())
    card = check_queue(lab, select(ONLY), profile="glance", named=named, required=required)
    assert (card.guarantees[0].verdict, card.exit_code) == ("inconclusive", 2)
    assert card.guarantees[0].reason.startswith(f"{MISSING}; without it: ")


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("pgbouncer")
def test_a_safe_queue_holds_with_evidence(lab_of: LabOf) -> None:
    """Both the played and the real pooler count what went through them."""
    (judgement,) = check_queue(lab_of(queue()), select(ONLY), profile="quick").guarantees
    assert judgement.verdict == "holds", judgement.reason
    counts = {what.partition(" pgbouncer")[0]: n for what, n in judgement.evidence.items()}
    assert counts["transactions through"] > 0
    assert counts["programs over several of its connections"] > 0
    assert counts["transactions that ran on another connection than the transaction before"] > 0


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("pgbouncer")
def test_pgbouncer_breaks_what_lives_in_a_session(lab_of: LabOf) -> None:
    """The story names PgBouncer and its version, and happens again."""
    lab = lab_of(queue(**PREPARES))
    seen = PROBES["pooler-safe"].watch(lab, calibrate(lab), 0, untold)
    assert "(pgbouncer 1." in seen.broken
    again = PROBES["pooler-safe"].replay(lab, calibrate(lab), seen.data)
    assert seen.found is not None
    assert again is not None
    story = tell_found(seen.found, "pooler-safe")
    assert "All sessions go through pgbouncer 1." in to_text(story)
    assert tell_found(again, "pooler-safe") == story


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("pgbouncer")
@pytest.mark.parametrize(
    ("safe", "level"),
    [(HELD, 1), (STRATEGIES / "broken" / "backoff_error_by_hand.sql", 0)],
    ids=["held", "planned"],
)
def test_pgbouncer_breaks_nothing_else(lab_of: LabOf, safe: str | Path, level: int) -> None:
    """A held claim keeps its connection, and a crash rolls it back in time."""
    # An error of planning a statement for its values comes without the pooler too.
    lab = lab_of(safe)
    seen = PROBES["pooler-safe"].watch(lab, calibrate(lab), level, untold)
    assert not seen.broken
    assert all(seen.evidence.values())


@pytest.mark.pgbouncer
def test_transactions_take_turns(database: str, pgbouncer: Path) -> None:
    """Consecutive transactions of one client run on different backends."""
    with open_pooler(database, pgbouncer) as pooler:
        with psycopg.connect(pooler.conninfo, autocommit=True) as client:
            pids = [client.execute("SELECT pg_backend_pid()").fetchone() for _ in range(4)]
        assert all(one != other for one, other in itertools.pairwise(pids))
        assert pooler.transactions() == 4
        assert pooler.busy_backends() > 1


@pytest.mark.pgbouncer
def test_a_hidden_password(database: str, pgbouncer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password with quotes reaches PgBouncer in a private file, which goes with it."""
    monkeypatch.setenv("PGPASSWORD", "it's a 'secret'")
    with open_pooler(database, pgbouncer) as pooler:
        socket = Path(str(psycopg.conninfo.conninfo_to_dict(pooler.conninfo)["host"]))
        configuration = socket / "pgbouncer.ini"
        assert "password='it''s a ''secret'''" in configuration.read_text()
        assert configuration.stat().st_mode & 0o777 == 0o600
        assert socket.stat().st_mode & 0o777 == 0o700
    assert not socket.exists()


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("pgbouncer")
def test_a_killed_run_leaves_nothing(database: str, begin: Begin) -> None:
    """A run that is killed takes PgBouncer and its directory with it."""
    code = (
        "import sys; from queueproof.postgres.pooler import *\n"
        "with open_pooler(sys.argv[1], find_pgbouncer()) as pooler:\n"
        "    print(pooler.conninfo, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    run = begin(sys.executable, "-c", code, database)
    host = Path(str(psycopg.conninfo.conninfo_to_dict(run.line())["host"]))
    pid = int((host / "pid").read_text())
    run.kill()
    eventually(lambda: not host.exists(), "its directory to go")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_dead_pgbouncer(lab_of: LabOf, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it wrote is the message (here env, which cannot run the configuration), no verdict."""
    env, told = Path("/usr/bin/env"), "could not be started: .*Permission denied"
    with pytest.raises(ServerUnavailableError, match=told), open_pooler(database, env):
        pass
    monkeypatch.setattr("queueproof.probes.pooling.find_pgbouncer", lambda: env)
    lab = lab_of(queue())
    assert "Permission denied" in PROBES["pooler-safe"].watch(lab, offered(lab), 0, untold).unable


@pytest.mark.pgbouncer
def test_a_server_that_lets_nobody_in_is_named(database: str, pgbouncer: Path) -> None:
    """A database that is not there is told in one message."""
    gone = make_conninfo(database, dbname="nowhere")
    with pytest.raises(ServerUnavailableError, match="nowhere"), open_pooler(gone, pgbouncer):
        pass
