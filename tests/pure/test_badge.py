"""The badge: an SVG file that says the verdict, whatever the queue is called."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from queueproof.report.badge import to_badge
from queueproof.report.card import Card, Judgement, Verdict


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (("holds", "holds", "accepted", "not-offered"), "2 hold, 1 accepted"),
        (("holds", "broken", "inconclusive"), "1 broken, 1 inconclusive, 1 holds"),
        (("accepted", "inconclusive"), "1 inconclusive, 1 accepted"),
        (("not-offered",), "nothing judged"),
    ],
)
def test_a_badge_counts_each_verdict_and_calls_nothing_accepted_held(
    verdicts: tuple[Verdict, ...], told: str
) -> None:
    """What is accepted is counted beside what holds; the badge is XML and leads nowhere."""
    judgements = [Judgement(f"g{n}", verdict, "") for n, verdict in enumerate(verdicts)]
    badge = to_badge(Card('<a href="x">&.sql', "PostgreSQL", 0, 1.0, judgements))
    root = ET.fromstring(badge)  # noqa: S314 - our own
    texts = [text for text in root.itertext() if text.strip()]
    assert texts == [f'<a href="x">&.sql: {told}', "queueproof", told]
    assert badge.count("http") == 1  # the namespace
