"""The card: the verdict on every guarantee of one queue, as data."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from queueproof.errors import Exit
from queueproof.report.data import to_data
from queueproof.report.mermaid import to_mermaid
from queueproof.report.story import Story, Told

SCHEMA = 1
"""Version of card.json (`queueproof schema`): one more when a key goes or means something else."""

Verdict: TypeAlias = Literal["holds", "broken", "inconclusive", "not-offered", "accepted"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the queue under test."""

    file: str  # as the user named it
    line: int  # from 1


@dataclass(frozen=True, slots=True)
class Break:
    """One way in which a guarantee breaks."""

    reason: str  # one sentence
    story: str  # how it broke, as text
    replay: str | None  # a token for `queueproof replay`; None where it cannot be repeated at will
    # The same as data, which a page draws; None where a card.json lacks it
    told: Told | None = None
    # The line to change, where one is known; else the last statement of the queue's own in the
    # story; None where that is in no file
    place: Place | None = None

    @property
    def diagram(self) -> str:
        """The story as Mermaid source; empty where it has no steps."""
        return to_mermaid(self.told) if isinstance(self.told, Story) else ""


NOT_JUDGED = "not judged: the check ended at the first break"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one guarantee."""

    id: str  # the guarantee
    verdict: Verdict  # what was found
    reason: str  # one sentence
    story: str | None = None  # how it broke, as text; None where it did not
    replay: str | None = None  # a token for `queueproof replay`; None where there is no story
    # What a pass rests on, by name; counts, never times, so that a seed repeats them
    evidence: Mapping[str, int] = field(default_factory=dict)
    # Further stories, each of another operation that breaks the guarantee
    more: Sequence[Break] = ()
    told: Told | None = None  # the story as data; None where there is none, or none was written
    place: Place | None = None  # of the story, as of a `Break`
    # How it is kept, in the queue's own names; None where nothing broke, or nobody said
    remedy: str | None = None
    explained: bool = False  # whether it was seen to break, and what breaks as well explains that
    # Wall-clock that was spent on it; what is asked for all of them together counts for none
    seconds: float = field(default=0.0, compare=False)

    @property
    def left_out(self) -> bool:
        """True if the check ended at its first break, before it judged this one."""
        return self.reason == NOT_JUDGED

    @property
    def stories(self) -> list[Break]:
        """All of them, the one that says most first."""
        if not self.story:
            return list(self.more)
        return [Break(self.reason, self.story, self.replay, self.told, self.place), *self.more]


def _written(judgement: Judgement) -> dict[str, Any]:
    facts = asdict(replace(judgement, told=None, more=()))
    more = [asdict(replace(one, told=None)) | {"told": to_data(one.told)} for one in judgement.more]
    told = to_data(judgement.told)
    return {**facts, "more": more, "told": told, "seconds": round(judgement.seconds, 2)}


@dataclass(frozen=True, slots=True)
class MutantJudgement:
    """The judgement on one defect that was planted in the queue's own SQL."""

    name: str  # of the mutant: `claim: SKIP LOCKED dropped`
    # `equivalent` where it is known that the change cannot matter; `unjudged` where nothing found
    # it, but not every guarantee was asked
    verdict: Literal["killed", "survived", "equivalent", "unjudged"]
    # The guarantee that killed it; None where none did, or where it does not even work
    by: str | None
    reason: str  # one sentence
    change: str  # the lines that differ, each with its sign


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
        profile: How thorough the check was: a key of `PROFILES`; empty where nobody said.
    """

    queue: str
    postgres: str
    seed: int
    seconds: float
    guarantees: Sequence[Judgement]
    mutants: Sequence[MutantJudgement] | None = None
    not_mutated: Sequence[str] = ()
    profile: str = ""

    @property
    def breaks(self) -> dict[str, tuple[Judgement, Break]]:
        """Each story of what is broken by its name: `fencing`, or `fencing.1` and `fencing.2`."""
        return self._told("broken")

    @property
    def accepted(self) -> dict[str, tuple[Judgement, Break]]:
        """The stories of what is broken and declared as known, by their names."""
        return self._told("accepted")

    def _told(self, verdict: Verdict) -> dict[str, tuple[Judgement, Break]]:
        return {
            one.id if len(one.stories) == 1 else f"{one.id}.{number}": (one, story)
            for one in self.guarantees
            if one.verdict == verdict
            for number, story in enumerate(one.stories, start=1)
        }

    @property
    def verdict(self) -> Literal["holds", "broken", "inconclusive"]:
        """Of the whole: broken beats inconclusive beats holds; nothing judged is inconclusive."""
        found = {judgement.verdict for judgement in self.guarantees}
        if "broken" in found:
            return "broken"
        judged = found - {"not-offered"}
        return "inconclusive" if "inconclusive" in judged or not judged else "holds"

    @property
    def word(self) -> str:
        """The verdict of the whole; of what holds but for its declared breaks: accepted."""
        accepts = any(one.verdict == "accepted" for one in self.guarantees)
        return "accepted" if accepts and self.verdict == "holds" else self.verdict

    @property
    def shared(self) -> Mapping[str, int]:
        """The evidence that several guarantees were judged by, the same for each of them."""
        found = [one.evidence for one in self.guarantees if "random programs" in one.evidence]
        return dict(set.intersection(*(set(one.items()) for one in found))) if found[1:] else {}

    def accepting(self, ids: Collection[str], why: str) -> Card:
        """The card of the same queue with some of its breaks declared.

        Args:
            ids: Of guarantees that are broken.
            why: The reason.
        """
        judgements = [
            replace(one, verdict="accepted", reason=f"{one.reason} (declared: {why})")
            if one.id in ids
            else one
            for one in self.guarantees
        ]
        return replace(self, guarantees=judgements)

    @property
    def exit_code(self) -> Exit:
        """Of the command line."""
        return Exit[self.verdict.upper()]

    def to_json(self) -> str:
        """The public form (card.json)."""
        card: dict[str, object] = {
            "schema": SCHEMA,
            "queue": self.queue,
            "postgres": self.postgres,
            "verdict": self.verdict,
            "seed": self.seed,
            "profile": self.profile,
            "seconds": round(self.seconds, 2),
            "guarantees": [_written(judgement) for judgement in self.guarantees],
        }
        if self.mutants is not None:
            card["mutants"] = [asdict(mutant) for mutant in self.mutants]
            card["not_mutated"] = list(self.not_mutated)
        return json.dumps(card, indent=2, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Mended:
    """The result of a search for a remedy of the guarantees that were broken."""

    diff: str  # from the user's file to the mended one, as `git apply` takes it; or nothing
    what: Sequence[str]  # each change, in words
    lines: int  # how many lines they change
    mended: Sequence[str]  # the guarantees that hold now
    left: Mapping[str, str]  # those that do not, and why
    tried: int  # candidates
    # Of the mended queue, checked by everything; None where nothing was mended, or where the search
    # was interrupted before that check had passed
    card: Card | None


def worst_first(judgement: Judgement) -> int:
    """The place of a judgement among others, by its verdict."""
    order = ("broken", "inconclusive", "accepted", "holds", "not-offered")
    return order.index(judgement.verdict)


def together(cards: Sequence[Card]) -> Card:
    """The card of a queue that was judged in several ways: of each guarantee the worst verdict.

    The cards are of the same guarantees, in the same order.
    """
    judgements = [
        replace(min(found, key=worst_first), seconds=sum(one.seconds for one in found))
        for found in zip(*(card.guarantees for card in cards), strict=True)
    ]
    return replace(cards[0], seconds=sum(card.seconds for card in cards), guarantees=judgements)
