"""A Python class that owns its connections, and the process that hosts it."""

import asyncio
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from queueproof import Client
from queueproof.errors import QueueproofError, ServerError
from queueproof.postgres import Server
from queueproof.queues.client import Responder, describe, serve
from queueproof.queues.resolve import resolve
from queueproof.queues.worker import WorkerProcess, WorkerQueue
from tests.fix_places import ROOT
from tests.fix_programs import finished
from tests.fix_queues import Write, answered

DSN = "postgresql:///q"

SOUND = """
from datetime import timedelta
from queueproof import Client

class Mine(Client):
    lease = timedelta(seconds=30)

    def install(self):
        pass

    def enqueue(self, payload):
        print("a library may print")
        return 7

    async def claim(self, worker, limit):
        return [{"id": 7, "worker": worker}]

    def complete(self, worker, job):
        return job["worker"] == worker
"""


@contextmanager
def hosting(kind: type[Client]) -> Iterator[Responder]:
    """Host a class, in this process."""
    with closing(Responder(kind)) as host:
        host.answer(b'{"op": "init", "dsn": "x"}')
        yield host


def hosted(name: str) -> WorkerQueue:
    """The queue of a class."""
    queue = resolve(name)
    assert isinstance(queue, WorkerQueue)
    return queue


class Asked(Client):
    """Answers a claim with whatever a test wants, and notes what it was given."""

    returns: Any = ()
    raises: BaseException | None = None

    def install(self) -> None:
        """Nothing."""

    def enqueue(self, payload: object, delay: timedelta) -> object:
        """Give back what was given."""
        return json.dumps([payload, delay.total_seconds()])

    async def claim(self) -> Any:  # noqa: ANN401
        """What the test wants."""
        if self.raises is not None:
            raise self.raises
        return self.returns

    complete = complete_many = complete_and_claim = fail = recover = jobs = claim


def answer_of(kind: type[Client], *messages: Mapping[str, object]) -> dict[str, Any]:
    """What a host answers to the last of some messages, after init."""
    out = io.BytesIO()
    lines = [json.dumps(message).encode() for message in messages]
    with hosting(kind) as host:
        serve(host, lines, out)
    answer: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return answer


def returning(value: object) -> type[Client]:
    """A class whose operations return one thing."""
    return type("Returning", (Asked,), {"returns": value})


def raising(error: BaseException) -> type[Client]:
    """A class whose operations raise one exception."""
    return type("Raising", (Asked,), {"raises": error})


def test_a_class_works_in_a_process_of_its_own(write: Write) -> None:
    """Its offers, parameters and promises are known before, from attributes and signatures."""
    # Sync and async methods alike; what its library prints does not disturb the answers.
    name = f"{write(SOUND)}:Mine"
    queue = hosted(name)
    assert name == queue.name
    assert {"install", "enqueue", "claim", "complete"} == queue.offers
    assert {"payload"} == queue.takes("enqueue")
    assert timedelta(seconds=30) == queue.lease
    assert queue.moves_clock
    with WorkerProcess(queue, "w1") as process:
        queue.described_by(process.ask(queue.request("init", dsn=DSN, queue="default")))
        assert timedelta(seconds=30) == queue.lease
        assert answered(queue, process, "enqueue", payload="{}") == ["7"]
        (claim,) = answered(queue, process, "claim", worker="u1", limit=1)
        assert claim.job == {"id": "7", "worker": "u1"}
        assert answered(queue, process, "complete", worker="u1", job=claim) is True
        assert answered(queue, process, "complete", worker="u2", job=claim) is False


