"""What becomes of a job whose worker crashes, pauses or takes long."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("stale-recovery")
def test_stale_recovery(verdict: Verdict) -> None:
    """A crashed worker's job becomes claimable once its lease has run out."""
    verdict.must_hold()


@pytest.mark.guarantee("live-lease")
def test_live_lease(verdict: Verdict) -> None:
    """A worker whose lease or heartbeat is fresh keeps its job."""
    verdict.must_hold()


@pytest.mark.guarantee("fencing")
def test_fencing(verdict: Verdict) -> None:
    """A worker that lost its job cannot complete, fail or extend it, not even when the same
    worker has claimed it again.
    """  # noqa: D205 - the catalogue's sentence
    verdict.must_hold()
