"""Every wait has an end, and what ran into it is told with what it waited for."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from queueproof import cli, ending, waits
from queueproof.errors import QueueError
from queueproof.postgres import Server
from queueproof.queues.model import Queue, Step
from queueproof.queues.sqlfile import load_text
from queueproof.queues.worker import from_command
from queueproof.run.session import drive, execute
from queueproof.run.workers import ClientLab
from queueproof.schedule.conditions import PLAIN, Conditions
from tests.fix_labs import LabOf
from tests.fix_places import SKIP_LOCKED, WORKER
from tests.fix_programs import PATIENCE, Begin, ends, finished, frozen

OPENED = 'db = psycopg.connect(message["dsn"], autocommit=True, row_factory=dict_row)\n'
THERE = "db.execute(\"SELECT FROM pg_tables WHERE tablename = 'jobs'\").fetchone()"


def worker_that(does: str, folder: Path) -> Queue:
    """The template's worker, which does something more once it is connected."""
    text = WORKER.read_text()
    assert OPENED in text
    worker = folder / "worker.py"
    worker.write_text(text.replace(OPENED, f"{OPENED}{' ' * 16}{does}\n"))
    return from_command(f"exec: {sys.executable} {worker}")


@pytest.fixture(params=["file", "program"])
def in_public(request: pytest.FixtureRequest, tmp_path: Path) -> Queue:
    """A queue whose tables are in the schema public, whoever creates them."""
    if request.param == "file":
        text = SKIP_LOCKED.replace("CREATE TABLE jobs", "CREATE TABLE public.jobs")
        for clause in ("INSERT INTO ", "UPDATE ", "FROM ", " ON "):
            text = text.replace(f"{clause}jobs", f"{clause}public.jobs")
        return load_text(text.replace("jobs.", "public.jobs."), "public.sql")
    return worker_that('db.execute("SET search_path = public")', tmp_path)


def test_tables_in_the_schema_public(lab_of: LabOf, in_public: Queue) -> None:
    """They are found, gated, and brought back to the beginning like those of any schema."""
    lab = lab_of(in_public)
    assert lab.tables.names == ["public.jobs"]
    for gate in ("row", None):
        lab.reset(Conditions(gate=gate))
        drive(lab.session("producer"), lab.start("enqueue", **lab.defaults()))
        lab.reset(renew=gate is None)
        assert lab.execute("SELECT count(*) FROM public.jobs") == [(0,)]


@pytest.mark.parametrize(
    "opens",
    [
        'with db.transaction(): [db.execute("TABLE jobs") for _ in range(50)]',
        'db.execute("BEGIN"); db.execute("TABLE jobs")',
    ],
    ids=["that it ends", "that it leaves open"],
)
def test_a_spare_worker_is_in_a_transaction(lab_of: LabOf, tmp_path: Path, opens: str) -> None:
    """A reset that waits for it moves what it sends meanwhile, and ends it where that is no use."""
    lab = lab_of(worker_that(f"if {THERE} is not None:\n{' ' * 20}{opens}", tmp_path))
    assert isinstance(lab, ClientLab)
    leaves = "BEGIN" in opens
    lab._control.run(f"SET lock_timeout = {100 if leaves else 30_000}")

    def stands() -> bool:
        lab.wire.pump(0.01)
        return bool(lab.tables.holders())

    lab._spares.append(lab._started())
    waits.until(stands, PATIENCE, "a worker that was started ahead")
    lab.reset(renew=True)
    assert bool(lab._spares) == (not leaves)


