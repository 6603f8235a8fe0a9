"""The record of one run: its history, its trace, and where the schedule chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from queueproof.errors import ServerError
from queueproof.history.calls import Call, History
from queueproof.queues.model import Step
from queueproof.schedule.programs import FaultKind

Event: TypeAlias = Literal[
    "start",
    "connection",  # of a pool
    "sql",
    "done",  # not committed yet
    "stops",
    "waits",
    "goes on",
    "commit",
    "rewrite",
    "answer",
    "lost",  # the answer
    "error",
    "rollback",
    "clock",
    "crash",
    "fault",  # one of `FAULTS`: the operation of the beat's call
]
"""The kinds of events in a run."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One line of a run's trace."""

    actor: str
    call: int  # its index, -1 for none
    event: Event
    text: str = ""  # SQL, what was answered, which gate it stops at, or whom a fault happens to
    session: str = ""  # whose connection it happened on; nothing where it was on none
    step: Step | None = field(default=None, compare=False)  # what was sent, for `sql`
    # What its first column answered, where another statement of the operation followed.
    read: tuple[str, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class Choice:
    """A moment at which the schedule chose."""

    options: int  # how many actors could go on
    taken: int  # which one did; 0 is the one that acted last, if it could
    preempts: bool  # any other option takes the turn from an actor that could go on
    stage: int = 0  # its number
    inside: bool = False  # the one that acted last stands inside a statement


@dataclass(slots=True)
class Run:
    """The record of one run."""

    history: History = field(default_factory=History)  # what was asked and answered
    trace: list[Beat] = field(default_factory=list)  # what happened, in order
    choices: list[Choice] = field(default_factory=list)
    staged: int = 0  # calls that were invoked in stages; what comes after them ends the run
    # What the server answered to which step, by the index of the call.
    errors: dict[int, tuple[ServerError, Step]] = field(default_factory=dict)
    # How many choices had been met when several sessions waited and a lock was released: from then
    # on the server decides who goes on. None where that never was.
    certain: int | None = None
    # Which fault hit which operation, after how many of its statements.
    faults: list[tuple[FaultKind, str, int]] = field(default_factory=list)
    short: Call | None = None  # the first claim that got less than it always gets without a pooler

    @property
    def ambiguous(self) -> bool:
        """True if the schedule alone did not decide what happened."""
        return self.certain is not None
