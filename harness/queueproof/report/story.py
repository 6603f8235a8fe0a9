"""A broken guarantee as the shortest story: who did what, in which order, and what it broke."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import assert_never

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.history.calls import Call
from queueproof.judge.checker import Violation
from queueproof.probes.backoff import Wait, Waits
from queueproof.probes.buffers import REMEDIES, Slope
from queueproof.probes.plans import REWRITE, Overclaim
from queueproof.probes.probes import Found
from queueproof.queues.model import Parameter, Step
from queueproof.run.record import Beat, Run
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.conditions import PLAIN, PLANNERS, Conditions
from queueproof.search.shrink import Failure

COLUMN = 32  # characters; two workers and the margin fit into a terminal of 80
LONG_ID = 12  # characters; longer ids, UUIDs for instance, are shown as job 1, job 2, ...
SHOWN_SQL = 60
DAY = 86_400  # seconds
_STOPPED = {
    "statement": "(has its snapshot, has read nothing)",
    "query": "(has its snapshot, has read nothing)",
    "row": "(has locked a row, and not the next)",
}
_WORKER = re.compile(r"w\d+")


@dataclass(slots=True)
class _Entry:
    """What one actor did in one go."""

    actor: str
    lines: list[str] = field(default_factory=list)
    waiting: bool = False
    uncommitted: bool = False


class _Statements:
    """The statements of a story, each under a letter."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def letter(self, sql: str) -> str:
        """The letter of a statement, a new one at its first appearance."""
        text = textwrap.dedent(sql).strip()
        if text not in self.letters:
            number = len(self.letters)
            prefix = ascii_lowercase[number // 26 - 1] if number >= len(ascii_lowercase) else ""
            self.letters[text] = prefix + ascii_lowercase[number % 26]
        return self.letters[text]


def tell(
    run: Run, violation: Violation, conditions: Conditions = PLAIN, name: str | None = None
) -> str:
    """A story as text: a timeline with a column per actor, the SQL, the reason, and a diagram.

    Args:
        run: What happened.
        violation: What it broke.
        conditions: Under what it happened.
        name: The guarantee that it counts under, where that is another than the violation's.
    """
    calls = run.history.calls
    beats = _relevant(run.trace, calls, violation)
    statements = _Statements()
    entries = _entries(beats, calls, statements)
    for entry in entries:  # before lines are wrapped, which may cut an id
        entry.lines = [_plain_ids(line, calls) for line in entry.lines]
    guarantee = CATALOGUE[name or violation.guarantee]
    parts = [
        f"{guarantee.id}: {guarantee.sentence}",
        f"Broken: {violation.because}.",
        _before(calls, beats),
        conditions.told(),
        _timeline(entries),
        "" if violation.guarantee == "non-blocking" else _allowed_waits(beats, calls),
        *(
            f"[{letter}]\n{textwrap.indent(sql, '    ')}"
            for sql, letter in statements.letters.items()
        ),
        f"Why it matters: {guarantee.why}.",
        "```mermaid\n" + _diagram(entries) + "\n```",
    ]
    return _plain_ids("\n\n".join(part for part in parts if part), calls)


def tell_found(found: Found, name: str) -> str:
    """The story of what a probe found.

    Args:
        found: How the guarantee is broken.
        name: The guarantee.
    """
    match found:
        case Failure():
            return tell(found.run, found.violation, found.conditions, name)
        case Overclaim():
            return tell_overclaim(found)
        case Waits():
            return tell_waits(found)
        case Slope():
            return tell_growth(found, name)
        case _:
            assert_never(found)


def tell_overclaim(over: Overclaim) -> str:
    """The story of a claim that a plan made take more than its limit."""
    guarantee = CATALOGUE["claim-limit"]
    settings = "\n".join(f"    SET {k} = {v};" for k, v in PLANNERS[over.cell.setting].items())
    parts = [
        f"{guarantee.id}: {guarantee.sentence}",
        f"Broken: w1 asked for at most {over.cell.limit} and took {over.taken}.",
        f"The table held {over.cell.filling}; {over.cell.setting}.",
        settings and f"Settings:\n{settings}",
        *(
            f"{textwrap.indent(textwrap.dedent(sql).strip(), '    ')}\n\n"
            f"Its plan:\n{textwrap.indent(plan, '    ')}"
            for sql, plan in over.plans
        ),
        REWRITE,
        f"Why it matters: {guarantee.why}.",
        (
            "```mermaid\nsequenceDiagram\n"
            f"    w1->>PostgreSQL: claim, at most {over.cell.limit}\n"
            f"    PostgreSQL-->>w1: {over.taken} jobs\n```"
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def tell_waits(waits: Waits) -> str:
    """The story of a job whose waits after its failures are wrong."""
    guarantee = CATALOGUE["backoff"]
    told = [
        f"    attempt {wait.attempt} failed{_work(wait)}; the job was claimable after "
        f"{_duration(wait)}"
        for wait in waits.found
    ]
    parts = [
        f"{guarantee.id}: {guarantee.sentence}",
        f"Broken: {waits.broken}.",
        "Before: job 1 was enqueued, and its worker failed it again and again.",
        "\n".join(told),
        f"Why it matters: {guarantee.why}.",
        "```mermaid\nsequenceDiagram\n"
        + "\n".join(
            f"    w1->>PostgreSQL: fail at attempt {wait.attempt}{_work(wait)}\n"
            f"    Note over w1: {_duration(wait)}"
            for wait in waits.found
        )
        + "\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def tell_growth(slope: Slope, name: str) -> str:
    """The story of a claim that costs more in a fuller queue.

    Args:
        slope: What claims cost, the last one too much.
        name: The guarantee that this breaks.
    """
    guarantee = CATALOGUE[name]
    small, large = slope.small, slope.costs[-1]
    statement, plan = slope.guilty or ("", "")
    parts = [
        f"{guarantee.id}: {guarantee.sentence}",
        f"Broken: {slope.broken}.",
        "Shared buffers touched by one warm claim on a vacuumed and analysed table:",
        "\n".join(f"    {cost.buffers:>9,}  with {cost.content}" for cost in (small, large)),
        textwrap.indent(textwrap.dedent(statement).strip(), "    "),
        plan and f"Its plan with {large.content}:\n{textwrap.indent(plan, '    ')}",
        REMEDIES[large.content.kind],
        f"Why it matters: {guarantee.why}.",
        "```mermaid\nsequenceDiagram\n"
        + "\n".join(
            f"    Note over PostgreSQL: {cost.content}\n"
            "    w1->>PostgreSQL: claim\n"
            f"    Note over PostgreSQL: {cost.buffers:,} buffers\n"
            "    PostgreSQL-->>w1: a job"
            for cost in (small, large)
        )
        + "\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def _duration(wait: Wait) -> str:
    """Whole seconds, as they repeat from run to run."""
    if wait.most == float("inf"):
        return f"more than {wait.least:.0f} s"
    return f"{wait.least:.0f} to {wait.most:.0f} s"


def _work(wait: Wait) -> str:
    """How long a job had taken, where it took long."""
    return f" after {wait.worked:.0f} s of work" if wait.worked else ""


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


def _before(calls: Sequence[Call], beats: Iterable[Beat]) -> str:
    told = {beat.call for beat in beats}
    jobs = [c for c in calls if c.kind == "enqueue" and c.index not in told and c.ids]
    jobs = [c for c in jobs if c.index in _undisturbed(calls)]
    if not jobs:
        return ""
    return "Before: " + "; ".join(_enqueued(call) for call in jobs) + "."


def _enqueued(call: Call) -> str:
    facts = []
    if call.priority:
        facts.append(f"priority {call.priority}")
    if call.delay:
        facts.append(f"due in {call.delay:g} s")
    if call.bound is not None:
        facts.append(f"max_attempts {call.bound}")
    return f"job {call.ids[0]} was enqueued" + (f" ({', '.join(facts)})" if facts else "")


def _allowed_waits(beats: Iterable[Beat], calls: Sequence[Call]) -> str:
    """Why claims that wait in a story break nothing by that, where it is not plain to see."""
    waiting = dict.fromkeys(beat.call for beat in beats if beat.event == "waits")
    reasons = {
        calls[n].actor: _why_it_may_wait(calls[n], calls)
        for n in waiting
        if calls[n].kind == "claim"
    }
    return "\n".join(
        f"That {actor}'s claim waits is no breach of non-blocking: {reason}."
        for actor, reason in reasons.items()
        if reason
    )


def _why_it_may_wait(call: Call, calls: Sequence[Call]) -> str:
    blockers = {wait.blocker for wait in call.waits}
    for other in calls:
        rival = other.kind == "claim" and other.actor in blockers and other.overlaps(call)
        if rival and (both := [job for job in call.ids if job in other.ids]):
            return f"{other.actor}'s takes job {both[0]} too, and that counts once"
    if all(wait.stale for wait in call.waits):
        return "a statement stood still, and with an old snapshot even SKIP LOCKED may wait"
    return ""


def _entries(beats: Iterable[Beat], calls: Sequence[Call], statements: _Statements) -> list[_Entry]:
    """Beats as entries: what one actor did without anybody else in between."""
    entries: list[_Entry] = []
    beats = list(beats)
    alone = all(beat.actor == DRAINER for beat in beats)
    for beat in beats:
        call = calls[beat.call] if beat.call >= 0 else None
        if beat.actor == DRAINER and (call is None or call.kind in {"jobs", "sweep"}):
            continue
        if not entries or entries[-1].actor != beat.actor:
            if entries and entries[-1].uncommitted:
                entries[-1].lines.append("(not committed yet)")
            entries.append(_Entry(beat.actor))
        _add(entries[-1], beat, call, statements, draining=beat.actor == DRAINER and not alone)
    return [entry for entry in entries if entry.lines]


def _add(
    entry: _Entry, beat: Beat, call: Call | None, statements: _Statements, *, draining: bool
) -> None:
    match beat.event:
        case "start" if call is not None:
            entry.lines.append(_invocation(call))
        case "connection":
            entry.lines.append(f"on connection {beat.text}")
        case "sql" if not draining:
            entry.lines.append(f"[{statements.letter(beat.text)}] {_abridged(beat.text)}")
            if bound := _bound(beat.step):
                entry.lines.append(f"({bound})")
        case "done":
            entry.uncommitted = True
        case "commit":
            if not entry.uncommitted:
                entry.lines.append("COMMIT")
            entry.uncommitted = False
        case "waits":
            entry.lines.append(f"waits for {beat.text}")
        case "stops":
            entry.lines.append(_STOPPED[beat.text])
        case "goes on" if entry.lines and entry.lines[-1] in _STOPPED.values():
            entry.lines.pop()  # nobody acted meanwhile
        case "goes on":
            entry.lines.append("goes on")
        case "answer":
            entry.lines.append(f"=> {beat.text}")
            entry.uncommitted = False
        case "error":
            entry.lines.append(f"=> ERROR {beat.text}")
            entry.uncommitted = False
        case "clock":
            entry.lines.append(f"{_long(float(beat.text))} pass")
        case "rewrite":
            entry.lines.append("the tables are rewritten, their rows in another physical order")
        case "crash":
            entry.lines.append("crashes")
            entry.uncommitted = False
        case "lost":
            entry.lines.append("=> no answer: its connection is cut")
            entry.uncommitted = False
        case "cut":
            entry.lines.append(f"cuts {beat.text} off from its next answer")
        case "terminate":
            entry.lines.append(f"ends the backend of {beat.text}")
        case "restart":
            entry.lines.append("kills the server, and starts it again")


def _long(seconds: float) -> str:
    """A time that passes, as people say it."""
    days = seconds / DAY
    return f"{days:,.0f} days" if days > 2 else f"{seconds:g} s"  # noqa: PLR2004 - a few


def _invocation(call: Call) -> str:
    match call.kind:
        case "claim":
            return f"claim, at most {call.limit}"
        case "complete" | "fail" | "heartbeat" | "complete_many":
            return f"{call.kind} job {', '.join(ref.job for ref in call.refs)}"
        case "enqueue":
            facts = f", due in {call.delay:g} s" if call.delay else ""
            return f"enqueue{facts}"
        case _:
            return call.kind


def _bound(step: Step | None) -> str:
    """The parameters that a client bound to its statement."""
    params = step.params if step else {}
    shown = (f"${n} = {_value(value)}" for n, value in params.items() if n.isdigit())
    return ", ".join(shown)


def _value(value: Parameter) -> str:
    text = "NULL" if value is None else str(value)
    return textwrap.shorten(text, SHOWN_SQL, placeholder=" …")


def _abridged(sql: str) -> str:
    """A statement's beginning: its first line that is not a comment."""
    lines = [line.strip() for line in sql.strip().splitlines()]
    text = next((line for line in lines if line and not line.startswith("--")), "")
    return textwrap.shorten(text, SHOWN_SQL, placeholder=" …")


# --- how it is drawn ----------------------------------------------------------------------------


def _timeline(entries: Sequence[_Entry]) -> str:
    actors = _columns(entries)
    lines = [
        "    " + "".join(actor.ljust(COLUMN + 2) for actor in actors).rstrip(),
        "    " + "".join(("-" * COLUMN).ljust(COLUMN + 2) for _ in actors).rstrip(),
    ]
    for number, entry in enumerate(entries, 1):
        margin = " " * ((COLUMN + 2) * actors.index(entry.actor))
        wrapped = [
            piece
            for line in entry.lines
            for piece in textwrap.wrap(line, COLUMN, subsequent_indent="  ") or [""]
        ]
        for n, piece in enumerate(wrapped):
            lines.append(f"{number if n == 0 else '':>2}  {margin}{piece}".rstrip())
    return "\n".join(lines)


def _columns(entries: Sequence[_Entry]) -> list[str]:
    """The actors: workers by their number, then the others as they appear."""
    actors = list(dict.fromkeys(entry.actor for entry in entries))
    return sorted(actors, key=lambda actor: (not _WORKER.fullmatch(actor), len(actor), actor))


def _diagram(entries: Sequence[_Entry]) -> str:
    """The same as a Mermaid sequence diagram."""
    lines = ["sequenceDiagram"]
    lines += [f"    participant {actor}" for actor in _columns(entries)]
    lines.append("    participant PostgreSQL")
    for entry in entries:
        for line in entry.lines:
            # A semicolon or a hash would end the message.
            text = re.sub(r"[;#]", " ", line).strip()
            if line.startswith("=>"):
                lines.append(f"    PostgreSQL-->>{entry.actor}: {text[3:]}")
            elif line.startswith(
                ("waits", "goes on", "crashes", "(", "the tables", "on connection")
            ) or line.endswith("pass"):
                lines.append(f"    Note over {entry.actor}: {text}")
            else:
                lines.append(f"    {entry.actor}->>PostgreSQL: {text}")
    return "\n".join(lines)


def _plain_ids(text: str, calls: Sequence[Call]) -> str:
    """Job ids that differ from run to run, as the numbers in which they were enqueued."""
    for actor in dict.fromkeys(call.actor for call in calls):
        text = text.replace(identity(actor), actor)
    ids = [job for call in calls if call.kind == "enqueue" for job in call.ids]
    for number, job in enumerate(ids, 1):
        if len(job) > LONG_ID:
            text = text.replace(job, str(number))
    return text
