"""A queue under test: a few declared facts, and operations as generators of SQL steps.

An operation never touches a connection. It yields a `Step`, receives the server's `Result`, and
returns its answer, so that one definition runs under every driver: the step scheduler, the
workers, the load generator. The idea is sans-IO (https://sans-io.readthedocs.io), applied to SQL.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar, get_args

from queueproof import ending
from queueproof.errors import ClassError, QueueproofError, Source

T = TypeVar("T")

MOST_STEPS = 10_000  # statements of one operation
LONGEST = 60.0  # seconds that the Python code of an operation takes between two of its steps
VOID = 2278  # pg_type.oid of void, what a function returns that returns nothing


def interval(span: timedelta) -> str:
    """The text of a span as drivers send it: by days where it is days, otherwise by seconds.

    To an interval these are two fields, and SQL that reads one alone is right for half of them.
    """
    if span.days and span == timedelta(span.days):
        return f"{span.days} days"
    return f"{span.total_seconds():.6f}".rstrip("0").rstrip(".") + " seconds"


def array_literal(texts: Iterable[bytes | None]) -> bytes:
    """The text of an array as drivers send it (manual, 8.15.6)."""
    escaped = (text and text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for text in texts)
    return b"{%b}" % b",".join(b"NULL" if one is None else b'"%b"' % one for one in escaped)


class Value(NamedTuple):
    """One value as the server sent it, so that a token travels back unchanged in value and type.

    Attributes:
        text: PostgreSQL's text form, None for NULL.
        oid: The type that the server reported (`pg_type.oid`).
    """

    text: bytes | None
    oid: int

    def __str__(self) -> str:
        return "NULL" if self.text is None else self.text.decode()

    def __int__(self) -> int:
        return int(str(self))


class Values(NamedTuple):
    """A column of values, sent as an array of the column's type."""

    texts: tuple[bytes | None, ...]
    oid: int  # of one element


Row: TypeAlias = Mapping[str, Value]
Scalar: TypeAlias = Value | str | int | bool | float | timedelta | None
Parameter: TypeAlias = Values | Sequence[Scalar] | Scalar


class Step(NamedTuple):
    """One statement for the server.

    Attributes:
        sql: A single statement; `:name` stands for a parameter bound by the server.
        params: A value for each `:name`. Python values are bound as int4/int8, float8, bool,
            interval (timedelta) and, for str, as a literal whose type the server infers; a list
            is an array: `{"ids": [row["id"] for row in result.rows]}`.
        source: Where the statement stands, if it stands in a file.
        request: What a worker process is asked to do, where it sends statements of its own; the
            SQL is empty then.
        commits: Whether it is no statement, but the commit that a client's next message brings.
        block: In which block of a queue file it stands.
    """

    sql: str
    params: Mapping[str, Parameter] = {}
    source: Source | None = None
    request: Mapping[str, object] | None = None
    commits: bool = False
    block: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The server's answer to a step.

    Attributes:
        columns: Column names; empty for a statement without columns (`BEGIN`, plain `UPDATE`).
        oids: The columns' types.
        rows: One mapping per row.
        affected: Rows inserted, updated, deleted or selected; 0 where the server names no count.
        in_transaction: Whether the session stands inside a transaction after the step.
        command: The command tag's first word (`UPDATE`).
        offered: What a worker process wants to send next; None where it has answered.
        reply: What it answered.
    """

    columns: tuple[str, ...] = ()
    oids: tuple[int, ...] = ()
    rows: Sequence[Row] = ()
    affected: int = 0
    in_transaction: bool = False
    command: str = ""
    offered: Step | None = None
    reply: object = None


Operation: TypeAlias = Generator[Step, Result, T]


@dataclass(frozen=True, slots=True)
class Claim:
    """One job in a worker's hands.

    Attributes:
        id: The job's id as text.
        token: Every column that the claim returned: what the queue may check an owner by.
    """

    id: str
    token: Mapping[str, Value] = field(default_factory=dict)


State: TypeAlias = Literal["queued", "running", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as the queue's own `jobs` operation reports it."""

    id: str
    state: State
    attempts: int | None = None


