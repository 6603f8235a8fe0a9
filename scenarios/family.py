"""What the scenarios ask of a queue: each guarantee of a family, as the catalogue words it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from queueproof.guarantees.guarantee import Guarantee
from queueproof.pytest_plugin import Verdict


def scenarios(guarantees: Iterable[Guarantee]) -> dict[str, Callable[[Verdict], None]]:
    """A test for each guarantee, by its name: `test_single_claim` says what single-claim says."""
    return {test.__name__: test for test in map(_test, guarantees)}


def _test(guarantee: Guarantee) -> Callable[[Verdict], None]:
    def test(verdict: Verdict) -> None:
        verdict.must_hold()

    test.__name__ = f"test_{guarantee.id.replace('-', '_')}"
    test.__doc__ = guarantee.sentence
    return pytest.mark.guarantee(guarantee.id)(test)
