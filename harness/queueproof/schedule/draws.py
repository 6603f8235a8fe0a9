"""Hypothesis' draws, so that a seed means the same wherever queueproof is installed.

Hypothesis draws one choice in twenty from the constants that it finds in the modules that are the
user's own: an editable install, or another queue in the same process, would change what a seed
draws (Hypothesis 6.131, "constants from the source"). No public setting leaves them out, which is
what upstream lacks: so a private method is overridden. Nor does Hypothesis promise that another
version of it draws the same: pyproject.toml has the range of those that do, and
tests/pure/test_hypothesis.py tells where it ends.
"""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

BACKEND = "queueproof"
"""What `hypothesis.settings(backend=…)` takes."""


class SeededProvider(HypothesisProvider):
    """Hypothesis' own random draws, without constants from the source of anything."""

    def _maybe_draw_constant(self, *_: object, **__: object) -> None:
        return None


AVAILABLE_PROVIDERS[BACKEND] = SeededProvider
