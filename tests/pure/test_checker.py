"""Whole histories: real time, unknown answers, limits, order, waits, stranded jobs, blame."""

import pickle
import random
from collections import Counter
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.history.calls import Answer, Call, CallKind, History, LockWait, Ref
from queueproof.judge.checker import check
from queueproof.judge.spec import Declared
from queueproof.queues.model import State
from queueproof.schedule.moments import DAY, PRECISION, grace
from tests.fix_histories import LEASE, TICK, Case, Told, cases, each

declared = partial(
    Declared,
    lease=LEASE,
    held=False,
    worker_heartbeat=False,
    recovers=True,
    observable=True,
    order="none",
)
"""A queue's declaration: by default a lease, `recover` and `jobs`."""


def broken(history: History, facts: Declared | None = None) -> list[str]:
    """The ids of the guarantees that a history breaks."""
    found = check(history, facts or declared()).violations
    return sorted({violation.guarantee for violation in found})


def judged(case: Case) -> list[str]:
    """The guarantees that a row's history breaks; with `?` what a breach of another explains."""
    found = check(Told(case.story).history, declared(**case.facts)).violations
    return sorted({one.guarantee + "?" * bool(one.doubts) for one in found})


AGAIN = "w2 runs 1; all completed"
CRASHED = "w1 claims 1; w1 crashes; "
REFUSED = "error: 23505: duplicate key value violates unique constraint"
TWO, FRESH = "enqueue 1 2; w1 claims 1; w2 claims 2", "enqueue 1; w1 claims 1; +1"
LATE = "enqueue 1; w1 claims 1; +31"
BUSY = ["w2 claims", "w2 completes 2", "w2 fails 2", "w2 beats 2", ""]
HOLDERS = ["w1 completes 1", "w1 fails 1", "w1 beats 1", "w2 recovers"]


