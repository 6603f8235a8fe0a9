"""The guarantees' ids, which queues name in what they promise and what they break."""

from __future__ import annotations

from queueproof.errors import nearest

IDS = (
    "single-claim",
    "claim-limit",
    "no-lost-job",
    "not-early",
    "order",
    "stale-recovery",
    "live-lease",
    "fencing",
    "retry-bound",
    "retry-given",
    "backoff",
    "final-state",
    "non-blocking",
    "no-deadlock",
    "no-starvation",
    "server-clock",
    "isolation",
    "crash-safe",
    "pooler-safe",
    "steady-cost",
    "old-snapshot",
    "routing",
    "concurrency-limit",
)
"""Public and frozen; the catalogue has one guarantee for each, in this order."""


def unknown(name: str) -> str:
    """The message about a name that is no guarantee's."""
    return (
        f"unknown guarantee {name!r}{nearest(name, IDS) or '; `queueproof guarantees` lists them'}"
    )