FAILURE = 'KeyError: "it\'s"\n'
"""The error that a worker caught and tells a fail, with the quotes and line ends of real ones."""
TRACEBACK = (
    "Traceback (most recent call last):\n"
    + '  File "/srv/app/worker.py", line 214, in run\n    self.handlers[job.kind](job)\n' * 12
    + FAILURE
)
"""The same with where it was caught: as long as those are."""

OPERATIONS: Mapping[str, frozenset[str]] = {
    "install": frozenset(),
    "enqueue": frozenset({"payload", "priority", "delay", "max_attempts", "queue"}),
    "claim": frozenset({"worker", "limit", "lease", "queue"}),
    "complete": frozenset({"worker", "job"}),
    "complete_many": frozenset({"worker", "jobs"}),
    "complete_and_claim": frozenset({"worker", "jobs", "limit", "lease", "queue"}),
    "fail": frozenset({"worker", "job", "error"}),
    "heartbeat": frozenset({"worker", "job", "lease"}),
    "recover": frozenset({"lease"}),
    "jobs": frozenset(),
    "cleanup": frozenset({"age"}),
    "promote": frozenset(),
    "start": frozenset({"worker"}),
}
"""Every operation of a queue and the arguments that it may take."""
NOW = "now"
"""The parameter that any block of a queue file may take: its worker's own clock."""


Order: TypeAlias = Literal["priority, fifo", "priority", "fifo", "none"]
"""The jobs that a claim takes first; `priority` alone says nothing of jobs of equal priority."""
Delivery: TypeAlias = Literal["at-least-once", "at-most-once"]
Stale: TypeAlias = Literal["fails", "stays"]


class Facts:
    """What a queue says of itself.

    Attributes:
        lease: How long a claim holds without a heartbeat; "session": until its worker's connection
            ends; None: it never runs out.
        max_attempts: Most attempts of a job, crashes included; None: not promised.
        backoff: Least wait before a failed job's second attempt; None: none promised.
        jitter: By which fraction a wait may be shorter than an earlier one of the same job.
        order: What a claim takes first.
        concurrency_limit: Most jobs running at once; None: no cap.
        isolation: The transaction isolation level of the workers.
        promises: Guarantees that are judged only where promised.
        retry_on: SQLSTATEs that mean "nothing this time".
        breaks: Guarantee id to reason: breaks that are known and accepted.
        delivery: "at-least-once": a late completion may count while the next attempt runs;
            "at-most-once": a claim ends the job, and a crash loses it.
        leader: Whether recover, promote and cleanup are run by one process at a time.
        jobs_per_worker: 1: a worker that holds a job claims nothing until it has ended.
        stale: "fails": a crashed worker's job ends failed; "stays": nobody takes it back but a
            person; None: it becomes claimable.
    """

    lease: timedelta | Literal["session"] | None = None
    max_attempts: int | None = None
    backoff: timedelta | None = None
    jitter: float = 0.0
    order: Order = "none"
    concurrency_limit: int | None = None
    isolation: str = "read committed"
    promises: frozenset[str] = frozenset()
    retry_on: frozenset[str] = frozenset()
    breaks: Mapping[str, str] = {}
    delivery: Delivery | None = None
    leader: bool = False
    jobs_per_worker: Literal[1] | None = None
    stale: Stale | None = None

    required: ClassVar[tuple[str, ...]] = ("install", "enqueue", "claim")

    @property
    def lease_time(self) -> timedelta | None:
        """After how long a claim ends by itself; None where it does not."""
        return self.lease if isinstance(self.lease, timedelta) else None

    @property
    def lease_seconds(self) -> float | None:
        """The same in seconds."""
        return self.lease.total_seconds() if isinstance(self.lease, timedelta) else None

    @property
    def backoff_seconds(self) -> float:
        """Least wait before a second attempt, in seconds; 0 where none is promised."""
        return self.backoff.total_seconds() if self.backoff else 0.0

    @property
    def by_priority(self) -> bool:
        """True if a job of higher priority goes first."""
        return self.order.startswith("priority")


