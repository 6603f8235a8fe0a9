"""What a claim costs as the table grows: pages touched, never time."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("steady-cost")
def test_steady_cost(verdict: Verdict) -> None:
    """A claim on a vacuumed table touches no more buffers with a million finished jobs or a deep
    backlog.
    """  # noqa: D205 - the catalogue's sentence
    verdict.must_hold()


@pytest.mark.guarantee("old-snapshot")
def test_old_snapshot(verdict: Verdict) -> None:
    """Nor while an old snapshot is held open."""
    verdict.must_hold()
