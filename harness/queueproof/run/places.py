"""Who acts in a free run: places, the lives that follow one another there, and what is drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from queueproof.history.calls import Call
from queueproof.queues.model import Claim
from queueproof.queues.worker import WorkerProcess
from queueproof.schedule.moments import past
from queueproof.schedule.programs import FAULTS

FreeFault: TypeAlias = Literal["kill", "pause", "terminate", "restart"]

SEVERAL: Mapping[FreeFault, str] = {
    "kill": "workers killed",
    "pause": "workers paused past their lease",
    "terminate": FAULTS["terminate"].several,
    "restart": FAULTS["restart"].several,
}
"""What happens to workers and the server, to the words for several of it."""

BETWEEN, ASKED, AT_WORK, ANSWERED = "between", "just asked", "at work", "answered"
WAYS: Mapping[FreeFault, Sequence[str]] = {
    "kill": (ASKED, AT_WORK, ANSWERED),
    "pause": (BETWEEN, ASKED),
    "terminate": (BETWEEN, ASKED, AT_WORK),
    "restart": (ASKED,),
}
"""Where a fault hits: between two operations, or how far one has come."""

PER_JOB = 4  # operations of the workers for each job
MOVED = 40  # operations of a worker between two moves of the clock


class Strike(NamedTuple):
    """What happens, and where in an operation: see `WAYS`."""

    kind: FreeFault
    way: str


class ClaimedJob(NamedTuple):
    """A claim of a worker: the call, and a job that it got."""

    call: Call
    claim: Claim


@dataclass(slots=True, eq=False)
class Pending:
    """An operation between its invocation and its answer.

    Attributes:
        call: The operation.
        request: What its worker was told.
        named: The claims that it names.
        fate: What is still to happen to it.
        hit: Whether something has happened to its connection.
        calls: All that its answer ends: the operation, and what may have been done before a library
            tried it again.
    """

    call: Call
    request: Mapping[str, Any]
    named: Sequence[ClaimedJob]
    fate: Strike | None = None
    hit: bool = False
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.calls.append(self.call)


@dataclass(slots=True, eq=False)
class WorkerLife:
    """A worker process from its start to its end: one name of a worker."""

    name: str
    place: WorkerPlace
    process: WorkerProcess
    started: bool = False  # it has been told to
    ready: bool = False
    pending: Pending | None = None
    held: list[ClaimedJob] = field(default_factory=list)  # claims that it has not ended
    over: list[ClaimedJob] = field(default_factory=list)  # some that have
    holding: bool = False  # its connection stands in the transaction of its claim
    disturbed: bool = False  # a fault has hit its connections
    paused: bool = False
    ahead: float = 0.0  # seconds, of its process' clock
    renewed: Counter[tuple[int, str]] = field(default_factory=Counter)  # accepted heartbeats

    @property
    def idle(self) -> bool:
        """Whether it may be asked something."""
        return self.ready and self.pending is None and not self.paused


@dataclass(slots=True, eq=False)
class WorkerPlace:
    """A worker's place, which one process after another fills, and what is left to be done there.

    Attributes:
        role: worker, producer, reaper or drainer.
        rng: Makes its choices.
        operations: That it has still to begin.
        jobs: That it has still to enqueue.
        queue: Where it claims from.
        faults: By how many operations it will have begun.
        moves: The same for moves of the clock, in seconds.
    """

    role: str
    rng: random.Random
    operations: int = 0
    jobs: int = 0
    queue: str = "default"
    faults: dict[int, Strike] = field(default_factory=dict)
    moves: dict[int, float] = field(default_factory=dict)
    begun: int = 0
    pauses: list[Strike] = field(default_factory=list)  # that wait until it holds a job
    life: WorkerLife | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing is left to be begun."""
        return not (self.operations or (self.role == "producer" and self.jobs))


@dataclass(slots=True, eq=False)
class Pause:
    """A pause of a worker.

    Attributes:
        life: Whose process was stopped.
        jobs: What it held then.
        until: How many operations will have been answered when it goes on at the latest.
        retaken: Whether somebody else has got one of its jobs.
    """

    life: WorkerLife
    jobs: frozenset[str]
    until: int
    retaken: bool = False


class Leftover(NamedTuple):
    """What a dead process has left on the server.

    Attributes:
        name: Of its connections.
        calls: Nothing comes of these any more once these connections are gone.
    """

    name: str
    calls: Sequence[Call]


def plan(
    jobs: int,
    workers: int,
    seed: int,
    faults: Mapping[FreeFault, int],
    *,
    lease: float | None,
    queues: Sequence[str],
) -> list[WorkerPlace]:
    """Draw who does how much, and at which of its operations what happens.

    Args:
        jobs: How many are enqueued.
        workers: How many work at once, beside a producer and a reaper.
        seed: Of all choices.
        faults: How many of each kind.
        lease: Seconds; None where a claim does not run out.
        queues: Where workers claim from, in turn.
    """

    def place(role: str, number: int = 0) -> WorkerPlace:
        return WorkerPlace(role, random.Random(f"{seed} {role} {number}"))  # noqa: S311 - no secret

    own = jobs // 2 // workers
    operations = max(10, PER_JOB * jobs // workers)
    seconds = (7.3, 63.1) if lease is None else (0.41 * lease, past(lease))
    found = [place("worker", number) for number in range(workers)]
    for number, one in enumerate(found):
        one.operations, one.jobs = operations, own
        one.queue = queues[number % len(queues)]
        for _ in range(operations // MOVED):
            one.moves[one.rng.randrange(operations)] = one.rng.choice(seconds)
    rng = random.Random(f"{seed} faults")  # noqa: S311 - no secret
    # Not at the end, when there are no jobs left to be lost.
    steps = [(one, n) for one in found for n in range(operations // 10, operations * 2 // 3)]
    rng.shuffle(steps)
    wanted = [kind for kind, count in faults.items() for _ in range(count)]
    for kind, (one, n) in zip(wanted, steps, strict=False):
        one.faults[n] = Strike(kind, rng.choice(WAYS[kind]))
    producer = place("producer")
    producer.jobs = jobs - own * workers
    return [*found, producer, place("reaper")]
