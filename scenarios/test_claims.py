"""Who gets a job: one worker, within its limit, in order, and not before its time."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("single-claim")
def test_single_claim(verdict: Verdict) -> None:
    """No job is held by two workers at once."""
    verdict.must_hold()


@pytest.mark.guarantee("claim-limit")
def test_claim_limit(verdict: Verdict) -> None:
    """A claim never takes more than its limit, whatever plan the server chooses."""
    verdict.must_hold()


@pytest.mark.guarantee("order")
def test_order(verdict: Verdict) -> None:
    """Jobs that are free are claimed in the declared order."""
    verdict.must_hold()


@pytest.mark.guarantee("not-early")
def test_not_early(verdict: Verdict) -> None:
    """A job is not claimed before its time, nor before its enqueue commits."""
    verdict.must_hold()


@pytest.mark.guarantee("routing")
def test_routing(verdict: Verdict) -> None:
    """A worker of one queue never gets another queue's job."""
    verdict.must_hold()


@pytest.mark.guarantee("concurrency-limit")
def test_concurrency_limit(verdict: Verdict) -> None:
    """Never more running jobs than the declared cap."""
    verdict.must_hold()