@cases("""
    # Of two operations that overlap either may come first, of others the earlier one.
    a job whose enqueue is not answered yet may be claimed
        begin enqueue; w1 claims 1; end producer 1; w1 completes 1; all completed => holds
    a claim that was answered before the enqueue began is early
        w1 claims 1; enqueue 1; left 1=running => not-early
    rule 1: a job that nobody enqueued is the schema's own
        w1 runs 1; all completed => holds
    a complete that a recovery overlaps may be accepted, and answered first
        enqueue 1; w1 claims 1; +31; begin w1 completes 1; begin recover; end w1; end reaper;
        all completed => holds
    a complete that a recovery overlaps may be accepted, and answered last
        enqueue 1; w1 claims 1; +31; begin w1 completes 1; begin recover; end reaper; end w1;
        all completed => holds
    a complete that a recovery overlaps may be rejected, and answered first
        enqueue 1; w1 claims 1; +31; begin w1 completes 1; begin recover; end w1 -> rejected;
        end reaper 1; w2 runs 1; all completed => holds
    a complete that a recovery overlaps may be rejected, and answered last
        enqueue 1; w1 claims 1; +31; begin w1 completes 1; begin recover; end reaper 1;
        end w1 -> rejected; w2 runs 1; all completed => holds
    # A job is lost, or denied an attempt, only where neither explains what became of it.
    rule 7: what is answered by `retry` was not done, and may be tried again
        enqueue 1; w1 claims 1; w1 completes 1 -> retry; w1 completes 1; all completed => holds
    rule 7: what is answered by an error was not done, and may be tried again
        enqueue 1; w1 claims 1; w1 completes 1 -> error; w1 completes 1; all completed => holds
    a worker that crashed in the middle of its complete may have completed the job
        enqueue 1; w1 claims 1; begin w1 completes 1 -> unknown; w1 crashes; all completed => holds
    a worker that crashed in the middle of its complete may not have completed the job
        enqueue 1; w1 claims 1; begin w1 completes 1 -> unknown; w1 crashes; +31; recover 1;
        w2 runs 1; all completed => holds
    a job is lost in a fail whose answer was lost, at its first attempt of two
        enqueue 1 bound=2; w1 claims 1; begin w1 fails 1 -> unknown; w1 crashes; +31; sweep; left
        => no-lost-job where retries=True
    a job is gone after a fail that was heard of and had no attempt left
        enqueue 1 bound=2; w1 claims 1; begin w1 fails 1 -> unknown; w2 claims 1; w2 fails 1;
        w1 crashes; +31; sweep; left => holds where retries=True
    a job is gone after a complete that was heard of
        enqueue 1 bound=2; w1 claims 1; begin w1 fails 1 -> unknown; w2 runs 1; w1 crashes; +31;
        sweep; left => holds where retries=True
    a job has failed in a fail whose answer was lost, with an attempt left
        enqueue 1 bound=2; w1 claims 1; begin w1 fails 1 -> unknown; w1 crashes; +31; sweep;
        left 1=failed => retry-given where retries=True
    rule 15: a job that is gone has not failed where failed jobs are listed
        enqueue 1 2 bound=1; w2 claims 2; w2 fails 2; w1 claims 1; begin w1 fails 1 -> unknown;
        w1 crashes; +31; sweep; left 2=failed => no-lost-job where retries=True
    rule 15: a job that is gone may have failed where what fails for good is deleted
        enqueue 1 2 bound=1; w2 claims 2; w2 fails 2; w1 claims 1; begin w1 fails 1 -> unknown;
        w1 crashes; +31; sweep; left => holds where retries=True
    rule 15: a job that is gone may have failed where a cleanup may have taken it
        enqueue 1 2 bound=1; w2 claims 2; w2 fails 2; w1 claims 1; begin w1 fails 1 -> unknown;
        w1 crashes; cleanup; +31; sweep; left 2=failed => holds where retries=True
    rule 15: a job that is gone has not completed where completed jobs are listed
        enqueue 1 2; w2 claims 2; w2 completes 2; w1 claims 1; begin w1 completes 1 -> unknown;
        w1 crashes; +31; sweep; left 2=completed => no-lost-job
    rule 15: a job that is gone may have completed where what is completed is deleted
        enqueue 1 2; w2 claims 2; w2 completes 2; w1 claims 1; begin w1 completes 1 -> unknown;
        w1 crashes; +31; sweep; left => holds
    rule 15: a job that is gone may have completed where only a failed one is listed
        enqueue 1 2 bound=1; w2 claims 2; w2 fails 2; w1 claims 1; begin w1 completes 1 -> unknown;
        w1 crashes; +31; sweep; left 2=failed => holds where retries=True
    a last fail that was answered the second time is done, and may delete at leisure
        enqueue 1 2 bound=1; w2 claims 2; w2 fails 2; w1 claims 1; begin w1 fails 1 -> unknown;
        w1 fails 1; +31; sweep; left 2=failed => holds where retries=True
    a job that is gone after two attempts of three was denied the third, heard of or not
        enqueue 1 bound=3; w1 claims 1; w1 fails 1; w1 claims 1; begin w1 fails 1 -> unknown;
        w1 crashes; +31; sweep; left => retry-given where retries=True
    a claim whose answer was lost may have taken no job
        enqueue 1; begin w1 claims -> unknown; w1 crashes; w2 runs 1; all completed => holds
    a claim whose answer was lost may have taken a job, which is free after the lease
        enqueue 1; begin w1 claims -> unknown; w1 crashes; w2 claims; +31; recover 1; w2 runs 1;
        all completed => holds
    a claim whose answer was lost may have taken what its worker had before, and was a sign of life
        enqueue 1 bound=2; w1 claims 1; +31; recover 1; w1 claims -> unknown; w1 crashes; +31;
        recover 1; sweep; left 1=failed => holds where signs=True
    rule 21: a slow worker's job that nobody takes back is stale-recovery, too
        enqueue 1; w1 claims 1; +31; w1 completes 1 -> rejected; +61; sweep; left 1=running
        => stale-recovery
    rule 21: a lost claim's job that never comes back is stale-recovery
        enqueue 1 bound=3; begin w1 claims -> unknown; w1 crashes; +31; sweep; left 1=running
        => stale-recovery
    a lost claim may have taken a job whose worker had ended another, twice
        enqueue 1 2 bound=2; w1 claims 2; w1 completes 2; w1 claims 1; +31; w1 completes 2;
        recover 1; w1 claims -> unknown; w1 crashes; +31; recover 1; sweep;
        left 1=failed 2=completed => holds
    a job of the schema is not early because an enqueue is lost later
        w1 claims 1; enqueue -> unknown; w1 completes 1; all completed => holds
    rule 16: a batch whose answer is unknown may have completed a subset
        enqueue 1 2; w1 claims 1 2 limit=2; w1 batches 1 2 -> unknown; w1 completes 1;
        w1 completes 2 -> rejected; all completed => holds
    # No more than it asked for; and what has failed from the moment on that backoff sets.
    rule 13: a claim may take as many jobs as it asks for
        enqueue 1 2; w1 claims 1 2 limit=2; w1 completes 1; w1 completes 2; all completed => holds
    rule 13: a claim that asks for nothing takes no more than one job
        enqueue 1 2; w1 claims 1 2; w1 completes 1; w1 completes 2; all completed => claim-limit
    rule 13: a claim takes no more jobs than it asks for
        enqueue 1 2 3; w1 claims 1 2 3 limit=2; w1 completes 1; w1 completes 2; w1 completes 3;
        all completed => claim-limit
    rule 21: the same job twice in one answer is single-claim, not claim-limit as well
        enqueue 1; w1 claims 1 1; w1 completes 1; all completed => single-claim
    rule 11: a job that has failed is not claimed before its wait is over
        enqueue 1; w1 claims 1; w1 fails 1; +4.9; w2 runs 1; all completed
        => backoff where backoff=5.0
    rule 11: a job that has failed is claimed once its wait is over
        enqueue 1; w1 claims 1; w1 fails 1; +5.1; w2 runs 1; all completed
        => holds where backoff=5.0
    rule 11: a job that was in line when a stale worker failed it need not wait
        enqueue 1; w1 claims 1; +31; recover 1; w1 fails 1; +1; w2 runs 1; all completed
        => holds where backoff=5.0
    rule 34: a job that failed and is enqueued again waits no more
        enqueue 1; w1 claims 1; w1 fails 1; enqueue 1; w2 runs 1; all completed
        => holds where backoff=5.0
    a wait is set anew by a fail that was late, which is doubted
        enqueue 1; w1 claims 1; begin w1 fails 1; +31; w2 claims 1; w2 fails 1; end w1; w3 runs 1;
        all completed => backoff? where backoff=5.0
    rule 27: so it is where late operations may be accepted, and nothing may come of it
        enqueue 1; w1 claims 1; begin w1 fails 1; +31; w2 claims 1; w2 fails 1; end w1; w3 runs 1;
        all completed => fencing where backoff=5.0 at_least_once=True
    rule 27: a late operation may have hidden a death
        enqueue 1 2; w1 claims 1 2 limit=2; w1 fails 1; w2 claims 1; w1 completes 1; w1 crashes;
        +31; sweep; left 1=completed 2=running => fencing where at_least_once=True
    and not one that nobody would have seen: no lease ends
        enqueue 1 2; w1 claims 1 2 limit=2; w1 fails 1; w2 claims 1; w1 completes 1; w1 crashes;
        +31; sweep; left 1=completed 2=running
        => stale-recovery where at_least_once=True lease=None
    # Rule 9: rounding, retries and locks of the moment excuse a claim.
    a longer delay may be rounded up past the shorter one of a job that came later
        enqueue 1 delay=9; +5; enqueue 2 delay=5; +30; w1 runs 2 1; all completed
        => holds where order="fifo"
    a better job may be due a moment after its enqueue, as a queue may round times up
        enqueue 1; enqueue 2 priority=1; +0; w1 runs 1 2; all completed
        => holds where order="priority, fifo"
    a better job is due two seconds after its enqueue
        enqueue 1; enqueue 2 priority=1; +2; w1 runs 1 2; all completed
        => order where order="priority, fifo"
    rule 9: a job that was claimed before may come back anywhere
        enqueue 1; w1 claims 1; w1 fails 1; enqueue 2; w1 runs 2 1; all completed
        => holds where order="fifo"
    a claim in the midst of another's may pass over a job that is locked just now
        enqueue 1 2; begin w1 claims; w2 claims 2; end w1 -> error; w2 completes 2; w2 runs 1;
        all completed => holds where order="fifo"
    # Rule 10: a wait is judged by what both sides are about.
    rule 3: a worker's heartbeat may wait for an operation on any job that it has claimed
        enqueue 1 2; w1 claims 1; +15; w1 claims 2; +16; begin recover;
        begin w1 beats 2 waits=reaper; end reaper 1; end w1; w1 completes 2;
        w1 completes 1 -> rejected; w2 runs 1; all completed => holds where worker_heartbeat=True
    rule 3: a claim is a sign of life for a job that its worker may have lost
        enqueue 1 2; w1 claims 1; +31; begin w2 claims; begin w1 claims waits=w2; end w2 2; end w1;
        w1 completes 1; w2 completes 2; all completed => holds
    and not for one that its worker has ended
        enqueue 1 2; w1 runs 1; +31; begin w2 claims; begin w1 claims waits=w2; end w2 2; end w1;
        w2 completes 2; all completed => non-blocking
    unless the worker itself must beat
        enqueue 1 2; w1 runs 1; +31; begin w2 claims; begin w1 claims waits=w2; end w2 2; end w1;
        w2 completes 2; all completed => holds where worker_heartbeat=True
    rule 21: of two claims of one job one waits for the other, which is not judged as well
        enqueue 1; begin w1 claims; begin w2 claims waits=w1; end w1 1; end w2 1; left 1=running
        => single-claim
    # Rules 15 and 21: a job is lost, stranded or starved where nothing explains its absence.
    rule 21: the job of a crashed worker that no sweep finds is stranded
        enqueue 1 bound=3; w1 claims 1; w1 crashes; sweep; +31; sweep; left 1=running
        => stale-recovery
    so where no attempts are promised, if it comes back too late
        enqueue 1; w1 claims 1; w1 crashes; +31; sweep; +31; recover 1; w2 runs 1; all completed
        => stale-recovery
    or runs again after an enqueue that named it, which is new life
        enqueue 1; w1 claims 1; w1 crashes; +31; sweep; enqueue 1; w2 runs 1; all completed => holds
    where no attempts are promised it may have ended
        enqueue 1; w1 claims 1; w1 crashes; +31; jobs 1=failed; sweep; left 1=failed => holds
    a sweep while the lease of a crashed worker runs proves nothing
        enqueue 1 bound=3; w1 claims 1; w1 crashes; sweep; +31; recover 1; w2 runs 1; all completed
        => holds
    a crash at the last attempt ends the job, which is reported as failed
        enqueue 1 bound=1; w1 claims 1; w1 crashes; +31; recover 1; sweep; left 1=failed => holds
    rule 15: a job that was recovered at its last attempt may be gone
        enqueue 1 bound=1; w1 claims 1; w1 crashes; +31; recover 1; left => holds
    rule 15: a job may be gone after a complete
        enqueue 1; w1 runs 1; sweep; left => holds
    rule 15: a job may be gone after its last fail
        enqueue 1 bound=1; w1 claims 1; w1 fails 1; sweep; left => holds
    rule 23: a job may be gone after a fail where no attempts are promised
        enqueue 1; w1 claims 1; w1 fails 1; +31; sweep; left => holds
    rule 15: a job may be there after its last fail
        enqueue 1 bound=1; w1 claims 1; w1 fails 1; sweep; left 1=failed => holds
    rule 15: a job that still runs after its last fail is lost
        enqueue 1 bound=1; w1 claims 1; w1 fails 1; sweep; left 1=running => no-lost-job
    rule 15: a job that is gone and was never claimed is lost
        enqueue 1; sweep; left => no-lost-job
    rule 15: a job that waits and that a sweep does not find is lost
        enqueue 1; sweep; left 1=queued => no-lost-job
    rule 15: a job that has failed without an attempt is lost
        enqueue 1 bound=1; sweep; left 1=failed => no-lost-job
    a job that no claim returns after a drain is lost, even where `jobs` cannot be asked
        enqueue 1; w1 claims 1; w1 crashes; +31; sweep => stale-recovery where observable=False
    what nothing can complete is its worker's as long as that lives
        enqueue 1; w1 claims 1; +60; sweep; left 1=running => holds where completes=False lease=None
    what nothing can complete or take back is stale-recovery's after years
        enqueue 1; w1 claims 1; +400000000; sweep; left 1=running
        => stale-recovery where completes=False lease=None
    a job that nobody claimed is lost, even where `jobs` cannot be asked
        enqueue 1 => no-lost-job where observable=False
    a job whose enqueue took long is not starved before it is surely due
        enqueue 1 bound=1; w1 claims 1; w1 fails 1; begin enqueue delay=20; +30; end producer 2;
        sweep; +30; w1 runs 2; left 1=failed 2=completed => holds
    beside a full cap no job is starved: a crashed worker's job may run until its lease ends
        enqueue 1 2; w1 claims 1; +2; w1 crashes; sweep; +31; recover 1; w2 runs 1 2; all completed
        => holds where cap=1
    nor beside one that is full although a batch completion named a running job that it did not end
        enqueue 1 2 3; w1 claims 1; +31; recover 1; w2 claims 1 2 limit=2; w1 batches 1; w2 crashes;
        sweep; +31; recover 1 2; w3 runs 1 2 3; all completed => holds where cap=2
    a job of another queue is not beside itself
        enqueue 1 queue=other; +2; sweep; +31; sweep; left 1=queued => no-lost-job
    beside a job of yet another it is starved
        enqueue 1 queue=other; enqueue 2; enqueue 3 queue=third; +2; sweep; +31; w1 runs 2; sweep;
        left 1=queued 2=completed 3=queued => no-starvation
    beside one that has no attempt left a job is starved
        enqueue 1 2 bound=1; w1 claims 1; w1 fails 1; +2; sweep; +31; sweep; left 1=failed 2=queued
        => no-starvation
    beside a cap that is not full a job is starved
        enqueue 1 2; w1 claims 1; +2; w1 crashes; sweep; +31; recover 1; w2 runs 1 2; all completed
        => no-starvation where cap=2
    rule 1: a job that the queue put there is due when the queue says
        enqueue 2 delay=7200; sweep; +8000; w1 runs 1 2; all completed => holds
    a stale job that should fail is late while it counts as running
        enqueue 1; w1 claims 1; w1 crashes; +91; recover; jobs 1=running; sweep; +86400; recover 1;
        sweep; left 1=failed => stale-recovery where stale_fails=True
    a stale job that has failed by the sweep is not
        enqueue 1; w1 claims 1; w1 crashes; +91; recover 1; jobs 1=failed; sweep; +86400; sweep;
        left 1=failed => holds where stale_fails=True
    rule 28: where claims take over, they bury what has no attempt left, and answer nothing
        enqueue 1 bound=1; w1 claims 1; w1 crashes; +31; sweep; w2 claims; cleanup; sweep; left
        => holds where recovers=False
    rule 28: what no claim may have ended, and no cleanup taken, is stranded
        enqueue 1 bound=1; w1 claims 1; w1 crashes; +31; sweep; w2 claims; sweep; left
        => stale-recovery where recovers=False
    a job that an enqueue names again without a delay is ready
        enqueue 1; enqueue 1; enqueue 1; +10; w1 claims; w1 claims; w1 claims; +100; w1 runs 1;
        all completed => no-starvation
    rule 34: an enqueue with a delay that names a job that is there may put it off
        enqueue 1; enqueue 1 delay=60; enqueue 1; +10; w1 claims; w1 claims; w1 claims; +100;
        w1 runs 1; all completed => holds
    rule 15: what a recovery ended as failed, a cleanup may take
        enqueue 1; w1 claims 1; w1 crashes; +31; recover 1; jobs 1=failed; cleanup; sweep; left
        => holds where stale_fails=True
    rule 15: what a recovery ended as failed, a cleanup may take before anybody looks
        enqueue 1; w1 claims 1; w1 crashes; +31; recover 1; cleanup; sweep; left
        => holds where stale_fails=True
    what no recovery has answered, a cleanup has lost
        enqueue 1; w1 claims 1; w1 crashes; +31; cleanup; sweep; left
        => stale-recovery where stale_fails=True
    rule 15: what its holder may not complete, and is gone, is lost
        enqueue 1; w1 claims 1; +2; w1 completes 1 -> rejected; sweep; left => no-lost-job
    so where nobody but a cleanup can have taken it
        enqueue 1; w1 claims 1; cleanup; w1 completes 1 -> rejected; sweep; left => no-lost-job
    a cleanup may take what another has ended early
        enqueue 1; w1 claims 1; recover; cleanup; w1 completes 1 -> rejected; sweep; left
        => live-lease
    what was taken back, and is gone after a cleanup, is lost
        enqueue 1 bound=2; w1 claims 1; +31; recover 1; cleanup; w1 completes 1 -> rejected; sweep;
        left => no-lost-job
    what its holder may not complete, and is there, was taken from it
        enqueue 1; w1 claims 1; +2; w1 completes 1 -> rejected; sweep; left 1=failed => live-lease
    a batch of which one job has ended, and is refused, has hit none of the others
        enqueue 1 2 3; w1 claims 1 2 3 limit=3; w1 completes 1; w1 batches 1 2 -> 2; +2;
        w1 completes 3 -> rejected; left 3=failed => live-lease
    what is completed while somebody looks may have ended by the time of the cleanup
        enqueue 1 2; w1 claims 1; w2 claims 2; begin w1 completes 1; jobs 1=running 2=running;
        end w1; cleanup; jobs 2=running; w2 completes 2; left 2=completed => holds
    rule 6: a batch that names a completed job once more does not make it younger
        enqueue 1; w1 runs 1; +7200; w1 batches 1; jobs 1=completed; cleanup delay=3600; jobs; left
        => holds
    # Rule 6: nor does it end the job that the worker has now.
    rule 6: a completed job that is failed afterwards breaks final-state
        enqueue 1 bound=1; w1 claims 1; w1 completes 1; w1 fails 1; left 1=failed => final-state
    rule 6: a failed job that is completed afterwards breaks final-state
        enqueue 1 bound=1; w1 claims 1; w1 fails 1; w1 completes 1; all completed => final-state
    a worker that is refused its second job because it repeated itself on the first
        enqueue 1 2; w1 runs 1; w1 claims 2; w1 completes 1; w1 completes 2 -> rejected;
        all completed => fencing
    a worker that is refused its second job, where claims never run out
        enqueue 1 2; w1 runs 1; w1 claims 2; w1 completes 1; w1 completes 2 -> rejected;
        all completed => fencing where lease=None
""")
def test_a_history_breaks_what_the_rules_say(case: Case) -> None:
    """Each row breaks what the line above it says, and no other guarantee."""
    assert judged(case) == case.breaks


