"""The guarantee on what survives a fault."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import FAULTS, Program
from queueproof.space.suites import Suite

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run

FEWER = 16  # of so many acts alone there is one with each fault


def _broken_off(suite: Suite, count: int) -> list[Program]:
    """Programs in which a connection is cut or a backend ends, at any step of any operation."""
    kinds = [kind for kind, fault in FAULTS.items() if not fault.of_server]
    return [one for kind in kinds for one in suite.struck(kind, count // FEWER)]


def _killed(suite: Suite, count: int) -> list[Program]:
    """Programs in which the server is killed and starts again, at any step of any operation."""
    return suite.struck("restart", count // FEWER)


def _hits(run: Run) -> dict[str, int]:
    hit = Counter(fault for fault, _, _ in run.faults)
    hit["restart"] = len(run.history.of_kind("restart"))  # each may hit several workers
    return {fault.several: hit[kind] for kind, fault in FAULTS.items()}


GUARANTEES = (
    Guarantee(
        id="crash-safe",
        apart=True,
        sentence=(
            "Nothing acknowledged is lost or doubled when worker, connection or server dies at any "
            "step, the acknowledgement of COMMIT included."
        ),
        why="an outage of a second loses jobs, or runs finished ones again",
        source="https://github.com/rails/solid_queue/issues/748",
        wild=(
            "synchronous_commit = off answers before the commit is on disk, and a crash of the "
            "server empties an UNLOGGED table. A recovery in two transactions dies between them, "
            "and nothing looks at the job again."
        ),
        safe=(
            "A logged table, `synchronous_commit` left on, one transaction for each change of "
            "state. Where the answer to a COMMIT is lost, lease and token decide: asking again is "
            "refused or changes nothing."
        ),
        evidence=_hits,
        variations=(Variation(PLAIN, _broken_off), Variation(Conditions(killed=True), _killed)),
        faults=True,
    ),
)
"""In the order of the scenarios."""
