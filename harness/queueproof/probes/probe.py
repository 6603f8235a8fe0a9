"""A probe measures what no single run can show, at one point of a grid after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from queueproof.errors import ServerUnavailableError
from queueproof.queues.model import Claim, Operation, T
from queueproof.queues.offer import Offer
from queueproof.run.lab import Lab
from queueproof.run.session import drive
from queueproof.schedule.actors import identity
from queueproof.schedule.reading import read

Tell: TypeAlias = Callable[[float], None]
"""A listener, told how far something is, from 0 to 1."""


def untold(_fraction: float) -> None:
    """Nobody."""


def part_of(tell: Tell, number: int, parts: int) -> Tell:
    """A listener to one of several parts, told how far that one is."""
    return lambda fraction: tell((number + fraction) / parts)


def telling(points: Sequence[T], tell: Tell) -> Iterator[T]:
    """Points, each with a word of how many are done before it."""
    for number, point in enumerate(points):
        tell(number / len(points))
        yield point


@dataclass(frozen=True, slots=True)
class Seen:
    """The findings of a probe."""

    # What was measured to how often; a pass without any is none. What could not be measured for
    # want of a tool counts 0.
    evidence: Mapping[str, int]
    broken: str = ""  # how the guarantee is broken; empty where it is not
    found: Any = None  # what a story of that is told from, of `probes.Found`; None where it is not
    data: Any = None  # the point at which it was seen, as JSON: what `replay` needs to see it again
    unable: str = ""  # why it could not be asked here, with the way to have it asked; or nothing
    lacks: str = ""  # the tool that this machine lacks, with the way to get it; or nothing
    partial: bool = False  # whether what is found without that tool is worth a verdict
    remark: str = ""  # what else a reader of the verdict should know; or nothing
    # Guarantee ids whose breach follows from this one, to the sentence that says so.
    explains: Mapping[str, str] = field(default_factory=dict)


class Probe(ABC):
    """Measures one guarantee of an installed queue."""

    shape: Any = bool  # the type of a point, as `Seen.data` holds it
    # Whether a story of controlled runs, where there is one, is the better one.
    says_less: bool = False

    @abstractmethod
    def points(self, offer: Offer, level: int, /) -> Sequence[Any]:
        """The points at which a queue is asked, one after the other.

        Args:
            level: How many: 0 for a quick look, 1 for the default, 2 for a deep one.
        """

    @abstractmethod
    def look(
        self, lab: Lab, offer: Offer, points: Sequence[Any], level: int, tell: Tell, /
    ) -> Seen:
        """The findings at some points, up to the first at which the guarantee breaks.

        Args:
            lab: Where the queue is installed; it is left in any state.
            tell: Told how far it is, where it may take minutes.

        Raises:
            ServerUnavailableError: The tool that it takes is no good.
        """

    def again(self, point: Any) -> Sequence[Any]:  # noqa: ANN401 - of its shape
        """The points at which what was seen at one is seen again."""
        return [point]

    def read(self, data: object) -> Any:  # noqa: ANN401 - of its shape
        """The point that `Seen.data` was, from what a token holds.

        Raises:
            QueueproofError: It is something else; the message has the field.
        """
        return read(self.shape, data, "probe")

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:
        """Measure at all points of a level, as `look` does."""
        return self.look(lab, offer, self.points(offer, level), level, tell)

    def replay(self, lab: Lab, offer: Offer, data: object) -> Any:  # noqa: ANN401 - of `Found`
        """The breach that was seen, again; None where it does not happen any more.

        Args:
            data: `Seen.data`, as JSON gives it back.

        Raises:
            ServerUnavailableError: The tool that it was seen with is not there.
        """
        seen = self.look(lab, offer, self.again(self.read(data)), 0, untold)
        if seen.lacks:
            raise ServerUnavailableError(seen.lacks)
        return seen.found


def enqueue(lab: Lab, count: int = 1, /, **facts: object) -> list[str]:
    """Enqueue jobs that nothing depends on, but for some facts; their ids."""
    session = lab.session("producer")
    session.stepped = False  # nobody else acts, and there may be thousands
    ids: list[str] = []
    for _ in range(count):
        ids += drive(session, lab.start("enqueue", **{**lab.defaults(), **facts}))
    return ids


def asked(lab: Lab, operation: str, worker: str = "w1", **arguments: Any) -> Operation[Any]:  # noqa: ANN401 - of `OPERATIONS`
    """An operation of a worker, not begun yet; a claim asks for one job if nothing else is said."""
    mine = {"worker": identity(worker), "limit": 1}
    # Of two versions that run at once it is w1's.
    return lab.start(operation, "w1", **{**lab.defaults(), **mine, **arguments})


def claimed(answer: Any) -> Sequence[Claim]:  # noqa: ANN401 - of two operations
    """The jobs that a claim answered, or one that completed others, whose ids go before."""
    claims: Sequence[Claim] = answer[1] if isinstance(answer, tuple) else answer
    return claims


def reported(lab: Lab) -> Counter[str]:
    """The number of jobs in each state as the queue itself reports it; empty where it does not."""
    if "jobs" not in lab.queue.offers:
        return Counter()
    return Counter(row.state for row in drive(lab.session("producer"), lab.start("jobs")))
