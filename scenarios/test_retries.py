"""How often a job is tried, how long it waits in between, and how it ends."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("retry-bound")
def test_retry_bound(verdict: Verdict) -> None:
    """A job is attempted at most max_attempts times, crashes included."""
    verdict.must_hold()


@pytest.mark.guarantee("retry-given")
def test_retry_given(verdict: Verdict) -> None:
    """A failed job that has attempts left is tried again, and so is a crashed worker's."""
    verdict.must_hold()


@pytest.mark.guarantee("backoff")
def test_backoff(verdict: Verdict) -> None:
    """A failed job waits before its next attempt; the wait grows, is capped, and never
    overflows.
    """  # noqa: D205 - the catalogue's sentence
    verdict.must_hold()


@pytest.mark.guarantee("final-state")
def test_final_state(verdict: Verdict) -> None:
    """A completed or failed job never runs again."""
    verdict.must_hold()


@pytest.mark.guarantee("no-lost-job")
def test_no_lost_job(verdict: Verdict) -> None:
    """Every enqueued job ends completed or failed, or can still be claimed."""
    verdict.must_hold()