def test_somebody_holds_a_lock_between_runs(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset that cannot have its locks names who holds one, and what he did last."""
    monkeypatch.setattr(waits, "LOCK", 0.1)
    lab = lab_of(SKIP_LOCKED, fresh=True)
    lab._control.run(f"SET lock_timeout = '{waits.LOCK:g}s'")
    with psycopg.connect(lab.conninfo) as stranger:
        stranger.execute("LOCK TABLE jobs")
        told = rf"waited 0\.1 s for a lock .*: backend {stranger.info.backend_pid} has one on "
        last = r"public\.jobs \(idle in transaction, last statement: LOCK TABLE jobs\)"
        for conditions in (PLAIN, Conditions(gate="row")):
            with pytest.raises(QueueError, match=told + last):
                lab.reset(conditions)
    lab.reset()


def test_a_statement_that_does_not_end(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the runner too it is given up, with its block, its line and itself."""
    monkeypatch.setattr(waits, "STATEMENT", 0.2)
    text = SKIP_LOCKED.replace("CREATE TABLE", "SELECT pg_sleep(3600);\nCREATE TABLE", 1)
    line = text[: text.index("SELECT pg_sleep")].count("\n") + 1
    with pytest.raises(
        QueueError,
        match=rf"queue\.sql:{line}: schema has neither answered nor waited for another worker "
        r"after 0\.2 s: SELECT pg_sleep\(3600\)",
    ):
        lab_of(text)


@contextmanager
def given_up(what: str, *pids: int) -> Iterator[None]:
    """Processes do not answer, and a wait for something ends after 0.2 s."""
    with frozen(*pids), pytest.raises(waits.LimitError, match=rf"waited 0\.2 s for {what}"):
        yield


def test_a_backend_that_is_frozen(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness's own statements are given up with what was asked; sending is a wait as well."""
    lab = lab_of(SKIP_LOCKED, fresh=True)
    session = lab.session("w1")
    monkeypatch.setattr(waits, "OWN", 0.2)
    with given_up("PostgreSQL to answer", lab.control_pid):
        lab.advance(1.0)
    with given_up("PostgreSQL to answer", lab._admin.info.backend_pid):
        lab.execute("SELECT 1")
    with given_up("PostgreSQL to read SELECT", session.pid):
        session.send(Step(f"SELECT length('{'x' * 2**22}')"))


def test_a_frozen_server(server: Server, lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server takes no connection either, no statement is blamed."""
    lab = lab_of(SKIP_LOCKED, fresh=True)
    monkeypatch.setattr(waits, "STATEMENT", 0.2)
    monkeypatch.setattr(waits, "CONNECT", 0.2)
    session = lab.session("w1")
    with psycopg.connect(server._admin) as admin:
        (found,) = admin.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
    postmaster = int(str(found[0]).split()[0])
    with given_up("PostgreSQL at .* to take a", postmaster, session.pid):
        execute(session, Step("SELECT 1"))


def test_a_cancelled_statement_that_goes_on(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is frozen does not hear of a request to cancel, which is given up too."""
    lab = lab_of(SKIP_LOCKED, fresh=True)
    session = lab.session("w1")
    session.send(Step("SELECT pg_sleep(3600)"))
    monkeypatch.setattr(waits, "CANCEL", 0.2)
    with given_up("what w1 runs to end", session.pid):
        session.cancel()
    monkeypatch.setattr(waits, "GONE", 0.2)
    with given_up(f"backend {session.pid} to end", session.pid):
        lab.discard(session)


def test_a_signal_whose_exception_is_lost_has_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Python ignores in a callback of its collector, say: a wait ends by it, with an error."""
    monkeypatch.setattr(ending, "_signals", [signal.SIGTERM])
    monkeypatch.setattr(ending, "_unsaid", threading.Lock())
    assert cli.run(["check", "no such file.sql"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "queueproof: stopped by SIGTERM\n"


ENDING = """
import ctypes, gc, os, signal, threading, time
from queueproof import ending
from queueproof.cli.ends import stop
numbers = {1, 2, 15}
ending.end_on(numbers, stop)
"""
LOST = """
begun = []

def called_back(phase, info):
    if not begun:
        begun.append(phase)
        signal.raise_signal(15)

gc.callbacks.append(called_back)
try:
    gc.collect()
    time.sleep(60)
except KeyboardInterrupt as stopped:
    print(stopped)
"""
EARLY = """
real = signal.setitimer

def setitimer(which, seconds, interval=0.0):
    real(which, seconds, interval)
    if seconds:
        signal.raise_signal(signal.SIGALRM)

signal.setitimer = setitimer
"""
ALL = """
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
try:
    for number in numbers:
        signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
except KeyboardInterrupt as stopped:
    print(stopped)
"""
ENDS = {
    "soon": (LOST, "SIGTERM"),
    "at once, while Python still tells what it ignores": (EARLY + LOST, "SIGTERM"),
    "several: Python would say that it ignored the others due to a race condition": (ALL, "SIGHUP"),
}
STUCK = """
ending.STOP = 0.1
lock = ctypes.create_string_buffer(64)
ctypes.CDLL(None).pthread_mutex_lock(lock)

def tell():
    while hex(ctypes.addressof(lock)) not in open(f"/proc/self/task/{os.getpid()}/syscall").read():
        time.sleep(0.01)
    print("on", flush=True)

threading.Thread(target=tell, daemon=True).start()
ctypes.CDLL(None).pthread_mutex_lock(lock)
"""


@pytest.mark.parametrize(("code", "by"), ENDS.values(), ids=ENDS)
def test_what_python_ignores_of_a_signal_is_raised_again(code: str, by: str) -> None:
    """In a callback of the garbage collector, say, of which Hypothesis has one."""
    done = finished(sys.executable, "-c", ENDING + code, check=True)
    assert (done.stdout, done.stderr) == (f"stopped by {by}\n", "")


def test_a_call_that_does_not_return_is_ended_too(begin: Begin) -> None:
    """A signal whose handler Python never gets to, because a library goes on, ends the process."""
    process = begin(sys.executable, "-c", ENDING + STUCK)
    process.line()
    assert ends(process, signal.SIGTERM) == "queueproof: stopped by SIGTERM\n"