@cases("""
    two workers with one job are single-claim, and nothing else
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; end w2 1; w1 completes 1;
        w2 completes 1; all completed => single-claim: claim of 1 by w2
    the loser of a race may be refused before the winner's claim is answered
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; w1 completes 1 -> rejected; end w2 1;
        w2 completes 1; all completed => single-claim: claim of 1 by w2
    a job seen as failed was claimed by a call whose answer was lost
        enqueue 1 bound=1; w1 claims -> unknown; w1 crashes; +31; recover 1; jobs 1=failed;
        w2 runs 1; all completed => retry-bound: claim of 1 by w2
    rule 16: in a batch the ids of the answer are accepted, the others are rejected
        enqueue 1 2; w1 claims 1 2 limit=2; w1 batches 1 2 -> 1; left 1=completed 2=running
        => live-lease: complete_many of 2 by w1
""")
def test_one_violation_counts_once(case: Case) -> None:
    """It is one of a single guarantee, by a call, of a job."""
    history = Told().tell(case.story)
    (found,) = check(history, declared(**case.facts)).violations
    call = history.calls[found.call]
    assert case.breaks == [f"{found.guarantee}: {call.kind} of {found.job} by {call.actor}"]


@cases("""
    what two claims at once got is one attempt too many, and locks in the claim would mend it
        enqueue 1 bound=1; begin w1 claims; w2 claims 1; w2 fails 1; end w1 1
        => retry-bound, of single-claim
    what two claims got in turn is one attempt too many by itself
        enqueue 1 bound=1; w2 claims 1; w2 fails 1; w1 claims 1 => retry-bound
    a due time that the rest of an enqueue writes last takes the place of a failed job's wait
        begin enqueue; w1 claims 1; w1 fails 1; end producer 1; w2 claims 1
        => backoff, of not-early where backoff=5.0
    a failed job whose enqueue was answered in time is claimed early by itself
        enqueue 1; w1 claims 1; w1 fails 1; w2 claims 1 => backoff where backoff=5.0
    a cleanup does not take what is to be tried again, as a fail was seen to put jobs back
        enqueue 1 bound=3; w1 claims 1; w1 fails 1; cleanup; +31; sweep; left
        => no-lost-job, of retry-given where retries=True
    a cleanup may take what a fail ends early
        enqueue 1 bound=3; w1 claims 1; w1 fails 1; cleanup; +31; sweep; left => holds
    what a recovery drops had attempts left
        enqueue 1 bound=3; w1 claims 1; +31; recover 1; sweep; left
        => stale-recovery, of retry-given
    whether a cleanup came or not
        enqueue 1 bound=3; w1 claims 1; +31; recover 1; cleanup; sweep; left
        => no-lost-job, of retry-given
    a cleanup may have taken what its worker had when it died
        enqueue 1 bound=3; w1 claims 1; w1 crashes; cleanup; +31; sweep; left
        => stale-recovery, of no-lost-job
    a cleanup may have taken what a claim or a recovery had ended before, or what it should not
        enqueue 1 bound=1; w1 claims 1; cleanup; recover; w1 completes 1 -> rejected; sweep; left
        => live-lease, of no-lost-job
    a cleanup takes what somebody who began has ended: its lease was over
        enqueue 1 bound=1; w1 claims 1; +31; w2 starts; cleanup; w1 completes 1 -> rejected; sweep;
        left => holds
    where a wait is declared, a fail that meets an error may have met it for the wait
        enqueue 1; w1 claims 1; w1 fails 1 -> error: 22008: out of range; w1 completes 1
        => live-lease, of backoff where paced=True
    a claim that answers all that its worker has begins no attempt
        enqueue 1; w1 claims 1; w1 claims 1 limit=2 => single-claim, of claim-limit
    a worker that takes over what it had itself begins one
        enqueue 1 bound=1; w1 claims 1; +31; w1 claims 1 => retry-bound
""")
def test_a_breach_that_follows_from_another_says_so(case: Case) -> None:
    """Whoever mends that one has mended both."""
    found = check(Told(case.story).history, declared(**case.facts)).violations
    told = [", of ".join(filter(None, (one.guarantee, one.follows))) for one in found]
    assert told == case.breaks


