"""Whether a queue works through PgBouncer in transaction mode: the same programs, with and without.

From here nobody sees who waits for whom, so workers act in turn. The step scheduler plays the
pooler's part as well, on connections that it chooses and shows: see `Conditions.pooled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queueproof.errors import ServerUnavailableError
from queueproof.history.calls import Call
from queueproof.judge.checker import declare
from queueproof.postgres.pooler import WAITED, Pooler, open_pooler
from queueproof.queues.offer import Offer
from queueproof.queues.worker import WorkerError
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import Program
from queueproof.search.shrink import Failure, breaches, one_by_one, shrink
from queueproof.space.suites import Suite

# A name of a prepared statement that is not known, or known already.
_NAMES = frozenset({"26000", "42P05"})
_NAMELESS = (
    "its driver prepares statements under names, which {} did not carry from one connection to"
    " another: use PgBouncer 1.21 or later with max_prepared_statements, or turn it off in the"
    " driver (asyncpg: statement_cache_size=0, psycopg: prepare_threshold=None)"
)
PROGRAMS = (25, 200, 1_000)  # by level


@dataclass(slots=True)
class PooledRuns:
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


def watch(lab: Lab, offer: Offer, pgbouncer: Path, level: int) -> PooledRuns:
    """Run every program in which workers act in turn, until one breaks something.

    Args:
        lab: Where the queue is installed.
        offer: What it brings.
        pgbouncer: The program.
        level: 0 for the short programs only.

    Raises:
        ServerUnavailableError: PgBouncer does not start or does not connect.
    """
    programs = Suite(offer).alone(PROGRAMS[level])
    with open_pooler(lab.conninfo, pgbouncer) as pooler:
        runs = PooledRuns(pooler.name)
        for program in programs:
            failure = _break(lab, offer, pooler, program, runs)
            if failure is not None:
                runs.failure = _smallest(lab, offer, pooler, failure)
                break
        return runs


def again(lab: Lab, offer: Offer, pgbouncer: Path, program: Program) -> Failure | None:
    """What one program breaks through PgBouncer, and not without it.

    Args:
        lab: Where the queue is installed.
        offer: What the queue brings.
        pgbouncer: Its program.
        program: What the workers do.

    Raises:
        ServerUnavailableError: PgBouncer does not start or does not connect.
    """
    with open_pooler(lab.conninfo, pgbouncer) as pooler:
        return _break(lab, offer, pooler, program, PooledRuns(pooler.name))


def _break(
    lab: Lab, offer: Offer, pooler: Pooler, program: Program, runs: PooledRuns
) -> Failure | None:
    """What a program breaks each time through a pooler, and not without it."""
    conditions = Conditions(pooler=pooler.name)
    declared = declare(offer)
    runner = Runner(lab, held=offer.held, conditions=conditions)
    with lab.through(pooler):
        run = _run_through(lab, runner, program, pooler)
        runs.spread += pooler.busy_backends() > 1
        runs.transactions += pooler.transactions()
    pooler.renew()  # what is locked by its connections would be in the way of others
    run.short = _short(lab, runner, program, run)
    violations = breaches(run, declared)
    if not violations:
        return None
    plain = Runner(lab, held=offer.held).run(program)
    if _waited(run, offer) and any(call.waits for call in plain.history.calls):
        return None  # given up because it waited, as it does without the pooler
    with lab.through(pooler):
        again = runner.run(program)
    pooler.renew()
    again.short = _short(lab, runner, program, again)
    repeated = {violation.guarantee for violation in breaches(again, declared)}
    anyway = {violation.guarantee for violation in breaches(plain, declared)}
    return next(
        (
            Failure(program, (), run, violation, conditions)
            for violation in violations
            if violation.guarantee in repeated - anyway
        ),
        None,
    )


def _run_through(lab: Lab, runner: Runner, program: Program, pooler: Pooler) -> Run:
    """A run whose statements the pooler understands.

    Raises:
        ServerUnavailableError: It does not carry the names under which a driver prepares them.
    """
    try:
        run = runner.run(program)
    except WorkerError as error:
        if any(f" {state}: " in str(error) for state in _NAMES):
            raise ServerUnavailableError(_NAMELESS.format(pooler.name)) from error
        raise
    if not lab.chooses_connections and any(
        error.sqlstate in _NAMES for error, _ in run.errors.values()
    ):
        raise ServerUnavailableError(_NAMELESS.format(pooler.name))
    return run


def _short(lab: Lab, runner: Runner, program: Program, run: Run) -> Call | None:
    """A claim that got less than without the pooler; of statements `Conditions.pooled` shows it."""
    return None if lab.chooses_connections or program.races else runner.short(program, run)


def _smallest(lab: Lab, offer: Offer, pooler: Pooler, failure: Failure) -> Failure:
    """The shortest program that breaks the same, if that is the pooler's doing too."""
    runner = Runner(lab, held=offer.held, conditions=failure.conditions)
    with lab.through(pooler):
        shorter = shrink(failure, one_by_one(runner, declare(offer), failure))
    found = _break(lab, offer, pooler, shorter.program, PooledRuns(pooler.name))
    return found or failure


def _waited(run: Run, offer: Offer) -> bool:
    """Whether a statement was given up because it waited."""
    return WAITED not in offer.queue.retry_on and any(
        error.sqlstate == WAITED for error, _ in run.errors.values()
    )
