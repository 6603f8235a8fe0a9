"""The interleavings of a program that are tried, and their order."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.programs import Program, Schedule

EXHAUSTIVE = 2000  # schedules; beyond, only those with few preemptions are tried
PREEMPTIONS = 2  # most races need no more of them (Musuvathi, Qadeer: iterative context bounding)


class TriedSchedule(NamedTuple):
    """One schedule and what came of it."""

    schedule: Schedule
    run: Run


def explore(
    runner: Runner, program: Program, *, budget: int, seed: int = 0, fixed: int = 0
) -> Iterator[TriedSchedule]:
    """Run a program under every schedule, or as many as the budget allows.

    Schedules with fewer preemptions come first: most races need one or two (M. Musuvathi and
    S. Qadeer, "Iterative context bounding", 2007), and the first failure is then the simplest. Of
    equally many those between statements do: there are fewer, and a client can see them.
    Every schedule is run once: each run shows which choices it met, and each choice that was not
    taken begins a schedule of its own.

    Args:
        seed: Which schedules come first among those with equally many preemptions.
        fixed: So many choices at the beginning are not varied.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
    serial = itertools.count()
    frontier: list[tuple[int, bool, float, int, Schedule]] = [(0, False, 0.0, next(serial), ())]
    done = 0
    while frontier and done < budget:
        cost, _, _, _, prefix = heapq.heappop(frontier)
        if cost > PREEMPTIONS and done + len(frontier) > EXHAUSTIVE:
            return
        run = runner.run(program, prefix)
        done += 1
        taken = tuple(choice.taken for choice in run.choices)
        yield TriedSchedule(_trimmed(taken), run)
        # What follows a choice that the server made is another run's the next time.
        certain = len(taken) if run.certain is None else run.certain
        for place in range(max(len(prefix), fixed), certain):
            choice = run.choices[place]
            for option in range(1, choice.options):
                entry = (cost + choice.preempts, choice.inside, rng.random(), next(serial))
                heapq.heappush(frontier, (*entry, (*taken[:place], option)))


def _trimmed(schedule: Schedule) -> Schedule:
    """Without the zeros at the end, which are what a run does anyway."""
    end = len(schedule)
    while end and schedule[end - 1] == 0:
        end -= 1
    return schedule[:end]
