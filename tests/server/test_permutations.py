"""The scheduler and isolationtester on the same permutations."""

from __future__ import annotations

import pytest

from queueproof.postgres import Server
from workshop.permutations import measure


@pytest.mark.parametrize(("blocking", "permutations", "waits"), [(False, 20, 0), (True, 14, 6)])
def test_every_permutation_is_measured(
    server: Server, *, blocking: bool, permutations: int, waits: int
) -> None:
    """Two sessions of three steps have 20; where the second steps exclude each other, 14 can be."""
    found = measure(server, blocking=blocking, rounds=1, times=1)
    assert (found.permutations, found.waits) == (permutations, waits)
    assert min(found.steps, found.whole, found.isolationtester) > 0
