"""What keeps a worker from its work: locks, deadlocks, jobs that cannot run."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("non-blocking")
def test_non_blocking(verdict: Verdict) -> None:
    """A claim, a heartbeat or a recovery never waits for another worker's job."""
    verdict.must_hold()


@pytest.mark.guarantee("no-deadlock")
def test_no_deadlock(verdict: Verdict) -> None:
    """No interleaving of operations deadlocks."""
    verdict.must_hold()


@pytest.mark.guarantee("no-starvation")
def test_no_starvation(verdict: Verdict) -> None:
    """A job that cannot run now does not keep ready jobs from being claimed."""
    verdict.must_hold()
