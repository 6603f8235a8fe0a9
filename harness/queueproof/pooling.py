"""Whether a queue works through PgBouncer in transaction mode: the same programs, with and without.

From here nobody sees who waits for whom, so workers act in turn. The step scheduler plays the
pooler's part as well, on connections that it chooses and shows: see `Conditions.pooled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queueproof.checker import declare
from queueproof.explore.conditions import Conditions
from queueproof.explore.lab import Lab
from queueproof.explore.programs import Program
from queueproof.explore.runner import Run, Runner
from queueproof.explore.shrink import Failure, breaches, shrink
from queueproof.explore.suites import Suite
from queueproof.guarantees import Offer
from queueproof.postgres.pooler import WAITED, Pooler, open_pooler

SHORT = 5  # jobs and operations of the programs of a quick look


@dataclass(slots=True)
class Passage:
    """What came of the programs that ran through a pooler.

    Attributes:
        pooler: Its name and version.
        transactions: How many went through it.
        spread: How many programs ran on several of its connections.
        failure: What broke, that does not break without it.
    """

    pooler: str
    transactions: int = 0
    spread: int = 0
    failure: Failure | None = None


def watch(lab: Lab, offer: Offer, pgbouncer: Path, level: int) -> Passage:
    """Run every program in which workers act in turn, until one breaks something.

    Args:
        lab: Where the queue is installed.
        offer: What it brings.
        pgbouncer: The program.
        level: 0 for the short programs only.

    Raises:
        ServerUnavailableError: PgBouncer does not start or does not connect.
    """
    programs = Suite(offer).settled()
    if level == 0:
        programs = [program for program in programs if program.size <= SHORT]
    with open_pooler(lab.conninfo, pgbouncer) as pooler:
        passage = Passage(pooler.name)
        for program in programs:
            failure = _break(lab, offer, pooler, program, passage)
            if failure is not None:
                passage.failure = _smallest(lab, offer, pooler, failure)
                break
        return passage


def again(lab: Lab, offer: Offer, pgbouncer: Path, program: Program) -> Failure | None:
    """What one program breaks through PgBouncer, and not without it.

    Raises:
        ServerUnavailableError: PgBouncer does not start or does not connect.
    """
    with open_pooler(lab.conninfo, pgbouncer) as pooler:
        return _break(lab, offer, pooler, program, Passage(pooler.name))


def _break(
    lab: Lab, offer: Offer, pooler: Pooler, program: Program, passage: Passage
) -> Failure | None:
    """What a program breaks each time through a pooler, and not without it."""
    conditions = Conditions(pooler=pooler.name)
    declared = declare(offer)
    runner = Runner(lab, held=offer.held, conditions=conditions)
    with lab.through(pooler):
        run = runner.run(program)
        passage.spread += pooler.busy_backends() > 1
        passage.transactions += pooler.transactions()
        violations = breaches(run, declared)
        if not violations or _waited(run, offer):
            return None
        again = runner.run(program)
        repeated = {violation.guarantee for violation in breaches(again, declared)}
    plain = Runner(lab, held=offer.held).run(program)
    anyway = {violation.guarantee for violation in breaches(plain, declared)}
    return next(
        (
            Failure(program, (), run, violation, conditions)
            for violation in violations
            if violation.guarantee in repeated - anyway
        ),
        None,
    )


def _smallest(lab: Lab, offer: Offer, pooler: Pooler, failure: Failure) -> Failure:
    """The shortest program that breaks the same, if that is the pooler's doing too."""
    runner = Runner(lab, held=offer.held, conditions=failure.conditions)
    with lab.through(pooler):
        shorter = shrink(runner, declare(offer), failure)
    found = _break(lab, offer, pooler, shorter.program, Passage(pooler.name))
    return found or failure


def _waited(run: Run, offer: Offer) -> bool:
    """Whether a statement was given up because it waited, which proves nothing."""
    return WAITED not in offer.queue.retry_on and any(
        error.sqlstate == WAITED for error, _ in run.errors.values()
    )
