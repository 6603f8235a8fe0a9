"""The programs that a queue is put to and that are drawn.

They stand apart from the fixed ones: a process that helps with a check is given what was drawn, and
begins in two thirds of the time without Hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from hypothesis import strategies as st

from queueproof.guarantees.programs import DELAY, Pieces
from queueproof.schedule.actors import PROMOTER
from queueproof.schedule.moments import past
from queueproof.schedule.programs import (
    PROMOTE,
    RECOVER,
    Do,
    DoKind,
    JobSpec,
    Program,
    Script,
    Stage,
    advance,
    claim,
    crash,
    script,
)

_DrawnKind: TypeAlias = DoKind | Literal["lapse", "within"]


@st.composite
def drawn_programs(draw: st.DrawFn, pieces: Pieces) -> Program:
    """A program of at least eight operations: short ones find late, long ones shrink anyway.

    Args:
        draw: Hypothesis' own.
        pieces: What the queue offers.
    """
    queue = pieces.offer.queue
    workers = st.sampled_from(["w1", "w2", "w3"])
    kinds: list[_DrawnKind] = ["claim", "claim", *(do.kind for do in pieces.enders())]
    if pieces.lease is not None:
        kinds += ["recover", "recover", "lapse", "within"]
    elif queue.by_session and "recover" in queue.offers:
        kinds.append("recover")
    if "promote" in queue.offers:
        kinds.append("promote")
    if "complete_many" in queue.offers:
        kinds.append("complete_many")
    if pieces.joins:
        kinds.append("complete_and_claim")
    kinds.append("crash")
    stages: list[Stage] = []
    for _ in range(draw(st.integers(8, 14))):
        one = _drawn_script(draw, pieces, workers, kinds)
        # A second script beside the first makes a race out of two operations.
        other = _drawn_script(draw, pieces, workers, kinds) if draw(st.booleans()) else None
        together = other is not None and other[0] != one[0]
        stages.append((one, other) if together and other is not None else (one,))
    specs = st.builds(
        JobSpec,
        priority=st.integers(0, 2) if queue.by_priority else st.just(0),
        delay=st.sampled_from([0.0, 0.0, 0.0, DELAY]),
        bound=st.sampled_from(pieces.bounds() or [0]),
        # `builds` draws any text for a field of a NamedTuple that is not given here.
        queue=st.sampled_from([*["default"] * 3, "other"] if pieces.routes() else ["default"]),
    )
    return Program(tuple(draw(st.lists(specs, min_size=1, max_size=3))), tuple(stages))


def _drawn_script(
    draw: st.DrawFn, pieces: Pieces, workers: st.SearchStrategy[str], kinds: Sequence[_DrawnKind]
) -> Script:
    kind = draw(st.sampled_from(kinds))
    lease = pieces.lease or 0.0
    match kind:
        case "recover":
            return script("reaper", RECOVER)
        case "promote":
            return script(PROMOTER, PROMOTE)
        case "lapse":
            return script("clock", advance(past(lease)))
        case "within":
            return script("clock", advance(0.6 * lease))
        case "claim":
            limit = draw(st.integers(1, 2)) if pieces.takes_limit else 1
            return script(draw(workers), claim(limit))
        case "crash":
            return script(draw(workers), crash())
        case _:
            return script(draw(workers), Do(kind, draw(st.integers(0, 1))))
