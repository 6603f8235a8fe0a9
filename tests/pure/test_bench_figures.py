"""The benchmark's arithmetic: when queues differ, when a build fails, how many digits count."""

import itertools
import math
import random
import re
from io import StringIO
from pathlib import Path

import pytest

from queueproof.bench import decide, latency, numbers
from queueproof.bench.compare import Budget
from queueproof.bench.decide import ERROR, LEAST, LOOKS, Finding, Rule, chance
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.bench.gate import Condition
from queueproof.bench.measured import Shape
from queueproof.bench.tables import LOAD, NAMES
from queueproof.report.terminal import Output
from tests.fix_histories import each

# Logarithms of a queue's jobs/s divided by its own, by round, on a machine with four times more to
# do than it has processors.
# fmt: off
RECORDED = [
    0.03, 0.12, 0.24, 0.27, 0.63, 0.32, -0.56, 0.04, -0.01, 0.38, 0.31, 0.04, -0.29, -0.24,
    -0.09, 0.19, 0.35, 0.63, -0.36, 0.36, 0.37, -0.49, 0.09, -0.10, 0.25, 0.16, 0.06, -0.13,
    -0.06, -0.14, 0.43, -0.01, 0.10, -0.38, -0.04, -0.14, -0.01, -0.38, 0.59, -0.34, 0.11,
    -0.07, -0.09, -0.24, 0.40, 0.19, -0.23, 0.11, -0.17, 0.21, 0.16, -0.48, 0.37, 0.24,
    -0.03, 0.27, -0.39, -0.25, 0.07, 0.05, -0.30, -0.19, -0.23, -0.35, -0.36, -0.03, -0.04,
]
# fmt: on


def by_hand(values: list[float]) -> float:
    """The signed-rank test by trying all signs."""
    sizes = sorted(abs(value) for value in values)
    ranks = [sizes.index(abs(v)) + 1 + (sizes.count(abs(v)) - 1) / 2 for v in values]
    above = sum(rank for rank, value in zip(ranks, values, strict=True) if value > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(values))
    ]
    least = min(above, sum(ranks) - above)
    return min(1.0, 2 * sum(total <= least for total in sums) / len(sums))


@pytest.mark.parametrize(
    "values",
    [[0.1], [0.1, 0.2, -0.3], [1, 2, 3, 4, 5], [-1, -2, -3, 4, -5, -6], [1, 1, -1, 2, 2, 3]],
)
def test_the_chance_of_one_sided_rounds_is_exact(values: list[float]) -> None:
    """It is what trying all signs gives, equal sizes included; without a difference it is 1."""
    assert chance(values) == pytest.approx(by_hand(values))
    assert chance([]) == chance([0.0, 0.0]) == 1.0


def differs(logs: list[float]) -> bool:
    """Whether one of the planned looks calls two queues different; the interval may still veto."""
    return any(chance(logs[:rounds]) <= ERROR / len(LOOKS) for rounds in Rule(len(logs)).looks)


@pytest.mark.parametrize("noise", ["even", "with stalls", "recorded", "drifting"])
def test_equal_queues_are_hardly_ever_called_different(noise: str) -> None:
    """In 2,000 comparisons of 40 rounds, five looks each, no more than the rule allows."""
    lots = random.Random(noise)  # noqa: S311 - rounds, not secrets

    def one() -> float:
        if noise == "even":
            return lots.gauss(0, 0.1)
        if noise == "with stalls":
            return lots.gauss(0, 0.6 if lots.random() < 0.15 else 0.05)
        size = lots.choice(RECORDED) if noise == "recorded" else 0.1 + lots.gauss(0, 0.02)
        return lots.choice((-1, 1)) * size  # who went first was drawn by lot

    assert sum(differs([one() for _ in range(40)]) for _ in range(2000)) <= 2000 * ERROR


def test_looking_after_every_round_would_err() -> None:
    """At a plain 5 % and a look after each round, one in five equal queues would differ."""
    lots = random.Random(0)  # noqa: S311 - the same
    series = [[lots.gauss(0, 0.1) for _ in range(40)] for _ in range(200)]
    careless = [any(chance(s[:n]) <= 0.05 for n in range(6, 41)) for s in series]
    assert sum(careless) > 0.2 * 200


