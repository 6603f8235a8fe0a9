"""Figures with no more digits than their spread allows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

MOST_DIGITS = 2  # however small the spread


def rounded(value: float, spread: float | None, digits: int = MOST_DIGITS) -> str:
    """A figure, whose last digit is the first that the spread makes uncertain, or the last allowed.

    The spread is by how much it may be off, in its own unit; None where that is not known.
    """
    if not value or not math.isfinite(value):
        return f"{value:g}"
    first = math.floor(math.log10(abs(value)))
    last = first - digits + 1
    if spread:
        last = max(last, min(first, math.floor(math.log10(spread))))
    return f"{round(value, -last):,.{max(0, -last)}f}"


def half_range(values: Sequence[float]) -> float | None:
    """Half the distance from the least to the greatest; None with a single one."""
    return (max(values) - min(values)) / 2 if len(values) > 1 else None


def median(values: Sequence[float]) -> str:
    """The median, rounded to what the values' range allows."""
    return rounded(statistics.median(values), half_range(values))


def with_spread(values: Sequence[float]) -> str:
    """The median and how far the values lie around it: `31,000 ±12%`."""
    spread = half_range(values)
    if spread is None:
        return f"{median(values)} (1 round)"
    return f"{median(values)} ±{spread / statistics.median(values):.0%}"


def with_range(values: Sequence[float], unit: str = "") -> str:
    """The median; in parentheses the least and the most: `0.5x (0.4 to 0.6)`."""
    low, high = (rounded(end(values), half_range(values)) for end in (min, max))
    return f"{median(values)}{unit} ({low} to {high})"


def workers(number: int) -> str:
    """So many workers, in words."""
    return f"{number} worker{'s' * (number > 1)}"
