"""The card: the verdict on every guarantee of one queue, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from queueproof.errors import Exit

SCHEMA = 1
"""Version of card.json (`queueproof schema`): one more when a key goes or means something else."""

Verdict: TypeAlias = Literal["holds", "broken", "inconclusive", "not-offered", "accepted"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the queue under test.

    Attributes:
        file: As the user named it.
        line: From 1.
    """

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Break:
    """One way in which a guarantee breaks.

    Attributes:
        reason: One sentence.
        story: How it broke, as text.
        replay: A token for `--replay`; None where it cannot be repeated at will.
        diagram: The same as Mermaid source; nothing where there is none.
        place: Of the last statement of the queue's own in the story; None where it is in no file.
    """

    reason: str
    story: str
    replay: str | None
    diagram: str = ""
    place: Place | None = None

    @property
    def whole(self) -> str:
        """The story with its diagram."""
        return joined(self.story, self.diagram)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one guarantee.

    Attributes:
        id: The guarantee.
        verdict: What was found.
        reason: One sentence.
        story: How it broke, as text; None where it did not.
        replay: A token for `--replay`; None where there is no story.
        evidence: What a pass rests on, by name; counts, never times, so that a seed repeats them.
        more: Further stories, each of another operation that breaks the guarantee.
        diagram: The story as Mermaid source; nothing where there is none.
        place: Of the story, as of a `Break`.
        seconds: Wall-clock that was spent on it; what is asked for all of them together counts
            for none.
    """

    id: str
    verdict: Verdict
    reason: str
    story: str | None = None
    replay: str | None = None
    evidence: Mapping[str, int] = field(default_factory=dict)
    more: Sequence[Break] = ()
    diagram: str = ""
    place: Place | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def stories(self) -> list[Break]:
        """All of them, the one that says most first."""
        if not self.story:
            return list(self.more)
        first = Break(self.reason, self.story, self.replay, self.diagram, self.place)
        return [first, *self.more]


def joined(story: str, diagram: str) -> str:
    """A story with its diagram, as Markdown draws it and as a card.json holds it."""
    return f"{story}\n\n```mermaid\n{diagram}\n```" if diagram else story


def apart(whole: str) -> tuple[str, str]:
    """A story and its diagram, from what `joined` made: a card.json holds no more than that."""
    story, _, rest = whole.rpartition("\n\n```mermaid\n")
    return (story, rest.removesuffix("\n```")) if story else (whole, "")


def _written(judgement: Judgement) -> dict[str, Any]:
    facts = asdict(judgement) | {"seconds": round(judgement.seconds, 2)}
    for told in (facts, *facts["more"]):
        diagram = told.pop("diagram")
        told["story"] = told["story"] and joined(told["story"], diagram)
    return facts


@dataclass(frozen=True, slots=True)
class MutantJudgement:
    """What became of one defect that was planted in the queue's own SQL.

    Attributes:
        name: Of the mutant: `claim: SKIP LOCKED dropped`.
        verdict: `equivalent` where it is known that the change cannot matter; `unjudged` where
            nothing found it, but not every guarantee was asked.
        by: The guarantee that killed it; None where none did, or where it does not even work.
        reason: One sentence.
        change: The lines that differ, each with its sign.
    """

    name: str
    verdict: Literal["killed", "survived", "equivalent", "unjudged"]
    by: str | None
    reason: str
    change: str


@dataclass(frozen=True, slots=True)
class Card:
    """All verdicts on one queue.

    Attributes:
        queue: As the user named it.
        postgres: The server: version, source, durability.
        seed: Of the random programs and schedules.
        seconds: Wall-clock.
        guarantees: In the order of the catalogue.
        mutants: Of the queue's own SQL; None where none were asked for.
        not_mutated: Sentences on SQL that could not be mutated.
    """

    queue: str
    postgres: str
    seed: int
    seconds: float
    guarantees: Sequence[Judgement]
    mutants: Sequence[MutantJudgement] | None = None
    not_mutated: Sequence[str] = ()

    @property
    def verdict(self) -> Literal["holds", "broken", "inconclusive"]:
        """Of the whole: broken beats inconclusive beats holds; nothing judged is inconclusive."""
        found = {judgement.verdict for judgement in self.guarantees}
        if "broken" in found:
            return "broken"
        judged = found - {"not-offered"}
        return "inconclusive" if "inconclusive" in judged or not judged else "holds"

    @property
    def exit_code(self) -> Exit:
        """Of the command line."""
        codes = {
            "holds": Exit.HOLDS,
            "broken": Exit.BROKEN,
            "inconclusive": Exit.INCONCLUSIVE,
        }
        return codes[self.verdict]

    def to_json(self) -> str:
        """The public form (card.json)."""
        card: dict[str, object] = {
            "schema": SCHEMA,
            "queue": self.queue,
            "postgres": self.postgres,
            "verdict": self.verdict,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "guarantees": [_written(judgement) for judgement in self.guarantees],
        }
        if self.mutants is not None:
            card["mutants"] = [asdict(mutant) for mutant in self.mutants]
            card["not_mutated"] = list(self.not_mutated)
        return json.dumps(card, indent=2, ensure_ascii=False)
