"""A broken guarantee as the shortest story: who did what, in which order, and what it broke."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never, cast

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.history.calls import Call, Ref
from queueproof.judge.violations import Violation
from queueproof.probes.backlog import LEAST, Overlooked
from queueproof.probes.backoff import RetryWait, RetryWaits
from queueproof.probes.buffers import Slope
from queueproof.probes.plans import REWRITE, Overclaim
from queueproof.probes.probes import Found
from queueproof.queues.model import Queue, Step
from queueproof.queues.sqltext import first_keyword
from queueproof.run.record import Beat, Run
from queueproof.schedule.actors import DRAINER, identities
from queueproof.schedule.conditions import PLAIN, PLANNERS, Conditions
from queueproof.schedule.programs import FaultKind, PayloadKind
from queueproof.search.shrink import Failure

LONG_ID = 12  # characters; longer ids, UUIDs for instance, are shown as job 1, job 2, ...
SHOWN_JOBS = 3  # of those that a statement read
SHOWN_SQL = 52  # characters of a statement in a step, two lines of a column; the whole is below
_DEFINES = re.compile(
    r'^\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:FUNCTION|PROCEDURE)\s+(?P<name>[\w."]+)\s*\(',
    re.IGNORECASE | re.MULTILINE,
)
_CALLS = re.compile(r'(?<!["\w])"?(?P<name>\w+)"?\s*\(')
_WORKER = re.compile(r"w\d+")
Shortened: TypeAlias = Callable[[str], str]
_BEGINS = {"BEGIN": True, "START": True} | dict.fromkeys(("COMMIT", "END", "ROLLBACK"), False)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that stood in the queue before anything else happened."""

    job: str
    priority: int  # the higher, the sooner
    delay: float  # seconds that it must wait
    bound: int | None  # most attempts, None where the queue promises no bound
    queue: str = ""  # where it stands; nothing where there is one queue
    payload: PayloadKind = ""  # of which kind its payload is
    joined: bool = False  # whether it was enqueued in one transaction with others
    # The numbers of those that enqueued it, where it is no job like all others: what came of its
    # priority or its delay may be their doing
    statements: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """One of several claims of a job by the same worker."""

    number: int  # its place among them, from 1; 0 where the worker has claimed the job once
    known: str = ""  # what the claim was answered about the job: its attempt, if the queue tells it


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation began."""

    operation: str
    limit: int  # most jobs that a claim may take
    jobs: tuple[str, ...]  # those that it names
    delay: float  # seconds that an enqueued job must wait
    # For each job which of its worker's claims of it is meant, where there are several
    claims: tuple[Claimed, ...] = ()
    queue: str = ""  # where it enqueues, or claims from; nothing where there is one queue
    payload: PayloadKind = ""  # of which kind an enqueued job's payload is


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement was sent."""

    statement: int  # its position among the story's statements
    beginning: str
    # The parameters that a client bound to it, as (number, value)
    bound: tuple[tuple[str, str], ...]
    read: str = ""  # the jobs that it answered, where the operation went on with another statement


