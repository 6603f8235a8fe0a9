"""Guarantees on what surrounds a queue: clocks, isolation levels."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.moments import MOMENT
from queueproof.schedule.programs import Do, JobSpec, Program, advance, claim, in_turn, script
from queueproof.space.pieces import DELAY
from queueproof.space.suites import Suite

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run

FEWER = 10  # of so many acts alone there is one with other clocks, and one meeting at each level


def _delayed(suite: Suite, count: int) -> list[Program]:
    """First programs in which one enqueues a delayed job, another claims, too early and in time.

    A time that the first one's clock had a part in is wrong in one direction or the other.
    """
    in_turns = suite.alone(count // FEWER)
    if "delay" not in suite.offer.queue.takes("enqueue"):
        return in_turns
    delayed = [
        Program(
            (),
            in_turn(
                script(who, Do("enqueue")),
                script("w3", claim()),
                script("clock", advance(DELAY + MOMENT)),
                script("w3", claim()),
            ),
            reserve=(JobSpec(delay=DELAY),),
        )
        for who in ("w1", "w2")
    ]
    return [*delayed, *in_turns]


def _racing(suite: Suite, count: int) -> list[Program]:
    return suite.meetings(count // FEWER)


def _refused(suite: Suite, count: int) -> list[Program]:
    """Fewer: what an old snapshot hides REPEATABLE READ has shown, and this level only refuses."""
    return suite.meetings(count // FEWER // 2)


def _claims(run: Run) -> dict[str, int]:
    claims = sum(len(call.ids) for call in run.history.of_kind("claim"))
    return {"claims by sessions in other time zones": claims}


def _meetings(run: Run) -> Counter[str]:
    calls = run.history.calls
    finished = [call for call in calls if call.returned is not None]
    pairs = itertools.combinations(finished, 2)
    met = sum(one.actor != other.actor and one.overlaps(other) for one, other in pairs)
    return Counter({"operations that overlapped another": met}) + Counter(
        f"times ERROR {call.error[:5]}, to be retried" for call in calls if call.answer == "retry"
    )


GUARANTEES = (
    Guarantee(
        id="server-clock",
        apart=True,
        sentence="Time is the database's; a worker's wrong clock changes nothing.",
        why="a worker whose clock is wrong steals running jobs, or runs jobs before their time",
        source="https://github.com/earendil-works/absurd",
        wild=(
            "A worker sends its own time as the start of a lease or as a due time. Or the column "
            "is a timestamp without time zone, and now() means something else in a session with "
            "another TimeZone."
        ),
        safe=(
            "`timestamptz` columns, and `now()` or `clock_timestamp()` in every statement; workers "
            "send durations, never points in time."
        ),
        evidence=_claims,
        variations=(Variation(Conditions(clocks=True), _delayed),),
        timed=True,
    ),
    Guarantee(
        id="isolation",
        apart=True,
        sentence="Under REPEATABLE READ and SERIALIZABLE the worst answer is a retryable error.",
        why="a changed default of the database turns into lost or doubled work",
        source="https://www.postgresql.org/docs/current/transaction-iso.html",
        wild=(
            "A lock is taken first and what it guards is read after: under REPEATABLE READ the "
            "snapshot is from before the lock, and where no row conflicts nothing is refused. Or "
            "error 40001 stops a worker that does not retry."
        ),
        safe=(
            "Decide by the row itself, in the statement that changes it, so that a conflict is "
            "error 40001, and retry 40001 and 40P01. Where a lock must guard a read: `BEGIN "
            "ISOLATION LEVEL READ COMMITTED`."
        ),
        evidence=_meetings,
        variations=(
            Variation(Conditions(isolation="repeatable read"), _racing),
            Variation(Conditions(isolation="serializable"), _refused),
        ),
    ),
)
"""In the order of the scenarios."""
