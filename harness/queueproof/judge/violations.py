"""The findings in a history: guarantees that it breaks, and what makes a pass worth something."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Violation(NamedTuple):
    """A broken guarantee in one history."""

    guarantee: str
    because: str  # the sentence that says which rule was broken, and how
    # The job concerned; None where it concerns several, and in what `spec.step` answers.
    job: str | None = None
    call: int = -1  # index of the call whose answer shows it; -1 in what `spec.step` answers
    # Nothing raced, and no lease was in play: what is doubted because of this guarantee has this
    # cause.
    plain: bool = False
    # Guarantees of which a plain breach would explain it. A queue that hands out its jobs twice in
    # turn does the same whatever the lease, for instance.
    doubts: tuple[str, ...] = ()
    alone: bool = False  # it hurts nobody but the worker that did it
    follows: str = ""  # the guarantee of which any breach would explain it; empty for none


@dataclass(slots=True)
class CheckResult:
    """The findings in one history."""

    # In the order of the calls; at most one per job from the job's own life.
    violations: list[Violation] = field(default_factory=list)
    # (guarantee, what was seen) to how often.
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def first(self) -> dict[str, Violation]:
        """The first violation of each guarantee; of single-claim alone where that is broken.

        Who raced for one job shares it afterwards, and what becomes of it is nobody else's fault.
        """
        found: dict[str, Violation] = {}
        for violation in self.violations:
            found.setdefault(violation.guarantee, violation)
        raced = found.get("single-claim")
        return {"single-claim": raced} if raced else found
