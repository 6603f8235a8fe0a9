"""What a history shows: guarantees that it breaks, and what makes a pass worth something."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Violation(NamedTuple):
    """A broken guarantee in one history.

    Attributes:
        guarantee: Its id.
        because: The sentence that says which rule was broken, and how.
        job: The job concerned, None where it concerns several.
        call: Index of the call whose answer shows it.
        plain: See `spec.Breach`.
        doubts: See `spec.Breach`.
        alone: See `spec.Breach`.
        follows: See `spec.Breach`.
    """

    guarantee: str
    because: str
    job: str | None
    call: int
    plain: bool = False
    doubts: tuple[str, ...] = ()
    alone: bool = False
    follows: str = ""


@dataclass(slots=True)
class CheckResult:
    """What one history shows.

    Attributes:
        violations: In the order of the calls; at most one per job from the job's own life.
        evidence: (guarantee, what was seen) to how often.
    """

    violations: list[Violation] = field(default_factory=list)
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
