"""Each broken queue is a sound one but for a few lines, so that its defect is what is found."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from queueproof.guarantees.catalogue import CATALOGUE

STRATEGIES = Path(__file__).parent.parent / "strategies"
PARENTS = sorted([*STRATEGIES.glob("*.sql"), *STRATEGIES.glob("sound/*.sql")])
BROKEN = sorted(STRATEGIES.glob("broken/*.sql"))
MOST = 20  # lines that differ, of more than a hundred: a rewritten statement or two


def statements(path: Path) -> list[str]:
    """A file's lines without comments, so that an explanation costs nothing."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("--")]


def distance(one: list[str], other: list[str]) -> int:
    """How many lines are in one of them only."""
    return sum(line[0] in "+-" for line in difflib.ndiff(one, other))


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_broken_queue_is_a_small_change_of_a_sound_one(path: Path) -> None:
    """Few statements' lines differ from the nearest file that is sound, or nearly."""
    mine = statements(path)
    assert min(distance(statements(parent), mine) for parent in PARENTS) <= MOST


def test_every_guarantee_has_a_queue_that_breaks_it() -> None:
    """A check that no queue fails could be one that cannot fail."""
    named = {
        path.read_text(encoding="utf-8").splitlines()[0].removeprefix("-- breaks: ")
        for path in BROKEN
    }
    assert set(CATALOGUE) == named
