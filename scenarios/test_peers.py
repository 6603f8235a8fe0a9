"""What results/conformance.md says of somebody else's queues is what is found, good or bad."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof import Queue
from queueproof.examine.replay import replay
from queueproof.postgres import Server
from queueproof.pytest_plugin import Examiner
from queueproof.run.open import open_lab

from .matrix import (
    PROGRAMS,
    REMARKS,
    UNEXPLAINED,
    Recorded,
    drift,
    peers,
    read_remarks,
)

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
PEERS = peers(STRATEGIES)
STORIES = STRATEGIES.parent / "results" / "stories"
TOKEN = re.compile(r"--replay ([\w-]+)")


def told() -> list[Path]:
    """The files of all real queues' stories."""
    return [path for name in PROGRAMS for path in STORIES.glob(f"{Path(name).name}.*.md")]


def stories() -> list[pytest.ParameterSet]:
    """Every story of a real queue, by the queue's name and the story's file."""
    found = []
    for name, program in PROGRAMS.items():
        in_node = program.file.endswith(".mjs")
        marks = [pytest.mark.thorough, *([pytest.mark.node] if in_node else [])]
        own = sorted(STORIES.glob(f"{Path(name).name}.*.md"))
        found += [pytest.param(name, path, marks=marks, id=path.stem) for path in own]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_as_recorded(
    name: str, strategy: Callable[[str], Queue], examiner: Examiner, recorded: Recorded
) -> None:
    """Each verdict on a real queue's design is the recorded one."""
    assert drift(recorded, name, examiner.card(strategy(name))) == {}


@pytest.mark.parametrize(("name", "path"), stories())
def test_a_break_of_a_real_queue_happens_again(
    name: str, path: Path, strategy: Callable[[str], Queue], server: Server
) -> None:
    """The token of each story repeats it, through the library's own code."""
    token = TOKEN.search(path.read_text(encoding="utf-8"))
    assert token is not None
    with open_lab(strategy(name), server) as lab:
        assert replay(lab, token[1]) is not None


def test_every_real_queue_is_recorded(recorded: Recorded) -> None:
    """And the queues that are known to break have stories to repeat."""
    assert recorded.keys() >= PROGRAMS.keys()
    broken = {n for n in PROGRAMS if {"broken", "accepted"} & set(recorded[n].values())}
    assert {Path(n).name for n in broken} == {path.name.split(".")[0] for path in told()}


@pytest.mark.parametrize("name", [*PEERS, *PROGRAMS])
def test_every_break_of_a_peer_is_explained(name: str, recorded: Recorded) -> None:
    """What breaks, or is not known, has a sentence for the user that says if it is documented."""
    assert name in recorded, "nothing is recorded: run `make results`"
    remarks = read_remarks(STRATEGIES / REMARKS)[Path(name).name].remarks
    found = {id_ for id_, verdict in recorded[name].items() if verdict in UNEXPLAINED}
    assert found <= set(remarks)
