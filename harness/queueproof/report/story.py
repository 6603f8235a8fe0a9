"""A broken guarantee as the shortest story: who did what, in which order, and what it broke."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from queueproof.history.calls import Call
from queueproof.judge.checker import Violation
from queueproof.probes.backoff import Waits
from queueproof.probes.buffers import Slope
from queueproof.probes.plans import Overclaim
from queueproof.probes.probes import Found
from queueproof.queues.model import Parameter
from queueproof.run.record import Beat, Run
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.search.shrink import Failure

LONG_ID = 12  # characters; longer ids, UUIDs for instance, are shown as job 1, job 2, ...
SHOWN_SQL = 60
_WORKER = re.compile(r"w\d+")


# --- the data -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that stood in the queue before anything else happened."""

    job: str
    priority: int
    delay: float  # seconds
    bound: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation began.

    Attributes:
        operation: Its name.
        limit: Most jobs that a claim may take.
        jobs: Those that it names.
        delay: Seconds that an enqueued job must wait.
    """

    operation: str
    limit: int
    jobs: tuple[str, ...]
    delay: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement was sent.

    Attributes:
        statement: Its position among the story's statements.
        beginning: Of its text.
        bound: The parameters that a client bound to it, as (number, value).
    """

    statement: int
    beginning: str
    bound: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """An operation ended: with an answer, an error, or a cut connection and no answer."""

    kind: Literal["answer", "error", "lost"]
    text: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The clock was moved."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """Anything else that happened.

    Attributes:
        kind: What; `uncommitted`: somebody else acts before the COMMIT.
        about: The connection, who is waited for, or the gate it stops at.
    """

    kind: Literal[
        "connection",
        "commit",
        "uncommitted",
        "waits",
        "stops",
        "goes on",
        "rewrite",
        "crash",
    ]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of `FAULTS` happened.

    Attributes:
        kind: Which.
        about: The worker that it happened to; nothing where it was the server.
    """

    kind: str
    about: str


Fact: TypeAlias = Asked | Sent | Answered | Passed | Event | Fault


@dataclass(frozen=True, slots=True)
class Turn:
    """What one actor did without anybody else in between."""

    actor: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class AllowedWait:
    """A claim that waits, and breaks nothing by that.

    Attributes:
        actor: Whose claim.
        rival: Whose claim takes the same job; nothing where an old snapshot makes it wait.
        job: That job.
    """

    actor: str
    rival: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened in a run, up to what broke a guarantee; its long ids are numbers.

    Attributes:
        guarantee: The id of the guarantee that it counts under.
        broken: The sentence that says which rule was broken, and how.
        before: The jobs that it begins with.
        conditions: Under what it happened.
        turns: In their order.
        allowed: Waits that are no breach, where that is not plain to see.
        statements: The SQL that was sent, each once.
    """

    guarantee: str
    broken: str
    before: tuple[Enqueued, ...]
    conditions: Conditions
    turns: tuple[Turn, ...]
    allowed: tuple[AllowedWait, ...]
    statements: tuple[str, ...]

    @property
    def actors(self) -> list[str]:
        """Workers by their number, then the others as they appear."""
        actors = list(dict.fromkeys(turn.actor for turn in self.turns))
        return sorted(actors, key=lambda actor: (not _WORKER.fullmatch(actor), len(actor), actor))


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe measured, and the guarantee that it breaks."""

    guarantee: str
    found: Overclaim | Waits | Slope


# --- from a run to its story --------------------------------------------------------------------


def tell_found(found: Found, name: str) -> Story | Probed:
    """The story of what a probe found.

    Args:
        found: How the guarantee is broken.
        name: The guarantee.
    """
    if isinstance(found, Failure):
        return tell(found.run, found.violation, found.conditions, name)
    return Probed(name, found)


def tell(
    run: Run, violation: Violation, conditions: Conditions = PLAIN, name: str | None = None
) -> Story:
    """The story of a run.

    Args:
        run: What happened.
        violation: What it broke.
        conditions: Under what it happened.
        name: The guarantee that it counts under, where that is another than the violation's.
    """
    calls = run.history.calls
    beats = _relevant(run.trace, calls, violation)
    names = _Names(calls)
    turns = _Turns(calls, names, alone=all(beat.actor == DRAINER for beat in beats))
    for beat in beats:
        turns.add(beat)
    return Story(
        guarantee=name or violation.guarantee,
        broken=names.shortened(violation.because),
        before=tuple(_before(calls, beats, names)),
        conditions=conditions,
        turns=tuple(Turn(turn.actor, tuple(turn.facts)) for turn in turns.made if turn.facts),
        allowed=()
        if violation.guarantee == "non-blocking"
        else tuple(_allowed_waits(beats, calls, names)),
        statements=tuple(names.shortened(sql) for sql in turns.statements),
    )


class _Names:
    """What differs from run to run, by what a story calls it: job ids by their number."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._names = {identity(call.actor): call.actor for call in calls}
        ids = [job for call in calls if call.kind == "enqueue" for job in call.ids]
        for number, job in enumerate(ids, 1):
            if len(job) > LONG_ID:
                self._names.setdefault(job, str(number))

    def shortened(self, text: str) -> str:
        """A text with short names; a server's message or a bound value may hold any of them."""
        for long, short in self._names.items():
            text = text.replace(long, short)
        return text


@dataclass(slots=True)
class _Turn:
    """A turn that may go on."""

    actor: str
    facts: list[Fact] = field(default_factory=list)
    uncommitted: bool = False


