"""Guarantees on what a claim costs."""

from __future__ import annotations

from queueproof.guarantees.guarantee import Guarantee
from queueproof.queues.offer import Offer


def _promised_snapshot(offer: Offer) -> str | None:
    promised = "old-snapshot" in offer.queue.promises
    return None if promised else "not in promises; most queues lose here"


GUARANTEES = (
    Guarantee(
        "steady-cost",
        "A claim on a vacuumed table touches no more buffers with a million finished jobs or a "
        "deep backlog.",
        "the queue gets slower every week",
        "https://brandur.org/postgres-queues",
    ),
    Guarantee(
        "old-snapshot",
        "Nor while an old snapshot is held open.",
        "one forgotten transaction slows every claim",
        "https://brandur.org/postgres-queues",
        needs=_promised_snapshot,
        told_anyway=True,
    ),
)
"""In the order of the scenarios."""
