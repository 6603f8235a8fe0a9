"""A worker as a queue: its messages, its life, and what is said when it misbehaves."""

import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queueproof.cli import run
from queueproof.errors import QueueproofError, ServerError
from queueproof.postgres import watchdog
from queueproof.queues.model import OPERATIONS as QUEUE_OPERATIONS
from queueproof.queues.model import Claim, JobRow, Value
from queueproof.queues.resolve import resolve
from queueproof.queues.worker import (
    _FACTS,
    WorkerClaim,
    WorkerError,
    WorkerProcess,
    WorkerQueue,
    as_uri,
)
from tests.fix_histories import each
from tests.fix_places import TEMPLATES
from tests.fix_programs import Begin, eventually, finished, is_gone
from tests.fix_queues import answered

Spawn = Callable[..., WorkerProcess]
OPERATIONS = ["enqueue", "claim", "complete", "complete_many", "fail", "heartbeat", "recover"]
DESCRIPTION = {"operations": [*OPERATIONS, "jobs", "cleanup"], "lease": 30}
PROGRAMS = {".py": sys.executable, ".mjs": "node"}
FAILED = {"id": "2", "state": "failed", "attempts": 2}
INIT = """{
  "operations": ["enqueue", "claim", "complete", "clock"],
  "takes": {"claim": ["limit", "worker"], "enqueue": ["payload"]},
  "lease": 1.5, "max_attempts": null, "backoff": 0, "jitter": 0.5, "order": "Priority,FIFO",
  "isolation": "serializable", "promises": ["old-snapshot"], "retry_on": ["40001"],
  "breaks": {"order": "no index"}
}"""
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
"""Answers each message with the message."""


def queue_of(code: str) -> WorkerQueue:
    """A queue whose workers are a few lines of Python."""
    return WorkerQueue("exec: it", [sys.executable, "-c", code])


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts workers, and ends them after the test."""
    with ExitStack() as stack:
        yield lambda code: stack.enter_context(WorkerProcess(queue_of(code), "w1"))


@pytest.fixture
def described() -> WorkerQueue:
    """A queue that offers everything."""
    queue = queue_of("")
    queue.described_by(DESCRIPTION)
    return queue


def test_exec_names_a_worker_and_its_arguments() -> None:
    """The command line is split as a shell would; nothing is started, and no step is there."""
    queue = resolve("exec: python3 'a worker.py' --fast")
    assert isinstance(queue, WorkerQueue)
    assert queue.argv == ("python3", "a worker.py", "--fast")
    assert queue.name == "exec: python3 'a worker.py' --fast"
    assert {"install", "enqueue", "claim"} == queue.offers
    with pytest.raises(QueueproofError, match="needed as steps"):
        queue.begin("claim")


@each(r"""
    name => message
    exec: => names no command; write both in quotes
    exec: python3 'a => no closing quotation
    exec: no-such-program x => there is no command no-such-program; is it installed
    exec: KEY=1 python3 => env NAME=value command
    exec: worker.sh => worker.sh is not on PATH; write ./worker.sh
    exec: ./worker.sh => ./worker.sh is not executable; chmod \+x ./worker.sh
""")
def test_a_command_line_that_cannot_work_says_what_to_write(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mistake has one message before anything runs, and a file that is no program then."""
    monkeypatch.chdir(tmp_path)
    Path("worker.sh").write_text("")
    with pytest.raises(QueueproofError, match=message):
        resolve(name)
    Path("worker.sh").chmod(0o700)
    with pytest.raises(WorkerError, match=r"exec: \./worker\.sh cannot be started: Exec format"):
        WorkerProcess(resolve("exec: ./worker.sh"), "w1")  # type: ignore[arg-type]


def test_the_digest_changes_with_the_arguments_and_files_among_them(tmp_path: Path) -> None:
    """A replay token is refused once the worker has changed."""
    worker = tmp_path / "worker.py"
    worker.write_text("1")
    before = WorkerQueue("q", ["python3", str(worker)]).digest
    assert before == WorkerQueue("other", ["python3", str(worker)]).digest
    assert before != WorkerQueue("q", ["python3", str(worker), "-v"]).digest
    worker.write_text("2")
    assert before != WorkerQueue("q", ["python3", str(worker)]).digest


