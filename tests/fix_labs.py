"""Labs: one for each queue of a module, which every test gets as if nobody had used it."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.examine.findings import Findings
from queueproof.examine.plan import Examination
from queueproof.examine.profiles import profile_of
from queueproof.examine.replay import replay
from queueproof.examine.verdicts import judgement_of
from queueproof.examine.work import Exploration, Probing
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.postgres import Server
from queueproof.probes.probe import untold
from queueproof.queues.model import Queue
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load, load_text
from queueproof.report.card import Break, Judgement
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab

ROOM = 12  # labs that are kept for the module's next tests, with two connections each


def judged(lab: Lab, *ids: str, profile: str = "quick") -> dict[str, Judgement]:
    """What a check says of some guarantees by their programs alone, and by none of the others'."""
    findings = Findings(lab, calibrate(lab), 0)
    wanted = select(ids)
    examination = Examination(findings, profile_of(profile, by_clients=lab.by_clients))
    examination.examine(wanted, lambda _what, _fraction: None, lambda: False)
    findings.shorten(wanted)
    return {one.id: judgement_of(findings, one) for one in wanted}


def seen(lab: Lab, name: str, unit: Exploration | Probing) -> Judgement:
    """A check's word on a guarantee, of which it has done no more than one unit of work."""
    findings = Findings(lab, calibrate(lab), 0)
    if isinstance(unit, Probing):
        findings.probed[name] = findings.crew.probe(unit, untold)
    else:
        for tried in findings.crew.tries(unit):
            for failure in tried.broken:
                findings.record(unit.counting or failure.violation.guarantee, failure)
    findings.shorten(select([name]))
    return judgement_of(findings, CATALOGUE[name])


def offered(lab: Lab) -> Offer:
    """The offer of a lab's queue, whose claim ends outside of a transaction."""
    return Offer(lab.queue, held=False)


def happens_again(lab: Lab, told: Judgement | Break) -> None:
    """See that the replay of a story tells the same story."""
    assert told.replay
    again = replay(lab, told.replay)
    assert again is not None
    assert again.story == told.story


class LabOf(Protocol):
    """Installs a queue in a database of its own."""

    def __call__(self, queue: str | Path | Queue, *, fresh: bool = False) -> Lab:
        """A lab as new.

        Args:
            queue: A queue file's text, its path, or a queue.
            fresh: Whether it is the test's alone, which may leave it damaged.
        """


class Labs:
    """The labs of a module that no test uses just now, the last used at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: dict[str | Path, tuple[Lab, ExitStack]] = {}

    def open(self, queue: str | Path | Queue) -> tuple[Lab, ExitStack]:
        """A new lab, and what closes it."""
        if isinstance(queue, str):
            queue = load_text(queue, "queue.sql")
        stack = ExitStack()
        lab = open_lab(load(queue) if isinstance(queue, Path) else queue, self._server)
        return stack.enter_context(lab), stack

    def take(self, key: str | Path) -> tuple[Lab, ExitStack]:
        """The lab of a queue file, which is the taker's until it is given back."""
        return self._kept.pop(key, None) or self.open(key)

    def give_back(self, key: str | Path, lab: Lab, closing: ExitStack) -> None:
        """Bring a lab back to the beginning; where its test has damaged it that is an error."""
        with ExitStack() as on_error:
            on_error.push(closing.__exit__)
            lab.forget_sessions()
            lab.reset(renew=True)
            on_error.pop_all()
        self._kept[key] = lab, closing
        if len(self._kept) > ROOM:
            self._kept.pop(next(iter(self._kept)))[1].close()

    def close(self) -> None:
        """Close all."""
        with ExitStack() as stack:
            for _, closing in self._kept.values():
                stack.push(closing.__exit__)


@pytest.fixture(scope="module")
def labs_of_the_module(server: Server) -> Iterator[Labs]:
    """Those that are kept from test to test."""
    with closing(Labs(server)) as labs:
        yield labs


@pytest.fixture
def lab_of(labs_of_the_module: Labs) -> Iterator[LabOf]:
    """Installs a queue, once for all tests of a module that ask for the same."""
    labs = labs_of_the_module
    used: dict[str | Path, Lab] = {}
    with ExitStack() as stack:

        def lab_of(queue: str | Path | Queue, *, fresh: bool = False) -> Lab:
            if fresh or isinstance(queue, Queue):
                lab, closing = labs.open(queue)
                stack.push(closing.__exit__)
                return lab
            if queue not in used:
                used[queue], closing = labs.take(queue)
                stack.callback(labs.give_back, queue, used[queue], closing)
            return used[queue]

        yield lab_of