@pytest.mark.parametrize(
    ("bound", "left", "failed", "crashed"),
    [
        pytest.param("bound=2", "1=failed", "retry-given", "retry-given", id="an attempt is left"),
        pytest.param("bound=1", "1=failed", "", "", id="it was the last attempt"),
        pytest.param("", "1=failed", "", "", id="no attempts are promised"),
        pytest.param("bound=2", "1=running", "no-lost-job", "stale-recovery", id="it did not end"),
        pytest.param("bound=2", "", "retry-given", "stale-recovery", id="it is gone"),
    ],
)
@pytest.mark.parametrize("ends", ["fails 1; +31", "crashes; +31; recover 1", "crashes; +31"])
def test_the_last_attempt_ends(ends: str, bound: str, left: str, failed: str, crashed: str) -> None:
    """Rule 23: what a fail or a crash ends with attempts left is retry-given, if it is ended."""
    history = Told(f"enqueue 1 {bound}; w1 claims 1; w1 {ends}; sweep; left {left}").history
    assert "".join(broken(history)) == (failed if "fails" in ends else crashed)


@pytest.mark.parametrize(
    ("first", "second", "order", "free"),
    [
        pytest.param("", "", "fifo", False, id="the first comes first"),
        pytest.param("", "", "priority, fifo", False, id="of one priority the first comes first"),
        pytest.param("", "", "none", True, id="no order is declared"),
        pytest.param("priority=0", "priority=1", "priority, fifo", True, id="a better priority"),
        pytest.param("priority=1", "priority=0", "priority, fifo", False, id="a worse priority"),
        pytest.param("priority=0", "priority=1", "fifo", False, id="a priority that is not judged"),
        pytest.param("delay=5", "", "fifo", True, id="the first was due later"),
        pytest.param("delay=1", "delay=5", "fifo", False, id="the first was due earlier"),
        pytest.param("delay=5", "priority=0", "priority, fifo", True, id="due later, one priority"),
    ],
)
def test_claims_keep_the_declared_order(first: str, second: str, order: str, *, free: bool) -> None:
    """Rule 9: order binds jobs whose enqueue order and due order agree; priority comes first."""
    told = Told(f"enqueue 1 {first}; enqueue 2 {second}; +10; w1 runs 2 1; all completed")
    assert broken(told.history, declared(order=order)) == ([] if free else ["order"])


@pytest.mark.parametrize(("apart", "breaks"), [(0.9, []), (1.1, ["order"])])
def test_jobs_of_one_moment_have_no_order(apart: float, breaks: list[str]) -> None:
    """Rule 33: a queue may keep times by the millisecond."""
    told = Told("enqueue 1")
    told.wait(apart * PRECISION - TICK)  # of which one passes as the next begins
    told.tell("enqueue 2; +10; w1 runs 2 1; all completed")
    assert broken(told.history, declared(order="fifo")) == breaks