def test_init_tells_facts_and_operations() -> None:
    """Header keys as in a queue file, durations as seconds; null is not promised, nor what was."""
    queue = queue_of("")
    queue.described_by(json.loads(INIT))
    assert {"install", "enqueue", "claim", "complete"} == queue.offers
    assert queue.moves_clock
    assert {"limit", "worker"} == queue.takes("claim")
    assert {"worker", "job"} == queue.takes("complete")
    assert (queue.lease, queue.backoff) == (timedelta(seconds=1.5), timedelta(0))
    assert (queue.max_attempts, queue.jitter) == (None, 0.5)
    assert (queue.order, queue.isolation) == ("priority, fifo", "serializable")
    assert queue.promises == {"old-snapshot"}
    assert queue.retry_on == {"40001"}
    assert queue.breaks == {"order": "no index"}
    queue.described_by({"operations": ["enqueue", "claim"]})
    assert queue.lease is None
    assert {"install", "enqueue", "claim"} == queue.offers


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, 'must have "operations"'),
        ({"operations": "claim"}, 'must have "operations"'),
        ({"operations": ["enqueue"]}, "\"operations\" lacks 'claim'"),
        ({"operations": ["enqueue", "claim", "complte"]}, "'complte'; did you mean 'complete'"),
        ({"leese": 30}, "unknown key 'leese'; did you mean 'lease'"),
        ({"zzz": 30}, "unknown key 'zzz'; known are backoff, breaks"),
        ({"lease": "30 seconds"}, 'lease: "30 seconds" is not a number of seconds; write 30'),
        ({"lease": True}, "lease: true is not a number of seconds"),
        ({"lease": 1e300}, "more than a clock can tell"),
        ({"backoff": -1}, "backoff: it cannot be less than zero"),
        ({"promises": ["old-snapshots"]}, "unknown guarantee old-snapshots; did you mean"),
        ({"breaks": ["order"]}, r"breaks: .* is not a table; write \{\"order\""),
        ({"takes": ["claim"]}, '"takes" is an object such as'),
        ({"takes": {"clame": []}}, "'clame'; did you mean 'claim'"),
        ({"takes": {"claim": "limit"}}, r'needs a list such as \["lease", "limit"'),
        ({"takes": {"claim": ["limits"]}}, "'limits'; did you mean 'limit'"),
        ({"takes": {"complete": ["worker"]}}, "'complete' is about a job: add 'job'"),
        ({"error": {"sqlstate": "42P01", "message": "no table"}}, "init failed: 42P01: no table"),
    ],
)
def test_a_wrong_description_says_how_to_write_it(answer: dict[str, Any], message: str) -> None:
    """The answer to init is checked as strictly as a queue file's header."""
    right = {} if not answer or "operations" in answer else {"operations": ["enqueue", "claim"]}
    with pytest.raises(WorkerError, match=message):
        queue_of("").described_by({**right, **answer})


def test_a_message_holds_what_the_operation_takes(described: WorkerQueue) -> None:
    """Durations become seconds, the payload an object; what is left open is the header's."""
    spec = {"payload": '{"n": 1}', "priority": 2, "delay": timedelta(seconds=1.5), "queue": "a"}
    expected = {"payload": {"n": 1}, "priority": 2, "delay": 1.5, "queue": "a", "max_attempts": 3}
    assert {"op": "enqueue", "jobs": [expected]} == described.request("enqueue", **spec)
    claim = {"op": "claim", "worker": "u", "limit": 2, "lease": 30, "queue": "a"}
    assert described.request("claim", worker="u", limit=2, queue="a", age=None) == claim
    assert described.request("cleanup", age=timedelta(minutes=1)) == {"op": "cleanup", "age": 60}
    assert described.request("clock", ahead=-3.5) == {"op": "clock", "ahead": -3.5}
    # Client libraries outside libpq read nothing but a URI.
    dsn, uri = "host=/tmp/socket dbname=q user=me", "postgresql:///q?user=me&host=/tmp/socket"
    init = described.request("init", dsn=dsn, queue="default")
    assert init == {"op": "init", "dsn": uri, "queue": "default"}
    assert {"op": "install", "dsn": uri} == described.request("install", dsn=dsn)


