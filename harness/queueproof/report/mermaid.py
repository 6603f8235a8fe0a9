"""A story as a Mermaid sequence diagram."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import assert_never

from queueproof.probes.backoff import Waits
from queueproof.probes.buffers import Slope
from queueproof.probes.plans import Overclaim
from queueproof.report.card import joined
from queueproof.report.story import Answered, Asked, Event, Fact, Fault, Passed, Probed, Sent, Story
from queueproof.report.text import bound, duration, to_text, worded, work

_NOTED = frozenset({"connection", "uncommitted", "waits", "stops", "goes on", "rewrite", "crash"})


def to_mermaid(story: Story | Probed) -> str:
    """The diagram's source."""
    lines = _run(story) if isinstance(story, Story) else _probed(story.found)
    return "\n".join(["sequenceDiagram", *(f"    {line}" for line in lines)])


def to_markdown(story: Story | Probed) -> str:
    """The story as text, and its diagram."""
    return joined(to_text(story), to_mermaid(story))


def _run(story: Story) -> Iterator[str]:
    for actor in [*story.actors, "PostgreSQL"]:
        yield f"participant {actor}"
    for turn in story.turns:
        for fact in turn.facts:
            yield from _fact(turn.actor, fact)


def _fact(actor: str, fact: Fact) -> Iterator[str]:
    text = _message(worded(fact))
    match fact:
        case Answered():
            yield f"PostgreSQL-->>{actor}: {text}"
        case Passed():
            yield f"Note over {actor}: {text}"
        case Event(kind=kind) if kind in _NOTED:
            yield f"Note over {actor}: {text}"
        case Asked() | Event() | Fault():
            yield f"{actor}->>PostgreSQL: {text}"
        case Sent():
            yield f"{actor}->>PostgreSQL: {text}"
            if fact.bound:
                yield f"Note over {actor}: {_message(bound(fact))}"
        case _:
            assert_never(fact)


def _message(text: str) -> str:
    """A text without what would end a message: a semicolon or a hash."""
    return re.sub(r"[;#]", " ", text).rstrip()


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
    yield f"w1->>PostgreSQL: claim, at most {over.cell.limit}"
    yield f"PostgreSQL-->>w1: {over.taken} jobs"


def _waits(waits: Waits) -> Iterator[str]:
    for wait in waits.found:
        yield f"w1->>PostgreSQL: fail at attempt {wait.attempt}{work(wait)}"
        yield f"Note over w1: {duration(wait)}"


def _growth(slope: Slope) -> Iterator[str]:
    for cost in (slope.small, slope.costs[-1]):
        yield f"Note over PostgreSQL: {cost.content}"
        yield "w1->>PostgreSQL: claim"
        yield f"Note over PostgreSQL: {cost.buffers:,} buffers"
        yield "PostgreSQL-->>w1: a job"
