"""Cards and benchmarks as one self-contained page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from queueproof.errors import QueueproofError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.card import SCHEMA, Break, Card, Judgement, MutantJudgement, Place
from queueproof.report.data import from_data
from queueproof.report.story import Told
from queueproof.report.terminal import mutants_summary, summary
from queueproof.report.text import to_text


def to_page(cards: Sequence[Card], replay: str | None = None, benches: Sequence[str] = ()) -> str:
    """A page without scripts, that takes nothing from the network.

    Args:
        cards: Verdicts, of a queue each.
        replay: The command that replays a story, up to its token; None: told by the card's queue.
        benches: Benchmarks, as HTML fragments.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "pieces": _pieces,
        "summary": summary,
        "mutants_summary": mutants_summary,
    }
    template = files("queueproof.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        cards=cards, benches=benches, catalogue=CATALOGUE, replay=replay
    )


def read_card(text: str) -> Card:
    """Read a card.json.

    Raises:
        QueueproofError: It is something else, or was written by a version that knew more.
    """
    try:
        found = json.loads(text)
        if found.get("schema", SCHEMA) > SCHEMA:
            raise QueueproofError(f"this card is of a newer queueproof (schema {found['schema']})")
        judgements = [_judgement(judgement) for judgement in found["guarantees"]]
        mutants = [MutantJudgement(**mutant) for mutant in found.get("mutants", ())]
        facts = (str(found["queue"]), str(found["postgres"]), found["seed"], found["seconds"])
        unknown = [judgement.id for judgement in judgements if judgement.id not in CATALOGUE]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise QueueproofError(f"this is no card of queueproof: {error!r}") from None
    if unknown:
        raise QueueproofError(f"this card has guarantees unknown here: {', '.join(unknown)}")
    if "mutants" not in found:
        return Card(*facts, judgements)
    return Card(*facts, judgements, mutants, found["not_mutated"])


def _judgement(facts: dict[str, Any]) -> Judgement:
    more = tuple(Break(**_told(found)) for found in facts.pop("more", ()))
    return Judgement(**_told(facts), more=more)


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    """The same, its story as data; earlier versions wrote a diagram behind its text."""
    story, told, place = facts.get("story"), facts.get("told"), facts.get("place")
    return {
        **facts,
        "story": story.partition("\n\n```mermaid\n")[0] if isinstance(story, str) else None,
        "told": None if told is None else _readable(from_data(told)),
        "place": None if place is None else Place(**place),
    }


def _readable(told: Told) -> Told:
    """A story of which each word is known here."""
    to_text(told)
    return told


def _pieces(story: str) -> list[tuple[bool, str]]:
    """A story in pieces: what is drawn with spaces, each line as it is, and prose between.

    Text is all that there is: pages are also made of the card.json of an earlier check.
    """
    paragraphs = story.split("\n\n")
    drawn = itertools.groupby(paragraphs, key=lambda text: "\n " in f"\n{text}")
    return [
        piece
        for spaced, texts in drawn
        for piece in ([(True, "\n\n".join(texts))] if spaced else [(False, t) for t in texts])
    ]