@each("""
    dsn => uri
    host=db port=6543 dbname=q => postgresql://db:6543/q
    every part
        host=::1 user='a@b' password='p /?' dbname='q r' sslmode=require
        => postgresql://a%40b:p%20%2F%3F@[::1]/q%20r?sslmode=require
    host=a,b port=1,2 dbname=q => postgresql:///q?host=a%2Cb&port=1%2C2
    postgres://me@db/q => postgres://me@db/q
""")
def test_a_connection_string_becomes_a_uri(dsn: str, uri: str) -> None:
    """Each part is quoted where it stands, and a URI is left alone."""
    assert uri == as_uri(dsn)


def test_a_connection_string_that_is_none_is_not_repeated() -> None:
    """It may hold a password."""
    with pytest.raises(QueueproofError, match="no connection string") as caught:
        as_uri("secret")
    assert "secret" not in str(caught.value)


def test_a_claimed_job_goes_back_as_it_came(described: WorkerQueue) -> None:
    """Columns that nobody here knows are kept, types included; the story gets them as text."""
    job = {"id": "7", "attempt": 1, "receipt": None, "at": 1.5, "tags": ["a"], "name": "x"}
    (claim,) = described.read("claim", {}, {"jobs": [job]})
    assert WorkerClaim("7", claim.token, job) == claim
    assert job == described.request("complete", worker="u", job=claim)["job"]
    assert [job] == described.request("complete_many", worker="u", jobs=[claim])["jobs"]
    told = (b"7", b"1", None, b"1.5", b'["a"]', b"x")
    assert claim.token == {name: Value(text, 0) for name, text in zip(job, told, strict=True)}
    with pytest.raises(AssertionError):  # only a worker's own can go back to it
        described.request("complete", worker="u", job=Claim("7"))


@pytest.mark.parametrize(
    ("operation", "answer", "expected"),
    [
        ("install", {}, None),
        ("enqueue", {"ids": ["7"]}, ["7"]),
        ("claim", {"jobs": []}, []),
        ("complete", {"accepted": True}, True),
        ("fail", {"accepted": False}, False),
        ("heartbeat", {"accepted": True}, True),
        ("complete_many", {"ids": ["1"]}, frozenset({"1"})),
        ("complete_many", {"ids": None}, None),
        ("complete_and_claim", {"ids": ["1"], "jobs": []}, (frozenset({"1"}), [])),
        ("recover", {"ids": []}, []),
        ("cleanup", {"deleted": 3}, None),
        ("jobs", {"jobs": [{"id": "1", "state": "queued"}]}, [JobRow("1", "queued")]),
        ("jobs", {"jobs": [FAILED]}, [JobRow("2", "failed", 2)]),
    ],
)
def test_an_answer_is_read_as_the_operation_returns_it(
    described: WorkerQueue, operation: str, answer: object, expected: object
) -> None:
    """A worker's answers mean what a Python queue's mean."""
    assert expected == described.read(operation, {"op": operation, "jobs": [{"id": "1"}]}, answer)


@pytest.mark.parametrize(
    ("operation", "answer", "message"),
    [
        ("claim", [], "one JSON object"),
        ("claim", {"job": []}, 'must have "jobs", a list of objects'),
        ("claim", {"jobs": [7]}, 'must have "jobs", a list of objects'),
        ("claim", {"jobs": [{"id": 7}]}, 'needs an "id", a string'),
        ("enqueue", {"ids": [7]}, 'must have "ids", a list of strings'),
        ("enqueue", {"ids": []}, "it was given 1 job: as many ids"),
        ("complete", {"accepted": 1}, '"accepted": true} or'),
        ("complete_many", {"ids": ["9"]}, "'9' is none of the jobs that it was given"),
        ("complete_many", {}, 'must have "ids"'),
        ("recover", {"ids": None}, 'must have "ids"'),
        ("jobs", {"jobs": [{"id": "1"}]}, 'needs a "state", one of queued, running'),
        ("jobs", {"jobs": [{"id": "1", "state": "done"}]}, 'needs a "state"'),
        ("jobs", {"jobs": [{"id": "1", "state": "queued", "attempts": True}]}, "number, not true"),
        ("jobs", {"jobs": [{"id": "1", "state": "queued"}] * 2}, "job '1' stands there twice"),
        ("claim", {"error": "x"}, '"error" is {"sqlstate"'),
        ("claim", {"error": {"sqlstate": None, "message": "x"}}, 'does not tell.*"XX000"'),
        ("claim", {"error": {"sqlstate": "40001", "message": None}}, '"error" is {"sqlstate"'),
    ],
)
def test_a_wrong_answer(
    described: WorkerQueue, operation: str, answer: object, message: str
) -> None:
    """The message names the worker, the operation, the line that it wrote, and the right form."""
    with pytest.raises(WorkerError, match=message) as caught:
        described.read(operation, {"op": operation, "jobs": [{"id": "1"}]}, answer)
    assert f"exec: it answered {operation} with {json.dumps(answer)}: " in str(caught.value)


