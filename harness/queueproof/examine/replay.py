"""A story again, from its token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queueproof.errors import QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.examine.work import runner_under
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.judge.checker import declare
from queueproof.probes.probes import PROBES
from queueproof.queues.model import OPERATIONS, Queue
from queueproof.queues.offer import Offer
from queueproof.report.story import Told, of_queue, tell, tell_found
from queueproof.report.text import to_text
from queueproof.run.lab import Lab
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import Program
from queueproof.schedule.reading import refuse
from queueproof.search.explore import EXHAUSTIVE
from queueproof.search.shrink import Failure, breaches, find
from queueproof.search.tokens import decode_token

# Seconds: a queue that cuts times to whole minutes breaks at some moments of one, not at others.
MOMENTS = (0.0, 11.3, 23.3, 37.3, 49.3)
REPLAYS = 10  # of a run in which the server chose who of several waiting sessions went on


@dataclass(frozen=True, slots=True)
class Replayed:
    """A story that happened again.

    Attributes:
        data: What its token holds: program with schedule, or what a probe needs.
        failure: What happened; None for a probe's story.
        accepted: Why the queue declares the break as known; empty where it does not.
    """

    guarantee: str
    told: Told
    data: Mapping[str, Any]
    failure: Failure | None = None
    accepted: str = ""

    @property
    def story(self) -> str:
        """The story as text."""
        return to_text(self.told)


def told_by(token: str) -> tuple[str, str, int, Mapping[str, Any]]:
    """The contents of a token: of which queue, the guarantee, the seed, and the story's data.

    Raises:
        QueueproofError: It is no token; the message has the field.
    """
    digest, guarantee, seed, data = decode_token(token)
    if "probe" in data:
        if guarantee not in PROBES:
            refuse("guarantee", guarantee, "one that is measured, as what follows says")
        PROBES[guarantee].read(data["probe"])
    elif data["broken"] != guarantee and not CATALOGUE[guarantee].variations:
        refuse("broken", data["broken"], f"{guarantee}, whose story it is")
    return digest, guarantee, seed, data


def replay(lab: Lab, token: str) -> Replayed | None:
    """A story again; None where it does not happen any more.

    Where the queue has been edited since, its program is run under every order, up to
    `EXHAUSTIVE` of them: the schedule of the token counts statements that may have gone. So it is
    where a worker process does not break any more: of its library nobody knows here.

    Args:
        token: What `encode_token` made.

    Raises:
        QueueproofError: It is no token, or its program does not fit the queue any more.
    """
    digest, guarantee, seed, data = told_by(token)
    edited = digest != lab.queue.digest
    offer = calibrate(lab, replayed=not edited)  # an edited queue may have a time of its own now
    if edited and "program" in data:
        missing = lacking(lab.queue, Program.from_data(data["program"]))
        if missing:
            raise QueueproofError(
                f"{lab.queue.name} has changed, and the story's program needs {missing}, which it"
                " no longer offers: check it anew"
            )
    by_clients = lab.by_clients  # nobody knows all the files of a program
    moments: tuple[float, ...] = () if edited else MOMENTS[:1] if by_clients else MOMENTS
    orders = EXHAUSTIVE if edited or by_clients else 0
    found = again(lab, offer, guarantee, data, moments=moments, orders=orders, seed=seed)
    known = offer.queue.breaks.get(guarantee) or CATALOGUE[guarantee].accepted(offer)
    return found and replace(found, accepted=known)


def again(
    lab: Lab,
    offer: Offer,
    guarantee: str,
    data: Mapping[str, Any],
    *,
    moments: Sequence[float] = MOMENTS[:1],
    orders: int = 0,
    seed: int = 0,
) -> Replayed | None:
    """A story again, or None where it does not happen any more.

    Args:
        moments: Seconds by which the clock is ahead when its schedule is run.
        orders: Most orders of its program that are run where that does not break it.
    """
    if "probe" in data:
        found = PROBES[guarantee].replay(lab, offer, data["probe"])
        return Replayed(guarantee, tell_found(found, guarantee), data) if found else None
    program = Program.from_data(data["program"])
    conditions = Conditions(**data["under"])
    runner = runner_under(lab, offer, conditions, anew=True)
    broken, declared = data["broken"], declare(offer)
    for ahead in moments:
        for _ in range(REPLAYS):
            run = runner.run(program, data["schedule"], ahead)
            for violation in breaches(run, declared):
                if violation.guarantee == broken:
                    failure = Failure(program, tuple(data["schedule"]), run, violation, conditions)
                    return _replayed(lab, guarantee, data, failure)
            if not run.ambiguous:
                break
    anew = find(runner, declared, program, broken, budget=orders, seed=seed) if orders else None
    if anew is None:
        return None
    data = {**data, "schedule": list(anew.schedule)}
    return _replayed(lab, guarantee, data, anew)


def _replayed(lab: Lab, guarantee: str, data: Mapping[str, Any], failure: Failure) -> Replayed:
    story = tell(failure.run, failure.violation, failure.conditions, guarantee)
    return Replayed(guarantee, of_queue(story, lab.queue, lab.schema), data, failure)


def lacking(queue: Queue, program: Program) -> str:
    """The operations of a program that a queue does not offer, in words; empty where it has all.

    Args:
        program: What is to be run on it.
    """
    kinds = {do.kind for stage in program.stages for _, dos in stage for do in dos}
    return " and ".join(sorted((kinds & OPERATIONS.keys()) - queue.offers))
