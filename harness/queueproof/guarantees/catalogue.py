"""The catalogue: every guarantee once, in the public order."""

from __future__ import annotations

from collections.abc import Iterable

from queueproof.errors import QueueproofError
from queueproof.guarantees import claims, cost, leases, retries, surroundings, waiting
from queueproof.guarantees.guarantee import Guarantee
from queueproof.queues.ids import IDS, unknown
from queueproof.schedule.programs import Program, completing_and_claiming
from queueproof.space.suites import Suite

FAMILIES = (claims, leases, retries, waiting, surroundings, cost)

_ALL = {guarantee.id: guarantee for family in FAMILIES for guarantee in family.GUARANTEES}

CATALOGUE: dict[str, Guarantee] = {name: _ALL[name] for name in IDS}
"""Every guarantee by its id, in the order of the catalogue."""


def select(
    ids: Iterable[str] | None, *, skip: Iterable[str] = (), require: Iterable[str] = ()
) -> list[Guarantee]:
    """The guarantees to judge, in the order of the catalogue.

    Args:
        ids: Those that are asked for; None for all.
        require: Those that must be among them.

    Raises:
        QueueproofError: An id is unknown, or one that is required is left out, or all are.
    """
    chosen = list(CATALOGUE if ids is None else ids)
    left_out, required = list(skip), list(require)
    for name in (*chosen, *left_out, *required):
        if name not in CATALOGUE:
            raise QueueproofError(unknown(name))
    asked = [CATALOGUE[name] for name in CATALOGUE if name in {*chosen} - {*left_out}]
    if lost := {*required} - {guarantee.id for guarantee in asked}:
        raise QueueproofError(f"{min(lost)} is required and left out at the same time")
    if not asked:
        raise QueueproofError("nothing is left to judge: every guarantee asked for is skipped")
    return asked


def own_programs(suite: Suite) -> list[Program]:
    """The guarantees' own programs, the shortest first: what no situation of one job holds."""
    plain = [
        program
        for guarantee in CATALOGUE.values()
        if guarantee.programs is not None and guarantee.needs(suite.offer) is None
        for program in guarantee.programs(suite)
    ]
    # A completion and the claim after it can be one operation.
    joined = [completing_and_claiming(one) for one in plain if suite.joins]
    built = [*plain, *(one for one in joined if one.does("complete_and_claim"))]
    return sorted(dict.fromkeys(suite.through_only(built)), key=lambda one: one.size)
