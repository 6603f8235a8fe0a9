"""The guarantee on what works through a pooler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import Program
from queueproof.space.suites import Suite

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run

FEWER = 10  # of so many acts one is tried by each pooler


def _in_turn(suite: Suite, count: int) -> list[Program]:
    return suite.alone(count // FEWER)


def _swaps(run: Run) -> dict[str, int]:
    changed = [beat.actor for beat in run.trace if beat.event == "connection"]
    swaps = len(changed) - len(set(changed))
    return {"transactions on another connection than the one before": swaps}


GUARANTEES = (
    Guarantee(
        id="pooler-safe",
        apart=True,
        sentence="It works through a transaction-pooling proxy.",
        why="what a session keeps is gone in the next transaction, or is another worker's",
        source="https://www.pgbouncer.org/features.html",
        wild=(
            "An advisory lock, a SET or currval() belongs to a session, and the next transaction "
            "runs in another one: the lock stays with whoever gets the first, and the setting is "
            "somebody else's."
        ),
        safe=(
            "State that ends with its transaction: `pg_try_advisory_xact_lock`, `SET LOCAL`, "
            "`set_config(..., true)`, `INSERT ... RETURNING id`. A claim is a lease in the row, "
            "not a lock of the session."
        ),
        evidence=_swaps,
        variations=(
            Variation(Conditions(pooled="first idle"), _in_turn),
            Variation(Conditions(pooled="round robin"), _in_turn),
        ),
        probe="pgbouncer",
    ),
)
"""In the order of the scenarios."""
