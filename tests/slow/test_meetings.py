"""Meetings find races that no program was written for."""

from __future__ import annotations

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.examine.work import Exploration, Work
from queueproof.schedule.conditions import Conditions
from queueproof.space.suites import Suite
from tests.fix_labs import LabOf
from tests.fix_places import BROKEN, REFERENCE

INSIDE = Conditions(gate="every")
MOST, SCHEDULES = 200, 6  # as many as the quick profile


def broken(lab_of: LabOf, name: str, guarantee: str = "") -> set[str]:
    """What the meetings of a queue's jobs break, up to one guarantee if it is named."""
    lab = lab_of(BROKEN / f"{name}.sql" if guarantee else REFERENCE)
    offer = calibrate(lab)
    work, found = Work(lab, offer, 0), set()
    for program in Suite(offer).meetings(MOST):
        for tried in work.tries(Exploration(program, INSIDE, SCHEDULES, fixed=1)):
            violations = [one.violation for one in tried.broken]
            found |= {one.guarantee for one in violations if not one.doubts}
            if guarantee in found:
                return found
    return found


@pytest.mark.parametrize(
    ("name", "guarantee"),
    [
        # Read, and freed by id.
        pytest.param("live_lease_two_step", "live-lease", marks=pytest.mark.sample),
        ("fencing_checked_before", "fencing"),  # inside a function
        ("final_state_heartbeat_revives", "final-state"),  # from a thread of the worker's own
        ("no_lost_job_two_step_fail", "no-lost-job"),  # a death between two transactions
    ],
)
def test_a_race_is_found(lab_of: LabOf, name: str, guarantee: str) -> None:
    """By what the specification says may go on meanwhile."""
    assert guarantee in broken(lab_of, name, guarantee)


def test_the_reference_is_not_accused(lab_of: LabOf) -> None:
    """It takes ten seconds: as many meetings as find the races above."""
    assert not broken(lab_of, "")
