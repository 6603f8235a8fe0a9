"""The support of tests that `queueproof replay QUEUE TOKEN --export FILE.py` wrote.

Such a test holds a story as data, and fails with it as long as the queue still tells it:

    from queueproof.testing import Do, JobSpec, Program, must_hold

    def test_single_claim() -> None:
        must_hold(
            "single-claim",
            "jobs.sql",
            program=Program(
                jobs=(JobSpec(),),
                stages=((("w1", (Do("claim"),)), ("w2", (Do("claim"),))),),
            ),
            schedule=(0, 1),
        )

A `Program` is who does what: jobs that are enqueued first, then stages one after the other, whose
actors race. A `Do` is one operation of an actor, a `JobSpec` one job; their own docstrings tell
the fields, times in seconds. These names are public: a test that was exported once goes on working.
It starts a server as `queueproof check` does.

A property-based test draws its programs from the same space as a check. What breaks is made short
here, in seconds; Hypothesis would take minutes:

    from hypothesis import Phase, given, settings
    from queueproof.testing import Crowd, under_test

    def test_every_crowd() -> None:
        with under_test("jobs.sql") as queue:

            @settings(deadline=None, max_examples=50, phases=[Phase.generate])
            @given(queue.crowds())
            def holds(crowd: Crowd) -> None:
                queue.must_hold(crowd)

            holds()
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from queueproof.errors import QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.replay import REPLAYS, lacking
from queueproof.examine.work import runner_under
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.judge.checker import check, declare
from queueproof.postgres import open_server
from queueproof.probes.probes import PROBES
from queueproof.queues.resolve import resolve
from queueproof.report.story import tell, tell_found
from queueproof.report.text import to_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import Do, JobSpec, Program
from queueproof.search.explore import explore
from queueproof.search.reduce import reduced
from queueproof.search.shrink import Failure, breaches, one_by_one, shrink
from queueproof.space.crowds import Crowd, crowd
from queueproof.space.pieces import Pieces

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Crowd", "Do", "JobSpec", "Program", "QueueUnderTest", "must_hold", "under_test"]

SCHEDULES = 250  # of one program: a second or two


def must_hold(
    guarantee: str,
    queue: str | os.PathLike[str],
    *,
    program: Program | None = None,
    schedule: Sequence[int] = (),
    under: Mapping[str, Any] | None = None,
    broken: str | None = None,
    probe: Any = None,  # noqa: ANN401 - each probe's own
    schedules: int = SCHEDULES,
    postgres: str | None = None,
    trust: bool = False,
) -> None:
    """Look for a story once more, in every interleaving of its program.

    It says that this story is over. Whether the guarantee holds is what `queueproof check` says,
    with its evidence.

    Args:
        guarantee: The id of what must hold.
        queue: A queue file, or `package.module:Class`.
        program: Who does what.
        schedule: In which order it once broke; tried first.
        under: The conditions that differ from plain ones.
        broken: What breaks, where it counts under the guarantee and is another.
        probe: What a probe saw, where the story is a probe's; then without a program.
        schedules: Most interleavings that are tried.
        postgres: Where the server comes from, as for `queueproof check --postgres`.
        trust: As `queueproof check --trust`.

    Raises:
        AssertionError: The guarantee is broken, and the message is the story; or the queue no
            longer offers what it is about.
        QueueproofError: The queue or the server cannot be used.
    """
    if guarantee not in CATALOGUE:
        raise QueueproofError(f"{guarantee!r} is no guarantee; see `queueproof guarantees`")
    if program is None and guarantee not in PROBES:
        raise QueueproofError(f"what breaks {guarantee} is a run: give must_hold its program")
    target = resolve(os.fspath(queue))
    with open_server(postgres, trust=trust) as server, open_lab(target, server) as lab:
        if program is None:
            found = PROBES[guarantee].replay(lab, calibrate(lab), probe)
            story = to_text(tell_found(found, guarantee)) if found else ""
        else:
            conditions = Conditions(**under) if under else PLAIN
            story = _search(
                lab,
                guarantee,
                program,
                broken=broken or guarantee,
                schedule=schedule,
                conditions=conditions,
                schedules=schedules,
            )
    if story:
        raise AssertionError(story)


@contextmanager
def under_test(
    queue: str | os.PathLike[str], *, postgres: str | None = None, trust: bool = False
) -> Iterator[QueueUnderTest]:
    """A queue on a server, for property-based tests, until the end of the block.

    Args:
        queue: A queue file, or `package.module:Class`.
        postgres: Where the server comes from, as for `queueproof check --postgres`.
        trust: As `queueproof check --trust`.

    Raises:
        QueueproofError: The queue or the server cannot be used.
    """
    target = resolve(os.fspath(queue))
    with open_server(postgres, trust=trust) as server, open_lab(target, server) as lab:
        yield QueueUnderTest(lab)


class QueueUnderTest:
    """An installed queue that drawn programs are run on.

    Args:
        lab: Where it is installed.
    """

    def __init__(self, lab: Lab) -> None:
        offer = calibrate(lab)
        accepted = (name for name, one in CATALOGUE.items() if one.accepted(offer))
        self._declared_broken = {*lab.queue.breaks, *accepted}
        self._pieces, self._declared = Pieces(offer), declare(offer)
        self._runner = runner_under(lab, offer, PLAIN)

    def crowds(self) -> SearchStrategy[Crowd]:
        """Random programs of many jobs and stages, each with the choices of its schedule."""
        from hypothesis.strategies import randoms  # noqa: PLC0415 - an exported story does without

        return randoms(use_true_random=False).map(partial(crowd, self._pieces))

    def must_hold(self, drawn: Crowd) -> None:
        """Run a program, and judge it by every guarantee that the queue does not declare broken.

        Raises:
            AssertionError: One is broken, and the message is its story, as short as it gets.
            QueueproofError: The queue or the server cannot be used.
        """
        run = self._runner.run(drawn.program, drawn.schedule)
        for violation in check(run.history, self._declared).violations:
            if violation.guarantee not in self._declared_broken:
                found = Failure(drawn.program, drawn.schedule, run, violation)
                found = reduced(self._runner, self._declared, found)
                found = shrink(found, one_by_one(self._runner, self._declared, found))
                name = violation.guarantee
                raise AssertionError(to_text(tell(found.run, found.violation, PLAIN, name)))


def _search(
    lab: Lab,
    guarantee: str,
    program: Program,
    *,
    broken: str,
    schedule: Sequence[int],
    conditions: Conditions,
    schedules: int,
) -> str:
    """The story of the first run that breaks something; empty where none does."""
    offer = calibrate(lab)
    missing = CATALOGUE[guarantee].needs(offer)
    if missing is not None:
        return f"{guarantee} is not offered: {missing}"
    program = Program.from_data(json.loads(json.dumps(program.to_data())))  # anybody wrote it
    if unfit := lacking(lab.queue, program):
        return f"{lab.queue.name} does not offer {unfit}, which the program does"
    declared = declare(offer)
    again = runner_under(lab, offer, conditions, anew=True)
    runner = runner_under(lab, offer, conditions)
    for run in _runs(again, runner, program, schedule, schedules):
        for violation in breaches(run, declared):
            if violation.guarantee == broken:
                return to_text(tell(run, violation, conditions, guarantee))
    return ""


def _runs(
    again: Runner, runner: Runner, program: Program, schedule: Sequence[int], schedules: int
) -> Iterator[Run]:
    for _ in range(REPLAYS):
        run = again.run(program, schedule)
        yield run
        if not run.ambiguous:
            break
    for tried in explore(runner, program, budget=schedules):
        yield tried.run