def judged(true_ratio: float, noise: float, seed: int) -> Finding:
    """A whole comparison of made-up rounds."""
    lots = random.Random(seed)  # noqa: S311 - the same
    rule, ratios = Rule(40, seed=seed), []
    for _ in range(40):
        ratios.append(true_ratio * math.exp(lots.gauss(0, noise)))
        if finding := rule.look(ratios):
            return finding
    raise AssertionError


@pytest.mark.parametrize("seed", range(5))
def test_fifteen_percent_more_work_is_found(seed: int) -> None:
    """With a noise of 10 % between rounds it is slower, and its interval says by how much."""
    found = judged(1 / 1.15, 0.10, seed)
    assert (found.verdict, found.sure) == ("slower", True)
    assert found.low < 1 / 1.15 < found.high < 1
    assert judged(1.15, 0.10, seed).verdict == "faster"


def test_a_quiet_machine_ends_an_even_comparison_early() -> None:
    """An interval close around 1 needs no further rounds; the same seed gives the same finding."""
    found = judged(1.0, 0.01, 0)
    assert (found.verdict, found.sure, found.rounds) == ("no difference seen", True, LEAST)
    assert judged(1.1, 0.2, 3) == judged(1.1, 0.2, 3)


def test_a_budget_that_ends_leaves_one_look() -> None:
    """It is the plan's next one, at its level; with fewer than twelve rounds nothing is sure."""
    rule = Rule(40)
    assert rule.look([0.5] * 5) is None
    found = rule.look([0.5] * 6, last=True)
    assert found
    assert (found.verdict, found.sure, found.rounds) == ("no difference seen", False, 6)
    later = Rule(40).look([0.5 + n / 1000 for n in range(13)], last=True)
    assert later
    assert (later.verdict, later.looks) == ("slower", 1)


def test_the_middle_and_the_spread_of_rounds() -> None:
    """A round that took ten times as long is not in the middle; a single one has no spread."""
    assert decide.centre([0.1, 0.1, 0.1, 0.1, 2.3]) == pytest.approx(0.1)
    assert numbers.with_spread([1234.0]) == "1,200 (1 round)"
    assert numbers.with_spread([900.0, 1000.0, 1100.0]) == "1,000 ±10%"


@pytest.mark.parametrize(
    ("text", "seconds", "rounds"),
    [("90", 90.0, None), ("1.5 s", 1.5, None), ("30 rounds", None, 30), ("12r", None, 12)],
)
def test_a_budget_is_seconds_or_rounds(
    text: str, seconds: float | None, rounds: int | None
) -> None:
    """A bare number is seconds."""
    assert Budget.of(text) == Budget(seconds, rounds)