class _Turns:
    """A trace on its way to turns.

    Args:
        calls: Of the run.
        names: How ids are shortened.
        alone: Whether nobody acts but the drainer, whose statements are of no interest otherwise.
    """

    def __init__(self, calls: Sequence[Call], names: _Names, *, alone: bool) -> None:
        self.made: list[_Turn] = []
        self.statements: dict[str, int] = {}
        self._calls = calls
        self._names = names
        self._alone = alone

    def add(self, beat: Beat) -> None:
        """Take in what happened next."""
        call = self._calls[beat.call] if beat.call >= 0 else None
        drained = beat.actor == DRAINER
        if drained and (call is None or call.kind in {"jobs", "sweep"}):
            return
        if not self.made or self.made[-1].actor != beat.actor:
            if self.made and self.made[-1].uncommitted:
                self.made[-1].facts.append(Event("uncommitted"))
            self.made.append(_Turn(beat.actor))
        turn = self.made[-1]
        stood = (
            bool(turn.facts)
            and isinstance(last := turn.facts[-1], Event)
            and (last.kind == "stops")
        )
        if beat.event == "goes on" and stood:
            turn.facts.pop()  # nobody acted meanwhile
        elif beat.event != "sql" or not drained or self._alone:
            turn.facts += self._facts(beat, call, turn)
        if beat.event in {"done", "commit", "answer", "error", "crash", "lost"}:
            turn.uncommitted = beat.event == "done"

    def _facts(self, beat: Beat, call: Call | None, turn: _Turn) -> Iterator[Fact]:
        match beat.event:
            case "start" if call is not None:
                jobs = tuple(self._names.shortened(ref.job) for ref in call.refs)
                yield Asked(call.kind, call.limit, jobs, call.delay)
            case "sql":
                yield self._sent(beat)
            case "answer" | "error" | "lost":
                yield Answered(beat.event, self._names.shortened(beat.text))
            case "clock" if call is not None:
                yield Passed(call.delay)
            case "commit" if turn.uncommitted:
                pass  # the end of what was done, and nobody acted meanwhile
            case "fault" if call is not None:
                yield Fault(call.kind, beat.text)
            case "connection" | "commit" | "waits" | "stops" | "goes on" | "rewrite" | "crash":
                yield Event(beat.event, beat.text)

    def _sent(self, beat: Beat) -> Sent:
        text = textwrap.dedent(beat.text).strip()
        number = self.statements.setdefault(text, len(self.statements))
        params = beat.step.params if beat.step else {}
        bound = tuple(
            (n, self._names.shortened(_value(value))) for n, value in params.items() if n.isdigit()
        )
        return Sent(number, self._names.shortened(_abridged(text)), bound)


def _value(value: Parameter) -> str:
    text = "NULL" if value is None else str(value)
    return textwrap.shorten(text, SHOWN_SQL, placeholder=" …")


def _abridged(sql: str) -> str:
    """A statement's beginning: its first line that is not a comment."""
    lines = [line.strip() for line in sql.splitlines()]
    text = next((line for line in lines if line and not line.startswith("--")), "")
    return textwrap.shorten(text, SHOWN_SQL, placeholder=" …")


# --- what belongs into the story ----------------------------------------------------------------


def _relevant(trace: Sequence[Beat], calls: Sequence[Call], violation: Violation) -> list[Beat]:
    """The trace from the first stage to the answer that broke the guarantee."""
    guilty = violation.call
    last = max(
        (n for n, beat in enumerate(trace) if 0 <= beat.call <= guilty),
        default=len(trace) - 1,
    )
    ends = [n for n, beat in enumerate(trace) if beat.call == guilty]
    if ends:
        last = _first_wait(trace, ends) if violation.guarantee == "non-blocking" else ends[-1]
    setup = {
        call.index for call in calls if call.kind == "enqueue" and call.actor == "producer"
    } & _undisturbed(calls) - {guilty}
    return [beat for beat in trace[: last + 1] if beat.call not in setup]


def _first_wait(trace: Sequence[Beat], ends: Sequence[int]) -> int:
    return next((n for n in ends if trace[n].event == "waits"), ends[-1])


def _undisturbed(calls: Sequence[Call]) -> set[int]:
    """Calls before the first that is not an enqueue: the jobs that the story begins with."""
    first = next((call.index for call in calls if call.kind != "enqueue"), len(calls))
    return {
        call.index
        for call in calls[:first]
        if not any(call.overlaps(other) for other in calls[first:])
    }


def _before(calls: Sequence[Call], beats: Iterable[Beat], names: _Names) -> Iterator[Enqueued]:
    told = {beat.call for beat in beats}
    undisturbed = _undisturbed(calls)
    for call in calls:
        if call.kind == "enqueue" and call.ids and call.index in undisturbed - told:
            job = names.shortened(call.ids[0])
            yield Enqueued(job, call.priority, call.delay, call.bound)


def _allowed_waits(
    beats: Iterable[Beat], calls: Sequence[Call], names: _Names
) -> Iterator[AllowedWait]:
    waiting = dict.fromkeys(beat.call for beat in beats if beat.event == "waits")
    claims = [calls[n] for n in waiting if calls[n].kind == "claim"]
    found = {call.actor: _why_it_may_wait(call, calls, names) for call in claims}
    return (wait for wait in found.values() if wait is not None)


def _why_it_may_wait(call: Call, calls: Sequence[Call], names: _Names) -> AllowedWait | None:
    blockers = {wait.blocker for wait in call.waits}
    for other in calls:
        rival = other.kind == "claim" and other.actor in blockers and other.overlaps(call)
        if rival and (both := [job for job in call.ids if job in other.ids]):
            return AllowedWait(call.actor, other.actor, names.shortened(both[0]))
    return AllowedWait(call.actor) if all(wait.stale for wait in call.waits) else None
