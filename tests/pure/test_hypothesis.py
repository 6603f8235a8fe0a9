"""Where Hypothesis draws otherwise, or its inside has moved: what a seed means would change."""

from __future__ import annotations

import hashlib
import pkgutil

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_WHERE = "hypothesis.internal.conjecture.providers:"
_THEN = "see schedule/draws.py, and the range of versions in pyproject.toml"
_DRAWN = "dba7399a"


@pytest.mark.parametrize("what", ["AVAILABLE_PROVIDERS", "HypothesisProvider._maybe_draw_constant"])
def test_what_draws_lean_on_is_where_it_was(what: str) -> None:
    """Without the method that is overridden, draws would depend on the modules around us."""
    try:
        pkgutil.resolve_name(_WHERE + what)
    except (ImportError, AttributeError):
        pytest.fail(f"Hypothesis {hypothesis.__version__} has moved {_WHERE}{what}: {_THEN}")


def test_a_seed_draws_what_it_always_did() -> None:
    """Numbers, choices, lists and flags of some seeds are those that all versions drew so far."""
    drawn: list[object] = []
    anything = st.tuples(
        st.integers(8, 14),
        st.sampled_from(["claim", "complete", "fail", "crash"]),
        st.lists(st.integers(0, 2), max_size=24),
        st.booleans(),
    )
    for number in range(20):
        one = settings(
            max_examples=20,
            backend=str(pkgutil.resolve_name("queueproof.schedule.draws:BACKEND")),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        @seed(number)
        @one
        @given(anything)
        def draw(what: object) -> None:
            drawn.append(what)

        draw()
    found = hashlib.sha256(repr(drawn).encode()).hexdigest()[:8]
    assert found == _DRAWN, f"Hypothesis {hypothesis.__version__} draws otherwise: {_THEN}"