@pytest.mark.parametrize(("taken", "left", "found"), [("2", "3", []), ("3", "2", ["order"])])
def test_what_completes_and_claims_is_no_other(taken: str, left: str, found: list[str]) -> None:
    """Rule 9: its claim meets nobody when only its own completion is under way."""
    told = Told("enqueue 1; +10; enqueue 2; +10; enqueue 3; +10; w1 claims 1")
    told.completing_and_claiming(told.claims["w1", "1"], taken)
    told.tell(f"w1 completes {taken}; w2 runs {left}; all completed")
    assert broken(told.history, declared(order="fifo")) == found


def is_blocked(before: str, blocker: str, asked: str, ends: str = "end all") -> bool:
    """Somebody waits who must not: for an operation, or for w2 between two of its own."""
    begins = f"begin {blocker}; " if blocker else ""
    told = f"{before}; {begins}begin {asked} waits={blocker[:2] or 'w2'}; {ends}; all completed"
    return "non-blocking" in broken(Told(told).history)


@pytest.mark.parametrize(
    ("before", "blocker", "asked"),
    [
        *product([TWO], BUSY, ["w1 claims", "w1 beats 1", "recover"]),
        *product([LATE], HOLDERS, ["w3 claims", "w3 recovers"]),
        *product([FRESH], ["w2 claims", "w2 recovers"], ["w1 beats 1"]),
    ],
)
def test_claim_heartbeat_and_recover_wait_for_nobody(before: str, blocker: str, asked: str) -> None:
    """Rule 10: not for another's claim, open job or shared row, for a late worker or a reaper."""
    # A heartbeat whose lease is fresh waits for no claim or recovery: they leave alone what lives.
    assert is_blocked(before, blocker, asked)


@pytest.mark.parametrize("asked", ["w1 completes 1", "w1 fails 1", "enqueue", "cleanup"])
def test_complete_fail_enqueue_and_cleanup_may_wait(asked: str) -> None:
    """Rule 10: these may wait for whomever they like."""
    assert not is_blocked(TWO, "w2 claims", asked)


@pytest.mark.parametrize("blocker", ["w2 claims", "w2 recovers"])
@pytest.mark.parametrize("ends", ["end w2 1; end w1 -> rejected", "end all"])
def test_a_late_heartbeat_may_wait_for_what_takes_its_job(blocker: str, ends: str) -> None:
    """Rule 10: also where the job is put back or buried, so that the claim does not answer it."""
    assert not is_blocked(LATE, blocker, "w1 beats 1", ends)


@pytest.mark.parametrize(("blocker", "found"), [("complete", []), ("claim", ["non-blocking"])])
def test_what_completes_and_claims_may_wait(blocker: CallKind, found: list[str]) -> None:
    """Rule 10: it never waits for another's claim, which is no business of its own jobs."""
    told = Told("enqueue 1 2; w1 claims 1; w2 claims 2")
    refs = (Ref(told.claims["w2", "2"].index, "2"),) if blocker == "complete" else ()
    other = told.begin(blocker, "w2", refs=refs)
    told.completing_and_claiming(told.claims["w1", "1"], blocker=other)
    told.end(other)
    assert broken(told.tell("left 1=completed")) in (found, ["no-lost-job", *found])


@pytest.mark.parametrize(("days", "found"), [(1.5, ["stale-recovery"]), (2.5, [])])
@pytest.mark.parametrize("observable", [True, False])
def test_a_job_taken_back_waits_as_told(days: float, found: list[str], *, observable: bool) -> None:
    """Rule 14: it is stranded once every span that stands there is over."""
    look = "jobs 1=queued; " if observable else ""
    again = f"{look}sweep; +{2 * DAY}; "
    history = Told().tell(f"enqueue 1 bound=3; {CRASHED}+31; recover 1; {again}{again}{AGAIN}")
    assert broken(history, declared(observable=observable, longest=days * DAY)) == found


def test_a_workers_heartbeat_named_by_an_old_claim_extends_the_new_one() -> None:
    """Rule 3: which of its claims a heartbeat of the whole worker is sent for does not matter."""
    told = Told("enqueue 1 bound=3; w1 claims 1")
    old = told.claims["w1", "1"]
    told.tell("+31; recover 1; w1 claims 1; +18")
    told.do("heartbeat", refs=(Ref(old.index, "1"),))
    told.tell("+18; w1 crashes; sweep")  # the heartbeat's lease still runs: nobody may have it now
    told.tell(f"+30; recover 1; {AGAIN}")
    assert broken(told.history, declared(worker_heartbeat=True)) == []


@cases(
    """
    a ready job is not kept from a claim by those that others hold
        +2; w3 claims; w3 claims; w1 completes 1; w2 completes 2 => no-starvation
    rule 28: a claim may do maintenance and answer nothing, once
        +2; w3 claims; w1 completes 1; w2 completes 2 => holds
    a queue may keep whole seconds, rounded up
        +0.5; w3 claims; w3 claims; w1 completes 1; w2 completes 2 => holds
    a claim may come back empty while somebody acts
        +2; begin w1 beats 1; w3 claims; w3 claims; end w1; w1 completes 1; w2 completes 2 => holds
    two jobs that run fill a cap of two
        +2; w3 claims; w3 claims; w1 completes 1; w2 completes 2 => holds where cap=2
    who has a job may be given no other
        +2; w2 claims; w2 claims; w1 completes 1; w2 completes 2 => holds
    two stale jobs excuse two more empty claims
        +30; w3 claims; w3 claims; w3 claims; w1 completes 1; w2 completes 2 => holds
    two stale jobs excuse no third
        +30; w3 claims; w3 claims; w3 claims; w3 claims; w1 completes 1; w2 completes 2
        => no-starvation
    a failed job may come back before it
        w1 fails 1; +2; w3 claims; w3 claims; w1 completes 1; w2 completes 2 => holds
    rule 7: an error that is to be tried again means nothing this time, and nobody disturbs it
        +2; w3 claims -> retry; w3 claims -> retry; w1 completes 1; w2 completes 2 => no-starvation
    rule 7: an error that is to be tried again may come of what somebody else does
        +2; begin w1 completes 1; w3 claims -> retry; w3 claims -> retry; end w1; w2 completes 2
        => holds
    """,
    "enqueue 1 2 3 bound=2; w1 claims 1; w2 claims 2; {}; w3 runs 3; all completed",
)
def test_two_claims_in_turn_that_nobody_disturbs_find_a_ready_job(case: Case) -> None:
    """A job that is ready is not kept from a claim, unless something else explains it."""
    assert [one for one in judged(case) if one == "no-starvation"] == case.breaks


@cases("""
    the time of a delayed job may have to be noticed by a promoter
        enqueue 1 2 bound=2; enqueue 3 bound=2 delay=0.5; w1 claims 1; w2 claims 2; +2; w3 claims;
        w3 claims; w1 completes 1; w2 completes 2; w3 runs 3; all completed => holds
    of a job that is never claimed nobody knows whether it could be
        enqueue 1 2 3 bound=2; w1 claims 1; w2 claims 2; +2; w3 claims; w3 claims; w1 completes 1;
        w2 completes 2 => holds where observable=False
    rule 34: an enqueue that answers a job that runs makes it no readier
        enqueue 1; w1 claims 1; enqueue 1; w1 crashes; +44; w2 claims; w2 claims; w2 claims;
        recover 1; w2 runs 1; all completed => holds
    rule 34: an enqueue that answers a job that is done need not have it run again
        enqueue 1; w1 runs 1; enqueue 1; +44; w2 claims; w2 claims; w2 claims; enqueue 1; w2 runs 1;
        all completed => holds
""")
def test_claims_find_no_job_that_is_not_known_to_be_ready(case: Case) -> None:
    """Not even two in turn that nobody disturbs: it may not be due, or not run again."""
    assert "no-starvation" not in judged(case)


