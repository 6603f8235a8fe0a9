"""Each broken queue is a sound one but for a few lines, so that its defect is what is found."""

import difflib
import re
from functools import cache
from pathlib import Path

import pytest

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues.sqlfile import load
from tests.fix_places import REFERENCE, STRATEGIES

PARENTS = sorted([*STRATEGIES.glob("*.sql"), *STRATEGIES.glob("sound/*.sql")])
BROKEN = sorted(STRATEGIES.glob("broken/*.sql"))
MOST = 20  # lines that differ, of more than a hundred: a rewritten statement or two
HEAD = re.compile(
    r"-- breaks: (?P<guarantee>[\w-]+)\n(?:-- .+\n)+\n"
    r'-- /// queue\n-- extends = "(?P<parent>\S+)"\n'
)


@cache
def statements(path: Path) -> list[str]:
    """A file's lines without comments, so that an explanation costs nothing."""
    lines = (line.strip() for line in load(path).whole.splitlines())
    return [line for line in lines if line and not line.startswith("--")]


def distance(one: list[str], other: list[str]) -> int:
    """How many lines are in one of them only."""
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return len(one) + len(other) - 2 * sum(block.size for block in blocks)


@cache
def breaks(path: Path) -> frozenset[str]:
    """The guarantees that a file itself says it does not keep."""
    return frozenset(load(path).breaks)


def named(path: Path) -> tuple[str, Path]:
    """The guarantee that a broken queue breaks and the file that it differs from, as it says."""
    found = HEAD.match(path.read_text(encoding="utf-8"))
    assert found, f"{path}: it begins with what it breaks, why, and what it extends"
    return found["guarantee"], (path.parent / found["parent"]).resolve()


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_broken_queue_is_a_small_change_of_the_queue_that_it_names(path: Path) -> None:
    """That one does not break the guarantee: `diff` shows the defect; and no other is nearer."""
    guarantee, parent = named(path)
    mine = statements(path)
    distances = {
        other.resolve(): distance(statements(other), mine)
        for other in PARENTS
        if guarantee not in breaks(other)
    }
    farther = distances[parent] - min(distances.values())
    assert distances[parent] <= MOST
    # By a line or two the reference may be farther, which everybody knows.
    assert farther <= (2 if parent == REFERENCE.resolve() else 0)


def test_every_guarantee_has_a_queue_that_breaks_it() -> None:
    """A check that no queue fails could be one that cannot fail."""
    assert set(CATALOGUE) == {named(path)[0] for path in BROKEN}
