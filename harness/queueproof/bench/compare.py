"""Two queues beside each other, round by round, until it is sure which is faster or time is up."""

from __future__ import annotations

import random
import re
import time
from dataclasses import asdict
from typing import NamedTuple, Self

from queueproof.bench import decide
from queueproof.bench.bench import Compared, Group, Setting, names_of, needed, refuse_plan
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.bench.load import why_not
from queueproof.errors import QueueError

BUDGET = 180.0  # seconds
MOST = 100  # rounds, however long the budget
SECONDS = 0.3  # of measured work of the faster queue in a round: many short rounds tell more
PILOTS = 2  # rounds that are not counted: they set the number of jobs, and warm up


class Budget(NamedTuple):
    """The limits of a comparison; None where there is none."""

    seconds: float | None = BUDGET
    rounds: int | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `90`, `90s`, or `30 rounds`."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|seconds?|r|rounds?)?\s*", text)
        if not found or not float(found[1]):
            how = "write seconds, such as 90, or rounds, such as '30 rounds'"
            raise BenchError(f"--budget {text!r}: {how}")
        if (found[2] or "s").startswith("s"):
            return cls(seconds=float(found[1]))
        rounds = int(float(found[1]))
        if rounds > MOST:
            raise BenchError(f"--budget {text!r}: at most {MOST} rounds")
        decide.Rule(rounds)  # refuses too few
        return cls(seconds=None, rounds=rounds)


def compare(
    plan: Group,
    setting: Setting = Setting(seconds=SECONDS),  # noqa: B008 - a tuple
    *,
    budget: Budget = Budget(),  # noqa: B008 - the same
    seed: int = 0,
) -> BenchReport:
    """Say whether the second of two queues is faster or slower than the first under one load.

    Each round measures both, in an order drawn by lot. `decide` says when there are enough.

    The same queue twice shows what the machine's noise does. A rate has no place in the setting;
    the seed is of the order within the rounds, and of the bootstrap. The finding is in the report's
    `method["comparison"]`. Errors are those of `measure`, and a BenchError without two queues.
    """
    shape, queues = plan
    if len(queues) != 2:  # noqa: PLR2004
        raise BenchError(f"--compare takes two queues, not {len(queues)}")
    if why := unfit(plan):
        single = not unfit(plan._replace(shape=shape._replace(batch=1)))
        raise QueueError(f"{why}; add --batch 1" if single else why)
    refuse_plan([plan], setting)
    known = names_of(queues)
    names = [known[queue.name] for queue in queues]
    if names[0] == names[1]:
        names[1] += " (2)"
    entries = [Series(name, shape) for name in names]
    report = BenchReport({"comparison": None}, entries)
    cell = Compared(shape, list(zip(queues, entries, strict=True)))
    lots = random.Random(seed)  # noqa: S311 - who goes first
    rule: decide.Rule | None = None
    began = time.monotonic()

    def judged(*, last: bool) -> bool:
        """Look at the rounds; whether that has come to a finding, which is in the report then."""
        ratios = entries[1].ratios(entries[0])
        finding = (rule or decide.Rule(seed=seed)).look(ratios, last=last)
        if finding is not None:
            report.method |= {"rounds": finding.rounds, "comparison": asdict(finding)}
        return finding is not None

    def keep_judged(whole: BenchReport) -> None:
        judged(last=True)
        setting.keep(whole)

    with setting._replace(keep=keep_judged).ground(cell.sides, report) as ground:
        for number in range(1 - PILOTS, MOST + 1):
            round_began = time.monotonic()
            planned, used = "", 0.0
            if rule:
                planned, used = f"/{rule.looks[-1]}", max(0, number - 1) / rule.looks[-1]
            if budget.seconds:
                used = min(1.0, (round_began - began) / budget.seconds)
            setting.progress(f"round {max(0, number)}{planned}", used)
            best = cell.measure(ground, setting, lots.sample(cell.sides, 2), counted=number > 0)
            for queue, entry in cell.sides:
                if entry.reason:
                    raise QueueError(f"{queue.name}: {entry.reason}")
            took = time.monotonic() - round_began
            if number < 1:
                cell.jobs = needed(setting, best, shape)
                continue
            left = budget.seconds - (time.monotonic() - began) if budget.seconds else MOST * took
            if rule is None:
                rounds = budget.rounds or max(decide.LEAST, min(MOST, 1 + int(left / took)))
                rule = decide.Rule(rounds, seed=seed)
            if judged(last=left < took):
                break
    return report


def unfit(plan: Group) -> str:
    """The queues that cannot be put under their load, and why; empty where all can."""
    reasons = {queue.name: why_not(queue, plan.shape) for queue in plan.queues}
    return "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)