@each("""
    meanwhile => beside
    +1 => without an attempt left
    cleanup => that a cleanup may have removed
""")
def test_what_stands_in_the_way_may_be_gone(meanwhile: str, beside: str) -> None:
    """And still stand there: what was left of it may be all that a claim looks at."""
    story = f"enqueue 1 2 bound=1; w1 claims 1; w1 fails 1; {meanwhile}; +2; sweep; +31; sweep"
    found = check(Told(f"{story}; left 2=queued").history, declared()).violations
    assert [one.guarantee for one in found] == ["no-starvation"]
    assert found[0].because.endswith(f"beside 1 job {beside}")


@each("""
    beside => seen => follows
    w1 claims 1; w1 fails 1 => queued => no-starvation
    w1 claims 1; w1 fails 1 => running =>
    w1 runs 1 => queued =>
""")
def test_what_keeps_others_from_a_claim_may_keep_what_was_taken_back(
    beside: str, seen: str, follows: str
) -> None:
    """Of a job that is put back, beside one that cannot run; not of one that is not back."""
    crashed = f"enqueue 2 bound=2; w1 claims 2; w1 crashes; +31; jobs 2={seen}"
    for swept in ("sweep; +31; sweep; ", ""):
        told = Told(f"enqueue 1 bound=1; {beside}; {crashed}; {swept}left 2={seen}")
        (found,) = check(told.history, declared()).violations
        assert (found.guarantee, found.follows) == ("stale-recovery", follows)


@each("""
    answer => error => got
    accepted =>  => nothing
    error => 23505: its own row => an error (23505: its own row)
    retry => 55P03: another's row => an error (55P03: another's row)
""")
def test_an_error_of_a_claim_answers_nothing(answer: Answer, error: str, got: str) -> None:
    """Rule 7: an error prevents what the claim would have got, while nobody else acts."""
    told = Told("enqueue 1; +5")
    for _ in range(2):
        told.do("claim", "w1", answer=answer, error=error)
    (found,) = check(told.tell(AGAIN), declared()).violations
    assert found.guarantee == "no-starvation"
    assert f"w1 got {got}, nobody else acted" in found.because


@pytest.mark.parametrize(("late", "expected"), [(-1.0, []), (2.0, ["stale-recovery"])])
def test_a_lease_may_last_longer_than_declared(late: float, expected: list[str]) -> None:
    """Rule 4: at least so long, and whole minutes are; what comes back much later is stranded."""
    end = LEASE + grace(LEASE) + late
    told = Told(f"enqueue 1 bound=3; {CRASHED}+{end}; sweep; +30; recover 1; {AGAIN}")
    assert broken(told.history, declared(late=grace(LEASE))) == expected
    assert broken(told.history) == ["stale-recovery"]  # of a queue whose leases are exact


@cases("""
    one that names no job extends all that its worker has
        enqueue 1 2; w1 claims 1 2 limit=2; +20; w1 beats 1; +29; w2 claims 2
        => live-lease? where recovers=False worker_heartbeat=True
    one of a job need not extend another
        enqueue 1 2; w1 claims 1 2 limit=2; +20; w1 beats 1; +29; w2 claims 2
        => holds where recovers=False
    what is claimed while it is under way it may extend or not
        enqueue 1 2; w1 claims 1; begin w1 claims; +20; w1 beats 1; end w1 2; +15; w2 claims 2
        => holds where recovers=False worker_heartbeat=True
    what ran out before need not be extended
        enqueue 1 2; w1 claims 1; +20; w1 claims 2; +11; w1 beats 2; +1; w2 claims 1
        => holds where recovers=False worker_heartbeat=True
""")
def test_what_a_heartbeat_extends(case: Case) -> None:
    """Rule 3: its job, and where it takes no job all that its worker had when it was sent."""
    assert [one for one in judged(case) if one.startswith("live")] == case.breaks


@cases(
    """
    it was extended
        +15; w1 beats 1; +22.5; w2 claims 2 => concurrency-limit
    it was not extended
        +15; w1 beats 1 -> rejected; +22.5; w2 claims 2 => holds
    it was late, and nobody else had the job
        +31; w1 beats 1; +14.5; w2 claims 2 => concurrency-limit
    it was late, and refused
        +31; w1 beats 1 -> rejected; +14.5; w2 claims 2 => holds
    a lease that is over by the answer may have been over before
        +31; w3 claims; begin w1 beats 1; +31; w2 claims 2; end w1 => holds
    a late heartbeat brings back nothing that was completed
        +31; w3 claims; w1 completes 1; w1 beats 1; w2 claims 2 => holds
    a late heartbeat brings back nothing of a worker that crashed
        +31; w3 claims; w1 crashes; w1 beats 1; w2 claims 2 => holds
    a late heartbeat brings back nothing that was recovered
        +31; w3 claims; recover 1; w1 beats 1; w2 claims 2 => holds
    a late completion that is refused ends nothing of whoever has the job now
        +31; w3 claims 1; w1 completes 1 -> rejected; w2 claims 2 => concurrency-limit
    a late heartbeat brings back nothing that another has claimed
        +31; w3 claims; w4 runs 1; w1 beats 1; w2 claims 2 => holds
    """,
    "enqueue 1 2; w1 claims 1; {}",  # an empty claim of w3 lets the end of a lease be seen
)
def test_a_job_lives_and_counts_by_its_heartbeats(case: Case) -> None:
    """A job that was extended runs until that is over, and fills a cap of one; else it does not."""
    found = check(Told(case.story).history, declared(cap=1)).violations
    assert [v.guarantee for v in found if v.guarantee == "concurrency-limit"] == case.breaks


@pytest.mark.parametrize(
    "beats",
    [
        pytest.param("enqueue 1 2; w1 claims 1 2 limit=2; +20; w1 beats 1", id="of another job"),
        pytest.param("enqueue 1 2; w1 claims 1 2 limit=2; +20; w1 beats 1 -> rejected", id="late"),
        pytest.param(
            "enqueue 2 bound=3; w1 claims 2; w1 fails 2; w1 claims 2; +20; w1 beats 2 -> rejected",
            id="of an earlier claim",
        ),
    ],
)
@pytest.mark.parametrize("connection", ["w1", "w1, heartbeats"])
def test_a_heartbeat_may_extend_all_that_its_worker_has(beats: str, connection: str) -> None:
    """Rule 3: be it refused, and on a connection of its own; one lease later it is over."""
    for later, expected in ((20, []), (42, ["stale-recovery"])):
        history = Told(f"{beats}; w1 crashes; +{later}; sweep; w2 runs 2").history
        (beat,) = history.of_kind("heartbeat")
        ((_, job),) = beat.refs
        first = next(one for one in history.of_kind("claim") if job in one.ids)
        own = replace(beat, actor=connection, refs=(Ref(first.index, job),))
        history.calls[beat.index] = own
        found = [one.guarantee for one in check(history, declared()).violations if one.job == "2"]
        assert found == expected


@pytest.mark.parametrize("asked", ["w1 completes 1", "w1 fails 1", "w1 beats 1"])
def test_an_error_that_nobody_else_has_caused_is_a_refusal(asked: str) -> None:
    """Rule 7: a fresh holder who gets nothing but errors has lost the job that it holds."""
    history = Told(f"enqueue 1; w1 claims 1; {asked} -> {REFUSED}").history
    assert broken(history) == ["live-lease"]
    assert broken(history, declared(lease=None)) == []  # nor is a refusal judged there
    assert broken(history, declared(paced=True)) == ["live-lease"]


