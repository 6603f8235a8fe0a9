"""The actors beside a program's own, and the name by which a queue knows an actor."""

from __future__ import annotations

import re
import uuid
from functools import lru_cache

DRAINER = "drainer"  # who empties the queue at the end of a run
PROMOTER = "promoter"  # who makes jobs claimable that have become due
NEMESIS = "nemesis"  # who brings faults and deaths


_TAIL = 12  # digits of a name that say nothing of who sorts before whom
_tail: list[str] = []  # of this process' own


@lru_cache(maxsize=4096)
def identity(name: str) -> str:
    """A worker's name as the queue sees it: a UUID, the same in every run."""
    found = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    return found[:-_TAIL] + _tail[0] if _tail else found


def call_workers_apart(process: int) -> None:
    """Give this process' workers names that no other's have: a queue may see both on one server."""
    _tail[:] = [f"{process:0{_TAIL}x}"[-_TAIL:]]
    identity.cache_clear()


def identities(name: str) -> re.Pattern[str]:
    """The pattern that finds a worker's name in a text, whichever process it has acted in."""
    return re.compile(re.escape(identity(name)[:-_TAIL]) + f"[0-9a-f]{{{_TAIL}}}")
