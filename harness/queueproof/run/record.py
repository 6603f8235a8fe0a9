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
    """One line of a run's trace.

    Attributes:
        call: Index of the call, -1 for none.
        text: SQL, what was answered, which gate it stops at, or whom a fault happens to.
        session: Whose connection it happened on; nothing where it was on none.
        step: What was sent, for `sql`.
        read: What its first column answered, where another statement of the operation followed.
    """

    actor: str
    call: int
    event: Event
    text: str = ""
    session: str = ""
    step: Step | None = field(default=None, compare=False)
    read: tuple[str, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class Choice:
    """A moment at which the schedule chose.

    Attributes:
        options: How many actors could go on.
        taken: Which one did; 0 is the one that acted last, if it could.
        preempts: Whether any other option takes the turn from an actor that could go on.
        stage: The number of the stage.
        inside: Whether the one that acted last stands inside a statement.
    """

    options: int
    taken: int
    preempts: bool
    stage: int = 0
    inside: bool = False


@dataclass(slots=True)
class Run:
    """The record of one run.

    Attributes:
        history: What was asked and answered.
        trace: What happened, in order.
        choices: Every moment at which the schedule chose.
        staged: Calls that were invoked there; what comes after them ends the run.
        errors: What the server answered to which step, by the index of the call.
        certain: How many choices had been met when several sessions waited and a lock was
            released: from then on the server decides who goes on. None where that never was.
        faults: Which fault hit which operation, after how many of its statements.
        short: The first claim that got fewer jobs than it always gets without the pooler.
    """

    history: History = field(default_factory=History)
    trace: list[Beat] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    staged: int = 0
    errors: dict[int, tuple[ServerError, Step]] = field(default_factory=dict)
    certain: int | None = None
    faults: list[tuple[FaultKind, str, int]] = field(default_factory=list)
    short: Call | None = None

    @property
    def ambiguous(self) -> bool:
        """True if the schedule alone did not decide what happened."""
        return self.certain is not None