def facts_as_json(facts: Facts | type[Facts]) -> dict[str, object]:
    """The facts that differ from the defaults, as a worker's answer to `init` has them."""
    told = {name: getattr(facts, name) for name in FACTS}
    return {name: _as_json(value) for name, value in told.items() if value != getattr(Facts, name)}


def _as_json(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return sorted(value) if isinstance(value, set | frozenset) else value


FACTS = tuple(name for name in Facts.__annotations__ if name != "required")
"""The names of a queue's facts, which are the keys of a queue file's header."""


class Queue(Facts):
    """A queue under test. Derive from it and write the operations that the queue has.

    `install`, `enqueue` and `claim` are required; the others are offered by being there. Each is
    a generator of `Step`s. An operation takes the arguments of `OPERATIONS` that its signature
    names, so `def claim(self, worker)` is a claim without a limit: it takes at most one job.

        def install(self) -> Operation[None]
        def enqueue(self, payload, priority, delay, max_attempts, queue) -> Operation[list[str]]
        def claim(self, worker, limit, lease, queue) -> Operation[list[Claim]]
        def complete(self, worker, job) -> Operation[bool]
        def complete_many(self, worker, jobs) -> Operation[frozenset[str] | None]
        def complete_and_claim(self, worker, jobs, limit, lease, queue)
            -> Operation[tuple[frozenset[str] | None, list[Claim]]]
        def fail(self, worker, job, error) -> Operation[bool]
        def heartbeat(self, worker, job, lease) -> Operation[bool | Claim]
        def recover(self, lease) -> Operation[list[str]]
        def jobs(self) -> Operation[list[JobRow]]
        def cleanup(self, age) -> Operation[None]
        def promote(self) -> Operation[int | None]
        def start(self, worker) -> Operation[None]

    `job` is a `Claim`; ids are text; `delay`, `lease` and `age` are timedeltas. `complete_many`
    returns the ids that it accepted, or None where it cannot say which, `complete_and_claim` that
    and what it claimed. A heartbeat that changes the token returns the `Claim` as it is from then
    on. `promote` makes due jobs claimable, and returns how many, or None where it cannot say.
    `start` comes once, when a worker's life begins.
    """

    sees_backends: bool = True
    """True where its SQL may tell a backend that has gone from one that has been emptied."""
    sees_cluster: bool = True
    """True where its SQL may read what is the whole server's: transaction ids, sessions, locks."""
    sends_time: bool = False
    """True where its SQL is given the time by its worker."""
    draws_lots: bool = False
    """True where its SQL draws random numbers: a session can be given their seed."""
    joins_transactions: bool = False
    """True where its enqueue may run inside a transaction of its producer's."""
    keeps_state: bool = True
    """True where its SQL may leave a session what reaches beyond its transaction: locks, limits, or
    a plan with a time that stands still."""

    takes_any_queue: bool = True
    """A job may go to a queue of any name, and not to `default` and `other` alone."""

    longest_span: float | None = None
    """Seconds of the longest span for which its SQL may put off a dead worker's job; None where
    nobody can tell."""

    @property
    def name(self) -> str:
        """The name that the user gave the queue."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change when the queue's definition does."""
        return hashlib.sha256(self.written.encode(errors="surrogateescape")).hexdigest()[:12]

    @cached_property
    def written(self) -> str:
        """Its definition, SQL and what is around it: the values in it are worth trying."""
        return code_of(type(self), Queue)

    @cached_property
    def offers(self) -> frozenset[str]:
        """The operations that this queue has."""
        return frozenset(name for name in OPERATIONS if callable(getattr(self, name, None)))

    @property
    def completes(self) -> bool:
        """A worker can say that it has done a job."""
        return not self.offers.isdisjoint({"complete", "complete_many"})

    @property
    def routes(self) -> bool:
        """Jobs are put into a named queue and claimed from one."""
        return "queue" in self.takes("enqueue") & self.takes("claim")

    @property
    def beats_by_worker(self) -> bool:
        """A heartbeat names a worker, and no job."""
        return "heartbeat" in self.offers and "job" not in self.takes("heartbeat")

    def source_of(self, operation: str) -> Source | None:  # noqa: ARG002 - a file's to tell
        """The place of an operation, if it stands in a queue file."""
        return None

    def source_of_break(self, guarantee: str) -> Source | None:  # noqa: ARG002 - the same
        """The place where a break is declared, if that is in a queue file."""
        return None

    def with_breaks(self, reasons: Mapping[str, str]) -> str:  # noqa: ARG002 - the same
        """The queue file with further breaks declared.

        Args:
            reasons: Why each is accepted, by the guarantee's id.

        Raises:
            QueueproofError: The queue is none that one file holds.
        """
        raise QueueproofError(
            f"{self.name} is no queue file: declare its breaks yourself, in `breaks`: an attribute"
            ' of a class, a key of what a worker answers to init, as {"fencing": "why"}'
        )

    def takes(self, operation: str) -> frozenset[str]:
        """Arguments of `OPERATIONS[operation]` that the operation takes; none without it."""
        return taken(self, operation)

    def most(self, operation: str, wanted: int, *, held: bool) -> int:
        """The number of jobs that a claiming operation is asked for, even where more are wanted.

        Args:
            operation: Its name.
            wanted: How many are wanted.
            held: Whether the claim ends inside its transaction (rule 19).
        """
        one = held or self.jobs_per_worker is not None or "limit" not in self.takes(operation)
        return 1 if one else max(1, wanted)

    def begin(self, operation: str, **arguments: object) -> Operation[Any]:
        """Begin an operation with those of the arguments that it takes.

        Args:
            operation: One of `OPERATIONS`.
            **arguments: By their names there; what the operation does not take is left out.

        Raises:
            ClassError: The method is no generator.
        """
        given = {name: arguments[name] for name in self.takes(operation) & arguments.keys()}
        generator = getattr(self, operation)(**given)
        if not isinstance(generator, Generator):
            what = "is no generator: it yields queueproof.Steps, and returns its answer"
            raise ClassError(f"{self.name}: {operation} {what}")
        return self._checked(operation, generator)

    @property
    def ways(self) -> tuple[Queue, ...]:
        """The queues that are judged for it: several where its workers differ in what they run."""
        return (self,)

    @property
    def cast(self) -> str:
        """A sentence on who runs which version, where its workers differ in that."""
        return ""

    def begin_for(self, actor: str, operation: str, **arguments: object) -> Operation[Any]:  # noqa: ARG002 - where all run the same
        """Begin an operation as somebody runs it.

        Args:
            actor: By name.
            operation: Which.
            **arguments: As for `begin`.
        """
        return self.begin(operation, **arguments)

    def _checked(self, operation: str, generator: Operation[Any]) -> Operation[Any]:
        """An operation that somebody wrote in Python, which may yield and return anything."""
        sent = 0
        who = f"{self.name}: {operation}"
        endless = ClassError(f"{who} ran for {LONGEST:g} s without a Step or an answer")

        def ended(status: int) -> NoReturn:
            """Refuse what would end the check without a verdict, as one that holds by status 0."""
            raise ClassError(f"{who} ended its process: os._exit({status!r})")

        def resume(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - a step or an answer
            nonlocal sent
            os._exit = ended
            try:
                step = ending.interrupted(act, LONGEST, endless)
            finally:
                os._exit = ending.end_process
            if not isinstance(step, Step):
                raise ClassError(f"{who} yielded {step!r}, which is no Step")
            if not isinstance(step.sql, str) or not isinstance(step.params, Mapping):
                how = 'write Step("... :id", {"id": value}), with a name for each parameter'
                raise ClassError(f"{who} yielded Step({step.sql!r}, {step.params!r}); {how}")
            if (sent := sent + 1) > MOST_STEPS:
                raise ClassError(f"{who} sent {MOST_STEPS:,} statements without an answer")
            return step

        answer = yield from resumed(generator, resume)
        wanted, fits = _ANSWERS.get(operation, ("", lambda _: True))
        if not fits(answer):
            raw = "; of a Value, which is what the server sent, write str(...)"
            told = wanted + raw * ("Value(" in repr(answer))
            raise ClassError(f"{who} returned {answer!r}; it returns {told}")
        return answer


def code_of(kind: type, base: type) -> str:
    """The source of a class and of those between it and what it derives from.

    Args:
        kind: The class.
        base: What it derives from, whose own source is left out.

    Raises:
        OSError: There is none to read.
        TypeError: There is none.
    """
    return "".join(inspect.getsource(one) for one in kind.__mro__[: kind.__mro__.index(base)])


def taken(owner: object, operation: str) -> frozenset[str]:
    """Arguments of `OPERATIONS[operation]` that a method takes; none without it.

    Args:
        owner: The queue, or its class.
        operation: The method's name.
    """
    method = getattr(owner, operation, None)
    named = inspect.signature(method).parameters if callable(method) else ()
    return OPERATIONS[operation] & set(named)


def resumed(operation: Operation[T], resume: Callable[[Callable[[], Any]], Any]) -> Operation[T]:
    """The same operation, whose code runs where somebody wants it to.

    Args:
        operation: The operation, not begun yet.
        resume: Given what runs it up to its next step, which is returned, or to its answer, which
            comes as a StopIteration.
    """
    act: Callable[[], Any] = partial(next, operation)
    while True:
        try:
            step = resume(act)
        except StopIteration as stop:
            answer: T = stop.value
            return answer
        try:
            result = yield step
        except GeneratorExit:
            operation.close()
            raise
        except Exception as error:  # noqa: BLE001 - passed on as `yield from` would
            act = partial(operation.throw, error)
        else:
            act = partial(operation.send, result)


def watched(operation: Operation[T], see: Callable[[Step], object]) -> Operation[T]:
    """The same operation; `see` is called with each step before it is sent.

    Args:
        operation: The operation, not begun yet.
        see: Who sees each step.
    """

    def resume(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - a step or an answer
        step = act()
        see(step)
        return step

    return resumed(operation, resume)


def _is_text(value: object) -> bool:
    return type(value) is str


def _all(value: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(fits(one) for one in value)


def _is_claim(value: object) -> bool:
    return isinstance(value, Claim) and _is_text(value.id)


def _is_job_row(value: object) -> bool:
    return (
        isinstance(value, JobRow)
        and _is_text(value.id)
        and value.state in get_args(State)
        and (value.attempts is None or type(value.attempts) is int)
    )


def _is_completed(value: object) -> bool:
    return value is None or _all(value, _is_text)


_IDS = ("a list of ids, each a str", lambda answer: _all(answer, _is_text))
_ACCEPTED = ("True or False", lambda answer: isinstance(answer, int))
_ANSWERS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "enqueue": _IDS,
    "recover": _IDS,
    "claim": ("a list of queueproof.Claims, whose id is a str", lambda one: _all(one, _is_claim)),
    "complete": _ACCEPTED,
    "fail": _ACCEPTED,
    "heartbeat": (
        "True, False or a queueproof.Claim",
        lambda answer: isinstance(answer, int) or _is_claim(answer),
    ),
    "complete_many": ("the ids that it accepted, each a str, or None", _is_completed),
    "complete_and_claim": (
        "two things: the ids that it completed, each a str, or None; a list of queueproof.Claims",
        lambda answer: (
            isinstance(answer, tuple)
            and len(answer) == 2  # noqa: PLR2004 - the two halves
            and _is_completed(answer[0])
            and _all(answer[1], _is_claim)
        ),
    ),
    "jobs": (
        f"a list of queueproof.JobRows: id a str, state one of {', '.join(get_args(State))}",
        lambda answer: _all(answer, _is_job_row),
    ),
}
"""The answers that a Python class's operations may give: in words, and a check of each."""


def ids_of(claims: Iterable[Claim]) -> list[str]:
    """The ids of some claims, in their order."""
    return [claim.id for claim in claims]
