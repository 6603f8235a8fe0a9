"""Queues with one planted defect each: the check finds it, and accuses them of nothing else.

What a passing check is worth is shown here. Each file of strategies/broken/ begins with the
guarantee that it breaks, and is a sound queue but for a few words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queueproof import Queue
from queueproof.guarantees import CATALOGUE
from queueproof.pytest_plugin import Examiner
from queueproof.report.conformance import Recorded, drift

BROKEN = Path(__file__).resolve().parent.parent / "strategies" / "broken"


def guarantee_of(path: Path) -> str:
    """The guarantee that a file names in its first line as the one that it breaks."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    match = re.fullmatch(r"-- breaks: ([\w-]+)", first)
    assert match, f"{path} does not begin with `-- breaks: ID`"
    return match[1]


DEFECTS = {path.stem: guarantee_of(path) for path in sorted(BROKEN.glob("*.sql"))}


def cases() -> Iterator[pytest.ParameterSet]:
    """The files; those whose guarantee this version cannot judge are named, and skipped."""
    for name, guarantee in DEFECTS.items():
        unjudged = pytest.mark.skipif(
            not CATALOGUE[guarantee].judged, reason=f"{guarantee} is not judged by this version"
        )
        yield pytest.param(name, marks=unjudged, id=name)


@pytest.mark.parametrize("name", list(cases()))
def test_the_defect_is_found(
    name: str, strategy: Callable[[str], Queue], examiner: Examiner
) -> None:
    """The guarantee that the file names is broken, and a story shows how."""
    card = examiner.judge(strategy(f"broken/{name}"), [DEFECTS[name]])
    judgement = card.guarantees[0]
    assert judgement.verdict == "broken", judgement.reason
    assert judgement.story
    assert judgement.replay


@pytest.mark.thorough
@pytest.mark.parametrize("name", DEFECTS)
def test_nothing_else_is_broken(
    name: str, strategy: Callable[[str], Queue], examiner: Examiner, recorded: Recorded
) -> None:
    """The rule of blame: one defect breaks one guarantee, and every other one holds."""
    card = examiner.judge(strategy(f"broken/{name}"))
    broken = {judgement.id for judgement in card.guarantees if judgement.verdict == "broken"}
    assert broken == {DEFECTS[name]}
    assert drift(recorded, f"broken/{name}", card) == {}
