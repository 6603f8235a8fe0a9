"""Guarantees that no single run can show: each has a probe that measures it on the whole queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.probes.backlog import Behind, Overlooked
from queueproof.probes.backoff import Backoff, RetryWaits
from queueproof.probes.buffers import Growth, GrowthUnderSnapshot, Slope
from queueproof.probes.plans import Overclaim, PlanGrid
from queueproof.probes.pooling import ThroughPgbouncer
from queueproof.probes.probe import Probe, Seen
from queueproof.search.shrink import Failure

__all__ = ["MEASURING", "PROBES", "Found", "Seen"]

Found: TypeAlias = Overclaim | RetryWaits | Overlooked | Failure | Slope
"""A breach of a guarantee as a probe saw it: what `report` tells."""

MEASURING: Mapping[str, Probe] = {
    "behind more urgent": Behind("late", "elsewhere"),
    "behind ordinary": Behind("ordinary"),
    "plans": PlanGrid(),
    "waits": Backoff(),
    "pgbouncer": ThroughPgbouncer(),
    "growth": Growth(),
    "growth under a snapshot": GrowthUnderSnapshot(),
}
"""The probes by the names that records of guarantees have for them."""

PROBES: Mapping[str, Probe] = {
    name: MEASURING[one.probe] for name, one in CATALOGUE.items() if one.probe
}
"""The probe of each guarantee that has one."""
