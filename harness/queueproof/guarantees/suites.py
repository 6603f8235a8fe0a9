"""The fixed programs that a queue is put to."""

from __future__ import annotations

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.schedule.programs import Program
from queueproof.space.pieces import Pieces

LONG = 16  # jobs and operations


class Suite(Pieces):
    """The fixed programs for a queue."""

    def programs(self, guarantee: Guarantee) -> list[Program]:
        """Those of a guarantee's own, those with fewest operations first."""
        built = self.joined(guarantee.programs(self) if guarantee.programs else ())
        return sorted(self.through_only(built), key=lambda program: program.size)

    def late(self, guarantee: Guarantee) -> list[Program]:
        """Those in which somebody is overtaken in the midst of a statement."""
        return self.through_only(self.joined(guarantee.late(self) if guarantee.late else ()))

    def varied(self, variation: Variation) -> list[Program]:
        """Those for conditions that should change nothing."""
        return variation.programs(self, self.life)

    def life(self, *, races: bool) -> list[Program]:
        """See `LifePrograms`."""
        found = {
            program: None
            for guarantee in sorted(CATALOGUE.values(), key=lambda one: one.two_queues)
            if guarantee.life and guarantee.needs(self.offer) is None
            for program in self.programs(guarantee)
            if program.races == races and program.size <= LONG
        }
        return list(found)
