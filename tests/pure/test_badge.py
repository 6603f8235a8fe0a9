"""The badge: an SVG file that says the verdict, whatever the queue is called."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from queueproof.report.badge import to_badge
from queueproof.report.card import Card, Judgement, Verdict


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (("holds", "accepted", "not-offered"), "holds 2/2"),
        (("holds", "broken", "inconclusive"), "broken, holds 1/3"),
        (("holds", "inconclusive"), "inconclusive, holds 1/2"),
    ],
)
def test_a_badge_counts_what_holds_of_what_was_judged(
    verdicts: tuple[Verdict, ...], told: str
) -> None:
    """It is XML, names the queue as text, and leads nowhere."""
    judgements = [Judgement(f"g{n}", verdict, "") for n, verdict in enumerate(verdicts)]
    badge = to_badge(Card('<a href="x">&.sql', "PostgreSQL", 0, 1.0, judgements))
    root = ET.fromstring(badge)  # noqa: S314 - our own
    texts = [text for text in root.itertext() if text.strip()]
    assert texts == [f'<a href="x">&.sql: {told}', "queueproof", told]
    assert badge.count("http") == 1  # the namespace
