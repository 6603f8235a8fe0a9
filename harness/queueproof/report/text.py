"""A story as text: a timeline with a column per actor, the SQL, and the reason."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import assert_never

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.probes.backoff import Wait, Waits
from queueproof.probes.buffers import REMEDIES, Slope
from queueproof.probes.plans import REWRITE, Overclaim
from queueproof.report.story import (
    AllowedWait,
    Answered,
    Asked,
    Enqueued,
    Event,
    Fact,
    Fault,
    Passed,
    Probed,
    Sent,
    Story,
)
from queueproof.schedule.conditions import PLANNERS
from queueproof.schedule.programs import FAULTS

COLUMN = 32  # characters; two workers and the margin fit into a terminal of 80
DAY = 86_400  # seconds
_SNAPSHOT = "(has its snapshot, has read nothing)"
_EVENTS: Mapping[str, str] = {
    "connection": "on connection {}",
    "commit": "COMMIT",
    "uncommitted": "(not committed yet)",
    "waits": "waits for {}",
    "goes on": "goes on",
    "rewrite": "the tables are rewritten, their rows in another physical order",
    "crash": "crashes",
}
_ANSWERS: Mapping[str, str] = {
    "answer": "{}",
    "error": "ERROR {}",
    "lost": "no answer: its connection is cut",
}
_STOPPED = {
    "statement": _SNAPSHOT,
    "query": _SNAPSHOT,
    "row": "(has locked a row, and not the next)",
}


def to_text(story: Story | Probed) -> str:
    """A story without its diagram."""
    guarantee = CATALOGUE[story.guarantee]
    parts = [
        f"{guarantee.id}: {guarantee.sentence}",
        *(_run(story) if isinstance(story, Story) else _probed(story.found)),
        f"Why it matters: {guarantee.why}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _run(story: Story) -> Iterator[str]:
    yield f"Broken: {story.broken}."
    if story.before:
        yield "Before: " + "; ".join(map(_enqueued, story.before)) + "."
    yield story.conditions.told()
    yield _timeline(story)
    yield "\n".join(map(_allowed, story.allowed))
    for number, sql in enumerate(story.statements):
        yield f"[{_letter(number)}]\n{textwrap.indent(sql, '    ')}"


def _probed(found: Overclaim | Waits | Slope) -> Iterator[str]:
    match found:
        case Overclaim():
            return _overclaim(found)
        case Waits():
            return _waits(found)
        case Slope():
            return _growth(found)
        case _:
            assert_never(found)


def _overclaim(over: Overclaim) -> Iterator[str]:
    yield f"Broken: w1 asked for at most {over.cell.limit} and took {over.taken}."
    yield f"The table held {over.cell.filling}; {over.cell.setting}."
    settings = "\n".join(f"    SET {k} = {v};" for k, v in PLANNERS[over.cell.setting].items())
    yield settings and f"Settings:\n{settings}"
    for sql, plan in over.plans:
        yield f"{_block(sql)}\n\nIts plan:\n{textwrap.indent(plan, '    ')}"
    yield REWRITE


def _waits(waits: Waits) -> Iterator[str]:
    yield f"Broken: {waits.broken}."
    yield "Before: job 1 was enqueued, and its worker failed it again and again."
    yield "\n".join(
        f"    attempt {wait.attempt} failed{work(wait)}; the job was claimable after "
        f"{duration(wait)}"
        for wait in waits.found
    )


def _growth(slope: Slope) -> Iterator[str]:
    yield f"Broken: {slope.broken}."
    large = slope.costs[-1]
    statement, plan = slope.guilty or ("", "")
    yield "Shared buffers touched by one warm claim on a vacuumed and analysed table:"
    yield "\n".join(f"    {cost.buffers:>9,}  with {cost.content}" for cost in (slope.small, large))
    yield _block(statement)
    yield plan and f"Its plan with {large.content}:\n{textwrap.indent(plan, '    ')}"
    yield REMEDIES[large.content.kind]


def _block(sql: str) -> str:
    return textwrap.indent(textwrap.dedent(sql).strip(), "    ")


def duration(wait: Wait) -> str:
    """Whole seconds, as they repeat from run to run."""
    if wait.most == float("inf"):
        return f"more than {wait.least:.0f} s"
    return f"{wait.least:.0f} to {wait.most:.0f} s"


def work(wait: Wait) -> str:
    """How long a job had taken, where it took long."""
    return f" after {wait.worked:.0f} s of work" if wait.worked else ""


# --- sentences ----------------------------------------------------------------------------------


def _enqueued(job: Enqueued) -> str:
    facts = []
    if job.priority:
        facts.append(f"priority {job.priority}")
    if job.delay:
        facts.append(f"due in {job.delay:g} s")
    if job.bound is not None:
        facts.append(f"max_attempts {job.bound}")
    return f"job {job.job} was enqueued" + (f" ({', '.join(facts)})" if facts else "")


def _allowed(wait: AllowedWait) -> str:
    reason = "a statement stood still, and with an old snapshot even SKIP LOCKED may wait"
    if wait.rival:
        reason = f"{wait.rival}'s takes job {wait.job} too, and that counts once"
    return f"That {wait.actor}'s claim waits is no breach of non-blocking: {reason}."


def worded(fact: Fact) -> str:
    """What happened, in a few words."""
    match fact:
        case Asked():
            return _asked(fact)
        case Sent():
            return f"[{_letter(fact.statement)}] {fact.beginning}"
        case Answered():
            return _ANSWERS[fact.kind].format(fact.text)
        case Passed():
            return f"{_long(fact.seconds)} pass"
        case Event(kind="stops"):
            return _STOPPED[fact.about]
        case Event():
            return _EVENTS[fact.kind].format(fact.about)
        case Fault():
            return FAULTS[fact.kind].told.format(fact.about)
        case _:
            assert_never(fact)


def bound(sent: Sent) -> str:
    """The parameters of a statement; nothing where it has none."""
    shown = ", ".join(f"${number} = {value}" for number, value in sent.bound)
    return f"({shown})" if shown else ""


def _asked(asked: Asked) -> str:
    match asked.operation:
        case "claim":
            return f"claim, at most {asked.limit}"
        case "complete" | "fail" | "heartbeat" | "complete_many":
            return f"{asked.operation} job {', '.join(asked.jobs)}"
        case "enqueue" if asked.delay:
            return f"enqueue, due in {asked.delay:g} s"
        case _:
            return asked.operation


def _letter(number: int) -> str:
    """What a statement is called: a to z, then aa, ab, ..."""
    prefix = ascii_lowercase[number // 26 - 1] if number >= len(ascii_lowercase) else ""
    return prefix + ascii_lowercase[number % 26]


def _long(seconds: float) -> str:
    """A time that passes, as people say it."""
    seconds = float(f"{seconds:g}")  # so that two days and a moment are no days
    days = seconds / DAY
    return f"{days:,.0f} days" if days > 2 else f"{seconds:g} s"  # noqa: PLR2004 - a few


# --- the timeline -------------------------------------------------------------------------------


def _timeline(story: Story) -> str:
    actors = story.actors
    lines = [
        "    " + "".join(actor.ljust(COLUMN + 2) for actor in actors).rstrip(),
        "    " + "".join(("-" * COLUMN).ljust(COLUMN + 2) for _ in actors).rstrip(),
    ]
    for number, turn in enumerate(story.turns, 1):
        margin = " " * ((COLUMN + 2) * actors.index(turn.actor))
        wrapped = [
            piece
            for fact in turn.facts
            for line in _lines(fact)
            for piece in textwrap.wrap(line, COLUMN, subsequent_indent="  ") or [""]
        ]
        for n, piece in enumerate(wrapped):
            lines.append(f"{number if n == 0 else '':>2}  {margin}{piece}".rstrip())
    return "\n".join(lines)


def _lines(fact: Fact) -> Sequence[str]:
    match fact:
        case Answered():
            return [f"=> {worded(fact)}"]
        case Sent(bound=params) if params:
            return [worded(fact), bound(fact)]
        case _:
            return [worded(fact)]