@dataclass(frozen=True, slots=True)
class Answered:
    """An operation ended: with an answer, an error, or a cut connection and no answer."""

    kind: Literal["answer", "error", "lost"]
    text: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The clock was moved; 0 seconds: by about one."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """Anything else that happened."""

    # What; `uncommitted`: somebody else acts before the COMMIT
    kind: Literal[
        "connection", "commit", "uncommitted", "waits", "stops", "goes on", "rewrite", "crash"
    ]
    # The connection, who is waited for, or the gate it stops at; of a crash that cuts an operation
    # short: whether its last statement was `committed` or is `undone`
    about: str = ""
    statement: int = 0  # that statement's position among the story's


@dataclass(frozen=True, slots=True)
class Fault:
    """One of `FAULTS` happened."""

    kind: FaultKind
    about: str  # the worker that it happened to; nothing where it was the server


Fact: TypeAlias = Asked | Sent | Answered | Passed | Event | Fault


@dataclass(frozen=True, slots=True)
class Turn:
    """The facts of one actor without anybody else in between."""

    actor: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """An operation, as far as nobody acts meanwhile; or what an actor does apart from any.

    What the drainer does without the clock in between is one.
    """

    actor: str  # who acts; nobody where the clock moves
    facts: tuple[Fact, ...]
    begins: bool  # whether its operation begins here
    ends: bool  # whether nothing of it is left to be done
    raced: bool  # whether somebody else's operation is open meanwhile


@dataclass(frozen=True, slots=True)
class AllowedWait:
    """A claim that waits, and breaks nothing by that."""

    actor: str
    rival: str = ""  # whose claim takes the same job; nothing where an old snapshot makes it wait
    job: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """The course of a run, up to what broke a guarantee; its long ids are numbers."""

    guarantee: str  # the id of the guarantee that it counts under
    broken: str  # the sentence that says which rule was broken, and how
    before: tuple[Enqueued, ...]  # the jobs that it begins with
    conditions: Conditions  # under what it happened
    turns: tuple[Turn, ...]
    allowed: tuple[AllowedWait, ...]  # waits that are no breach, where that is not plain to see
    statements: tuple[str, ...]  # the SQL that was sent, each once
    cause: str = ""  # the operation whose answer broke it
    alone: bool = False  # whether nobody but the worker itself is hurt
    cast: str = ""  # who runs which version, where there are two
    # The definitions of the queue's functions that its statements call
    functions: tuple[str, ...] = ()
    lease: float | None = None  # seconds that one lasts; None where the queue declares none

    @property
    def moments(self) -> list[Moment]:
        """Its moments, one operation after the other where they do not meet."""
        begun: set[str] = set()  # actors in the midst of an operation
        moments = []
        for turn in self.turns:
            for facts in _by_operation(turn.facts, alone=turn.actor != DRAINER):
                actor = "" if isinstance(facts[0], Passed) else turn.actor
                begins = actor not in begun
                raced = bool(begun - {actor})
                begun.discard(actor)
                if isinstance(facts[0], Asked) or not begins:
                    begun.add(actor)
                if any(isinstance(fact, Answered) or is_event(fact, "crash") for fact in facts):
                    begun.discard(actor)
                moments.append(Moment(actor, facts, begins, actor not in begun, raced))
        return moments

    @property
    def actors(self) -> list[str]:
        """Workers by their number, then the others as they appear; the clock is nobody."""
        actors = filter(None, dict.fromkeys(moment.actor for moment in self.moments))
        return sorted(actors, key=lambda actor: (not is_worker(actor), len(actor), actor))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an account."""

    # Prose, or what keeps its lines: SQL, a plan of PostgreSQL's, figures
    kind: Literal["prose", "sql", "plan", "figures"]
    text: str
    head: str = ""  # what stands above it


@dataclass(frozen=True, slots=True)
class Account:
    """A broken guarantee where no order of steps tells how: it was measured, or seen."""

    guarantee: str
    parts: tuple[Part, ...]  # in their order, how it is broken first


Told: TypeAlias = Story | Account


def is_worker(actor: str) -> bool:
    """True if an actor is one of a program's workers, which are numbered."""
    return _WORKER.fullmatch(actor) is not None


def is_event(fact: Fact, *kinds: str) -> bool:
    """True for an `Event` of one of these kinds."""
    return isinstance(fact, Event) and fact.kind in kinds


def _by_operation(facts: Sequence[Fact], *, alone: bool) -> Iterator[tuple[Fact, ...]]:
    """The facts of a turn, what stands apart from operations by itself; `alone`: each of them."""
    found: list[Fact] = []
    for fact in facts:
        apart = isinstance(fact, Passed | Fault) or is_event(fact, "crash", "rewrite")
        after = bool(found) and isinstance(found[-1], Passed)
        if found and (apart or after or (alone and isinstance(fact, Asked))):
            yield tuple(found)
            found = []
        found.append(fact)
    if found:
        yield tuple(found)


