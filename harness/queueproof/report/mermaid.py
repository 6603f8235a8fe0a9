"""A story as a Mermaid sequence diagram."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import assert_never

from queueproof.report.story import Answered, Asked, Event, Fact, Fault, Passed, Sent, Story
from queueproof.report.text import bound, worded


def to_mermaid(story: Story) -> str:
    """The diagram's source, for what draws it: a README, an issue."""
    actors = [*story.actors, "PostgreSQL"]
    lines = [f"participant {actor}" for actor in actors]
    for moment in story.moments:
        for fact in moment.facts:
            lines += _fact(moment.actor, fact, actors)
    return "\n".join(["sequenceDiagram", *(f"    {line}" for line in lines)])


def _fact(actor: str, fact: Fact, actors: Sequence[str]) -> Iterator[str]:
    text = _message(worded(fact))
    match fact:
        case Answered():
            yield f"PostgreSQL-->>{actor}: {text}"
        case Passed():
            yield f"Note over {actors[0]},{actors[-1]}: {text}"
        case Asked() | Sent() | Event(kind="commit") | Fault():
            yield f"{actor}->>PostgreSQL: {text}"
            if isinstance(fact, Sent) and fact.bound:
                yield f"Note over {actor}: {_message(bound(fact))}"
        case Event():
            yield f"Note over {actor}: {text}"
        case _:
            assert_never(fact)


def _message(text: str) -> str:
    """A text without what would end a message: a semicolon or a hash."""
    return re.sub(r"[;#]", " ", text).rstrip()
