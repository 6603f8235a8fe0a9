"""The programs that a queue is put to, beside random ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice

from queueproof.judge.checker import declare
from queueproof.queues.offer import Offer
from queueproof.schedule.programs import FAULTS, DoKind, Program
from queueproof.space.pieces import Pieces
from queueproof.space.situations import Known, Space, ordered, spaces, worn

ALONE = "single operations in each state of a job"
MEETINGS = "pairs of overlapping operations"
SPLIT = "those of them in which one sends several statements, and others may come between"
_FOUND: Mapping[str, Callable[[Space], Iterable[Known]]] = {
    ALONE: Space.alone,
    MEETINGS: Space.meetings,
    **{fault: partial(Space.struck, fault=fault) for fault in FAULTS},
}


@contextmanager
def _no_collection() -> Iterator[None]:
    """All that is made here stays: looking for garbage in it takes as long as making it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Suite(Pieces):
    """The programs for a queue.

    Args:
        through: Only programs that do this operation; None: all.
        seed: Of the order in which situations and meetings come.
    """

    def __init__(self, offer: Offer, through: DoKind | None = None, seed: int = 0) -> None:
        super().__init__(offer, through)
        self._seed = seed
        self._ordered: dict[str, list[Known]] = {}

    def first(self, what: str, count: int) -> list[Program]:
        """The first programs of a kind, one of each sort before a second one of any.

        Args:
            what: `ALONE`: acts in situations of a job's life; `MEETINGS`: the same while that goes
                on; `SPLIT`; or a fault: acts that come to something, with that at any step.
        """
        programs = self.through_only(worn(self._every(what), self, self._seed))
        return list(dict.fromkeys(islice(programs, count)))

    def known(self, what: str) -> int:
        """The number of those that there are."""
        return len(self._every(what))

    def _every(self, what: str) -> list[Known]:
        if what == SPLIT:
            return [one for one in self._every(MEETINGS) if one.what[0] in self.offer.several]
        if what not in self._ordered:
            every = (one for space in self._spaces for one in _FOUND[what](space))
            with _no_collection():
                several = self.offer.several if what != ALONE else frozenset()
                self._ordered[what] = ordered(every, self._seed, several)
        return self._ordered[what]

    @cached_property
    def _spaces(self) -> list[Space]:
        return spaces(self, declare(self.offer))