def tell_found(found: Found, name: str) -> Told:
    """The story of what a probe found."""
    match found:
        case Failure():
            return tell(found.run, found.violation, found.conditions, name)
        case Overclaim():
            parts = _overclaim(found)
        case Overlooked():
            parts = _overlooked(found)
        case RetryWaits():
            parts = _waits(found)
        case Slope():
            parts = _growth(found)
        case _:
            assert_never(found)
    return Account(name, tuple(parts))


def _overclaim(over: Overclaim) -> Iterator[Part]:
    yield Part("prose", f"Broken: w1 asked for at most {over.cell.limit} and took {over.taken}.")
    yield Part("prose", f"The table held {over.cell.filling}; {over.cell.setting}.")
    settings = "\n".join(f"SET {k} = {v};" for k, v in PLANNERS[over.cell.setting].items())
    if settings:
        yield Part("sql", settings, "Settings:")
    for sql, plan in over.plans:
        yield Part("sql", textwrap.dedent(sql).strip())
        yield Part("plan", plan, "Its plan:")
    yield Part("prose", REWRITE)


def _overlooked(found: Overlooked) -> Iterator[Part]:
    yield Part("prose", f"Broken: {found.broken}.")
    then = f"of priority {LEAST}" if found.backlog.kind == "ordinary" else "that is ready"
    yield Part("prose", f"Before: {found.backlog} were enqueued, and then one {then}.")
    yield Part("sql", _statements(found.sent), "Its claim:")


def _statements(sent: Sequence[str]) -> str:
    """The statements that an operation sent, but for the limits of its transaction."""
    sql = [textwrap.dedent(one).strip().removesuffix(";") for one in sent]
    limits = {"BEGIN", "START", "COMMIT", "END"}
    return ";\n\n".join(one for one in sql if first_keyword(one) not in limits)


def _waits(waits: RetryWaits) -> Iterator[Part]:
    yield Part("prose", f"Broken: {waits.broken}.")
    yield Part("prose", "Before: job 1 was enqueued, and its worker failed it again and again.")
    lines, known = [], 0
    # In a row as well: between two alike one may have ended otherwise.
    alike = itertools.groupby(
        enumerate(waits.found), lambda one: (_duration(one[1]), one[1].attempt - one[0])
    )
    for _, numbered in alike:
        group = [wait for _, wait in numbered]
        lost = range(known + 1, group[0].attempt)
        lines += [*(f"attempt {n} ended with its lease" for n in lost), _wait(*group)]
        known = group[-1].attempt
    if lines:
        yield Part("figures", "\n".join(lines))
    if sql := _statements(waits.sent):
        yield Part("sql", sql, f"Its {waits.operation}:")


def _wait(first: RetryWait, *others: RetryWait) -> str:
    """A wait, or several that are alike."""
    came = f"the job came back {_duration(first)}"
    if others:
        return f"attempts {first.attempt} to {others[-1].attempt} failed; each time {came}"
    work = f" after {first.worked:,.0f} s of work" if first.worked else ""
    return f"attempt {first.attempt} failed{work}; {came}"


def _growth(slope: Slope) -> Iterator[Part]:
    yield Part("prose", f"Broken: {slope.broken}.")
    large = slope.costs[-1]
    what = "Shared buffers touched by one warm claim on a vacuumed and analysed table:"
    yield Part("prose", what)
    lines = [f"{cost.buffers:>9,}  with {cost.content}" for cost in (slope.small, large)]
    yield Part("figures", "\n".join(lines))
    if slope.guilty is not None:
        statement, plan = slope.guilty
        yield Part("sql", textwrap.dedent(statement).strip())
        yield Part("plan", plan, f"Its plan with {large.content}:")
    yield Part("prose", slope.remedy)


def _duration(wait: RetryWait) -> str:
    """The wait until a job came back, in whole seconds, as they repeat from run to run."""
    least, most = f"{wait.least:,.0f}", f"{wait.most:,.0f}"
    if wait.most == float("inf"):
        return f"after more than {least} s"
    if least == "0":
        return f"within {most} s"
    return f"after {most} s" if least == most else f"after {least} to {most} s"


