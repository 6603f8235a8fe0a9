"""How far clocks are moved, and how close to a limit somebody looks."""

from __future__ import annotations

MARGIN = 0.3  # seconds before a limit at which somebody looks whether it is kept
# Seconds; odd, so that no lease or delay ends exactly then.
HOUR, DAY = 3607.3, 90061.7
DECADE = 3660 * DAY


def past(lease: float) -> float:
    """Seconds after which a lease has certainly run out: some real time passes as well."""
    return lease * 1.0567 + 1.7
