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
from queueproof.examine.replay import again, lacking
from queueproof.examine.work import runner_under
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.judge.checker import check, declare
from queueproof.postgres import open_server
from queueproof.probes.probes import PROBES
from queueproof.queues.resolve import resolve
from queueproof.report.story import tell
from queueproof.report.text import to_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.schedule.conditions import PLAIN
from queueproof.schedule.programs import Do, JobSpec, Program
from queueproof.search.reduce import reduced
from queueproof.search.shrink import Failure, one_by_one, shrink
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
    data: dict[str, Any] = {"probe": probe}
    if program is not None:
        told = {"program": program.to_data(), "schedule": list(schedule), "under": under or {}}
        data = {**json.loads(json.dumps(told)), "broken": broken or guarantee}  # anybody wrote it
    with open_server(postgres, trust=trust) as server, open_lab(target, server) as lab:
        offer = calibrate(lab)
        if program is not None:
            if missing := CATALOGUE[guarantee].needs(offer):
                raise AssertionError(f"{guarantee} is not offered: {missing}")
            if unfit := lacking(target, Program.from_data(data["program"])):
                raise AssertionError(
                    f"{target.name} does not offer {unfit}, which the program does"
                )
        found = again(lab, offer, guarantee, data, orders=schedules)
    if found:
        raise AssertionError(found.story)


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