def tell(
    run: Run, violation: Violation, conditions: Conditions = PLAIN, name: str | None = None
) -> Story:
    """The story of a run; `name` is the guarantee, if it counts under another than was violated."""
    calls = run.history.calls
    beats = _relevant(run.trace, calls, violation)
    shortened = _shortening(calls)
    turns = _Turns(calls, shortened, alone=all(beat.actor == DRAINER for beat in beats))
    for beat in beats:
        turns.add(beat)
    return Story(
        guarantee=name or violation.guarantee,
        broken=shortened(violation.because),
        before=tuple(_before(run, beats, shortened, turns)),
        conditions=conditions,
        turns=tuple(Turn(actor, tuple(facts)) for actor, facts in turns.made if facts),
        allowed=() if _is_wait(violation) else tuple(_allowed_waits(beats, calls, shortened)),
        statements=tuple(map(shortened, turns.statements)),
        cause=_cause(calls, violation).kind,
        alone=violation.alone,
    )


def of_queue(story: Story, queue: Queue, schema: Iterable[Step]) -> Story:
    """A story with what only its queue knows: who runs which version, what a call stands for."""
    defined = {
        found["name"].rpartition(".")[2].strip('"').lower(): textwrap.dedent(step.sql).strip()
        for step in schema
        if (found := _DEFINES.search(step.sql))
    }
    called: dict[str, str] = {}
    left = list(story.statements)
    while left:
        names = [found["name"].lower() for found in _CALLS.finditer(left.pop(0))]
        new = {name: defined[name] for name in names if name in defined and name not in called}
        called |= new
        left += new.values()
    lease = queue.lease_seconds
    return replace(story, cast=queue.cast, functions=tuple(called.values()), lease=lease)


def _shortening(calls: Sequence[Call]) -> Shortened:
    """Gives a text a story's names for what differs from run to run: for job ids, their number.

    A server's message or a bound value may hold any of them.
    """
    actors = {name: identities(name) for name in dict.fromkeys(call.actor for call in calls)}
    names: dict[str, str] = {}
    for number, job in enumerate(_enqueued(calls), 1):
        if len(job) > LONG_ID:
            names.setdefault(job, str(number))

    def shortened(text: str) -> str:
        for name, pattern in actors.items():
            text = pattern.sub(name, text)
        for long, short in names.items():
            text = text.replace(long, short)
        return text

    return shortened


def _enqueued(calls: Sequence[Call]) -> list[str]:
    return [job for call in calls if call.kind == "enqueue" for job in call.ids]


