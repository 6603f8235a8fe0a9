"""What results/conformance.md says of the queues is what is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof import Queue
from queueproof.pytest_plugin import Examiner

from .matrix import Recorded, drift, names
from .matrix import strategy as strategy_of

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
SEARCHED = [
    pytest.param(name, marks=[pytest.mark.thorough] if aside else [])
    for name in names(STRATEGIES)
    if not name.startswith("broken/")
    for aside in [name.startswith("sound/") or bool(strategy_of(name, STRATEGIES).breaks)]
]


@pytest.mark.parametrize("name", SEARCHED)
def test_the_matrix_is_up_to_date(
    name: str, strategy: Callable[[str], Queue], examiner: Examiner, recorded: Recorded
) -> None:
    """Each verdict is the recorded one; `make results` writes them anew."""
    assert drift(recorded, name, examiner.card(strategy(name))) == {}
