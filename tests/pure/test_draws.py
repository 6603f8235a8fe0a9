"""What a seed draws depends on the seed alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from queueproof.schedule.draws import BACKEND


def drawn(backend: str) -> list[list[int]]:
    """What one seed draws."""
    found: list[list[int]] = []

    @seed(5)
    @settings(
        max_examples=60,
        backend=backend,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.integers(0, 10_000), min_size=8))
    def draw(numbers: list[int]) -> None:
        found.append(numbers)

    draw()
    return found


def with_constants(backend: str, monkeypatch: pytest.MonkeyPatch, *numbers: int) -> list[list[int]]:
    """The same beside a module of the user's that holds some numbers."""
    own = Constants(integers=set(numbers))
    monkeypatch.setattr(providers, "_get_local_constants", lambda: own)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", LRUCache(64))
    return drawn(backend)


def test_a_seed_draws_the_same_beside_any_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants in somebody's source change what Hypothesis draws by itself, and not for us."""
    assert with_constants("hypothesis", monkeypatch, 77) != with_constants(
        "hypothesis", monkeypatch, 9_731
    )
    assert with_constants(BACKEND, monkeypatch, 77) == with_constants(BACKEND, monkeypatch, 9_731)
