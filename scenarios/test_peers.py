"""What results/conformance.md says of somebody else's queues is what is found, good or bad."""

from __future__ import annotations

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
    replays,
)

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
RESULTS = STRATEGIES.parent / "results"
PEERS = peers(STRATEGIES)
REPLAYS = {name: found for name, found in replays(RESULTS).items() if name in PROGRAMS}


def stories() -> list[pytest.ParameterSet]:
    """Every story of a real queue: the queue's name and the story's token."""
    found = []
    for name, tokens in REPLAYS.items():
        in_node = PROGRAMS[name].file.endswith(".mjs")
        marks = [pytest.mark.thorough, *([pytest.mark.node] if in_node else [])]
        found += [
            pytest.param(name, token, marks=marks, id=f"{Path(name).name}.{guarantee}")
            for guarantee, token in tokens.items()
        ]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_as_recorded(
    name: str, strategy: Callable[[str], Queue], examiner: Examiner, recorded: Recorded
) -> None:
    """Each verdict on a real queue's design is the recorded one."""
    assert drift(recorded, name, examiner.card(strategy(name))) == {}


@pytest.mark.parametrize(("name", "token"), stories())
def test_a_break_of_a_real_queue_happens_again(
    name: str, token: str, strategy: Callable[[str], Queue], server: Server
) -> None:
    """The token of each story repeats it, through the library's own code."""
    with open_lab(strategy(name), server) as lab:
        assert replay(lab, token) is not None


def test_every_real_queue_is_recorded(recorded: Recorded) -> None:
    """And the queues that are known to break have stories to repeat."""
    assert recorded.keys() >= PROGRAMS.keys()
    broken = {n for n in PROGRAMS if {"broken", "accepted"} & set(recorded[n].values())}
    assert broken == REPLAYS.keys()


@pytest.mark.parametrize("name", [*PEERS, *PROGRAMS])
def test_every_break_of_a_peer_is_explained(name: str, recorded: Recorded) -> None:
    """What breaks, or is not known, has a sentence for the user that says if it is documented."""
    assert name in recorded, "nothing is recorded: run `make results`"
    remarks = read_remarks(STRATEGIES / REMARKS)[Path(name).name].remarks
    found = {id_ for id_, verdict in recorded[name].items() if verdict in UNEXPLAINED}
    assert found <= set(remarks)
