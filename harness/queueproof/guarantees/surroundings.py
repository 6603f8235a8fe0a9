"""Guarantees on what surrounds a queue: clocks, isolation levels, poolers, and what breaks down."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import FAULTS
from queueproof.space.suites import ALONE, MEETINGS, SPLIT

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run

FEWER = 10  # of so many acts and meetings one is tried under each of these conditions
FAULTY = 16  # of so many acts there is one with each fault


def _claims(run: Run) -> dict[str, int]:
    claims = sum(len(call.ids) for call in run.history.of_kind("claim"))
    return {"claims by sessions in other time zones": claims}


def _meetings(run: Run) -> Counter[str]:
    calls = run.history.calls
    finished = [call for call in calls if call.returned is not None]
    pairs = itertools.combinations(finished, 2)
    met = sum(one.actor != other.actor and one.overlaps(other) for one, other in pairs)
    return Counter({"operations that overlapped another": met}) + Counter(
        f"retryable errors ({call.error[:5]})" for call in calls if call.answer == "retry"
    )


def _hits(run: Run) -> dict[str, int]:
    hit = Counter(fault for fault, _, _ in run.faults)
    hit["restart"] = len(run.history.of_kind("restart"))  # each may hit several workers
    return {fault.several: hit[kind] for kind, fault in FAULTS.items()}


def _swaps(run: Run) -> dict[str, int]:
    changed = [beat.actor for beat in run.trace if beat.event == "connection"]
    swaps = len(changed) - len(set(changed))
    return {"transactions that ran on another connection than the transaction before": swaps}


GUARANTEES = (
    Guarantee(
        id="server-clock",
        called="clock skew, clock drift",
        apart=True,
        sentence="Only the database's clock counts: a wrong clock on a worker changes nothing.",
        why="a worker whose clock is wrong steals running jobs, or runs jobs before their time",
        source="https://github.com/earendil-works/absurd",
        wild="""A worker sends its own time as the start of a lease or as a due time. Or the
            column is a timestamp without time zone, and now() means something else in a session
            with another TimeZone.""",
        safe="""`timestamptz` columns, and `now()` or `clock_timestamp()` in every statement;
            workers send durations, never points in time.""",
        evidence=_claims,
        variations=(Variation(Conditions(clocks=True), [ALONE], FEWER),),
        timed=True,
    ),
    Guarantee(
        id="isolation",
        called="REPEATABLE READ, SERIALIZABLE, serialization failure",
        apart=True,
        sentence="""Under REPEATABLE READ and SERIALIZABLE nothing worse happens than an error
            that can be retried.""",
        why="a changed default of the database turns into lost or doubled work",
        source="https://www.postgresql.org/docs/current/transaction-iso.html",
        wild="""A lock is taken first and what it guards is read after: under REPEATABLE READ
            the snapshot is from before the lock, and where no row conflicts nothing is refused.
            Or error 40001 stops a worker that does not retry.""",
        safe="""Decide by the row itself, in the statement that changes it, so that a conflict
            is error 40001, and retry 40001 and 40P01. Where a lock must guard a read: `BEGIN
            ISOLATION LEVEL READ COMMITTED`.""",
        evidence=_meetings,
        variations=(
            # A snapshot that serves several statements is old at the later ones.
            Variation(Conditions(isolation="repeatable read"), [MEETINGS, SPLIT], FEWER),
            # What an old snapshot hides that level has shown, and this one only refuses.
            Variation(Conditions(isolation="serializable"), [MEETINGS], 2 * FEWER),
        ),
    ),
    Guarantee(
        id="crash-safe",
        called="durability, kill -9",
        apart=True,
        sentence="""If a worker, a connection or the server dies, no confirmed change is lost or
            done twice, even if it dies between a COMMIT and its answer.""",
        why="an outage of a second loses jobs, or runs finished ones again",
        source="https://github.com/rails/solid_queue/issues/748",
        wild="""synchronous_commit = off answers before the commit is on disk, and a crash of
            the server empties an UNLOGGED table. A recovery in two transactions dies between
            them, and nothing looks at the job again.""",
        safe="""A logged table, `synchronous_commit` left on, one transaction for each change of
            state. Where the answer to a COMMIT is lost, lease and token decide: asking again is
            refused or changes nothing.""",
        evidence=_hits,
        variations=(
            Variation(PLAIN, [kind for kind in FAULTS if not FAULTS[kind].of_server], FAULTY),
            Variation(Conditions(killed=True), ["restart"], FAULTY),
        ),
    ),
    Guarantee(
        id="pooler-safe",
        called="PgBouncer, transaction pooling, advisory locks",
        apart=True,
        sentence="The queue works through a proxy that pools transactions, such as PgBouncer.",
        why="what a session keeps is gone in the next transaction, or is another worker's",
        source="https://www.pgbouncer.org/features.html",
        wild="""An advisory lock, a SET or currval() belongs to a session, and the next
            transaction runs in another one: the lock stays with whoever gets the first, and the
            setting is somebody else's.""",
        safe="""State that ends with its transaction: `pg_try_advisory_xact_lock`, `SET LOCAL`,
            `set_config(..., true)`, `INSERT ... RETURNING id`. A claim is a lease in the row,
            not a lock of the session.""",
        evidence=_swaps,
        variations=(
            Variation(Conditions(pooled="first idle"), [ALONE], FEWER),
            Variation(Conditions(pooled="round robin"), [ALONE], FEWER),
        ),
        probe="pgbouncer",
    ),
)