class _Turns:
    """A trace on its way to turns."""

    def __init__(self, calls: Sequence[Call], shortened: Shortened, *, alone: bool) -> None:
        self.made: list[tuple[str, list[Fact]]] = []  # each turn's actor and facts
        self.statements: dict[str, int] = {}
        self._calls = calls
        self._shortened = shortened
        # Nobody acts but the drainer, of whose statements only a recovery's that took jobs back are
        # of interest otherwise.
        self._alone = alone
        self._uncommitted = False  # what the last turn has done
        self._known: dict[int, str] = {}  # of the job of a claim, by its call
        self._kinds = {call.kind for call in calls}
        self._ids = {*_enqueued(calls)}
        self._open: dict[str, list[Beat]] = {}  # of an actor's operation

    def add(self, beat: Beat) -> None:
        """Take in what happened next."""
        call = self._calls[beat.call] if beat.call >= 0 else None
        drained = beat.actor == DRAINER
        if drained and (call is None or call.kind in {"jobs", "sweep"}):
            return
        if not self.made or self.made[-1][0] != beat.actor:
            if self._uncommitted:
                self.made[-1][1].append(Event("uncommitted"))
            self.made.append((beat.actor, []))
            self._uncommitted = False
        _, facts = self.made[-1]
        if beat.event in {"start", "answer", "error"}:
            self._open[beat.actor] = []
        elif beat.event != "crash":
            self._open.setdefault(beat.actor, []).append(beat)
        # What a recovery did to the jobs that it took back is in its SQL.
        recovered = call is not None and call.kind == "recover" and bool(call.ids)
        if beat.event == "goes on" and facts and is_event(facts[-1], "stops"):
            facts.pop()  # nobody acted meanwhile
        elif beat.event != "sql" or not drained or self._alone or recovered:
            facts += self._facts(beat, call)
        if beat.event in {"done", "commit", "answer", "error", "crash", "lost"}:
            self._uncommitted = beat.event == "done"

    def _facts(self, beat: Beat, call: Call | None) -> Iterator[Fact]:
        match beat.event:
            case "start" if call is not None:
                jobs = tuple(self._shortened(ref.job) for ref in call.refs)
                claims = tuple(self._claimed(call, ref) for ref in call.refs)
                several = claims if any(claim.number for claim in claims) else ()
                queue = _queue(call, self._calls)
                yield Asked(call.kind, call.limit, jobs, call.delay, several, queue, call.payload)
            case "sql":
                yield self._sent(beat)
            case "answer" | "error" | "lost":
                self._note(beat, call)
                yield Answered(beat.event, self._shortened(beat.text))
            case "clock" if call is not None:
                yield Passed(call.delay)
            case "commit" if self._uncommitted:
                pass  # the end of what was done, and nobody acted meanwhile
            case "fault" if call is not None:
                yield Fault(cast("FaultKind", call.kind), beat.text)
            case "connection" | "commit" | "waits" | "stops" | "goes on" | "rewrite":
                yield Event(beat.event, beat.text)
            case "crash":
                yield self._crash(self._open.pop(beat.actor, []))

    def _crash(self, beats: Sequence[Beat]) -> Event:
        """A crash, with what becomes of the operation that it cuts short."""
        statement, begun, last = -1, False, ""
        for beat in beats:
            if beat.event == "sql":
                word = first_keyword(beat.text)
                begun = _BEGINS.get(word, begun)
                statement = statement if word in _BEGINS else self._sent(beat).statement
            last = last if beat.event == "lost" else beat.event
        died = beats and beats[-1].event == "lost" and self._kinds & {"terminate", "restart"}
        if statement < 0 or died:  # a process that dies of these does not say what it knew
            return Event("crash")
        committed = not begun and last in {"sql", "commit", "goes on"}
        return Event("crash", "committed" if committed else "undone", statement)

    def _note(self, beat: Beat, call: Call | None) -> None:
        """Keep what a claim of one job was answered about it; a batch's is not taken apart."""
        if call is not None and call.kind == "claim" and len(call.ids) == 1:
            known = beat.text.removeprefix(f"job {call.ids[0]}").strip(" ()")
            self._known[call.index] = self._shortened(known)

    def _claimed(self, call: Call, ref: Ref) -> Claimed:
        """The claim of a job, among its worker's, that an operation names."""
        own = [
            other.index
            for other in self._calls[: call.index]
            if other.kind == "claim" and other.actor == call.actor and ref.job in other.ids
        ]
        if len(own) == 1 or ref.call not in own:
            return Claimed(0)
        return Claimed(own.index(ref.call) + 1, self._known.get(ref.call, ""))

    def number(self, beat: Beat) -> int:
        """The number of the statement that was sent."""
        text = textwrap.dedent(beat.text).strip()
        return self.statements.setdefault(text, len(self.statements))

    def _sent(self, beat: Beat) -> Sent:
        text, number = textwrap.dedent(beat.text).strip(), self.number(beat)
        params = beat.step.params if beat.step else {}
        bound = tuple(
            (n, self._shortened(_shown("NULL" if value is None else str(value))))
            for n, value in params.items()
            if n.isdigit()
        )
        # Other values, such as times, would differ from run to run.
        read = [self._shortened(one) for one in beat.read if one in self._ids]
        more = ["…"] if len(read) > SHOWN_JOBS else []
        jobs = f"job {', '.join([*read[:SHOWN_JOBS], *more])}" if read else ""
        # Without lines that are comments: what it does may stand below.
        lines = (line.strip() for line in text.splitlines())
        beginning = _shown(" ".join(line for line in lines if not line.startswith("--")))
        return Sent(number, self._shortened(beginning), bound, jobs)


