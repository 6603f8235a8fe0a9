"""From a program and schedule that break a guarantee to the shortest that still do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from queueproof.judge.checker import check
from queueproof.judge.spec import Declared
from queueproof.judge.violations import Violation
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.moments import DAY, HOUR, MOMENT
from queueproof.schedule.programs import Do, DoKind, JobSpec, Program, Schedule, Stage
from queueproof.search.explore import explore

_WORKER = re.compile(r"w\d+\Z")
_OF_WORKERS: frozenset[DoKind] = frozenset({"crash", "lose", "terminate"})  # by their numbers
_ENQUEUES = ((("producer", (Do("enqueue"),)),),)
TRIES = 40  # schedules per smaller program; stories need few preemptions, which come first


@dataclass(frozen=True, slots=True)
class Failure:
    """A program and schedule under which a guarantee breaks.

    Attributes:
        violation: What was broken, and why.
    """

    program: Program
    schedule: Schedule
    run: Run
    violation: Violation
    conditions: Conditions = PLAIN

    @property
    def firmness(self) -> tuple[bool, bool, bool, bool]:
        """Its firmness: whether nothing else may explain it, whether the schedule alone decided it.

        Of two that stand as well, the one in which another worker is hurt says more, and so does
        the one in which the program's own workers see it.
        """
        seen_by = self.run.history.calls[self.violation.call].actor
        doubts = self.violation.doubts or self.violation.follows
        certain = not doubts, not self.run.ambiguous
        return *certain, not self.violation.alone, seen_by != DRAINER

    @property
    def cause(self) -> str:
        """The operation whose answer breaks the guarantee; nothing where the end of a run does."""
        kind = self.run.history.calls[self.violation.call].kind
        return "" if kind in {"jobs", "sweep"} else kind

    @property
    def phase(self) -> int:
        """Its time: 0 in the program, 1 as workers end what they hold after it, 2 later."""
        if self.violation.call < self.run.staged:
            return 0
        return 2 if self.run.history.calls[self.violation.call].actor == DRAINER else 1

    @property
    def like(self) -> Like:
        """The facts that a shorter story must tell as well."""
        return Like(self.cause, alone=self.violation.alone)

    def tells(self, like: Like) -> bool:
        """True if it is about the same operation as another, and says no less of it."""
        return self.cause == like.cause and self.violation.alone <= like.alone


class Like(NamedTuple):
    """The facts by which stories are alike: see `Failure.cause` and `Violation.alone`."""

    cause: str
    alone: bool


def breaches(run: Run, declared: Declared) -> list[Violation]:
    """The violations in a run: of guarantees, and what is unexpected."""
    return [*check(run.history, declared).violations, *unexpected(run)]


def unexpected(run: Run) -> list[Violation]:
    """The violations in a run that break no guarantee by themselves.

    An error that the queue's workers do not expect stands under `error` and its SQLSTATE: no
    guarantee by itself, but one where it comes with conditions that should change nothing. So
    does a claim that such conditions cut short.
    """
    calls = run.history.calls
    errors = [
        Violation(
            f"error {error.sqlstate}",
            f"{calls[index].kind} by {calls[index].actor} was answered ERROR {error}",
            None,
            index,
        )
        for index, (error, _) in run.errors.items()
        if calls[index].answer != "retry"
    ]
    if (short := run.short) is not None:
        got = f"{len(short.ids) or 'no'} job{'s' if len(short.ids) > 1 else ''}"
        because = f"a claim by {short.actor} got {got}, and more without the pooler"
        errors.append(Violation("claim cut short", because, None, short.index))
    return errors


def find(
    runner: Runner,
    declared: Declared,
    program: Program,
    guarantee: str,
    *,
    budget: int = TRIES,
    seed: int = 0,
    like: Like | None = None,
) -> Failure | None:
    """The first schedule of a program under which a guarantee breaks, if there is one.

    A schedule that alone decides what happens goes before one that leaves a choice to the server.

    Args:
        declared: What the checker must know of the queue.
        like: What is found must tell it, see `Failure.tells`.
    """
    found = None
    for schedule, run in explore(runner, program, budget=budget, seed=seed):
        for violation in breaches(run, declared):
            if violation.guarantee == guarantee:
                failure = Failure(program, schedule, run, violation, runner.conditions)
                if like is not None and not failure.tells(like):
                    continue
                if not run.ambiguous:
                    return failure
                found = found or failure
    return found


First: TypeAlias = Callable[[Sequence[Program]], tuple[int, Failure] | None]
"""Of some programs the first that breaks the same: its place among them, and how it does."""


def one_by_one(runner: Runner, declared: Declared, failure: Failure) -> First:
    """Search programs for what breaks as a failure does, one after the other.

    Args:
        failure: What is to break again: the same guarantee, by the same operation.
    """

    def first(programs: Sequence[Program]) -> tuple[int, Failure] | None:
        broken, like = failure.violation.guarantee, failure.like
        searches = (find(runner, declared, program, broken, like=like) for program in programs)
        return next(((n, found) for n, found in enumerate(searches) if found is not None), None)

    return first


def shrink(failure: Failure, first: First) -> Failure:
    """Remove jobs and operations one at a time while the same guarantee still breaks.

    What breaks it stays the same operation: a guarantee may have several stories.

    Removing one at a time until nothing more can go gives a 1-minimal program (A. Zeller and
    R. Hildebrandt, "Simplifying and isolating failure-inducing input", 2002); each candidate is
    searched anew, so that the schedule shrinks with it. After a success it goes on where it is: the
    pieces before were needed a moment ago, and are asked again at the end.

    Args:
        first: Finds the first of several programs that breaks in the same way.
    """
    if (again := first([failure.program])) is not None:
        _, failure = again
    needed = {failure.program}  # nothing smaller breaks by these, or they are the program itself
    place = 0
    while candidates := [
        one for one in dict.fromkeys(smaller(failure.program)) if one not in needed
    ]:
        place %= len(candidates)
        ordered = candidates[place:] + candidates[:place]
        if (found := first(ordered)) is None:
            break
        number, failure = found
        needed.update(ordered[: number + 1])
        place += number
    if (numbered := _numbered(failure)) and (found := first([numbered])):
        _, failure = found
    return failure


def _numbered(failure: Failure) -> Program | None:
    """The program with its workers numbered as they act; None where they are so."""
    acting = [call.actor for call in failure.run.history.calls]
    acting += [name for stage in failure.program.stages for name, _ in stage]
    workers = dict.fromkeys(filter(_WORKER.match, acting))
    numbered = {name: f"w{n}" for n, name in enumerate(workers, 1)}
    renamed = any(name != number for name, number in numbered.items())
    return _renamed(failure.program, actors=numbered) if renamed else None


def smaller(program: Program) -> Iterator[Program]:
    """Programs with less, the largest pieces first."""
    stages, specs = program.stages, program.specs
    for n in range(len(stages)):
        yield program._replace(stages=stages[:n] + stages[n + 1 :])
    many = len(specs) // 2
    while many > 1:
        for n in range(0, len(specs), many):
            yield program.without(n, n + many)
        many //= 2
    for n, stage in enumerate(stages):
        match stage:
            case ((_, (Do("claim", limit=limit),)),):  # which keeps others from the jobs before
                fewer = program._replace(stages=stages[:n] + stages[n + 1 :])
                yield fewer.without(0, limit)
    for n, stage in enumerate(stages):
        for one in _smaller_stages(stage):
            yield program._replace(stages=stages[:n] + one + stages[n + 1 :])
    for n in range(len(specs)):
        yield program.without(n, n + 1)
    if program.reserve and stages[:1] == _ENQUEUES:  # as every program begins
        jobs = (*program.jobs, program.reserve[0])
        yield Program(jobs, stages[1:], program.reserve[1:])
    for n, (first, second) in enumerate(pairwise(stages)):
        if len(first) == len(second) == 1 and (moved := _moved_at_once(first[0][1] + second[0][1])):
            joined: Stage = ((first[0][0], (moved,)),)
            yield program._replace(stages=(*stages[:n], joined, *stages[n + 2 :]))
    for name, value in JobSpec()._asdict().items():
        alike = tuple(job._replace(**{name: value}) for job in specs)
        if alike != specs:
            yield program.having(alike)
    for n, job in enumerate(specs):
        for plain in _plainer(job):
            yield program.having((*specs[:n], plain, *specs[n + 1 :]))
    for queue in program.queues[1:]:
        yield _renamed(program, queues={queue: program.queues[0]})


def _renamed(
    program: Program,
    *,
    queues: Mapping[str, str] | None = None,
    actors: Mapping[str, str] | None = None,
) -> Program:
    """The same with other names of queues or of actors; a crash names its worker by number."""
    queues, actors = queues or {}, actors or {}

    def one(do: Do) -> Do:
        gone = actors.get(f"w{do.worker}", "") if do.kind in _OF_WORKERS else ""
        return do._replace(
            queue=queues.get(do.queue, do.queue),
            worker=int(gone.removeprefix("w") or do.worker),
        )

    def job(spec: JobSpec) -> JobSpec:
        return spec._replace(queue=queues.get(spec.queue, spec.queue))

    stages = tuple(
        tuple((actors.get(actor, actor), tuple(map(one, dos))) for actor, dos in stage)
        for stage in program.stages
    )
    jobs, reserve = (tuple(map(job, specs)) for specs in (program.jobs, program.reserve))
    return Program(jobs, stages, reserve)


def _smaller_stages(stage: Stage) -> Iterator[tuple[Stage, ...]]:
    for n, (actor, dos) in enumerate(stage):
        rest = stage[:n] + stage[n + 1 :]
        if rest:
            yield (rest,)
        for place, do in enumerate(dos):
            fewer = dos[:place] + dos[place + 1 :]
            if fewer:
                yield ((*stage[:n], (actor, fewer), *stage[n + 1 :]),)
            if place and (moved := _moved_at_once(dos[place - 1 : place + 1])):
                once = (*dos[: place - 1], moved, *dos[place + 1 :])
                yield ((*stage[:n], (actor, once), *stage[n + 1 :]),)
            for plainer in _plainer_do(do):
                plain = (*dos[:place], plainer, *dos[place + 1 :])
                yield ((*stage[:n], (actor, plain), *stage[n + 1 :]),)


def _plainer_do(do: Do) -> Iterator[Do]:
    if do.kind == "claim" and do.limit > 1:
        yield do._replace(limit=1)
    if do.kind == "advance":  # nobody believes that somebody stopped for a day, for a second's wait
        yield from (do._replace(seconds=one) for one in (MOMENT, HOUR, DAY) if one < do.seconds)


def _moved_at_once(dos: Sequence[Do]) -> Do | None:
    """Two moves of the clock as one; None where they are something else."""
    if len(dos) == 2 and all(do.kind == "advance" for do in dos):  # noqa: PLR2004 - two
        return dos[0]._replace(seconds=sum(do.seconds for do in dos))
    return None


def _plainer(job: JobSpec) -> Iterator[JobSpec]:
    plain = JobSpec()
    for name in JobSpec._fields:
        if getattr(job, name) != getattr(plain, name):
            yield job._replace(**{name: getattr(plain, name)})
