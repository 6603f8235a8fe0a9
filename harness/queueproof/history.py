"""What workers asked and were told: one `Call` per operation, in a `History` per run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

from queueproof.queue import State

Answer: TypeAlias = Literal["accepted", "rejected", "retry", "error", "unknown", "pending"]


class Ref(NamedTuple):
    """A claimed job as its worker knows it: which claim call it came from, and which job."""

    call: int
    job: str


class Wait(NamedTuple):
    """An operation was seen waiting for a lock.

    Attributes:
        blocker: The actor whose session held the lock.
        call: The blocker's unfinished call, None where it held the lock between its calls.
        stale: Whether somebody acted while the waiting statement had begun and stood still, or
            while one of the blocker's transaction had: with an old snapshot a statement follows a
            row's later versions, and keeps a lock on one that it then passes over.
    """

    blocker: str
    call: int | None
    stale: bool = False


@dataclass(slots=True, eq=False)
class Call:
    """One operation of one actor, from its invocation to its answer.

    Attributes:
        index: Position in the history, in the order of invocation.
        kind: The operation's name, or `crash`, `advance`, `sweep`: see `explore.programs`.
        actor: Who called: `w1`, `reaper1`, `producer`, ...
        invoked: Moment of the invocation: a count that orders all events of the run.
        began: The same on the database's clock, in seconds.
        returned: Moment of the answer, None where there was none.
        ended: The same in seconds.
        limit: Most jobs that a claim may take.
        refs: The claims that complete, fail and heartbeat name.
        queue: Where a job was enqueued, or what a claim takes from.
        delay: Seconds that an enqueued job must wait, or for which a cleanup keeps finished ones.
        priority: Of an enqueued job.
        bound: Most attempts of an enqueued job, None where the queue promises no bound.
        answer: `accepted` also for a claim, an enqueue or a recovery that went through.
        ids: Jobs that the answer names: enqueued, claimed, recovered, accepted in a batch.
        repeated: Ids that a claim's answer held more than once.
        error: SQLSTATE and message where the server answered with an error.
        held: Whether a claim ended inside its transaction.
        waits: Whom it was seen waiting for.
        states: What `jobs` reported, for an observation.
    """

    index: int
    kind: str
    actor: str
    invoked: int
    began: float
    returned: int | None = None
    ended: float = float("inf")
    limit: int = 0
    refs: tuple[Ref, ...] = ()
    queue: str = "default"
    delay: float = 0.0
    priority: int = 0
    bound: int | None = None
    answer: Answer = "pending"
    ids: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    error: str = ""
    held: bool = False
    waits: list[Wait] = field(default_factory=list)
    states: Mapping[str, State] | None = None

    def overlaps(self, other: Call) -> bool:
        """Whether both calls were open at some moment."""
        return _end(self) > other.invoked and _end(other) > self.invoked


def _end(call: Call) -> float:
    return float("inf") if call.returned is None else call.returned


class Timeline:
    """Calls by the moments at which they were open.

    Args:
        calls: In the order of invocation.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._invoked = [call.invoked for call in calls]
        self._latest_end = list(accumulate(map(_end, calls), max))

    def overlapping(self, start: float, end: float) -> Iterator[Call]:
        """The calls that were open at some moment between two, in the order of invocation.

        The first one is found in logarithmic time, however many calls there are.
        """
        first = bisect_right(self._latest_end, start)
        for n in range(first, bisect_left(self._invoked, end)):
            if _end(self._calls[n]) > start:
                yield self._calls[n]


@dataclass(slots=True)
class History:
    """All calls of one run.

    Attributes:
        calls: In the order of invocation.
        final: What `jobs` reported after the drain; None where it is not offered.
    """

    calls: list[Call] = field(default_factory=list)
    final: Mapping[str, State] | None = None

    def of_kind(self, *kinds: str) -> list[Call]:
        """The calls of some kinds, in the order of invocation."""
        return [call for call in self.calls if call.kind in kinds]
