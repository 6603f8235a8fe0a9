"""The spans by which clocks are moved, and the margin before a limit at which somebody looks."""

from __future__ import annotations

MARGIN = 0.3  # seconds before a limit at which somebody looks whether it is kept
# Seconds; odd, so that no lease or delay ends exactly then.
MOMENT = 1.7  # what keeps time in whole seconds may round up
HOUR, DAY = 3607.3, 90061.7  # each a little more
DECADE = 3660 * DAY  # longer than any wait that a user would call one
PRECISION = 0.010  # seconds; jobs that were enqueued nearer to each other have no order
APART = 2.17 * PRECISION  # what lies between two enqueues, so that real time decides nothing
ROUNDED_UP = 61.0  # seconds; by so much what is kept in whole minutes is later than was asked


def spoken(seconds: float) -> str:
    """A time as people say it."""
    seconds = float(f"{seconds:g}")  # so that two days and a moment are no days
    hours = seconds / 3600
    if hours > 48:  # noqa: PLR2004 - a few days
        return f"{hours / 24:,.0f} days"
    if hours > 2:  # noqa: PLR2004 - a few
        return f"{hours:,.0f} hours"
    return f"{round(seconds, 1):,g} s" if seconds >= 1 else f"{seconds:g} s"


def past(lease: float) -> float:
    """Seconds after which a lease has certainly run out: some real time passes as well."""
    return lease * 1.0567 + 1.7


def grace(lease: float) -> float:
    """Seconds by which a lease may last longer than declared: at least so long, it says."""
    return max(lease, ROUNDED_UP)
