"""Planner and statistics states under which a claim must keep its limit.

`UPDATE … WHERE id IN (SELECT … FOR UPDATE SKIP LOCKED LIMIT n)` takes more than n rows when the
planner runs the limited sub-select again for each outer row: every time it locks and returns the
next ones. Which plan it is depends on statistics and settings, so a claim is tried under a grid of
both instead of waiting for autovacuum to produce the bad one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, NamedTuple

from queueproof import waits
from queueproof.errors import ServerError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.probes.probe import Probe, Seen, Tell, asked, claimed, enqueue, reported, telling
from queueproof.queues.model import Claim, Step, watched
from queueproof.queues.offer import Offer
from queueproof.queues.sqltext import first_keyword
from queueproof.run.lab import Lab
from queueproof.run.session import Session, drive
from queueproof.schedule.conditions import PLANNERS
from queueproof.schedule.moments import ROUNDED_UP

LIMITS = (1, 3)  # one job, and several: LIMIT 1 may hide that a sub-select runs again
CLAIMS = ("claim", "complete_and_claim")  # operations that have a limit
MANY = range(100_001)  # jobs of a filling, one by one
_FREE = "claims while more jobs were free than a claim may take"
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
    """The way in which a table comes to hold what it holds, and what its statistics know of it."""

    # Jobs that this claim cannot get (another queue's, or not due), enqueued first.
    others: Annotated[int, MANY]
    before: Annotated[int, MANY]  # jobs enqueued before ANALYZE
    analyze: bool  # whether there is an ANALYZE
    after: Annotated[int, MANY]  # jobs enqueued after it

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
    """A claim that took more than its limit."""

    cell: Cell
    taken: int  # how many jobs it took
    plans: Sequence[tuple[str, str]]  # EXPLAIN of each of its statements, as (SQL, plan)
    # Whether it took jobs that it did not return: `jobs` shows them as running.
    silent: bool = False


class PlanGrid(Probe):
    """`claim-limit` under many plans."""

    shape = Cell

    def points(self, offer: Offer, level: int, /) -> list[Cell]:
        """The cells of the grid, those with one filling after the other."""
        queue = offer.queue
        limits = dict.fromkeys(queue.most("claim", limit, held=offer.held) for limit in LIMITS)
        claiming = [one for one in CLAIMS if one in queue.offers]
        grid = itertools.product(claiming, (QUICK, DEFAULT, DEEP)[level], PLANNERS, limits)
        return [Cell(filling, setting, limit, claim) for claim, filling, setting, limit in grid]

    def look(
        self, lab: Lab, offer: Offer, points: Sequence[Cell], _level: int, tell: Tell, /
    ) -> Seen:
        """Claim once in every cell, until a claim takes more than its limit."""
        evidence = {_FREE: 0, "distinct plans": 0}
        plans = set[tuple[str, ...]]()
        filled = None
        for number, cell in enumerate(telling(points, tell)):
            if filled != (cell.operation, cell.filling):
                _fill(lab, offer, cell.filling)
                filled = (cell.operation, cell.filling)
            # A worker that holds nothing: another may be answered that as well, whatever the plan.
            found = _claim_in(lab, offer, cell, f"w{number + 1}")
            if found.taken:
                plans.add(tuple(plan for _, plan in found.plans))
                evidence[_FREE] += 1
                evidence["distinct plans"] = len(plans)
            if found.taken > cell.limit:
                return _broken(found, evidence)
        return Seen(evidence, remark="; ".join(_unasked(offer, plans)))


def _broken(over: Overclaim, evidence: Mapping[str, int]) -> Seen:
    cell = over.cell
    # A job that is looked for behind others is not found where claims have taken it unseen.
    explained = [one.id for one in CATALOGUE.values() if one.probe.startswith("behind")]
    sentence = "jobs were passed over, as claims that take more than they return explain"
    return Seen(
        evidence,
        broken=f"a {cell.operation} with limit {cell.limit} took {over.taken} "
        f"({cell.filling}; {cell.setting})",
        found=over,
        # A claim's tokens are what they were before there was another way to claim.
        data=[list(cell.filling), *cell[1 : 3 if cell.operation == "claim" else 4]],
        explains=dict.fromkeys(explained, sentence) if over.silent else {},
    )


def _unasked(offer: Offer, plans: Iterable[Iterable[str]]) -> Iterator[str]:
    """The claims that a reader might think were asked, and were not."""
    if offer.held:
        yield "not tested: a claim of several jobs (a claim ends inside its transaction)"
    elif offer.queue.jobs_per_worker is not None:
        yield "not tested: a claim of several jobs (a worker has one job at a time)"
    elif "limit" not in offer.queue.takes("claim"):
        yield "not tested: a claim of several jobs (this claim has no limit parameter)"
    if not offer.held and "jobs" not in offer.queue.offers:
        yield "jobs taken and not answered were not counted: there is no `jobs`"
    if any("Function Scan" in plan for each in plans for plan in each):
        yield "plans inside a function are not seen"


def _fill(lab: Lab, offer: Offer, filling: TableState) -> None:
    lab.reset(renew=True)
    takes = offer.queue.takes("enqueue")
    if {"queue", "delay"} & takes:
        elsewhere = {"queue": "other"} if "queue" in takes else {"delay": timedelta(days=1)}
        _enqueue(lab, filling.others, **elsewhere)
    _enqueue(lab, filling.before)
    if filling.analyze:
        for table in lab.tables.names:
            lab.execute(f"ANALYZE {table}", waits.BULK)
    _enqueue(lab, filling.after)


def _enqueue(lab: Lab, count: int, **facts: object) -> None:
    enqueue(lab, count, **facts)
    lab.advance(ROUNDED_UP)  # what keeps times in whole seconds, or minutes, has them due now
    lab.promote(count)


def _claim_in(lab: Lab, offer: Offer, cell: Cell, worker: str) -> Overclaim:
    """Count the jobs that a claim takes under the settings of a cell."""
    session = lab.session("w1")
    plans: list[tuple[str, str]] = []
    done: Sequence[Claim] = ()
    if cell.operation == "complete_and_claim":
        done = drive(session, asked(lab, "claim", worker))
        if not done:
            return Overclaim(cell, 0, plans)
    before = reported(lab)["running"] - len(done)
    settings = PLANNERS[cell.setting]
    for name, value in settings.items():
        session.run(f"SET {name} = {value}")

    def see(step: Step) -> None:
        """Take the plan of a statement just before it runs."""
        if plan := explain(session, step):
            plans.append((step.sql, plan))

    claims: Sequence[Claim] = ()
    try:
        operation = asked(lab, cell.operation, worker, limit=cell.limit, jobs=done)
        claims = claimed(drive(session, watched(operation, see)))
    except ServerError:
        pass  # said to mean "nothing this time" or judged elsewhere; here it is no evidence
    finally:
        if session.in_transaction:
            session.run("ROLLBACK")
        for name in settings:
            session.run(f"RESET {name}")
    returned = len({claim.id for claim in claims})
    taken = max(returned, 0 if offer.held else reported(lab)["running"] - before)
    return Overclaim(cell, taken, plans, silent=taken > returned)


def explain(session: Session, step: Step) -> str:
    """The plan of a statement, as it would be now; empty where it has none."""
    if first_keyword(step.sql) not in _EXPLAINABLE:
        return ""
    rows = session.explain(step, "COSTS OFF").rows
    return _CLOCK.sub("", "\n".join(str(next(iter(row.values()))) for row in rows))
