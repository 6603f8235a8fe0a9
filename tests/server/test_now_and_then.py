"""What works now and then is a break with its story; what never works cannot be judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from queueproof.errors import QueueError
from queueproof.examine.calibrate import calibrate
from queueproof.history.calls import Call, Contradiction, History
from queueproof.judge.answers import contradiction, is_raced
from queueproof.judge.checker import check, declare
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.runner import Runner
from queueproof.space.pieces import LOOKS

LabOf = Callable[[str], Lab]
REFERENCE = (Path(__file__).parents[2] / "strategies" / "skip_locked.sql").read_text("utf-8")
# Each looks into another sixth of the line: an offset that is drawn does so by chance.
SOMEWHERE = REFERENCE.replace(
    "-- name: schema#\n", "-- name: schema#\nCREATE SEQUENCE turns;\n"
).replace("  LIMIT :limit\n", "  OFFSET (SELECT nextval('turns') % 6) LIMIT :limit\n")
NOWHERE = REFERENCE.replace("  LIMIT :limit\n", "  OFFSET 1000 LIMIT :limit\n")


def test_a_claim_that_is_empty_now_and_then_is_told(lab_of: LabOf) -> None:
    """It starves the job that it passes by; the queue works, so that it can be judged."""
    lab = lab_of(SOMEWHERE)
    offer = calibrate(lab)
    assert offer.misses
    found = check(Runner(lab).run(LOOKS).history, declare(offer)).violations
    assert "no-starvation" in {one.guarantee for one in found}


def test_a_claim_that_is_always_empty_is_refused(lab_of: LabOf) -> None:
    """Nothing can be said of a queue whose jobs nobody gets."""
    with pytest.raises(QueueError, match="claim returned nothing, although a job was enqueued"):
        calibrate(lab_of(NOWHERE))


def listed_twice(*, together: bool) -> History:
    """Two recoveries, and a list that shows the job twice."""
    calls = [
        Call(0, "enqueue", "producer", 1, 1.0, 2, 1.0, answer="accepted", ids=("1",)),
        Call(1, "recover", "reaper1", 3, 2.0, 5 if together else 4, 2.0, answer="accepted"),
        Call(2, "recover", "reaper2", 4 if together else 5, 2.0, 6, 2.0, answer="accepted"),
    ]
    states: Mapping[str, object] = {"1": "queued"}
    calls.append(
        Call(
            *(3, "jobs", "drainer", 7, 3.0, 8, 3.0),
            answer="accepted",
            ids=("1", "1"),
            states=states,  # type: ignore[arg-type]
        )
    )
    return History(calls)


@pytest.mark.parametrize("together", [False, True])
def test_a_list_that_a_race_made_wrong_is_a_break(*, together: bool) -> None:
    """Rule 30: two recoveries at once make two of a job; where nothing raced, the list is wrong."""
    history = listed_twice(together=together)
    wrong = contradiction(history.calls)
    assert isinstance(wrong, Contradiction)
    assert is_raced(history.calls, wrong) is together
    history.contradiction = wrong
    declared = declare(Offer(load_text(REFERENCE, "q.sql"), held=False))
    (found,) = check(history, declared).violations
    assert (found.guarantee, found.job, found.call) == ("single-claim", "1", 3)
