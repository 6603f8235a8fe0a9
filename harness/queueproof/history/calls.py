"""The calls of workers and their answers: one `Call` per operation, in a `History` per run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from queueproof.queues.model import State
from queueproof.schedule.programs import FaultKind, OperationKind, PayloadKind, worker_of

Answer: TypeAlias = Literal["accepted", "rejected", "retry", "error", "unknown", "pending"]

CallKind: TypeAlias = OperationKind | FaultKind | Literal["crash", "advance", "rewrite", "sweep"]
"""An operation of a queue, or what happens beside: to a worker, the server, the clock, the tables;
a sweep is over when everything has been claimed that could be."""


class Ref(NamedTuple):
    """A claimed job as its worker knows it: which claim call it came from, and which job."""

    call: int
    job: str


class LockWait(NamedTuple):
    """An operation was seen waiting for a lock."""

    blocker: str  # the actor whose session held the lock
    call: int | None  # the blocker's unfinished call, None where it held the lock between its calls
    # Whether somebody acted while the waiting statement had begun and stood still, or while one of
    # the blocker's transaction had: with an old snapshot a statement follows a row's later
    # versions, and keeps a lock on one that it then passes over.
    stale: bool = False


@dataclass(slots=True, eq=False)
class Call:
    """One operation of one actor, from its invocation to its answer; then it changes no more."""

    index: int  # position in the history, in the order of invocation
    kind: CallKind  # what was asked for, or happened
    actor: str  # who called: `w1`, `reaper1`, `producer`, ...
    # Moment of the invocation: a count that orders all events of the run. A completion and a claim
    # that are one operation have the same.
    invoked: int
    began: float  # the same on the database's clock, in seconds
    returned: int | None = None  # moment of the answer, None where there was none
    ended: float = float("inf")  # the same in seconds
    limit: int = 0  # most jobs that a claim may take
    refs: tuple[Ref, ...] = ()  # the claims that complete, fail and heartbeat name
    queue: str = "default"  # where a job was enqueued, or what a claim takes from
    # Seconds that an enqueued job must wait, or for which a cleanup keeps finished ones.
    delay: float = 0.0
    priority: int = 0  # of an enqueued job
    # Most attempts of an enqueued job, None where the queue promises no bound.
    bound: int | None = None
    payload: PayloadKind = ""  # of which kind an enqueued job's is
    # `accepted` also for a claim, an enqueue or a recovery that went through.
    answer: Answer = "pending"
    # Jobs that the answer names: enqueued, claimed, recovered, accepted in a batch.
    ids: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()  # ids that a claim's answer held more than once
    error: str = ""  # SQLSTATE and message where the server answered with an error
    held: bool = False  # whether a claim ended inside its transaction
    waits: tuple[LockWait, ...] = ()  # whom it was seen waiting for
    states: Mapping[str, State] | None = None  # what `jobs` reported, for an observation
    # How often a heartbeat of its worker had been accepted for the claim that it names.
    token: int = 0
    moved: int = 0  # jobs that a promotion made claimable, as far as it tells

    def __post_init__(self) -> None:
        if self.returned is not None:
            object.__setattr__(self, "__class__", _Returned)

    def end(self, moment: int, seconds: float) -> None:
        """Record when it was answered, as a count and a time: what is known by then stays so."""
        self.returned, self.ended = moment, seconds
        self.__class__ = _Returned

    def answer_for(self, ref: Ref) -> Answer:
        """The answer for one of the claims that it names: of a batch only some may be accepted."""
        if self.kind != "complete_many" or self.answer != "accepted":
            return self.answer
        return "accepted" if ref.job in self.ids else "rejected"

    @property
    def worker(self) -> str:
        """The worker whose operation it is: its heartbeats may have a connection of their own."""
        return worker_of(self.actor)

    @property
    def accepted(self) -> set[str]:
        """The jobs for whose claims it was accepted."""
        return {ref.job for ref in self.refs if self.answer_for(ref) == "accepted"}

    def overlaps(self, other: Call) -> bool:
        """True if both calls were open at some moment."""
        return _end(self) > other.invoked and _end(other) > self.invoked

    def is_over_before(self, other: Call) -> bool:
        """True if it had been answered when another was invoked; without an answer it never is."""
        return _end(self) < other.invoked

    def is_one_with(self, other: Call | None) -> bool:
        """True if both were made by one operation: a completion, and the claim after it."""
        return other is not None and (other.invoked, other.actor) == (self.invoked, self.actor)


class _Returned(Call):
    """A call that has returned: it refuses to be changed.

    A call becomes one in place, as a copy would leave those who hold the call with the old one.
    A field that has no value yet may be set, as a copy's are.
    """

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise FrozenInstanceError(f"{self.kind} has returned: its {name} is what it is")
        object.__setattr__(self, name, value)


def _end(call: Call) -> float:
    return float("inf") if call.returned is None else call.returned


class Contradiction(NamedTuple):
    """An answer that another one contradicts."""

    operation: str
    because: str  # the sentence that says why it cannot be
    call: int  # index of the call that gave it
    # The guarantee that is broken where a race has made it so; nothing where none can.
    raced: str = ""
    job: str | None = None  # which it is about


@dataclass(slots=True)
class History:
    """All calls of one run."""

    calls: list[Call] = field(default_factory=list)  # in the order of invocation
    # What `jobs` reported after the drain; None where it is not offered.
    final: Mapping[str, State] | None = None
    # An answer that cannot be true, and that a race has made.
    contradiction: Contradiction | None = None

    def of_kind(self, *kinds: CallKind) -> list[Call]:
        """The calls of some kinds, in the order of invocation."""
        return [call for call in self.calls if call.kind in kinds]
