"""Every crowd: random programs over many jobs, drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as drawn_by

from queueproof import Queue
from queueproof.run.lab import Lab
from queueproof.testing import Crowd, QueueUnderTest

Install = Callable[[Queue], AbstractContextManager[Lab]]
EXAMPLES = 20


def put_to_crowds(lab: Lab, seed: int) -> None:
    """Run drawn programs until one breaks a guarantee that the queue does not declare broken."""
    queue = QueueUnderTest(lab)

    @drawn_by(seed)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],  # what breaks is made short by whoever tells its story
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(queue.crowds())
    def holds(crowd: Crowd) -> None:
        queue.must_hold(crowd)

    holds()


def test_a_queue_holds_in_every_crowd(queue: Queue, install: Install, seed: int) -> None:
    """Whatever is drawn, nothing breaks but what the queue says."""
    with install(queue) as lab:
        put_to_crowds(lab, seed)


def test_a_crowd_breaks_a_broken_queue(
    strategy: Callable[[str], Queue], install: Install, seed: int
) -> None:
    """The same programs find a planted defect, and what is told is its story."""
    queue = strategy("broken/live_lease_recover_all")
    with install(queue) as lab, pytest.raises(AssertionError, match="live-lease"):
        put_to_crowds(lab, seed)