def test_the_digest_is_the_class(write: Write) -> None:
    """A replay token is refused once the class, or one that it derives from, has changed."""
    before, same, changed = (
        hosted(f"{write(code)}:Mine").digest
        for code in (SOUND, f"# moved\n{SOUND}", SOUND.replace("return 7", "return 8"))
    )
    assert before == same
    assert before != changed


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("def claim(", "def claims("), 5, "has no claim, which is required; is it 'claims'"),
        (("worker, limit", "worker, limt"), 15, "claim cannot be given 'limt'; did you mean"),
        (("(seconds=30)", "(0)"), 5, "lease: it must be longer than zero"),
        (("    lease", "    max_attempt = 4\n    lease"), 6, "did you mean 'max_attempts'"),
    ],
)
def test_a_mistake_in_a_class_is_shown_with_its_line(
    write: Write, change: tuple[str, str], line: int, message: str
) -> None:
    """As for a class of SQL steps, before a process is started."""
    module = write(SOUND.replace(*change))
    with pytest.raises(QueueproofError) as caught:
        resolve(f"{module}:Mine")
    assert str(caught.value).startswith(f"{module}.py:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("arguments", [[], ["no_such_module:Mine"], ["json:Mine"]])
def test_the_host_started_by_hand_says_what_is_missing(arguments: list[str]) -> None:
    """One line, and exit code 4; a traceback is for those who ask for one."""
    ran = finished(sys.executable, "-m", "queueproof.queues.client", *arguments, input="")
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (4, "", 1)
    assert "Error: " in ran.stderr


def test_arguments_are_what_python_expects() -> None:
    """Seconds arrive as a timedelta, the payload as an object; what is not taken is not passed."""
    message = {"op": "enqueue", "jobs": [{"payload": {"a": 1}, "delay": 1.5, "priority": 3}]}
    assert answer_of(Asked, message) == {"ids": ['[{"a": 1}, 1.5]']}


@pytest.mark.parametrize(
    ("operation", "value", "answer"),
    [
        ("claim", None, {"jobs": []}),
        ("claim", [{"id": 7, "attempt": 1}], {"jobs": [{"id": "7", "attempt": 1}]}),
        (
            "claim",
            [{"id": UUID(int=7), "at": datetime(2024, 2, 29, tzinfo=UTC), "n": Decimal("1.50")}],
            {"jobs": [{"id": str(UUID(int=7)), "at": "2024-02-29 00:00:00+00:00", "n": "1.50"}]},
        ),
        ("complete", True, {"accepted": True}),
        ("complete_many", (1, 2), {"ids": ["1", "2"]}),
        ("complete_many", None, {"ids": None}),
        ("complete_and_claim", ([1], [{"id": 2}]), {"ids": ["1"], "jobs": [{"id": "2"}]}),
        ("recover", None, {"ids": []}),
        ("recover", [3], {"ids": ["3"]}),
    ],
)
def test_plain_python_becomes_json(operation: str, value: object, answer: object) -> None:
    """Ids are text, and so is what JSON has no word for."""
    assert answer == answer_of(returning(value), {"op": operation, "jobs": []})


@pytest.mark.parametrize(
    ("operation", "value", "message"),
    [
        ("complete", None, "complete returned None; return True where"),
        ("fail", 1, "fail returned 1; return True where"),
        ("claim", [{"job": 7}], "claim returned {'job': 7}: a job needs an 'id'"),
        ("claim", [{"id": None}], "claim returned None where a job's id belongs"),
        ("claim", [{"id": 1, "job": object}], "a type cannot be sent as JSON"),
        ("recover", [{"id": 1}], "recover returned {'id': 1} where a job's id belongs"),
    ],
)
def test_a_wrong_return_value_is_told(operation: str, value: object, message: str) -> None:
    """The answer is an error that names the operation and what it should return."""
    error = answer_of(returning(value), {"op": operation})["error"]
    assert error["sqlstate"] == "XX000"
    assert message in error["message"]


class DriverError(Exception):
    """As a driver raises it."""

    sqlstate = "40001"


class WrapperError(Exception):
    """As SQLAlchemy raises it."""

    orig = DriverError("try")


def caused_by(cause: Exception, *, hidden: bool = False) -> Exception:
    """An exception raised because of another, or `from None` while another was handled."""
    error = LookupError("x")
    error.__context__, error.__cause__ = cause, None if hidden else cause
    return error


@pytest.mark.parametrize(
    ("error", "sqlstate", "message"),
    [
        (DriverError("try\nagain"), "40001", "try again"),
        (WrapperError("wrapped"), "40001", "wrapped"),
        (caused_by(DriverError("try")), "40001", "x"),
        (caused_by(DriverError("try"), hidden=True), "XX000", "LookupError: x (tests/"),
        (asyncio.CancelledError(), "XX000", "CancelledError: "),
        (ZeroDivisionError("division by zero"), "XX000", "ZeroDivisionError: division by zero ("),
    ],
)
def test_an_exception_becomes_an_error(
    error: BaseException,
    sqlstate: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The server's SQLSTATE, however wrapped; otherwise XX000 with the line, and no traceback."""
    monkeypatch.chdir(ROOT)
    told = answer_of(raising(error), {"op": "claim"})["error"]
    assert sqlstate == told["sqlstate"]
    assert told["message"].startswith(message)
    assert capfd.readouterr().err == ("" if sqlstate == "40001" else f"{told['message']}\n")


def test_a_traceback_is_for_those_who_ask(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An environment variable prints it to the log."""
    monkeypatch.setenv("QUEUEPROOF_TRACEBACK", "1")
    answer_of(raising(ZeroDivisionError()), {"op": "claim"})
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_what_is_no_message_is_answered_all_the_same() -> None:
    """Whoever types by hand is told what was wrong, and may go on."""
    with closing(Responder(Asked)) as host:
        for said, told in (
            (b"hello", "JSONDecodeError"),
            (b"{}", "KeyError: 'op'"),
            (b'{"op": "claim"}', "claim before init"),
        ):
            assert told in str(host.answer(said))
        assert describe(Asked) == host.answer(b'{"op": "init", "dsn": "x"}')


class Ticking(Asked):
    """A library with a task in the background."""

    ticks = 0

    async def open(self) -> None:
        """Start it."""
        self.task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0)

    async def claim(self) -> list[dict[str, object]]:
        """Let it run for a moment."""
        await asyncio.sleep(0)
        return [{"id": self.ticks}]


def test_one_event_loop_lives_as_long_as_the_worker() -> None:
    """All operations find what `open` began, still between them; plain ones run outside."""
    with hosting(Ticking) as host:
        client = host._client
        assert isinstance(client, Ticking)
        host.answer(b'{"op": "claim"}')
        ticks = client.ticks
        assert ticks > 0
        host.answer(b'{"op": "enqueue", "jobs": [{"payload": 1, "delay": 0}]}')  # no coroutine
        assert ticks == client.ticks
        host.answer(b'{"op": "claim"}')
        assert ticks < client.ticks

    # A library may run a loop of its own, or refuse to be called in one, as Django its database.
    class Synchronous(Asked):
        def claim(self) -> list[dict[str, object]]:  # type: ignore[override]
            asyncio.run(asyncio.sleep(0))
            return [{"id": 1}]

    assert answer_of(Synchronous, {"op": "claim"}) == {"jobs": [{"id": "1"}]}


def test_the_clock_is_moved_and_set_back() -> None:
    """Each `ahead` counts from real time, by which loops wait; a method `clock` goes before."""

    class Clocked(Asked):
        async def claim(self) -> list[dict[str, object]]:
            now = datetime.now(UTC).timestamp()
            return [{"id": 1, "time": time.time(), "now": now, "monotonic": time.monotonic()}]

    class OwnClock(Asked):
        ahead: float = 0

        def clock(self, ahead: float) -> None:
            self.ahead = ahead

        async def claim(self) -> list[dict[str, object]]:
            return [{"id": self.ahead}]

    for ahead in (0, 3600, -86400, 0.0):
        with hosting(Clocked) as host:
            began, real = time.monotonic(), time.time()
            assert host.answer(json.dumps({"op": "clock", "ahead": ahead}).encode()) == {}
            jobs: Any = host.answer(b'{"op": "claim"}')["jobs"]
            host.answer(b'{"op": "clock", "ahead": 0}')
        passed = time.monotonic() - began
        assert ahead - 1 <= jobs[0]["time"] - real <= ahead + passed + 1
        assert ahead - 1 <= jobs[0]["now"] - real <= ahead + passed + 1
        assert began <= jobs[0]["monotonic"] <= began + passed
    answer = answer_of(OwnClock, {"op": "clock", "ahead": 5}, {"op": "claim"})
    assert answer == {"jobs": [{"id": "5"}]}


ON_PSYCOPG = """
import psycopg
from psycopg.types.json import Jsonb
from queueproof import Client

class Plain(Client):
    def open(self):
        self.db = psycopg.connect(self.dsn, autocommit=True)
        self.db.execute("SELECT FROM jobs")  # fails before `install`

    def install(self):
        with psycopg.connect(self.dsn) as db:
            db.execute("CREATE TABLE jobs (id bigserial PRIMARY KEY, payload jsonb, worker text)")

    def enqueue(self, payload):
        insert = "INSERT INTO jobs (payload) VALUES (%s) RETURNING id"
        return self.db.execute(insert, [Jsonb(payload)]).fetchone()

    def claim(self, worker, limit):
        take = "UPDATE jobs SET worker = %s WHERE worker IS NULL RETURNING id, payload"
        return [{"id": id, "payload": payload} for id, payload in self.db.execute(take, [worker])]

    def jobs(self):
        self.db.execute("SELECT 1 / 0")


class Async(Plain):
    async def open(self):
        self.adb = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        await self.adb.execute("SELECT FROM jobs")

    async def enqueue(self, payload):
        insert = "INSERT INTO jobs (payload) VALUES (%s) RETURNING id"
        return await (await self.adb.execute(insert, [Jsonb(payload)])).fetchone()

    async def claim(self, worker, limit):
        take = "DELETE FROM jobs RETURNING id, payload"
        rows = await (await self.adb.execute(take)).fetchall()
        return [{"id": id, "payload": payload} for id, payload in rows]

    async def jobs(self):
        await self.adb.execute("SELECT 1 / 0")
"""


@pytest.mark.parametrize("kind", ["Plain", "Async"])
def test_a_class_with_a_connection_of_its_own(server: Server, write: Write, kind: str) -> None:
    """It connects, installs what `open` needs, claims what it enqueued, and passes errors on."""
    queue = hosted(f"{write(ON_PSYCOPG)}:{kind}")
    with server.database() as dsn:
        init = queue.request("init", dsn=dsn, queue="default")
        with WorkerProcess(queue, "the installer") as installer:
            assert "42P01" in str(installer.ask(init))
        with WorkerProcess(queue, "the installer") as installer:
            assert answered(queue, installer, "install", dsn=dsn) is None
        with WorkerProcess(queue, "w1") as process:
            queue.described_by(process.ask(init))
            (identifier,) = answered(queue, process, "enqueue", payload='{"a": [1]}')
            (claim,) = answered(queue, process, "claim", worker="u1", limit=1)
            assert {"id": identifier, "payload": {"a": [1]}} == claim.job
            assert answered(queue, process, "claim", worker="u1", limit=1) == []
            with pytest.raises(ServerError, match="22012: division by zero"):
                answered(queue, process, "jobs")
