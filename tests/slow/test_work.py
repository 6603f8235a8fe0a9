"""Work that processes do beside each other: same seed, same card, however many they are."""

import os
import signal
from collections.abc import Iterable
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import active_children

import psycopg
import pytest

from queueproof.examine import work
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue
from queueproof.examine.processes import MOST, lent_server, processes
from queueproof.examine.work import Crew, Exploration, Tried, _most, beside
from queueproof.guarantees.catalogue import select
from queueproof.machine import processors
from queueproof.postgres import Server
from queueproof.queues.model import Operation, Queue, Step
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load, load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.schedule.actors import identities, identity
from queueproof.schedule.conditions import PLAIN
from tests.fix_labs import LabOf
from tests.fix_places import SKIP_LOCKED, STRATEGIES
from tests.fix_plays import play
from tests.fix_programs import eventually
from tests.fix_queues import queue_file

RACE = play("w1 claims | w2 claims", 2)
ASKED = ["single-claim", "isolation"]
UNIT = Exploration(RACE, PLAIN, budget=5)
OUTBOX = SKIP_LOCKED.replace(
    "FOR UPDATE SKIP LOCKED", "AND xmin::text::xid8 < pg_snapshot_xmin(pg_current_snapshot())", 1
)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin however little there is to do."""
    monkeypatch.setattr(work, "WORTH", 0)


@pytest.mark.parametrize(
    ("queue", "asked"),
    [
        (load_text(queue_file(), "q.sql"), [*ASKED, "claim-limit", "no-lost-job", "non-blocking"]),
        (load(STRATEGIES / "select_then_update.sql"), ASKED),
        (load(STRATEGIES / "broken" / "fencing_id_only.sql"), ["fencing", "isolation"]),
    ],
    ids=lambda queue: getattr(queue, "name", ""),
)
def test_the_same_seed_gives_the_same_card(queue: Queue, asked: list[str], server: Server) -> None:
    """Of one process and of three: verdicts, reasons, evidence, stories and tokens."""
    found = []
    for jobs in (1, 3):
        with open_lab(queue, server) as lab:
            card = check_queue(lab, select(asked), seed=3, profile="glance", jobs=jobs)
        found.append([asdict(judgement) | {"seconds": 0} for judgement in card.guarantees])
    one, three = found
    assert one == three


def told(tries: Iterable[Tried]) -> list[object]:
    """What is to be the same of runs."""
    return [
        (one.evidence, one.errors, [(found.schedule, found.violation) for found in one.broken])
        for one in tries
    ]


def die() -> None:
    """End the process, as the kernel does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    """A queue that hands a job out twice."""
    return lab_of(STRATEGIES / "select_then_update.sql")


@pytest.mark.sample
def test_what_nobody_has_done_is_done_here(lab: Lab) -> None:
    """The same comes of a unit that a process does, that none does, and that one dies of."""
    offer = calibrate(lab)
    tries = list(Crew(lab, offer, 0).tries(UNIT))
    alone = told(tries)
    assert "single-claim" in {found.violation.guarantee for one in tries for found in one.broken}
    with beside(lab, 2) as pool:
        assert pool is not None
        crew = Crew(lab, offer, 0, pool)
        crew.go_ahead([UNIT])
        wait([*crew._ahead.values()], timeout=60)
        assert told(crew.tries(UNIT)) == alone
        asked = [pool.processes.submit(die) for _ in range(9)]
        asked[-2].cancel()  # which tells the last all the same
        with pytest.raises(BrokenProcessPool):
            asked[-1].result(timeout=60)
        crew.go_ahead([UNIT._replace(budget=6)])
        assert told(crew.tries(UNIT)) == alone