@cases(
    """
    the same succeeds later
        {0}; w1 completes 1 -> {1}; w1 completes 1 => holds
    another succeeds later
        {0}; w1 fails 1 -> {1}; w1 beats 1 -> {1}; w1 completes 1 => live-lease where paced=True
    it was late
        {0}; +30; w1 completes 1 -> {1} => holds
    it met somebody
        {0}; begin w2 claims; w1 completes 1 -> {1}; end w2 => holds
    it met a fault
        {0}; terminate; w1 completes 1 -> {1} => holds
    the job was lost
        {0}; +31; recover 1; w2 runs 1; w1 completes 1 -> {1} => holds
    the job had ended
        {0}; w1 completes 1; w1 completes 1 -> {1} => holds
    a claim that was never answered may have taken it
        {0}; w2 claims -> unknown; w1 completes 1 -> {1} => holds
    another worker began
        {0}; w2 starts; w1 completes 1 -> {1} => holds
    the error is the server's own
        {0}; w1 completes 1 -> error: 40001: of the server's own => holds
    where a heartbeat answers a new token its worker cannot have known it yet
        {0}; w1 beats 1; w1 completes 1 -> {1} => holds where renews=True
    """.format("enqueue 1; w1 claims 1", REFUSED)
)
def test_an_error_with_another_cause_is_no_refusal(case: Case) -> None:
    """Rule 7: who succeeds later, has lost the job, met somebody or a fault was not refused it."""
    assert ("live-lease" in judged(case)) == bool(case.breaks)


@cases(
    """
    a lost claim is rejected
        +31; recover 1; w2 claims 1; w1 completes 1 -> rejected; w2 completes 1 => 1
    rule 7: a lost claim is refused by an error, which means that nothing happened
        +31; recover 1; w2 claims 1; w1 completes 1 -> error; w2 completes 1 => 1
    a holder that completes what it has failed shows nothing
        w1 fails 1; w1 completes 1 -> rejected; w2 runs 1 => 0
    a holder that fails what it has failed shows nothing
        w1 fails 1; w1 fails 1 -> rejected; w2 runs 1 => 0
    a holder that beats for what it has failed shows nothing
        w1 fails 1; w1 beats 1 -> rejected; w2 runs 1 => 0
    """,
    "enqueue 1; w1 claims 1; {}; all completed",
)
def test_only_what_comes_after_the_next_claim_puts_fencing_to_the_test(case: Case) -> None:
    """A holder that repeats itself and is refused shows nothing of a worker that lost its job."""
    found = check(Told(case.story).history, declared())
    assert not found.violations
    assert [str(found.evidence["fencing", "late calls refused"])] == case.breaks


def test_what_nobody_was_told_of_is_no_evidence() -> None:
    """An answer that a crash or a loss leaves unknown is no completion, and no recovery."""
    told = Told("enqueue 1; w1 claims 1; begin w1 completes 1 -> unknown; w1 crashes; +31; recover")
    (found,) = check(told.tell("sweep; left 1=running"), declared()).violations
    assert found.guarantee == "stale-recovery"
    assert "accepted" not in found.because
    assert "nobody was told" in found.because
    # What is explained without a call whose answer was lost is not explained with it.
    lost = f"enqueue 1 bound=1; begin w1 claims -> unknown; w1 crashes; +31; {AGAIN}"
    findings = check(Told(lost).history, declared())
    assert findings.violations == []
    assert findings.evidence["stale-recovery", "jobs of crashed workers claimed again"] == 0


@dataclass(slots=True)
class Row:
    """A job in the queue's table."""

    state: State = "queued"
    attempts: int = 0
    bound: int = 3
    priority: int = 0
    due: float = 0.0
    until: float = 0.0  # the end of its lease
    holder: tuple[str, int] | None = None  # worker and attempt
    ended: tuple[str, int] | None = None  # who completed or failed it last, until the next claim


@dataclass(slots=True)
class Actor:
    """A worker, with what it is in the middle of."""

    name: str
    claims: list[tuple[Ref, int]] = field(default_factory=list)  # with the attempt as the token
    call: Call | None = None
    done: bool = False  # the open call has taken effect
    answer: Answer = "accepted"
    ids: tuple[str, ...] = ()


class Model:
    """A queue of rows, and workers whose operations take effect at some moment of their own.

    Args:
        rng: Makes every choice.
        patient: Whether what a holder says of a job that it has ended is accepted, and ignored.
    """

    def __init__(self, rng: random.Random, *, patient: bool = False) -> None:
        self.rng, self.patient = rng, patient
        self.rows: dict[str, Row] = {}
        self.told = Told()
        self.actors = {name: Actor(name) for name in ("w1", "w2", "w3", "reaper", "producer")}
        self.lives = 3

    def run(self, steps: int) -> History:
        """Some random steps, and a drain."""
        for _ in range(2):
            self._whole(self.actors["producer"], "enqueue")
        for _ in range(steps):
            self._step()
        self._drain()
        self.told.history.final = {job: row.state for job, row in self.rows.items()}
        return self.told.history

    def _step(self) -> None:
        if self.rng.random() < 0.15:
            self.told.wait(self.rng.choice((1.0, 0.6 * LEASE, LEASE + 1)))
            return
        actor = self.rng.choice(sorted(self.actors.values(), key=lambda one: one.name))
        if actor.name.startswith("w") and self.rng.random() < 0.06:
            self._crash(actor)
        elif actor.call is None:
            self._invoke(actor, self._choice(actor))
        elif not actor.done:
            self._take_effect(actor)
        else:
            self._finish(actor)

    def _choice(self, actor: Actor) -> CallKind:
        if actor.name in {"reaper", "producer"}:
            return "recover" if actor.name == "reaper" else "enqueue"
        kinds: list[CallKind] = ["claim", "claim"]
        if actor.claims:
            kinds += ["complete", "fail", "heartbeat"]
        return self.rng.choice(kinds)

    def _whole(self, actor: Actor, kind: CallKind, nth: int | None = None) -> Call:
        call = self._invoke(actor, kind, nth)
        self._finish(actor)
        return call

    def _invoke(self, actor: Actor, kind: CallKind, nth: int | None = None) -> Call:
        facts: dict[str, Any] = {}
        match kind:
            case "enqueue":
                facts["priority"] = self.rng.choice((0, 1))
                facts["delay"] = self.rng.choice((0.0, 0.0, 20.0))
                facts["bound"] = self.rng.choice((1, 2, 3))
            case "claim":
                facts["limit"] = self.rng.choice((1, 2))
            case "complete" | "fail" | "heartbeat":
                chosen = self.rng.randrange(len(actor.claims)) if nth is None else nth
                facts["refs"] = (actor.claims[chosen][0],)
        actor.call = self.told.begin(kind, actor.name, **facts)
        actor.done = False
        return actor.call

    def _free(self) -> list[str]:
        """The jobs that a claim may take, in their order."""
        due = [job for job, row in self.rows.items() if row.due <= self.told.now]
        free = [job for job in due if self.rows[job].state == "queued"]
        return sorted(free, key=lambda job: (-self.rows[job].priority, self.rows[job].due))

    def _take_effect(self, actor: Actor) -> None:
        call = actor.call
        assert call is not None
        actor.done = True
        actor.answer, actor.ids = "accepted", ()
        match call.kind:
            case "enqueue":
                job = str(len(self.rows) + 1)
                due = call.began + call.delay  # now() is the moment at which a transaction began
                self.rows[job] = Row(bound=call.bound or 3, priority=call.priority, due=due)
                actor.ids = (job,)
            case "claim":
                actor.ids = self._claim(actor, call)
            case "recover":
                actor.ids = self._recover()
            case _:
                token = next(t for ref, t in actor.claims if ref == call.refs[0])
                row = self.rows[call.refs[0].job]
                actor.answer = "accepted" if self._act(actor, call, row, token) else "rejected"

    def _claim(self, actor: Actor, call: Call) -> tuple[str, ...]:
        taken = self._free()[: call.limit]
        for job in taken:
            row = self.rows[job]
            row.state = "running"
            row.attempts += 1
            row.holder, row.ended = (actor.name, row.attempts), None
            row.until = self.told.now + LEASE
        return tuple(taken)

    def _recover(self) -> tuple[str, ...]:
        stale = [job for job, row in self.rows.items() if row.until < self.told.now]
        found = [job for job in stale if self.rows[job].state == "running"]
        for job in found:
            self._give_back(self.rows[job])
        return tuple(found)

    def _give_back(self, row: Row) -> None:
        row.state = "queued" if row.attempts < row.bound else "failed"
        row.holder = None

    def _act(self, actor: Actor, call: Call, row: Row, token: int) -> bool:
        if row.state != "running":
            return self.patient and row.ended == (actor.name, token)
        if row.holder != (actor.name, token):
            return False
        if call.kind != "heartbeat":
            row.ended = row.holder
        match call.kind:
            case "complete":
                row.state = "completed"
            case "fail":
                self._give_back(row)
            case _:
                row.until = max(row.until, self.told.now + LEASE)
        return True

    def _finish(self, actor: Actor) -> None:
        if actor.call is not None and not actor.done:
            self._take_effect(actor)
        call, actor.call = actor.call, None
        if call is not None:
            self.told.end(call, *actor.ids, answer=actor.answer)
        if call is not None and call.kind == "claim":
            actor.claims += [(Ref(call.index, job), self.rows[job].attempts) for job in actor.ids]

    def _crash(self, actor: Actor) -> None:
        if actor.call is not None:
            actor.call.answer = "unknown" if actor.done else "pending"
        self.told.do("crash", actor.name)
        del self.actors[actor.name]
        self.lives += 1
        self.actors[f"w{self.lives}"] = Actor(f"w{self.lives}")

    def _drain(self) -> None:
        for actor in list(self.actors.values()):
            self._finish(actor)
        for actor in list(self.actors.values()):
            for nth in range(len(actor.claims)):
                self._whole(actor, "complete", nth)
        drainer = self.actors["drainer"] = Actor("drainer")
        reaper = self.actors["reaper"]
        for seconds in (0.0, LEASE + 1, LEASE + 1, LEASE + 1):
            self.told.wait(seconds)
            began = self.told.now
            self._whole(reaper, "recover")
            while self._whole(drainer, "claim").ids:
                for nth in range(len(drainer.claims)):
                    self._whole(drainer, "complete", nth)
            self.told.sweep(began)