def _shown(text: str) -> str:
    return textwrap.shorten(text, SHOWN_SQL, placeholder=" …")


def _cause(calls: Sequence[Call], violation: Violation) -> Call:
    """The operation that a story is about: a late one may only show in what comes of its job."""
    guilty = calls[violation.call]
    known = CATALOGUE.get(violation.guarantee)
    if known is None or not known.shows_late:
        return guilty
    late = (
        call
        for call in reversed(calls[: guilty.index + 1])
        if call.refs and call.answer == "accepted" and call.actor != DRAINER
    )
    return next(late, guilty)


def _relevant(trace: Sequence[Beat], calls: Sequence[Call], violation: Violation) -> list[Beat]:
    """The trace from the first stage to the answer that broke the guarantee."""
    guilty = violation.call
    before = [n for n, beat in enumerate(trace) if 0 <= beat.call <= guilty]
    own = [n for n, beat in enumerate(trace) if beat.call == guilty]
    *_, last = own or before or [len(trace) - 1]
    if _is_wait(violation):
        last = next((n for n in own if trace[n].event == "waits"), last)
    setup = {
        call.index for call in calls if call.kind == "enqueue" and call.actor == "producer"
    } & _undisturbed(calls) - {guilty}
    return [beat for beat in trace[: last + 1] if beat.call not in setup]


def _is_wait(violation: Violation) -> bool:
    known = CATALOGUE.get(violation.guarantee)
    return known is not None and known.waits


def _undisturbed(calls: Sequence[Call]) -> set[int]:
    """Calls before the first that is not an enqueue: the jobs that the story begins with."""
    first = next((call.index for call in calls if call.kind != "enqueue"), len(calls))
    others = calls[first:]
    return {one.index for one in calls[:first] if not any(map(one.overlaps, others))}


def _before(
    run: Run, beats: Iterable[Beat], shortened: Shortened, turns: _Turns
) -> Iterator[Enqueued]:
    calls = run.history.calls
    told = {beat.call for beat in beats}
    undisturbed = _undisturbed(calls)
    for call in calls:
        if call.kind == "enqueue" and call.ids and call.index in undisturbed - told:
            queue = _queue(call, calls)
            joined = call.began == call.ended  # the time stood still
            facts = call.priority, call.delay, call.bound, queue, call.payload, joined
            special = any([call.priority, call.delay, queue, call.payload])
            sent = (beat for beat in run.trace if beat.call == call.index and beat.event == "sql")
            statements = tuple(turns.number(beat) for beat in sent if special)
            yield Enqueued(shortened(call.ids[0]), *facts, statements)


def _queue(call: Call, calls: Sequence[Call]) -> str:
    """The queue of an operation, where a run has several."""
    of = {"enqueue", "claim"}
    several = len({other.queue for other in calls if other.kind in of}) > 1
    return call.queue if several and call.kind in of else ""


def _allowed_waits(
    beats: Iterable[Beat], calls: Sequence[Call], shortened: Shortened
) -> Iterator[AllowedWait]:
    waiting = dict.fromkeys(beat.call for beat in beats if beat.event == "waits")
    claims = [calls[n] for n in waiting if calls[n].kind == "claim"]
    found = {call.actor: _why_it_may_wait(call, calls, shortened) for call in claims}
    return filter(None, found.values())


def _why_it_may_wait(call: Call, calls: Sequence[Call], shortened: Shortened) -> AllowedWait | None:
    blockers = {wait.blocker for wait in call.waits}
    for other in calls:
        rival = other.kind == "claim" and other.actor in blockers and other.overlaps(call)
        if rival and (both := [job for job in call.ids if job in other.ids]):
            return AllowedWait(call.actor, other.actor, shortened(both[0]))
    return AllowedWait(call.actor) if all(wait.stale for wait in call.waits) else None
