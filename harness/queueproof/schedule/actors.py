"""Who acts beside a program's own actors, and what a queue knows an actor as."""

from __future__ import annotations

import uuid
from functools import lru_cache

DRAINER = "drainer"  # who empties the queue at the end of a run
PROMOTER = "promoter"  # who makes jobs claimable that have become due


@lru_cache(maxsize=4096)
def identity(name: str) -> str:
    """A worker's name as the queue sees it: a UUID, the same in every run."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))
