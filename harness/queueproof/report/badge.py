"""The card as a badge: an SVG file that takes nothing from the network."""

from __future__ import annotations

from collections import Counter
from xml.sax.saxutils import escape

from queueproof.report.card import Card, Verdict

_COLOURS = {"holds": "#1a7f37", "broken": "#cf222e", "inconclusive": "#9a6700"}
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" aria-label="{told}">
<title>{title}</title>
<rect width="{whole}" height="20" rx="3" fill="{colour}"/>
<path d="M3 0h{left}v20h-{left}a3 3 0 0 1-3-3v-14a3 3 0 0 1 3-3z" fill="#555"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14" textLength="67">queueproof</text>
<text x="{at}" y="14" textLength="{length}">{told}</text>
</g>
</svg>
"""
_LEFT, _LETTER = 79, 6.6  # pixels


def to_badge(card: Card) -> str:
    """How many guarantees have which verdict, of those that were judged; the queue is its title."""
    told = _told(Counter(judgement.verdict for judgement in card.guarantees))
    length = round(len(told) * _LETTER)
    return _SVG.format(
        whole=_LEFT + length + 12,
        left=_LEFT - 3,
        at=_LEFT + 6,
        length=length,
        colour=_COLOURS[card.verdict],
        told=escape(told),
        title=escape(f"{card.queue}: {told}"),
    )


def _told(found: Counter[Verdict]) -> str:
    """What is broken first, as the colour has it."""
    holding = found["holds"]
    counted = (
        (found["broken"], "broken"),
        (found["inconclusive"], "inconclusive"),
        (holding, "holds" if holding == 1 else "hold"),
        (found["accepted"], "accepted"),
    )
    return ", ".join(f"{count} {what}" for count, what in counted if count) or "nothing judged"
