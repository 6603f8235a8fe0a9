"""What is around the workers: their clocks, and the database's isolation level."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("server-clock")
def test_server_clock(verdict: Verdict) -> None:
    """Time is the database's; a worker's wrong clock changes nothing."""
    verdict.must_hold()


@pytest.mark.guarantee("isolation")
def test_isolation(verdict: Verdict) -> None:
    """Under REPEATABLE READ and SERIALIZABLE the worst answer is a retryable error."""
    verdict.must_hold()