@pytest.mark.parametrize(
    ("patient", "observable"),
    [
        pytest.param(False, True, id="a strict one"),
        pytest.param(True, True, id="rule 6: one that lets its holders repeat themselves"),
        pytest.param(False, False, id="one without `jobs`, judged by its answers alone"),
    ],
)
@settings(max_examples=80, deadline=None, database=None)
@given(rng=st.randoms(use_true_random=False), steps=st.integers(1, 60))
def test_no_false_alarm(rng: random.Random, steps: int, *, patient: bool, observable: bool) -> None:
    """However its workers' operations overlap, crash and time out, a sound queue breaks nothing."""
    history = Model(rng, patient=patient).run(steps)
    if not observable:
        history.final = None
    assert check(history, declared(order="priority, fifo", observable=observable)).violations == []


histories = st.builds(
    Model.run, st.builds(Model, st.randoms(use_true_random=False)), st.integers(1, 120)
)


@settings(max_examples=60, deadline=None, database=None)
@given(histories)
def test_overlaps_are_pairs_of_calls_by_different_actors(history: History) -> None:
    """One pass over the calls counts the same pairs as trying all of them."""
    answered = [call for call in history.calls if call.returned is not None]
    expected: Counter[tuple[str, str]] = Counter()
    for one, other in combinations(answered, 2):
        kinds = {one.kind, other.kind}
        if one.actor == other.actor or not one.overlaps(other):
            continue
        expected["single-claim", "overlapping claims"] += kinds == {"claim"}
        early = kinds == {"claim", "enqueue"}
        expected["not-early", "claims while an enqueue was not committed"] += early
        expected["no-deadlock", "operations that overlapped another"] += 1
        judged = bool(kinds & {"claim", "heartbeat", "recover"})
        expected["non-blocking", "operations that overlapped another"] += judged
    found = check(history, declared(order="priority, fifo")).evidence
    assert expected == Counter({what: found[what] for what in expected})


@cases(
    """
    another worker's claim
        w2 claims => 1
    a recovery
        recover => 1
    a claim of its own worker
        w1 claims => 0
    a claim after it has run out
        +31; w2 claims => 0
    a claim during which it runs out
        +29.5; begin w2 claims; +1; end w2 => 0
    a claim after a heartbeat
        +20; w1 beats 1; +20; w2 claims => 1
    a claim after the job's completion
        w1 completes 1; w2 claims => 0
    a claim after a completion that came to nothing
        w1 completes 1 -> error; w2 claims => 1
    a claim after the worker's crash
        w1 crashes; w2 claims => 0
    """,
    "enqueue 1; w1 claims 1; {}",
)
def test_whatever_could_have_taken_a_held_job_is_evidence(case: Case) -> None:
    """Each claim and recovery of others counts that ran wholly while a job's lease was fresh."""
    found = check(Told(case.story).history, declared()).evidence
    what = "claims and recoveries while a lease was fresh"
    assert [str(found["live-lease", what])] == case.breaks


def test_a_cleanup_keeps_what_has_ended_lately() -> None:
    """Two looks, and nothing but the cleanup between them: what is gone was taken by it."""
    history = Told(
        "enqueue 1 2 3 4; w1 runs 1 2 3 4; jobs 1=completed 2=completed 3=completed 4=completed; "
        "cleanup delay=600; jobs 1=completed 4=completed; left 1=completed 4=completed"
    ).history
    found = check(history, declared()).violations
    assert [(one.guarantee, one.job) for one in found] == [("no-lost-job", n) for n in ("2", "3")]


def returned() -> Call:
    """A claim with its answer."""
    call = Call(0, "claim", "w1", 1, 0.0, limit=1)
    call.ids, call.answer = ("7",), "accepted"
    call.waits += (LockWait("w2", None),)
    call.end(2, 0.5)
    return call


@pytest.mark.parametrize(
    "call",
    [returned(), replace(returned(), index=3), pickle.loads(pickle.dumps(returned()))],  # noqa: S301 - our own
    ids=["itself", "changed copy", "from another process"],
)
@pytest.mark.parametrize("name", ["answer", "ids", "returned", "waits"])
def test_a_call_that_has_returned_cannot_be_changed(call: Call, name: str) -> None:
    """Neither it nor a copy of it takes another value."""
    before = getattr(call, name)
    with pytest.raises(FrozenInstanceError, match=f"claim has returned: its {name}"):
        setattr(call, name, None)
    assert (before, 2, 0.5) == (getattr(call, name), call.returned, call.ended)


def test_a_call_that_has_not_returned_can_be_changed() -> None:
    """What is known before the answer is written down as it comes."""
    call = replace(Call(0, "fail", "w1", 1, 0.0), error="40001")
    call.answer = "retry"
    assert (call.error, call.answer, call.returned) == ("40001", "retry", None)
