"""The words of the scenarios on PostgreSQL itself: workers that run, wait, fail and go on.

A worker is a connection of its own. What it does is printed as it happens (`pytest -s`; where a
test fails pytest shows it anyway). That somebody waits, and for whom, is what the server says.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from queueproof import waits
from queueproof.errors import ServerError
from queueproof.queues.model import Parameter, Step, Value
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.run.session import LibpqSession

_PATIENCE = 10.0  # seconds; for what takes milliseconds
_WIDTH = 200  # characters of a statement, and of an answer
_BOOL, _NUMBERS = 16, {20, 21, 23, 26, 28}
_WAITED_FOR = """
SELECT pg_blocking_pids(pid), ARRAY(
  SELECT locktype || COALESCE(' ' || relation::regclass, '')
  FROM pg_locks l WHERE l.pid = a.pid AND NOT granted)
FROM pg_stat_activity a WHERE pid = %s
"""


class Worker:
    """Somebody who talks to the server.

    Args:
        stage: Where.
        name: As the timeline has it.
        conninfo: Of another database of the server than the stage's.
    """

    def __init__(self, stage: Stage, name: str, conninfo: str | None = None) -> None:
        self.name = name
        self._stage = stage
        self._session = LibpqSession(conninfo or stage.conninfo, name)

    @property
    def pid(self) -> int:
        """The process id of its backend."""
        return self._session.pid

    def sends(self, sql: str) -> None:
        """Start a statement, and leave it to itself."""
        self._told = _short(sql)
        self._session.send(Step(sql))

    def does(self, operation: str, **values: Parameter) -> list[Any]:
        """Run an operation of the reference, which must wait for nobody and succeed; its rows.

        Args:
            operation: The name of its block.
            **values: Its parameters.
        """
        (statement,) = self._stage.queue.blocks[operation].statements
        self._session.send(Step(statement.text, values))
        self._told = f"{operation}({', '.join(f'{name} {v}' for name, v in values.items())})"
        return self.answers()

    def runs(self, sql: str) -> list[Any]:
        """Run a statement, which must wait for nobody and succeed; its rows, one value bare."""
        self.sends(sql)
        return self.answers()

    def costs(self, sql: str) -> int:
        """Run a statement, which must wait for nobody and succeed; the buffers that it touches."""
        self._session.send(Step(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"))
        self._told = _short(sql)
        self._must_answer()
        ((plan,),) = (row.values() for row in self._session.result().rows)
        (top,) = json.loads(str(plan))
        buffers = int(top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"])
        self._stage.tell(self.name, self._told, f"{buffers} buffers")
        return buffers

    def waits_for(self, other: Worker, sql: str) -> None:
        """Start a statement, which must wait for somebody.

        Args:
            other: For whom, and for nobody else.
            sql: One statement.
        """
        self.sends(sql)
        if self._has_answered():
            self._fails(f"has an answer, and should wait for {other.name}")
        self._stage.tell(self.name, self._told, self._waiting)
        if [other.name] != self._wait[1]:
            self._fails(f"{self._waiting}, and should wait for {other.name}")
        self._told = "  goes on"

    def fails(self, sql: str) -> str:
        """Run a statement, which must fail at once; its SQLSTATE."""
        self.sends(sql)
        return self.refused()

    def stands_before(self, other: Worker) -> None:
        """Wait until what was sent waits for somebody, among others perhaps."""
        if self._has_answered() or other.name not in self._wait[1]:
            self._fails(f"does not wait for {other.name}")

    def settles(self) -> list[Any] | None:
        """What was sent ends, or waits: its rows, none of an error, or None."""
        if not self._has_answered():
            self._stage.tell(self.name, self._told, self._waiting)
            return None
        try:
            return self._rows()
        except ServerError:
            return []

    def answers(self) -> list[Any]:
        """The rows of what was sent or has waited, and must succeed now."""
        self._must_answer()
        try:
            return self._rows()
        except ServerError as error:
            self._fails(f"gets ERROR {error}")

    goes_on = answers

    def refused(self) -> str:
        """The SQLSTATE of what was sent or has waited, and must fail now."""
        self._must_answer()
        try:
            self._rows()
        except ServerError as error:
            return error.sqlstate
        return self._fails("succeeds, and should fail")

    def _rows(self) -> list[Any]:
        try:
            result = self._session.result()
        except ServerError as error:
            self._stage.tell(self.name, self._told, f"ERROR {error}")
            raise
        rows = [tuple(map(_python, row.values())) for row in result.rows]
        found = [row[0] if len(row) == 1 else row for row in rows]
        said = _short(", ".join(map(str, found))) or "nothing"
        self._stage.tell(self.name, self._told, said if result.columns else "")
        return found

    def crashes(self) -> None:
        """End the connection as a killed worker does, and wait until the server has seen it."""
        self._stage.tell(self.name, "(its connection ends)", "")
        self.leaves()
        self._stage.until_gone([self])

    def leaves(self) -> None:
        """Close the connection."""
        self._session.close()

    @property
    def is_held_up(self) -> bool:
        """Whether the server says that it waits for somebody."""
        self._wait = self._stage.wait_of(self)
        return bool(self._wait[0])

    @property
    def _waiting(self) -> str:
        _, blockers, lock = self._wait
        return f"waits for {' and '.join(blockers)} ({lock})"

    def _has_answered(self) -> bool:
        """Wait until the statement answers or waits; whether it has answered."""
        waits.until(
            lambda: self._session.ready(waits.OTHERS) or self.is_held_up,
            _PATIENCE,
            f"{self.name} to answer or to wait: {self._told}",
        )
        return self._session.ready(0)

    def _must_answer(self) -> None:
        if not self._has_answered():
            self._fails(f"{self._waiting}, and should not")

    def _fails(self, what: str) -> NoReturn:
        pytest.fail(f"{self.name} {what}: {self._told}")


@dataclass
class Stage:
    """One database, the workers in it, and the timeline of what they do.

    Attributes:
        conninfo: Of the database.
        observer: A connection that is nobody's.
        queue: The reference, for those who use it.
        workers: Everybody who has come.
    """

    conninfo: str
    observer: waits.LimitedConnection = field(repr=False)
    queue: SqlFileQueue = field(repr=False)
    workers: list[Worker] = field(default_factory=list)

    def worker(self, name: str, conninfo: str | None = None) -> Worker:
        """Somebody new, in another database perhaps."""
        self.workers.append(Worker(self, name, conninfo))
        return self.workers[-1]

    def enter(self, *names: str) -> list[Worker]:
        """Several people."""
        return [self.worker(name) for name in names]

    def prepare(self) -> None:
        """Put four queued jobs there, 1 to 4."""
        self.setup(
            "DROP TABLE IF EXISTS jobs CASCADE",
            "CREATE TABLE jobs (id int PRIMARY KEY, status text NOT NULL DEFAULT 'queued',"
            " priority int NOT NULL DEFAULT 0)",
            "INSERT INTO jobs SELECT generate_series(1, 4)",
        )

    def install(self) -> None:
        """Put the reference queue there instead, with no job."""
        schema = [statement.text for statement in self.queue.blocks["schema"].statements]
        self.setup("DROP TABLE IF EXISTS jobs CASCADE", *schema)

    def setup(self, *statements: str) -> None:
        """Run statements before it begins; the timeline has none of them."""
        for statement in statements:
            self.observer.execute(statement)

    def asks(self, query: str) -> Any:  # noqa: ANN401 - what the query answers
        """The one value of a query that only looks."""
        (row,) = self.observer.execute(query).fetchall()
        return row[0]

    def tell(self, name: str, what: str, outcome: str) -> None:
        """Add a line to the timeline."""
        print(f"  {name:<9} {what}{f'  ->  {outcome}' if outcome else ''}")  # noqa: T201 - pytest keeps it for a failure, and shows it with -s

    def wait_of(self, worker: Worker) -> tuple[Sequence[int], list[str], str]:
        """For whom somebody waits, process ids and names, and for which lock."""
        names = {one.pid: one.name for one in self.workers}
        for blockers, locks in self.observer.execute(_WAITED_FOR, [worker.pid]):
            return blockers, [names.get(pid, str(pid)) for pid in blockers], ", ".join(locks)
        return [], [], ""

    def until_nobody_is_older(self) -> None:
        """Wait until each transaction of the server that writes now has ended.

        `VACUUM` asks for those of its own database; `VACUUM FULL` and `CLUSTER` have a snapshot,
        and keep each row that was deleted after anybody's oldest transaction began, elsewhere too.
        """
        now = self.asks("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        older = f"SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint < {now}"
        waits.until(lambda: not self.asks(older), waits.GONE, "older transactions to end")

    def until_gone(self, workers: Sequence[Worker]) -> None:
        """Wait until backends have ended, and what they held is free."""
        pids = [worker.pid for worker in workers]
        left = "SELECT FROM pg_stat_activity WHERE pid = ANY(%s)"
        waits.until(
            lambda: not self.observer.execute(left, [pids]).fetchall(), waits.GONE, "backends"
        )


@contextmanager
def stage(conninfo: str, title: str, queue: SqlFileQueue) -> Iterator[Stage]:
    """A stage until the end of the block, when everybody has left.

    Args:
        conninfo: Of its database.
        title: Above its timeline.
        queue: For those who use it.
    """
    print(f"\n{title}")  # noqa: T201 - as the timeline below it
    with waits.LimitedConnection.open(conninfo) as observer:
        opened = Stage(conninfo, observer, queue)
        try:
            yield opened
        finally:
            for worker in opened.workers:
                worker.leaves()
            opened.until_gone(opened.workers)


def _short(text: str) -> str:
    return textwrap.shorten(text, _WIDTH, placeholder=" …")


def _python(value: Value) -> object:
    if value.text is None:
        return None
    if value.oid == _BOOL:
        return value.text == b"t"
    return int(value) if value.oid in _NUMBERS else str(value)
