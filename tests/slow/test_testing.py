"""What exported tests run on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof import testing
from tests.fix_places import REFERENCE, STRATEGIES


def example(queue: Path) -> Callable[[], None]:
    """The test in the module's docstring, about a queue."""
    told = (testing.__doc__ or "").partition("    from ")[2].partition("\nA `Program`")[0]
    code = textwrap.dedent(f"    from {told}").replace("jobs.sql", str(queue))
    names: dict[str, Callable[[], None]] = {}
    exec(code, names)  # noqa: S102 - the documentation's own
    return names["test_single_claim"]


@pytest.mark.sample
def test_the_example_passes_and_fails() -> None:
    """It tells the story of the queue without a lock, and nothing of the reference."""
    example(REFERENCE)()
    with pytest.raises(AssertionError, match="w1 got a job that w2 already holds"):
        example(STRATEGIES / "select_then_update.sql")()
