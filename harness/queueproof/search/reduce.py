"""From a long program that breaks a guarantee to a short one, one run for each that is tried.

`shrink` searches the schedules of each smaller program, which long ones have too many of. Here each
stage brings the choices that its schedule took, and what is left out takes its own along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from queueproof.judge.spec import Declared
from queueproof.run.runner import Runner
from queueproof.schedule.programs import JobSpec, Program, Schedule, Stage
from queueproof.search.shrink import Failure, breaches

LONG = 16  # jobs and operations: no longer needs this
_Candidate: TypeAlias = tuple[Program, Schedule]


def reduced(runner: Runner, declared: Declared, failure: Failure) -> Failure:
    """A failure with less of everything, by halves, quarters, and so on while it breaks.

    This is delta debugging (A. Zeller and R. Hildebrandt, "Simplifying and isolating
    failure-inducing input", 2002): the jobs of a queue are independent, but for those few.

    Args:
        failure: What is to break again: the same guarantee, by the same operation.
    """
    best = failure
    tried = set[_Candidate]()  # of jobs that are alike it is all one which is left out
    while best.program.size > LONG:
        before = best.program.size
        for halve in (_fewer_stages, _fewer_races, _plainer_jobs, _fewer_jobs):
            best = _while_it_breaks(runner, declared, best, halve, tried)
        if best.program.size == before:
            break
    return best


def _while_it_breaks(
    runner: Runner,
    declared: Declared,
    failure: Failure,
    smaller: Callable[[Failure, int, int], _Candidate | None],
    tried: set[_Candidate],
) -> Failure:
    """Try pieces from the end, each half as long as those before, down to single ones."""
    length = max(len(failure.program.stages), len(failure.program.specs))
    while length:
        at = max(len(failure.program.stages), len(failure.program.specs))
        while at > 0:
            start = max(0, at - length)
            candidate = smaller(failure, start, at)
            if candidate is not None and candidate not in tried:
                tried.add(candidate)
                failure = _again(runner, declared, failure, candidate) or failure
            at = start
        length //= 2
    return failure


def _again(
    runner: Runner, declared: Declared, failure: Failure, candidate: _Candidate
) -> Failure | None:
    """The candidate's failure, where it breaks the same."""
    program, schedule = candidate
    run = runner.run(program, schedule)
    for violation in breaches(run, declared):
        if violation.guarantee == failure.violation.guarantee:
            taken = tuple(choice.taken for choice in run.choices)
            found = replace(failure, program=program, schedule=taken, run=run, violation=violation)
            if found.tells(failure.like) and found.firmness >= failure.firmness:
                return found
    return None


def _fewer_stages(failure: Failure, start: int, end: int) -> _Candidate | None:
    """Without some stages, and the choices that were taken in them."""
    stages = failure.program.stages
    if start >= len(stages):
        return None
    kept = stages[:start] + stages[end:]
    program = failure.program._replace(stages=kept)
    return program, _choices(failure, lambda stage: not start <= stage < end)


def _fewer_races(failure: Failure, start: int, end: int) -> _Candidate | None:
    """With those who act beside each other in some stages one after the other."""
    stages = failure.program.stages
    if not any(len(stage) > 1 for stage in stages[start:end]):
        return None
    flat: list[Stage] = [(one,) for stage in stages[start:end] for one in stage]
    program = failure.program._replace(stages=(*stages[:start], *flat, *stages[end:]))
    return program, _choices(failure, lambda stage: not start <= stage < end)


def _fewer_jobs(failure: Failure, start: int, end: int) -> _Candidate | None:
    """Without some jobs."""
    if start >= len(failure.program.specs):
        return None
    return failure.program.without(start, end), _choices(failure, lambda _: True)


def _plainer_jobs(failure: Failure, start: int, end: int) -> _Candidate | None:
    """With some jobs like all others: of those that are alike one stands for each."""
    specs = failure.program.specs
    plain = (*specs[:start], *(JobSpec() for _ in specs[start:end]), *specs[end:])
    if plain == specs:
        return None
    return failure.program.having(plain), _choices(failure, lambda _: True)


def _choices(failure: Failure, kept: Callable[[int], bool]) -> Schedule:
    return tuple(choice.taken for choice in failure.run.choices if kept(choice.stage))
