"""Planner and statistics states under which a claim must keep its limit.

`UPDATE … WHERE id IN (SELECT … FOR UPDATE SKIP LOCKED LIMIT n)` takes more than n rows when the
planner runs the limited sub-select again for each outer row: every time it locks and returns the
next ones. Which plan it is depends on statistics and settings, so a claim is tried under a grid of
both instead of waiting for autovacuum to produce the bad one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

from queueproof import waits
from queueproof.errors import ServerError
from queueproof.queues.model import Claim, Operation, Step
from queueproof.queues.offer import Offer
from queueproof.queues.sqltext import first_keyword
from queueproof.run.lab import Lab
from queueproof.run.session import Session, drive, execute
from queueproof.schedule.actors import identity
from queueproof.schedule.conditions import PLANNERS

LIMITS = (1, 3)
CLAIMS = ("claim", "complete_and_claim")  # operations that have a limit
MANY = range(100_001)  # jobs of a filling, one by one
_EXPLAINABLE = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH"})

_INTERVAL = "'[^']*'::interval"
# How the harness's clock shows in a plan: one that has not been moved, and one that has.
_CLOCK = re.compile(
    rf" \+ ('00:00:00'::interval|CASE (WHEN \(\S*now\(\) >= '[^']*'::[a-z ]+\) THEN {_INTERVAL} )+"
    rf"ELSE {_INTERVAL} END)"
)

REWRITE = (
    "Write the sub-select so that it runs once: `WHERE id = ANY (ARRAY(SELECT … LIMIT n FOR UPDATE "
    "SKIP LOCKED))`, or as a CTE, `WITH picked AS MATERIALIZED (…)`, that the UPDATE joins."
)


class TableState(NamedTuple):
    """How a table comes to hold what it holds, and what its statistics know of it.

    Attributes:
        others: Jobs that this claim cannot get (another queue's, or not due), enqueued first.
        before: Jobs enqueued before ANALYZE.
        analyze: Whether there is an ANALYZE.
        after: Jobs enqueued after it.
    """

    others: Annotated[int, MANY]
    before: Annotated[int, MANY]
    analyze: bool
    after: Annotated[int, MANY]

    def __str__(self) -> str:
        parts = []
        if self.others:
            parts.append(f"{self.others} jobs that cannot be claimed now")
        if self.analyze:
            parts.append(f"{self.before} that can, ANALYZE, then {self.after} more")
        else:
            parts.append(f"{self.before + self.after} that can, never analysed")
        return ", ".join(parts)


QUICK = (
    TableState(0, 20, analyze=False, after=0),
    TableState(0, 1, analyze=True, after=19),
    TableState(0, 1, analyze=True, after=4),
    TableState(0, 20, analyze=True, after=0),
)
DEFAULT = (
    *QUICK,
    TableState(0, 0, analyze=True, after=20),
    TableState(0, 1, analyze=True, after=200),
    TableState(500, 0, analyze=True, after=50),
)
DEEP = (*DEFAULT, TableState(20_000, 0, analyze=True, after=500))


class Cell(NamedTuple):
    """One point of the grid; by which operation jobs are claimed there."""

    filling: TableState
    setting: Annotated[str, PLANNERS]
    limit: Annotated[int, range(1, 1001)]
    operation: Annotated[str, CLAIMS] = "claim"


@dataclass(slots=True)
class Overclaim:
    """A claim that took more than its limit.

    Attributes:
        cell: Where.
        taken: How many jobs it took.
        plans: EXPLAIN of each of its statements, as (SQL, plan).
        silent: Whether it took jobs that it did not return: `jobs` shows them as running.
    """

    cell: Cell
    taken: int
    plans: Sequence[tuple[str, str]]
    silent: bool = False


@dataclass(slots=True)
class PlanFindings:
    """What a walk over the grid showed.

    Attributes:
        claims: Claims that took at least one job while more than their limit were free.
        plans: Distinct plans among them.
        overclaim: The first claim over its limit.
    """

    claims: int = 0
    plans: set[tuple[str, ...]] = field(default_factory=set)
    overclaim: Overclaim | None = None


def walk(lab: Lab, offer: Offer, fillings: Sequence[TableState]) -> PlanFindings:
    """Claim once in every cell of the grid, until one takes more than its limit.

    Args:
        lab: Where the queue is installed; it is filled anew for each filling.
        offer: What the queue brings.
        fillings: What the table holds: one side of the grid; planner settings and limits are
            the others.
    """
    findings = PlanFindings()
    asked = (offer.queue.most("claim", limit, held=offer.held) for limit in LIMITS)
    limits = tuple(dict.fromkeys(asked))
    claiming = [one for one in CLAIMS if one in offer.queue.offers]
    for operation, filling in itertools.product(claiming, fillings):
        _fill(lab, offer, filling)
        for setting, limit in itertools.product(PLANNERS, limits):
            cell = Cell(filling, setting, limit, operation)
            over = _claim_in(lab, offer, cell, findings)
            if over is not None:
                findings.overclaim = over
                return findings
    return findings


def unasked(offer: Offer, found: PlanFindings) -> Iterator[str]:
    """What a reader might think was asked, and was not.

    Args:
        offer: What the queue brings.
        found: What was.
    """
    if offer.held:
        yield "a claim of several was not asked: it ends inside its transaction"
    elif offer.queue.jobs_per_worker is not None:
        yield "a claim of several was not asked: a worker has one job at a time"
    elif "limit" not in offer.queue.takes("claim"):
        yield "a claim of several was not asked: it takes no limit"
    if not offer.held and "jobs" not in offer.queue.offers:
        yield "jobs taken and not answered were not counted: there is no `jobs`"
    if any("Function Scan" in plan for plans in found.plans for plan in plans):
        yield "plans inside a function are not seen"


def replay(lab: Lab, offer: Offer, cell: Cell) -> Overclaim | None:
    """The claim of one cell again.

    Args:
        lab: Where the queue is installed; it is filled anew.
        offer: What the queue brings.
        cell: Filling, planner setting and limit.
    """
    _fill(lab, offer, cell.filling)
    return _claim_in(lab, offer, cell, PlanFindings())


def _fill(lab: Lab, offer: Offer, filling: TableState) -> None:
    lab.reset(renew=True)
    takes = offer.queue.takes("enqueue")
    session = lab.session("producer")
    if {"queue", "delay"} & takes:
        elsewhere = {"queue": "other"} if "queue" in takes else {"delay": timedelta(days=1)}
        _enqueue(lab, session, filling.others, **elsewhere)
    _enqueue(lab, session, filling.before)
    if filling.analyze:
        for table in lab.tables:
            lab.execute(f"ANALYZE {table}", waits.BULK)
    _enqueue(lab, session, filling.after)


def _enqueue(lab: Lab, session: Session, count: int, **arguments: object) -> None:
    for _ in range(count):
        drive(session, lab.start("enqueue", **{**lab.defaults(), **arguments}))
    lab.promote(count)


def _claim_in(lab: Lab, offer: Offer, cell: Cell, findings: PlanFindings) -> Overclaim | None:
    session = lab.session("w1")
    settings = PLANNERS[cell.setting]
    for name, value in settings.items():
        session.run(f"SET {name} = {value}")
    plans: list[tuple[str, str]] = []
    # A worker that holds nothing: another may be answered that as well, whatever the plan.
    worker = identity(f"w{findings.claims + 1}")
    arguments: dict[str, Any] = {**lab.defaults(), "worker": worker}
    if cell.operation == "complete_and_claim":
        arguments["jobs"] = drive(session, lab.start("claim", **{**arguments, "limit": 1}))
        if not arguments["jobs"]:
            return None
    before = _running(lab) - len(arguments.get("jobs", ()))
    operation = lab.start(cell.operation, **{**arguments, "limit": cell.limit})
    claims: Sequence[Claim] = ()
    try:
        claims = _explained(session, operation, plans)
    except ServerError:
        # Said to mean "nothing this time" or judged elsewhere; here it is no evidence.
        claims = ()
    finally:
        if session.in_transaction:
            session.run("ROLLBACK")
        for name in settings:
            session.run(f"RESET {name}")
    returned = len({claim.id for claim in claims})
    taken = max(returned, 0 if offer.held else _running(lab) - before)
    if taken:
        findings.claims += 1
        findings.plans.add(tuple(plan for _, plan in plans))
    over = taken > cell.limit
    return Overclaim(cell, taken, plans, silent=taken > returned) if over else None


def _explained(
    session: Session, operation: Operation[Any], plans: list[tuple[str, str]]
) -> Sequence[Claim]:
    """A claim, with the plan of each of its statements taken just before it runs."""
    try:
        step = next(operation)
        while True:
            plan = explain(session, step)
            if plan:
                plans.append((step.sql, plan))
            step = operation.send(execute(session, step))
    except StopIteration as stop:
        claims: Sequence[Claim] = stop.value[1] if isinstance(stop.value, tuple) else stop.value
        return claims


def explain(session: Session, step: Step) -> str:
    """The plan of a statement, as it would be now; empty where it has none.

    Args:
        session: Where the statement would run.
        step: The statement, with its parameters.
    """
    if first_keyword(step.sql) not in _EXPLAINABLE:
        return ""
    rows = session.explain(step, "COSTS OFF").rows
    return _CLOCK.sub("", "\n".join(str(next(iter(row.values()))) for row in rows))


def _running(lab: Lab) -> int:
    """How many jobs the queue itself reports as running; 0 where it reports none."""
    if "jobs" not in lab.queue.offers:
        return 0
    rows = drive(lab.session("producer"), lab.start("jobs"))
    assert isinstance(rows, list)
    return sum(row.state == "running" for row in rows)


def fillings(level: int) -> Iterator[TableState]:
    """The grid's fillings by how thorough the check is: 0 quick, 1 default, 2 deep."""
    yield from (QUICK, DEFAULT, DEEP)[level]