def test_messages_are_answered_one_by_one(spawn: Spawn) -> None:
    """Each answer is the line after it, be it longer than a pipe; nothing waits for part of it."""
    worker = spawn(ECHO)
    for text in ("a", "b", "ä" * 150_000):
        assert {"op": "x", "text": text} == worker.ask({"op": "x", "text": text})
    worker.receive()
    assert worker.answer is None
    worker.send({"op": "x"})
    while worker.answer is None:
        select.select([worker.stdout], [], [])
        worker.receive()
    worker.check()
    assert (worker.take(), worker.answer) == ({"op": "x"}, None)


def test_an_answer_counts_that_comes_after_its_question(spawn: Spawn) -> None:
    """Its answer stands, and its end is told next; a line that was there before is no answer."""
    worker = spawn("input(); print('{}', flush=True); raise SystemExit(3)")
    assert worker.ask({"op": "claim"}) == {}
    eventually(lambda: not worker.alive, "a worker to end")
    with pytest.raises(WorkerError, match=r'exit status 3, asked \{"op": "fail"\}'):
        worker.ask({"op": "fail"})
    worker = spawn(
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {10}); input(); "
        "print('{}', flush=True); signal.sigwait({10}); print('{}', flush=True); input()"
    )
    worker.ask({"op": "first"})
    os.kill(worker.pid, 10)
    select.select([worker.stdout], [], [])
    with pytest.raises(WorkerError, match="a line that nobody asked for"):
        worker.ask({"op": "second"})


@each(r"""
    code => message
    input(); raise SystemExit('no table') => ended with exit status 1.*no table
    import os; input(); os.kill(os.getpid(), 11) => signal 11 \(Segmentation fault\)
    input(); print('hello', flush=True); input() => wrote hello, which is no JSON object
    input(); print('[1]', flush=True); input() => wrote \[1\], which is no JSON object
    input(); print('NaN', flush=True); input() => wrote NaN, which is no JSON object
    input(); print('[' * 9999, flush=True); input() => wrote \[{200}\.\.\., which is no
    input(); print('{"id": "\\ud800"}', flush=True); input() => is no JSON object
    import os; input(); os.write(1, b'\xff\n'); input() => which is no JSON object
    input(); print('{}\n{}', flush=True); input() => a line that nobody asked for: {}
    input(); print('x' * 2_000_000, flush=True) => more than 1 MB: xxx
    import os; input(); os.close(1); input() => closed its stdout, and runs on
""")
def test_what_a_worker_must_not_do_is_told(spawn: Spawn, code: str, message: str) -> None:
    """The message says which queue and worker, what it was asked, and how it went wrong."""
    worker = spawn(code)
    with pytest.raises(WorkerError, match=f"(?s){message}") as caught:
        worker.ask({"op": "claim", "dsn": "secret", "worker": "u"})
    assert str(caught.value).startswith("exec: it (w1) ")
    assert ', asked {"op": "claim", "worker": "u"}' in str(caught.value)