@pytest.mark.parametrize("text", ["", "0", "ten", "5 rounds", "5 minutes", "101 rounds", "-1"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    """Too few rounds to be sure of anything are refused before the work."""
    with pytest.raises(BenchError, match="rounds"):
        Budget.of(text)


@pytest.mark.parametrize(
    ("value", "spread", "shown"),
    [
        (30835, 3000, "31,000"),
        (30835, 40000, "30,000"),
        (30835, 20, "31,000"),
        (30835, None, "31,000"),
        (1.0493, 0.02, "1.0"),
        (0.00123, 0.0002, "0.0012"),
        (0, 1, "0"),
    ],
)
def test_spread_decides_the_digits(value: float, spread: float | None, shown: str) -> None:
    """The last digit is the first uncertain one; there are two at most."""
    assert shown == numbers.rounded(value, spread)


def counted(queue: str, buffers: float, batch: int = 10) -> Series:
    """A queue of which only buffers were counted."""
    return Series(queue, Shape(batch, 1), counted={"buffers_per_claim": buffers})


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A report of before, of one queue at two batch sizes."""
    path = tmp_path / "base line.json"
    entries = [counted("q", 100.0), counted("q", 15.0, 1)]
    path.write_text(BenchReport({"cores": 2, "date": "2026-01-02"}, entries).to_json())
    return path


@pytest.mark.parametrize(
    ("condition", "buffers", "fails"),
    [
        ("buffers_per_claim > 99.5", 100, True),
        ("buffers_per_claim > 100", 100, False),
        ("buffers_per_claim>=100", 100, True),
        ("buffers_per_claim < 100", 99, True),
        ("buffers_per_claim <= 98", 99, False),
        ("buffers_per_claim > {}", 101, True),
        ("buffers_per_claim > {}", 100, False),
        ("buffers_per_claim > 1.2 * {}", 121, True),
        ("buffers_per_claim > 1.2*{}", 120, False),
    ],
)
def test_a_condition_judges(baseline: Path, condition: str, buffers: float, *, fails: bool) -> None:
    """A counter is held against a number, an earlier figure, or a multiple of that."""
    asked = Condition.of(condition.format(baseline))
    assert fails == bool(asked.judge([counted("q", buffers)]))
    assert fails == bool(asked.judge([counted("renamed", buffers)]))


def test_a_condition_is_held_against_the_figure_of_before(baseline: Path) -> None:
    """Each batch size by its own figure of before; another size, or new queues, have none."""
    asked = Condition.of(f"buffers_per_claim > 1.2 * {baseline}")
    (told,) = asked.judge([counted("q", 110.0), counted("q", 20.0, 1)])
    assert told.startswith("q, batch 1: buffers_per_claim is 20, which is > 18")
    asked = Condition.of(f"buffers_per_claim > {baseline}")
    with pytest.raises(BenchError, match="of q at batch 100; write it anew"):
        asked.judge([counted("q", 1.0, 100)])
    with pytest.raises(BenchError, match="of new at batch 10"):
        asked.judge([counted("q", 1.0), counted("new", 1.0)])
    with pytest.raises(BenchError, match="counted for no queue"):
        Condition.of("dead_rows_per_job > 1").judge([counted("q", 1.0)])


@each("""
    condition => told
    p99 > 1 => p99 is a time, .*with --compare
    jobs_per_second < 1.2 * b.json => is a time
    buffer_per_claim > 1 => did you mean 'buffers_per_claim'
    zzz > 1 => there are buffers_per_claim
    buffers_per_claim = 1 => write COUNTER > NUMBER
    buffers_per_claim > => write COUNTER > NUMBER
    1 < buffers_per_claim => no counter 1|write COUNTER
    buffers_per_claim > 2 * nowhere.json => cannot read nowhere.json
""")
def test_what_is_no_condition_is_refused(condition: str, told: str) -> None:
    """With what to write instead; a time is refused with the reason."""
    with pytest.raises(BenchError, match=told):
        Condition.of(condition)


def test_histograms_merge() -> None:
    """Of several together the percentiles are those of all latencies, to three digits."""
    pytest.importorskip("hdrh")
    seconds = [n / 1000 for n in range(1, 1001)]
    halves = [latency.encoded(seconds[start::2]) for start in (0, 1)]
    found = latency.at(halves, latency.SHARES.values())
    assert found == pytest.approx([0.5, 0.95, 0.99, 0.999, 1.0], rel=0.002)


@pytest.mark.parametrize(("width", "parts"), [(60, 2), (80, 2), (120, 1)])
def test_a_table_that_is_wider_than_the_terminal_goes_on_below(width: int, parts: int) -> None:
    """No name and no figure is cut, and each part says of which row it is."""
    waits = "Client:ClientRead 40%, LWLock:WALWrite 35%"
    header = (*LOAD, "WAL bytes", "round trips", "the backends were")
    row = ("select_then_update", "16", "100", "1,234", "0.41", waits)
    lines = [header, ["---"] * len(header), row]
    out = Output(written := StringIO())
    out._force_terminal, out.width = True, width
    out.markdown("\n".join(f"| {' | '.join(line)} |" for line in lines), NAMES)
    told = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue())
    assert max(map(len, told.splitlines())) <= width
    assert told.count(row[0]) == told.count("workers") == parts
    assert {word for cell in (*header, *row) for word in cell.split()} <= set(told.split())
