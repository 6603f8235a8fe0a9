"""Is one queue faster than another? A rule that may look again and still err as rarely as it says.

Whoever looks after every round and stops at the first "significant" difference finds one between
equal queues sooner or later. So the looks are planned: five, at fixed numbers of rounds, each at a
fifth of the whole level (Bonferroni; Pocock's or O'Brien and Fleming's boundaries would save a few
rounds and need normal data). What decides is Wilcoxon's signed-rank test, exact: who goes first in
a round is drawn by lot, so between equal queues each sign is a coin's, whatever the noise is like,
neighbours and stalls included. The interval is a bootstrap's, at the same level, and must agree.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from queueproof.bench.figures import BenchError

ROUNDS = 40  # at most
LEAST = 12  # rounds of the first look: with fewer even one-sided rounds may all be chance
LOOKS = (0.3, 0.4, 0.55, 0.75, 1.0)  # shares of the rounds after which to look
ERROR = 0.005  # chance that equal queues are called different, over all looks together
ALIKE = 0.05  # an interval inside this much around 1 needs no further rounds
RESAMPLES = 4000  # its ends then vary by a twentieth of the standard error

Verdict: TypeAlias = Literal["faster", "slower", "no difference seen"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a comparison."""

    verdict: Verdict  # on the second queue, beside the first
    ratio: float  # its jobs/s divided by the first one's: the mean of the middle half of the rounds
    low: float  # lower end of the ratio's bootstrap interval
    high: float
    level: float  # how often such an interval holds the true ratio, nominally
    rounds: int  # how many rounds it took
    looks: int  # how many looks at the figures
    sure: bool  # whether it stopped because it was sure, not because its budget ended


class Rule:
    """After how many rounds of one comparison to look at them (`looks`), and when to stop."""

    def __init__(self, rounds: int = ROUNDS, *, seed: int = 0) -> None:
        """Plan the looks at so many rounds, at most; a BenchError says that they are too few."""
        if rounds < LEAST:
            raise BenchError(
                f"{rounds} rounds: a comparison needs {LEAST}; with fewer, chance alone could put"
                " one queue ahead in all of them"
            )
        self.looks = tuple(sorted({max(LEAST, round(share * rounds)) for share in LOOKS}))
        self._seed = seed  # of the bootstrap
        self._taken = 0

    def look(self, ratios: Sequence[float], *, last: bool = False) -> Finding | None:
        """Look at the rounds where one is planned; None where there is none, or more are needed.

        Ratios are the second queue's jobs/s divided by the first one's, by round. At the `last` a
        look is left, unless one was just taken: the plan's next one, which comes early.
        """
        planned = len(ratios) in self.looks
        self._taken += planned or last
        if not planned and not last:
            return None
        error = ERROR / len(LOOKS)
        logs = [math.log(ratio) for ratio in ratios]
        low, high = interval(logs, 1 - error, random.Random(self._seed))  # noqa: S311 - resampling
        differs = chance(logs) <= error and (low > 0 or high < 0)
        alike = -math.log1p(ALIKE) < low and high < math.log1p(ALIKE) and len(ratios) >= LEAST
        if not (differs or alike or last or len(ratios) == self.looks[-1]):
            return None
        middle = centre(logs)
        return Finding(
            verdict=("faster" if middle > 0 else "slower") if differs else "no difference seen",
            ratio=math.exp(middle),
            low=math.exp(low),
            high=math.exp(high),
            level=1 - error,
            rounds=len(ratios),
            looks=self._taken,
            sure=differs or alike,
        )


def centre(values: Sequence[float]) -> float:
    """The mean of the middle half: a stall in a round or two does not move it."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return math.fsum(middle) / len(middle)


def interval(values: Sequence[float], level: float, chances: random.Random) -> tuple[float, float]:
    """The bootstrap's percentile interval of the rounds' centre (Efron and Tibshirani, ch. 13)."""
    centres = sorted(centre(chances.choices(values, k=len(values))) for _ in range(RESAMPLES))
    outside = math.floor((1 - level) / 2 * RESAMPLES)
    return centres[outside], centres[-1 - outside]


def chance(values: Sequence[float]) -> float:
    """Wilcoxon's signed-rank test: how likely such one-sided rounds are between equal queues.

    Two-sided and exact: all signs are counted out. Zeros are left out, equal sizes share a rank.
    Values are logarithms of the ratios, one for each round.
    """
    sizes = sorted(abs(value) for value in values if value)
    # Twice the rank, so that a shared one is whole: the first place and the last of its size.
    ranks = {size: bisect_left(sizes, size) + 1 + bisect_right(sizes, size) for size in sizes}
    above = sum(ranks[value] for value in values if value > 0)
    whole = sum(ranks[size] for size in sizes)
    if not sizes:
        return 1.0
    # How many choices of signs have which sum: the digits of a number in a base above them all.
    bits = len(sizes) + 1
    ways = 1
    for size in sizes:
        ways += ways << ranks[size] * bits
    low = ways & ((1 << bits * (min(above, whole - above) + 1)) - 1)
    sides = 2 * (low % ((1 << bits) - 1))  # twice the sum of its digits, by casting out nines
    return min(1.0, sides / (1 << len(sizes)))