def test_a_worker_that_hangs_is_given_up(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time it was given is stated, and a full pipe does not stop the harness either."""
    with pytest.raises(WorkerError, match=r"has not answered claim within 0\.2 s"):
        spawn("input(); input()").ask({"op": "claim"}, 0.2)
    monkeypatch.setattr("queueproof.waits.ANSWER", 0.2)
    with pytest.raises(WorkerError, match="does not read what it is asked"):
        spawn("import signal; signal.pause()").send({"op": "x", "text": "x" * 200_000})


def test_the_end_of_a_talkative_workers_log_is_shown(spawn: Spawn) -> None:
    """A log longer than a pipe holds does not stop it, and 4 kB of it are kept."""
    code = "import sys; input(); sys.stderr.write('begin' + 'x' * 300_000 + 'end')"
    with pytest.raises(WorkerError) as caught:
        spawn(code).ask({"op": "claim"})
    assert str(caught.value).endswith("xxxend")
    assert "begin" not in str(caught.value)


FAMILY = """
import json, subprocess, sys; input()
child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], {})
print(json.dumps({{'pid': child.pid}}), flush=True); input()
"""
STAYS = FAMILY.format("")
LEAVES = FAMILY.format("start_new_session=True, stdout=subprocess.DEVNULL")
"""Starts somebody, in a session of his own or not, and answers who that is."""
HARNESS = """
import os, signal, sys; from queueproof.queues.worker import WorkerProcess, WorkerQueue
def begin(code): return WorkerProcess(WorkerQueue('q', [sys.executable, '-c', code]), 'w1')
def begun(worker): return worker.ask({'op': 'x'})['pid']
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_kill_ends_the_whole_family(spawn: Spawn, *, stopped: bool) -> None:
    """A crash leaves nothing of a worker behind, and the worker is reaped."""
    worker = spawn(STAYS)
    child = worker.ask({"op": "x"})["pid"]
    if stopped:
        os.killpg(worker.pid, signal.SIGSTOP)
    worker.kill()
    worker.kill()
    assert not worker.alive
    assert not Path(f"/proc/{worker.pid}").exists()
    eventually(lambda: is_gone(child), "what it had started to end")
    with pytest.raises(WorkerError, match=r"signal 9 \(Killed\)"):
        worker.check()


def test_a_killed_harness_leaves_no_worker_behind(begin: Begin) -> None:
    """Not even those that are stopped, or do not look at their stdin."""
    code = (
        f"{HARNESS}workers = [begin({STAYS!r}), begin({STAYS!r})]\n"
        "pids = [pid for one in workers for pid in (begun(one), one.pid)]\n"
        "os.killpg(workers[0].pid, signal.SIGSTOP)\n"
        "print(*pids, flush=True); input()"
    )
    harness = begin(sys.executable, "-c", code)
    pids = [int(pid) for pid in harness.line().split()]
    assert len(pids) == 4
    assert not any(is_gone(pid) for pid in pids)
    harness.send_signal(signal.SIGKILL)
    eventually(lambda: all(map(is_gone, pids)), "all workers to end")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_who_has_left_a_workers_session_ends_with_the_harness(
    how: signal.Signals | None, begin: Begin
) -> None:
    """Be the harness killed, stopped or at its end, and the worker that started it gone."""
    code = (
        f"{HARNESS}worker = begin({LEAVES!r}); print(begun(worker), flush=True)\n"
        "worker.kill(); print('killed', flush=True); input()"
    )
    harness = begin(sys.executable, "-c", code)
    pid = int(harness.line())
    assert harness.line() == "killed"
    assert not is_gone(pid)
    if how is None:
        harness.communicate("\n")
    else:
        harness.send_signal(how)
    eventually(lambda: is_gone(pid), "who had left the session to end")


def test_a_group_whose_number_is_a_strangers_stays(spawn: Spawn) -> None:
    """What is killed at the end began when it was made known."""
    worker = spawn(ECHO)
    began = watchdog.started(worker.pid)
    watchdog.end([{"do": "group", "pid": worker.pid, "started": began - 1}])
    assert worker.ask({"op": "x"}) == {"op": "x"}
    watchdog.end([{"do": "group", "pid": worker.pid, "started": began}])
    eventually(lambda: not worker.alive, "a worker to end")


