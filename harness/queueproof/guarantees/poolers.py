"""The guarantee on what works through a pooler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queueproof.guarantees.guarantee import Guarantee, LifePrograms, Variation
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import Program, in_turn
from queueproof.space.pieces import SETTLE, Pieces

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run


def settled(_: Pieces, life: LifePrograms) -> list[Program]:
    """Programs in turn that begin a moment after the jobs."""
    return [
        program._replace(stages=(*in_turn(SETTLE), *program.stages))
        for program in life(races=False)
    ]


def _swaps(run: Run) -> dict[str, int]:
    changed = [beat.actor for beat in run.trace if beat.event == "connection"]
    swaps = len(changed) - len(set(changed))
    return {"transactions on another connection than the one before": swaps}


GUARANTEES = (
    Guarantee(
        id="pooler-safe",
        sentence="It works through a transaction-pooling proxy.",
        why="what a session keeps is gone in the next transaction, or is another worker's",
        source="https://www.pgbouncer.org/features.html",
        wild=(
            "An advisory lock, a SET or currval() belongs to a session, and the next transaction "
            "runs in another one: the lock stays with whoever gets the first, and the setting is "
            "somebody else's."
        ),
        safe=(
            "State that ends with its transaction: pg_try_advisory_xact_lock, SET LOCAL, "
            "set_config(..., true), INSERT ... RETURNING id. A claim is a lease in the row, not a "
            "lock of the session."
        ),
        evidence=_swaps,
        variations=(
            Variation(Conditions(pooled="first idle"), settled),
            Variation(Conditions(pooled="round robin"), settled),
        ),
        probe="pgbouncer",
    ),
)
"""In the order of the scenarios."""
