"""Meetings find races that no program was written for."""

from __future__ import annotations

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.examine.work import Exploration, Work
from queueproof.schedule.conditions import Conditions
from queueproof.space.suites import Suite
from tests.fix_labs import LabOf
from tests.fix_places import BROKEN

INSIDE = Conditions(gate="every")
MOST, SCHEDULES = 200, 6  # as many as the quick profile


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
    lab = lab_of(BROKEN / f"{name}.sql")
    offer = calibrate(lab)
    work = Work(lab, offer, 0)
    assert any(
        one.violation.guarantee == guarantee and not one.violation.doubts
        for program in Suite(offer).meetings(MOST)
        for tried in work.tries(Exploration(program, INSIDE, SCHEDULES, fixed=1))
        for one in tried.broken
    )
