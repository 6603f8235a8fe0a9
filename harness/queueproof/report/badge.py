"""The card as a badge: an SVG file that takes nothing from the network."""

from __future__ import annotations

from collections import Counter

from queueproof.report.card import Card, Verdict
from queueproof.report.forms import filled_in

_COLOURS = {"holds": "#1a7f37", "broken": "#cf222e", "inconclusive": "#9a6700"}
_LETTER = 6.6  # pixels


def to_badge(card: Card) -> str:
    """A badge that counts the judged guarantees by their verdicts; the queue is its title."""
    told = _told(Counter(judgement.verdict for judgement in card.guarantees))
    return filled_in(
        "badge.svg",
        length=round(len(told) * _LETTER),
        colour=_COLOURS[card.verdict],
        told=told,
        title=f"{card.queue}: {told}",
    )


def _told(found: Counter[Verdict]) -> str:
    """The counts of the verdicts, broken first, as the colour has it."""
    holding = found["holds"]
    counted = (
        (found["broken"], "broken"),
        (found["inconclusive"], "inconclusive"),
        (holding, "holds" if holding == 1 else "hold"),
        (found["accepted"], "accepted"),
    )
    return ", ".join(f"{count} {what}" for count, what in counted if count) or "nothing judged"