def test_processes_that_are_frozen_are_not_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they were to do is done here, and they are gone at the end."""
    offer = calibrate(lab)
    alone = told(Crew(lab, offer, 0).tries(UNIT))
    with beside(lab, 2) as pool:
        assert pool is not None
        pool.processes.submit(os.getpid).result(timeout=60)
        frozen = active_children()
        for one in frozen:
            os.kill(one.pid or 0, signal.SIGSTOP)
        monkeypatch.setattr(work, "PART", 0.1)
        monkeypatch.setattr("queueproof.examine.processes.END", 0.1)
        crew = Crew(lab, offer, 0, pool)
        crew.go_ahead([UNIT._replace(budget=n) for n in range(5, 15)])
        future = crew._ahead[UNIT]
        eventually(future.running)  # as far as anybody here knows
        assert told(crew.tries(UNIT)) == alone
        # The first few were handed over, and who waited for one of them has done the others.
        assert [future.done() for future in crew._ahead.values()][-2:] == [True, True]
    # The pool's own thread reaps them as well: whoever comes second knows of it a moment later.
    eventually(lambda: [one.exitcode for one in frozen] == [-signal.SIGKILL] * len(frozen))


def test_what_is_left_is_not_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody else has announced it; nor is a little, which in bits adds up."""
    with beside(lab, 2) as pool:
        crew = Crew(lab, calibrate(lab), 0, pool)
        crew.go_ahead([UNIT, UNIT])
        crew.leave([UNIT])
        assert len(crew._ahead) == 1
        crew.leave([UNIT])
        assert not crew._ahead
    monkeypatch.setattr(work, "WORTH", 10)
    with beside(lab, 2) as pool:
        crew = Crew(lab, calibrate(lab), 0, pool)
        crew.go_ahead([UNIT])
        crew.leave([UNIT])
        assert not active_children()
        crew.go_ahead([UNIT])
        assert len(active_children()) == 1
        assert crew._ahead
        crew.leave([UNIT])
        assert not crew._ahead


def test_a_server_s_connections_are_enough_for_all(lab: Lab) -> None:
    """However many processes are wanted: each of ours has two hundred for itself."""
    assert _most(lab, 1) == 1
    assert 1 < _most(lab, 1000) <= max(MOST, 2 * processors())


def test_a_class_that_stands_in_no_module_is_judged_in_one_process(server: Server) -> None:
    """Nobody else could make one."""

    class Local(Queue):
        """Of this function alone."""

        def install(self) -> Operation[None]:
            """Nothing."""
            yield Step("SELECT")

    with open_lab(Local(), server) as lab:
        assert _most(lab, 4) == 1
        assert Crew(lab, Offer(lab.queue, held=False), 0).is_alone


def started_and_called(server: Server | None) -> tuple[object, str]:
    """When a server, or this process' own, was started, and what a worker here is called."""
    with (server or lent_server()).database() as conninfo, psycopg.connect(conninfo) as connection:
        (row,) = connection.execute("SELECT pg_catalog.pg_postmaster_start_time()").fetchall()
    return row[0], identity("w1")


def test_each_has_a_server_of_its_own(server: Server) -> None:
    """Transaction ids, sessions and locks belong to a server, and a queue may read them."""
    with processes(server, 1) as pool:
        there, called = pool.submit(started_and_called, None).result()
    assert there != started_and_called(server)[0]
    assert identity("w1") == called


def test_on_somebodys_server_no_two_have_a_worker_of_one_name(theirs: Server) -> None:
    """A sweep that asks who is connected would take another process' worker for its own."""
    with processes(theirs, 1) as pool:
        _, called = pool.submit(started_and_called, None).result()
    mine, other = identity("w1"), identity("w2")
    assert mine != called
    assert (called < other) == (mine < other)
    assert identities("w1").sub("w1", f"{called}, {mine}") == "w1, w1"


@pytest.mark.parametrize(("text", "alone"), [(SKIP_LOCKED, False), (OUTBOX, True)])
def test_what_sees_neighbours_is_judged_alone(theirs: Server, text: str, *, alone: bool) -> None:
    """On somebody's server processes share it, so that a queue that reads it has no other."""
    with open_lab(load_text(text, "q.sql"), theirs) as lab, beside(lab, 2) as helpers:
        assert (helpers is None, "judged by one process" in lab.label) == (alone, alone)
