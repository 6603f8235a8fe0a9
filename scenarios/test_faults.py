"""What survives when a connection, a backend or the server dies."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("crash-safe")
def test_crash_safe(verdict: Verdict) -> None:
    """Nothing acknowledged is lost or doubled when worker, connection or server dies at any step,
    the acknowledgement of COMMIT included.
    """  # noqa: D205 - the catalogue's sentence
    verdict.must_hold()
