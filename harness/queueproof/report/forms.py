"""Templates, filled in; a card as a badge and as JUnit XML."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.card import Card, Judgement, Verdict

_COLOURS = {"holds": "#1a7f37", "broken": "#cf222e", "inconclusive": "#9a6700"}
_LETTER = 6.6  # pixels
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


@cache
def _forms(folder: str) -> Environment:
    return Environment(
        loader=PackageLoader(folder, "."),
        autoescape=select_autoescape(["html", "svg", "xml"]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def filled_in(form: str, folder: str = "queueproof.report", /, **facts: object) -> str:
    """A template, by its file in a package, with its facts; HTML, SVG and XML escape them."""
    return _forms(folder).get_template(form).render(facts)


def to_badge(card: Card) -> str:
    """An SVG file that takes nothing from the network.

    It counts the judged guarantees by their verdicts, broken first, as the colour has it; the queue
    is its title.
    """
    found = Counter(judgement.verdict for judgement in card.guarantees)
    order: tuple[Verdict, ...] = ("broken", "inconclusive", "holds", "accepted")
    words = {"holds": "hold"} if found["holds"] > 1 else {}
    counts = [f"{found[one]} {words.get(one, one)}" for one in order if found[one]]
    told = ", ".join(counts) or "nothing judged"
    return filled_in(
        "badge.svg",
        length=round(len(told) * _LETTER),
        colour=_COLOURS[card.verdict],
        told=told,
        title=f"{card.queue}: {told}",
    )


def to_junit(card: Card) -> str:
    """A test case per guarantee, in the dialect of Jenkins, GitLab and GitHub's reporters."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", filled_in("junit.xml", card=card, told=_told))


def _told(judgement: Judgement) -> str:
    """The text of a case: its stories, or else the guarantee and its verdict."""
    said = f"{judgement.verdict}: {judgement.reason}\n"
    if not judgement.stories:
        return f"{CATALOGUE[judgement.id].sentence}\n{said}"
    stories = [
        f"{found.story}\n" + (f"\nReplay token: {found.replay}\n" if found.replay else "")
        for found in judgement.stories
    ]
    accepted = [said] if judgement.verdict == "accepted" else []  # with why it is
    return "\n".join([*accepted, *stories])
