"""The actors of a run, and the operation that each has begun."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from queueproof.history.calls import Call, Ref
from queueproof.queues.model import Claim, Operation, Result, Step
from queueproof.run.session import Session
from queueproof.schedule.programs import Do, Part


@dataclass(slots=True)
class Flight:
    """An operation between its invocation and its answer."""

    call: Call
    session: Session
    generator: Operation[Any]
    step: Step
    do: Do
    split: bool = True  # its statements are split from their commits, and stop inside
    whole: bool = False  # nobody acts between its statements, unless it waits
    gated: bool = False  # it has stopped inside its statement
    cursor: Literal["declared", "fetched"] | None = None  # what was last done to its query's
    blockers: Sequence[int] = ()  # the backends that it was last seen to wait for
    stale: bool = False  # somebody acted since the running statement began
    wrapped: bool = False  # the running statement stands in a transaction of the harness
    uncommitted: Result | None = None  # the answer of a statement whose COMMIT is still to come
    committed: int = 0  # how many of its transactions have taken effect
    between: bool = False  # its last transaction has ended and the next has not begun
    victim: bool = False  # it was cancelled to end a deadlock
    sent: int = 0  # statements, a COMMIT of the harness included
    claim: Call | None = None  # what it does beside its call, where it completes and claims

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that it counts as."""
        return (self.call,) if self.claim is None else (self.call, self.claim)


@dataclass(slots=True)
class Actor:
    """Somebody who acts: a worker, a reaper, a producer, the clock, a nemesis."""

    name: str
    identity: str
    beside: bool = False  # it sends heartbeats for a worker that acts as well, whose claims it has
    todo: deque[Do] = field(default_factory=deque)
    flight: Flight | None = None
    blocked: bool = False
    alive: bool = True
    cut_off: bool = False  # its connection is cut when the server has acted on its next message
    claims: list[tuple[Ref, Claim]] = field(default_factory=list)
    ended: set[Ref] = field(default_factory=set)
    lost: set[Ref] = field(default_factory=set)  # of which it was told that it has them no more
    renewed: Counter[Ref] = field(default_factory=Counter)  # accepted heartbeats
    holding: bool = False  # its session stands in the transaction of its claim
    late: bool = False  # a statement of its open transaction stood still, and saw an old snapshot
    pooled: Session | None = None  # the connection of a pool that its last transaction ran on

    def open_claims(self) -> list[int]:
        """Indices of its claims that it has not ended."""
        return [n for n, (ref, _) in enumerate(self.claims) if ref not in self.ended]

    def has(self, nth: int) -> bool:
        """It has made so many claims; from -1 on they count from the latest."""
        return -len(self.claims) <= nth < len(self.claims)

    @property
    def holds(self) -> bool:
        """True if it has a job, as far as it knows."""
        return any(ref not in self.ended and ref not in self.lost for ref, _ in self.claims)

    def batch(self, nth: int, part: Part = "all") -> list[tuple[Ref, Claim]]:
        """The jobs that its `nth` successful claim got, or a part of them.

        One of each of its claims: the first job that no claim before has brought to the batch, for
        an answer that names a job says nothing of which claim it was for.
        """
        if part == "every other":
            return self.batch(nth)[::2]
        calls = list(dict.fromkeys(ref.call for ref, _ in self.claims))
        if part == "one of each":
            across: dict[str, tuple[Ref, Claim]] = {}
            for n in range(len(calls)):
                new = [job for job in self.batch(n) if job[0].job not in across]
                across |= {ref.job: (ref, claim) for ref, claim in new[:1]}
            return list(across.values())
        batch = [c for c in self.claims if nth < len(calls) and c[0].call == calls[nth]]
        # A worker finishes its jobs in any order: every other one names its batch backwards.
        return batch[::-1] if self.name == "w2" else batch

    def unfinished(self) -> list[Session]:
        """The connections on which it has a transaction open."""
        found = [self.pooled] if self.holding and self.pooled else []
        if self.flight is not None and not self.flight.between:
            found.append(self.flight.session)
        return [session for session in dict.fromkeys(found) if session.in_transaction]


def reachable(waiting: Mapping[str, set[str]], start: str) -> set[str]:
    """Everybody whom an actor waits for, directly or through others."""
    reached: set[str] = set()
    frontier = set(waiting[start])
    while frontier:
        name = frontier.pop()
        reached.add(name)
        frontier |= waiting.get(name, set()) - reached
    return reached
