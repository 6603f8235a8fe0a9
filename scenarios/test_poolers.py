"""What a pooler between the workers and the server changes: nothing, for a queue that is safe."""

from __future__ import annotations

import pytest

from queueproof.pytest_plugin import Verdict


@pytest.mark.guarantee("pooler-safe")
def test_pooler_safe(verdict: Verdict) -> None:
    """It works through a transaction-pooling proxy."""
    verdict.must_hold()