def live_through(queue: WorkerQueue, dsn: str) -> None:
    """Put a template through the life of a few jobs."""
    with WorkerProcess(queue, "the installer") as installer:
        queue.described_by(installer.ask(queue.request("init", dsn=dsn, queue="default")))
        assert answered(queue, installer, "install", dsn=dsn) is None
    offered = {"install", "enqueue", "claim", "complete", "fail", "heartbeat", "recover", "jobs"}
    assert offered == queue.offers
    nothing = timedelta(0)
    with WorkerProcess(queue, "w1") as one, WorkerProcess(queue, "w2") as two:
        for worker in (one, two):
            worker.ask(queue.request("init", dsn=dsn, queue="default"))
        ids = [
            answered(queue, one, "enqueue", payload='{"a": [1]}', priority=priority, delay=delay)[0]
            for priority, delay in [(0, nothing), (5, nothing), (9, timedelta(hours=1))]
        ]
        (first,) = answered(queue, one, "claim", worker="u1", limit=1)
        assert (ids[1], {"a": [1]}) == (first.id, first.job["payload"])
        (second,) = answered(queue, two, "claim", worker="u2", limit=5)
        assert ids[0] == second.id
        assert not answered(queue, two, "complete", worker="u2", job=first)
        assert answered(queue, one, "heartbeat", worker="u1", job=first)
        assert answered(queue, one, "complete", worker="u1", job=first)
        assert not answered(queue, one, "complete", worker="u1", job=first)
        assert answered(queue, two, "fail", worker="u2", job=second, error='it\'s "bad"')
        assert answered(queue, one, "recover", lease=queue.lease) == []
        rows = {row.id: (row.state, row.attempts) for row in answered(queue, two, "jobs")}
        assert dict(zip(ids, [("queued", 1), ("completed", 1), ("queued", 0)], strict=True)) == rows
        never = timedelta(2 * 10**8)
        with pytest.raises(ServerError) as caught:
            answered(queue, one, "enqueue", payload="{}", priority=10**9, delay=never)
        assert caught.value.sqlstate == "22008"  # datetime_field_overflow


@pytest.mark.parametrize("suffix", [".py", pytest.param(".mjs", marks=pytest.mark.node)])
def test_a_template_works(
    database: str, tmp_path: Path, suffix: str, request: pytest.FixtureRequest
) -> None:
    """It claims, refuses what is lost, recovers, reports, tells errors, and ends with its stdin."""
    worker = tmp_path / f"worker{suffix}"
    assert run(["init", str(worker)]) == 0
    if suffix == ".mjs":
        modules = request.getfixturevalue("node_modules")
        (tmp_path / "node_modules").symlink_to(modules)
    live_through(WorkerQueue("q", [PROGRAMS[suffix], str(worker)]), database)
    ended = finished(PROGRAMS[suffix], worker, input="")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_templates_run_the_same_statements() -> None:
    """Two languages, one queue: their SQL differs in the parameters' form alone."""
    python, node = ((TEMPLATES / f"worker.{end}").read_text() for end in ("py", "mjs"))
    begins = ("UPDATE", "  SELECT", "SET")
    shared = [line for line in python.splitlines() if line.startswith(begins)]
    assert len(shared) > 5
    assert not [line for line in shared if "%" not in line and line not in node]


def test_the_documentation_has_every_message_and_every_key_of_init(described: WorkerQueue) -> None:
    """With all that each may be told and declare, and answers that are understood."""
    text = (TEMPLATES / "README.md").read_text()
    spoken = re.findall(r"^ {4}> (.*)\n {4}< (.*)$", text, re.MULTILINE)
    assert len(re.findall(r"^ {4}[<>] ", text, re.MULTILINE)) == 2 * len(spoken)
    told: dict[str, set[str]] = {}
    for message, answer in (map(json.loads, pair) for pair in spoken):
        operation = message["op"]
        known = message["jobs"][0] if operation == "enqueue" else message
        told[operation] = known.keys() - {"op"}
        with suppress(ServerError):
            described.read(operation, message, answer)
        if operation == "init":
            queue_of("").described_by(answer)
    others = {"init": {"dsn", "queue"}, "install": {"dsn"}, "clock": {"ahead"}}
    assert {**QUEUE_OPERATIONS, **others} == told
    table = text.partition("## What `init` answers")[2].partition("\n## ")[0]
    keys = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert {"operations", "takes", *_FACTS} == keys
