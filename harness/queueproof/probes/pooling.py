"""Queues behind PgBouncer in transaction mode: the same programs, with and without.

From here nobody sees who waits for whom, so workers act in turn. The step scheduler plays the
pooler's part as well, on connections that it chooses and shows: see `Conditions.pooled`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from queueproof.errors import ServerUnavailableError
from queueproof.judge.checker import declare
from queueproof.postgres.pooler import MISSING, WAITED, Pooler, find_pgbouncer, open_pooler
from queueproof.probes.probe import Probe, Seen, Tell, telling
from queueproof.queues.offer import Offer
from queueproof.queues.worker import WorkerError
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import SURE, Runner
from queueproof.schedule.conditions import PLANNED, Conditions
from queueproof.schedule.programs import Program
from queueproof.search.shrink import Failure, breaches, one_by_one, shrink
from queueproof.space.suites import ALONE, Suite

# A name of a prepared statement that is not known, or known already.
_NAMES = frozenset({"26000", "42P05"})
_NAMELESS = (
    "its driver prepares statements under names, which {} did not carry from one connection to"
    " another: use PgBouncer 1.21 or later with max_prepared_statements, or turn it off in the"
    " driver (asyncpg: statement_cache_size=0, psycopg: prepare_threshold=None)"
)
_NOT_THROUGH = (
    "transactions through PgBouncer itself (not installed: apt-get install pgbouncer, "
    "or brew install pgbouncer)"
)
_SPREAD = "programs over several of its connections"
PROGRAMS = (25, 200, 1_000)  # by level


class ThroughPgbouncer(Probe):
    """`pooler-safe` with PgBouncer itself, beside the runs in which its part is played."""

    says_less = True

    def read(self, data: object) -> Program:
        """A program is read with more care."""
        return Program.from_data(data)

    def points(self, offer: Offer, level: int, /) -> Sequence[Program]:
        """Programs in which workers act in turn; none where PgBouncer is not there to run them."""
        return Suite(offer).first(ALONE, PROGRAMS[level]) if find_pgbouncer() else ()

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:
        """Measure; a PgBouncer that does not start is no fault of the server's."""
        try:
            return super().watch(lab, offer, level, tell)
        except ServerUnavailableError as error:
            return Seen({}, unable=str(error))

    def look(
        self, lab: Lab, offer: Offer, points: Sequence[Program], _level: int, tell: Tell, /
    ) -> Seen:
        """Run every program, until one breaks something."""
        pgbouncer = find_pgbouncer()
        if pgbouncer is None:
            # Whose connections are a worker's own can only be asked behind PgBouncer itself.
            return Seen({_NOT_THROUGH: 0}, lacks=MISSING, partial=lab.chooses_connections)
        with open_pooler(lab.conninfo, pgbouncer) as pooler:
            evidence = Counter({f"transactions through {pooler.name}": 0, _SPREAD: 0})
            for program in telling(points, tell):
                failure = _break(lab, offer, pooler, program, evidence)
                if failure is not None:
                    if len(points) > 1:  # what is replayed was made as short as it goes
                        failure = _smallest(lab, offer, pooler, failure)
                    broken = f"{failure.violation.because} ({pooler.name})"
                    return Seen(evidence, broken, failure, data=failure.program.to_data())
        unable = "" if all(evidence.values()) else f"{pooler.name} kept to one connection"
        return Seen(evidence, unable=unable)


def _break(
    lab: Lab, offer: Offer, pooler: Pooler, program: Program, evidence: Counter[str]
) -> Failure | None:
    """The failure that a program meets each time through a pooler, and not without it."""
    conditions = Conditions(pooler=pooler.name)
    declared = declare(offer)
    runner = Runner(lab, held=offer.held, conditions=conditions)
    run = _run_through(lab, runner, program, pooler, evidence)
    violations = breaches(run, declared)
    if not violations:
        return None
    # Real time may decide, as between jobs of one moment: so each way is gone more than once.
    direct = Runner(lab, held=offer.held, conditions=PLANNED)
    plain = [direct.run(program) for _ in range(SURE)]
    if _waited(run, offer) and any(call.waits for one in plain for call in one.history.calls):
        return None  # given up because it waited, as it does without the pooler
    again = [_run_through(lab, runner, program, pooler, Counter()) for _ in runner.again]
    repeated = set.intersection(*({v.guarantee for v in breaches(o, declared)} for o in again))
    anyway = {violation.guarantee for one in plain for violation in breaches(one, declared)}
    return next(
        (
            Failure(program, (), run, violation, conditions)
            for violation in violations
            if violation.guarantee in repeated - anyway
        ),
        None,
    )


def _run_through(
    lab: Lab, runner: Runner, program: Program, pooler: Pooler, evidence: Counter[str]
) -> Run:
    """A run whose statements the pooler understands, and what it is worth.

    Raises:
        ServerUnavailableError: It does not carry the names under which a driver prepares them.
    """
    unnamed = ServerUnavailableError(_NAMELESS.format(pooler.name))
    try:
        with lab.through(pooler):
            run = runner.run(program)
            evidence[f"transactions through {pooler.name}"] += pooler.transactions()
            evidence[_SPREAD] += pooler.busy_backends() > 1
    except WorkerError as error:
        if any(f" {state}: " in str(error) for state in _NAMES):
            raise unnamed from error
        raise
    pooler.renew()  # what is locked by its connections would be in the way of others
    if not lab.chooses_connections:
        if any(error.sqlstate in _NAMES for error, _ in run.errors.values()):
            raise unnamed
        if not program.races:  # of statements `Conditions.pooled` shows it
            run.short = runner.short(program, run)
    return run


def _smallest(lab: Lab, offer: Offer, pooler: Pooler, failure: Failure) -> Failure:
    """The shortest program that breaks the same, if that is the pooler's doing too."""
    runner = Runner(lab, held=offer.held, conditions=failure.conditions)
    with lab.through(pooler):
        shorter = shrink(failure, one_by_one(runner, declare(offer), failure))
    return _break(lab, offer, pooler, shorter.program, Counter()) or failure


def _waited(run: Run, offer: Offer) -> bool:
    """True if a statement was given up because it waited."""
    return WAITED not in offer.queue.retry_on and any(
        error.sqlstate == WAITED for error, _ in run.errors.values()
    )
