"""Whole histories: real time, unknown answers, limits, order, waits, stranded jobs, blame."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.errors import QueueError, QueueproofError
from queueproof.history.calls import (
    Answer,
    Call,
    CallKind,
    History,
    LockWait,
    Ref,
    Stored,
    Timeline,
    write,
)
from queueproof.history.shelf import Shelf
from queueproof.judge import checker, spec
from queueproof.judge.checker import Declared, check
from queueproof.judge.lives import Hindrances, Life
from queueproof.judge.spec import Act, Breach, Job, Rules
from queueproof.queues.model import State
from queueproof.schedule.moments import DAY, grace
from workshop.checker import DECLARED, simulate

LEASE = 30.0
TICK = 0.01  # seconds of real time between two events


def declared(
    *,
    lease: float | None = LEASE,
    held: bool = False,
    worker_heartbeat: bool = False,
    recovers: bool = True,
    observable: bool = True,
    order: str = "none",
    cap: int | None = None,
    retries: bool = False,
) -> Declared:
    """A queue's declaration: by default a lease, `recover` and `jobs`."""
    return Declared(
        lease=lease,
        held=held,
        worker_heartbeat=worker_heartbeat,
        recovers=recovers,
        observable=observable,
        order=order,
        cap=cap,
        retries=retries,
    )


class Told:
    """Writes a history down, call by call."""

    def __init__(self, *jobs: str, **facts: Any) -> None:  # noqa: ANN401
        self.history = History()
        self.moment = 0
        self.now = 0.0
        for job in jobs:
            self.enqueue(job, **facts)

    def begin(self, kind: CallKind, actor: str = "w1", **facts: Any) -> Call:  # noqa: ANN401
        """Invoke an operation."""
        self._tick()
        calls = self.history.calls
        call = Call(len(calls), kind, actor, self.moment, self.now, **facts)
        if kind == "claim" and not call.limit:
            call.limit = 1
        calls.append(call)
        return call

    def end(self, call: Call, *ids: str, answer: Answer = "accepted") -> Call:
        """Answer an operation."""
        self._tick()
        call.answer = answer
        call.ids = tuple(dict.fromkeys(ids))
        call.repeated = tuple(job for n, job in enumerate(ids) if job in ids[:n])
        call.end(self.moment, self.now)
        return call

    def do(self, kind: CallKind, actor: str = "w1", *ids: str, **facts: Any) -> Call:  # noqa: ANN401
        """Invoke an operation, and answer it before anything else happens."""
        answer = facts.pop("answer", "accepted")
        return self.end(self.begin(kind, actor, **facts), *ids, answer=answer)

    def enqueue(self, job: str, **facts: Any) -> Call:  # noqa: ANN401
        """Enqueue a job."""
        return self.do("enqueue", "producer", job, **facts)

    def claim(self, actor: str, *ids: str, **facts: Any) -> Call:  # noqa: ANN401
        """Claim jobs."""
        return self.do("claim", actor, *ids, **facts)

    def on(self, kind: CallKind, claim: Call, job: str = "1", answer: Answer = "accepted") -> Call:
        """Act on a claimed job."""
        return self.do(kind, claim.actor, refs=(Ref(claim.index, job),), answer=answer)

    def completing_and_claiming(self, claim: Call, *ids: str, blocker: Call | None = None) -> Call:
        """Complete the job of a claim and claim others in one operation."""
        refs = tuple(Ref(claim.index, job) for job in claim.ids)
        done = self.begin("complete_many", claim.actor, refs=refs, limit=1)
        taken = self.begin("claim", claim.actor, limit=1)
        taken.invoked, taken.began = done.invoked, done.began
        if blocker is not None:
            for call in (done, taken):
                call.waits += (LockWait(blocker.actor, blocker.index),)
        self.end(done, *claim.ids)
        return self.end(taken, *ids)

    def race(self) -> tuple[Call, Call]:
        """Two claims at once."""
        return self.begin("claim", "w1", limit=1), self.begin("claim", "w2", limit=1)

    def recover(self, *ids: str, crashed: str = "") -> Call:
        """Have the leases run out, of a worker that has crashed or not, and take jobs back."""
        if crashed:
            self.do("crash", crashed)
        self.wait(LEASE + 1)
        return self.do("recover", "reaper", *ids)

    def drain(self, *, crashed: str = "") -> Call:
        """Have the leases run out, of a worker that has crashed or not, and find nothing more."""
        if crashed:
            self.do("crash", crashed)
        self.wait(LEASE + 1)
        return self.sweep()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def sweep(self, began: float | None = None) -> Call:
        """A drainer found nothing more to claim."""
        call = self.begin("sweep", "drainer")
        call.began = call.began if began is None else began
        return self.end(call)

    def finally_(self, **states: State) -> History:
        """The history, with what `jobs` reported at its end (`j1="completed"`)."""
        self.history.final = {name.removeprefix("j"): state for name, state in states.items()}
        return self.history

    def completed(self, *jobs: str) -> History:
        """The history, with jobs that `jobs` reported as completed at its end."""
        self.history.final = dict.fromkeys(jobs, "completed")
        return self.history

    def left(self, **states: State | None) -> History:
        """The history, with what `jobs` reported of those that are not gone."""
        return self.finally_(**{name: state for name, state in states.items() if state})

    def _tick(self) -> None:
        self.moment += 1
        self.now += TICK


def broken(history: History, facts: Declared | None = None) -> list[str]:
    """The ids of the guarantees that a history breaks."""
    found = check(history, facts or declared()).violations
    return sorted({violation.guarantee for violation in found})


# --- real time and overlap ----------------------------------------------------------------------


def test_a_claim_may_get_the_job_of_an_enqueue_that_it_overlaps() -> None:
    """A job whose enqueue is not answered yet may have been committed already."""
    told = Told()
    enqueue = told.begin("enqueue", "producer")
    claim = told.claim("w1", "1")
    told.end(enqueue, "1")
    told.on("complete", claim)
    assert broken(told.completed("1")) == []


def test_a_claim_that_was_answered_before_the_enqueue_began_is_early() -> None:
    """The order of the calls respects real time."""
    told = Told()
    told.claim("w1", "1")
    told.enqueue("1")
    assert broken(told.finally_(j1="running")) == ["not-early"]


def test_a_job_nobody_enqueued_is_the_schemas_own() -> None:
    """Rule 1: a job that schema# put in may be claimed."""
    told = Told()
    told.on("complete", told.claim("w1", "1"))
    assert broken(told.completed("1")) == []


def test_of_two_overlapping_operations_either_may_come_first() -> None:
    """A complete that races a recovery may be accepted or rejected, whoever answers first."""
    answers: tuple[Answer, ...] = ("accepted", "rejected")
    for answer in answers:
        for first in ("complete", "recover"):
            told = Told("1")
            claim = told.claim("w1", "1")
            told.wait(LEASE + 1)
            complete = told.begin("complete", "w1", refs=(Ref(claim.index, "1"),))
            recover = told.begin("recover", "reaper")
            ends = [(complete, ()), (recover, ("1",) if answer == "rejected" else ())]
            for call, ids in ends if first == "complete" else reversed(ends):
                told.end(call, *ids, answer=answer if call is complete else "accepted")
            if answer == "rejected":
                told.on("complete", told.claim("w2", "1"))
            assert broken(told.completed("1")) == []


def test_two_overlapping_claims_of_one_job_are_one_violation() -> None:
    """One violation counts once: two workers with one job are single-claim, and nothing else."""
    told = Told("1")
    one, other = told.race()
    told.end(one, "1")
    told.end(other, "1")
    told.on("complete", one)
    told.on("complete", other)
    (violation,) = check(told.completed("1"), declared()).violations
    assert ("single-claim", "1", other.index) == (
        violation.guarantee,
        violation.job,
        violation.call,
    )


def test_who_is_refused_because_of_a_race_is_told_of_the_race() -> None:
    """The loser of a race may be refused before the winner's claim is answered: single-claim."""
    told = Told("1")
    one, other = told.race()
    told.end(one, "1")
    told.on("complete", one, answer="rejected")
    told.end(other, "1")
    told.on("complete", other)
    (violation,) = check(told.completed("1"), declared()).violations
    assert ("single-claim", other.index) == (violation.guarantee, violation.call)


# --- answers that were lost: rule 7 -------------------------------------------------------------


@pytest.mark.parametrize("answer", ["retry", "error"])
def test_an_operation_that_was_not_done_is_neither_accepted_nor_rejected(answer: Answer) -> None:
    """Rule 7: after an error nothing happened, and a fresh worker may try again."""
    told = Told("1")
    claim = told.claim("w1", "1")
    told.on("complete", claim, answer=answer)
    told.on("complete", claim)
    assert broken(told.completed("1")) == []


@pytest.mark.parametrize("final", ["completed", "running"])
def test_a_crash_in_the_middle_of_a_complete_leaves_both_possible(final: State) -> None:
    """A worker that crashed in the middle of its complete may have completed the job or not."""
    told = Told("1")
    claim = told.claim("w1", "1")
    lost = told.begin("complete", "w1", refs=(Ref(claim.index, "1"),))
    lost.answer = "unknown"
    told.do("crash", "w1")
    if final == "running":
        told.recover("1")
        told.on("complete", told.claim("w2", "1"))
    assert broken(told.completed("1")) == []


@pytest.mark.parametrize(
    ("again", "left", "found"),
    [
        ([], None, ["no-lost-job"]),  # its only attempt of two was not heard of
        (["fail"], None, []),  # a later fail was heard, and had no attempt left
        (["complete"], None, []),
        ([], "failed", ["retry-given"]),
    ],
)
def test_a_job_is_lost_in_a_fail_whose_answer_was_lost(
    again: list[CallKind], left: State | None, found: list[str]
) -> None:
    """Where failed jobs come back it must not be gone, until a later attempt has ended it."""
    told = Told("1", bound=2)
    told.begin("fail", "w1", refs=(Ref(told.claim("w1", "1").index, "1"),)).answer = "unknown"
    for ender in again:
        told.on(ender, told.claim("w2", "1"))
    told.drain(crashed="w1")
    assert broken(told.left(j1=left), declared(retries=True)) == found


@pytest.mark.parametrize(
    ("other", "cleaned", "found"),
    [
        ("failed", False, ["no-lost-job"]),
        (None, False, []),  # what fails for good is deleted here
        ("failed", True, []),  # or the cleanup took it
    ],
)
def test_a_job_that_is_gone_has_not_failed_where_failed_jobs_are_listed(
    other: State | None, found: list[str], *, cleaned: bool
) -> None:
    """Rule 15: one that failed before it shows what becomes of a job whose last fail was done."""
    told = Told("1", "2", bound=1)
    told.on("fail", told.claim("w2", "2"), "2")
    told.begin("fail", "w1", refs=(Ref(told.claim("w1", "1").index, "1"),)).answer = "unknown"
    told.do("crash", "w1")
    if cleaned:
        told.do("cleanup", "janitor")
    told.drain()
    assert broken(told.left(j2=other), declared(retries=True)) == found


def test_a_last_fail_that_was_answered_the_second_time_is_done() -> None:
    """It was told then that the job has ended, and may be deleted at leisure."""
    told = Told("1", "2", bound=1)
    told.on("fail", told.claim("w2", "2"), "2")
    claim = told.claim("w1", "1")
    told.begin("fail", "w1", refs=(Ref(claim.index, "1"),)).answer = "unknown"
    told.on("fail", claim)
    told.drain()
    assert broken(told.finally_(j2="failed"), declared(retries=True)) == []


def test_a_later_fail_whose_answer_was_lost_is_not_the_last_either() -> None:
    """A job that is gone after two attempts of three was denied the third, heard of or not."""
    told = Told("1", bound=3)
    told.on("fail", told.claim("w1", "1"))
    told.begin("fail", "w1", refs=(Ref(told.claim("w1", "1").index, "1"),)).answer = "unknown"
    told.drain(crashed="w1")
    assert broken(told.finally_(), declared(retries=True)) == ["retry-given"]


@pytest.mark.parametrize(("bound", "found"), [(1, []), (2, ["retry-given"]), (None, [])])
@pytest.mark.parametrize("left", ["failed", None])
def test_a_fail_ends_a_job_at_its_last_attempt_only(
    bound: int | None, found: list[str], left: State | None
) -> None:
    """Rule 23: where max_attempts is declared, a failed job that has attempts left is not over."""
    told = Told("1", bound=bound)
    told.on("fail", told.claim("w1", "1"))
    told.drain()
    assert broken(told.left(j1=left)) == found


def test_a_job_that_a_cleanup_takes_after_its_fail_accuses_neither() -> None:
    """The fail ended it too early, or the cleanup took what waited: other runs tell which."""
    told = Told("1", bound=3)
    told.on("fail", told.claim("w1", "1"))
    told.do("cleanup", "janitor")
    told.drain()
    assert broken(told.finally_()) == []


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(
    ("left", "bound", "found"),
    [
        ("failed", 2, ["retry-given"]),
        ("failed", 1, []),
        ("failed", None, []),
        ("running", 2, ["stale-recovery"]),  # it did not end
        (None, 2, ["stale-recovery"]),  # it is lost
    ],
)
def test_a_crashed_workers_job_ends_at_its_last_attempt_only(
    *, answered: bool, left: State | None, bound: int | None, found: list[str]
) -> None:
    """Rule 23: what a crash ends with attempts left is retry-given, what never ends is not."""
    told = Told("1", bound=bound)
    told.claim("w1", "1")
    told.do("crash", "w1")
    told.wait(LEASE + 1)
    if answered:
        told.do("recover", "reaper", "1")
    told.sweep()
    assert broken(told.left(j1=left)) == found


@pytest.mark.parametrize("took", [True, False])
def test_a_claim_whose_answer_was_lost_may_have_taken_any_job(*, took: bool) -> None:
    """After a crash in the middle of a claim the job is free, or free once the lease is over."""
    told = Told("1")
    told.begin("claim", "w1", limit=1, answer="unknown")
    told.do("crash", "w1")
    if took:
        assert told.claim("w2").ids == ()
        told.recover("1")
    told.on("complete", told.claim("w2", "1"))
    assert broken(told.completed("1")) == []


def test_a_lost_claims_job_that_never_comes_back_is_stale_recovery() -> None:
    """Rule 21: a job that cannot be claimed after a crash is stale-recovery."""
    told = Told("1", bound=3)
    told.begin("claim", "w1", limit=1, answer="unknown")
    told.drain(crashed="w1")
    assert broken(told.finally_(j1="running")) == ["stale-recovery"]


def test_a_lost_claim_may_have_taken_a_job_whose_worker_had_ended_another() -> None:
    """That another job's completion was accepted ends no life but that job's."""
    told = Told("1", "2", bound=2)
    other = told.claim("w1", "2")
    told.on("complete", other, "2")
    told.claim("w1", "1")
    told.wait(LEASE + 1)
    told.on("complete", other, "2")
    told.do("recover", "reaper", "1")
    told.do("claim", "w1", limit=1, answer="unknown")
    told.recover("1", crashed="w1")
    told.sweep()
    assert broken(told.finally_(j1="failed", j2="completed")) == []


def test_a_job_that_a_lost_claim_need_not_have_taken_is_no_evidence_of_recovery() -> None:
    """What is explained without a call whose answer was lost is not explained with it."""
    told = Told("1", bound=1)
    told.begin("claim", "w1", limit=1, answer="unknown")
    told.do("crash", "w1")
    told.wait(LEASE + 1)
    told.on("complete", told.claim("w2", "1"))
    found = check(told.completed("1"), declared())
    assert found.violations == []
    assert found.evidence["stale-recovery", "jobs of crashed workers claimed again"] == 0


def test_an_observation_can_prove_that_a_lost_claim_took_the_job() -> None:
    """A job seen as failed was claimed by the call that nobody heard of, and must not run again."""
    told = Told("1", bound=1)
    lost = told.do("claim", "w1", limit=1, answer="unknown")
    told.recover("1", crashed="w1")
    told.do("jobs", "drainer", states={"1": "failed"})
    told.on("complete", told.claim("w2", "1"))
    (violation,) = check(told.completed("1"), declared()).violations
    assert (violation.guarantee, violation.call > lost.index) == ("retry-bound", True)


def test_a_job_of_the_schema_is_not_early_because_an_enqueue_is_lost_later() -> None:
    """An enqueue whose answer was lost cannot have made a job that was claimed before it."""
    told = Told()
    claim = told.claim("w1", "1")
    told.do("enqueue", "producer", answer="unknown")
    told.on("complete", claim)
    assert broken(told.completed("1")) == []


def test_an_unknown_batch_completes_a_subset() -> None:
    """Rule 16: a count between none and all means that any of the batch may be completed."""
    told = Told("1", "2")
    claim = told.claim("w1", "1", "2", limit=2)
    refs = (Ref(claim.index, "1"), Ref(claim.index, "2"))
    told.do("complete_many", "w1", refs=refs, answer="unknown")
    told.on("complete", claim, "1")
    told.on("complete", claim, "2", answer="rejected")
    assert broken(told.completed("1", "2")) == []


def test_a_batch_answers_for_each_of_its_jobs() -> None:
    """Rule 16: the ids of the answer are accepted, the others are rejected."""
    told = Told("1", "2")
    claim = told.claim("w1", "1", "2", limit=2)
    refs = (Ref(claim.index, "1"), Ref(claim.index, "2"))
    told.do("complete_many", "w1", "1", refs=refs)
    (violation,) = check(told.finally_(j1="completed", j2="running"), declared()).violations
    assert (violation.guarantee, violation.job) == ("live-lease", "2")


# --- limits: rule 13 ----------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "taken"), [(1, 1), (2, 2), (1, 2), (2, 3)])
def test_a_claim_takes_no_more_than_its_limit(limit: int, taken: int) -> None:
    """Rule 13: more jobs than asked for, one where nothing was asked for, break claim-limit."""
    told = Told()
    jobs = [str(n) for n in range(taken)]
    for job in jobs:
        told.enqueue(job)
    claim = told.claim("w1", *jobs, limit=limit)
    for job in jobs:
        told.on("complete", claim, job)
    assert broken(told.completed(*jobs)) == (["claim-limit"] if taken > limit else [])


def test_a_job_that_one_answer_names_twice_is_held_twice_and_no_more() -> None:
    """Rule 21: the same job twice in one answer is single-claim, not claim-limit as well."""
    told = Told("1")
    told.on("complete", told.claim("w1", "1", "1"))
    assert broken(told.completed("1")) == ["single-claim"]


# --- backoff: rule 11 -----------------------------------------------------------------------------


def early(wait: float, *, lost: bool = False) -> list[str]:
    """What breaks where a job that has failed is claimed after a while; `lost`: it was stale."""
    told = Told("1")
    claim = told.claim("w1", "1")
    if lost:
        told.recover("1")
    told.on("fail", claim)
    told.wait(wait)
    told.on("complete", told.claim("w2", "1"))
    return broken(told.completed("1"), replace(declared(), backoff=5.0))


def test_a_failed_job_waits() -> None:
    """An accepted fail of a fresh holder sets the earliest moment of the next claim."""
    assert (early(1.0), early(4.9), early(5.1)) == (["backoff"], ["backoff"], [])
    assert early(1.0, lost=True) == []  # it was in line by then


def test_a_job_that_is_enqueued_again_waits_no_more() -> None:
    """Rule 34: what was failed may run as soon as somebody has asked for it anew."""
    told = Told("1")
    told.on("fail", told.claim("w1", "1"))
    told.enqueue("1")
    told.on("complete", told.claim("w2", "1"))
    assert broken(told.completed("1"), replace(declared(), backoff=5.0)) == []


# --- order: rule 9 ------------------------------------------------------------------------------


def ordered(first: dict[str, Any], second: dict[str, Any], order: str, wait: float = 10.0) -> bool:
    """Whether the second of two jobs may be claimed before the first."""
    told = Told()
    told.enqueue("1", **first)
    told.enqueue("2", **second)
    told.wait(wait)
    for job in ("2", "1"):
        told.on("complete", told.claim("w1", job), job)
    found = broken(told.completed("1", "2"), declared(order=order))
    assert found in ([], ["order"])
    return not found


def test_a_delay_may_be_kept_in_minutes() -> None:
    """A longer delay may be rounded up past the shorter one of a job that came later."""
    told = Told()
    told.enqueue("1", delay=9.0)
    told.wait(5.0)
    told.enqueue("2", delay=5.0)
    told.wait(30.0)
    for job in ("2", "1"):
        told.on("complete", told.claim("w1", job), job)
    assert broken(told.completed("1", "2"), declared(order="fifo")) == []


@pytest.mark.parametrize(
    ("first", "second", "order", "free"),
    [
        ({}, {}, "fifo", False),
        ({}, {}, "priority, fifo", False),
        ({}, {}, "none", True),
        ({"priority": 0}, {"priority": 1}, "priority, fifo", True),
        ({"priority": 1}, {"priority": 0}, "priority, fifo", False),
        ({"priority": 0}, {"priority": 1}, "fifo", False),
        ({"delay": 5.0}, {}, "fifo", True),
        ({"delay": 1.0}, {"delay": 5.0}, "fifo", False),
        ({"delay": 5.0}, {"priority": 0}, "priority, fifo", True),
    ],
)
def test_free_jobs_are_claimed_in_the_declared_order(
    first: dict[str, Any], second: dict[str, Any], order: str, *, free: bool
) -> None:
    """Rule 9: order binds jobs whose enqueue order and due order agree; priority comes first."""
    assert ordered(first, second, order) == free


@pytest.mark.parametrize(("taken", "expected"), [("2", []), ("3", ["order"])])
def test_what_completes_and_claims_is_no_other_worker(taken: str, expected: list[str]) -> None:
    """Rule 9: its claim meets nobody when only its own completion is under way."""
    told = Told()
    for job in ("1", "2", "3"):
        told.enqueue(job)
        told.wait(10.0)
    claim = told.completing_and_claiming(told.claim("w1", "1"), taken)
    told.on("complete", claim, taken)
    told.on("complete", told.claim("w2", rest := {"2": "3", "3": "2"}[taken]), rest)
    assert expected == broken(told.completed("1", "2", "3"), declared(order="fifo"))


@pytest.mark.parametrize(("wait", "expected"), [(0.0, []), (2.0, ["order"])])
def test_what_came_last_need_not_be_due_at_once(wait: float, expected: list[str]) -> None:
    """A queue may round times up: a better job may be due a moment after its enqueue."""
    told = Told()
    told.enqueue("1")
    told.enqueue("2", priority=1)
    told.wait(wait)
    for job in ("1", "2"):
        told.on("complete", told.claim("w1", job), job)
    final = told.completed("1", "2")
    assert broken(final, declared(order="priority, fifo")) == expected


def test_a_job_that_was_claimed_before_may_come_back_anywhere() -> None:
    """Rule 9: retried jobs are outside the order."""
    told = Told("1")
    told.on("fail", told.claim("w1", "1"))
    told.enqueue("2")
    for job in ("2", "1"):
        told.on("complete", told.claim("w1", job), job)
    assert broken(told.completed("1", "2"), declared(order="fifo")) == []


def test_a_claim_beside_another_may_skip_what_the_other_holds() -> None:
    """A claim in the midst of another's may pass over a job that is locked just now."""
    told = Told("1", "2")
    other = told.begin("claim", "w1", limit=1)
    claim = told.claim("w2", "2")
    told.end(other, answer="error")
    told.on("complete", claim, "2")
    told.on("complete", told.claim("w2", "1"), "1")
    assert broken(told.completed("1", "2"), declared(order="fifo")) == []


# --- waits: rule 10 -----------------------------------------------------------------------------


def waiting(kind: CallKind, blocker: CallKind | None, facts: Declared | None = None) -> list[str]:
    """What is said of an operation that had to wait for another worker's."""
    told = Told("1", "2")
    mine, theirs = told.claim("w1", "1"), told.claim("w2", "2")
    other = None
    if blocker is not None:
        refs = () if blocker in {"claim", "recover", "cleanup"} else (Ref(theirs.index, "2"),)
        other = told.begin(blocker, "w2", refs=refs, limit=1)
    refs = (Ref(mine.index, "1"),) if kind in {"complete", "fail", "heartbeat"} else ()
    call = told.begin(kind, "w1" if kind != "recover" else "reaper", refs=refs, limit=1)
    call.waits += (LockWait("w2", other.index if other else None),)
    if other is not None:
        told.end(other)
    told.end(call)
    told.on("complete", mine, "1", answer="error")
    found = check(told.finally_(j1="running", j2="running"), facts or declared()).violations
    return sorted({v.guarantee for v in found if v.guarantee == "non-blocking"})


@pytest.mark.parametrize("kind", ["claim", "heartbeat", "recover"])
@pytest.mark.parametrize("blocker", ["claim", "complete", "fail", "heartbeat", None])
def test_claim_heartbeat_and_recover_wait_for_nobody(
    kind: CallKind, blocker: CallKind | None
) -> None:
    """Rule 10: waiting for another worker's claim, open job or a shared row breaks non-blocking."""
    assert waiting(kind, blocker) == ["non-blocking"]


@pytest.mark.parametrize(
    ("answer", "got", "found"),
    [
        ("accepted", "nothing", ["no-starvation"]),
        ("error", "an error (23505: its own row)", ["no-starvation"]),
        ("retry", "", []),  # not done, and may be tried again
    ],
)
def test_a_claim_that_answers_an_error_is_as_one_that_answers_nothing(
    answer: Answer, got: str, found: list[str]
) -> None:
    """Rule 7: an error prevents what the claim would have got, while nobody else acts."""
    told = Told("1")
    told.wait(5)
    for _ in range(2):
        told.do(
            "claim", "w1", answer=answer, error="23505: its own row" if answer == "error" else ""
        )
    told.on("complete", told.claim("w2", "1"))
    violations = check(told.completed("1"), declared()).violations
    assert [one.guarantee for one in violations] == found
    assert all(f"w1 got {got}, nobody else acted" in one.because for one in violations)


@pytest.mark.parametrize("kind", ["complete", "fail", "enqueue", "cleanup"])
def test_complete_fail_enqueue_and_cleanup_may_wait(kind: CallKind) -> None:
    """Rule 10: these may wait for whomever they like."""
    assert waiting(kind, "claim") == []


def meeting(
    kind: CallKind,
    blocker: CallKind,
    *,
    after: float,
    answered: bool = True,
    facts: Declared | None = None,
) -> list[str]:
    """What is said when one waits for the other, both of or for a job claimed a while ago."""
    told = Told("1")
    mine = told.claim("w1", "1")
    told.wait(after)
    ref = (Ref(mine.index, "1"),)
    free = {"claim", "recover"}
    other = told.begin(
        blocker, "w1" if blocker not in free else "w2", refs=() if blocker in free else ref, limit=1
    )
    call = told.begin(
        kind, "w1" if kind not in free else "w3", refs=() if kind in free else ref, limit=1
    )
    call.waits += (LockWait(other.actor, other.index),)
    told.end(other, *(["1"] if answered and blocker in free else []))
    told.end(call, answer="rejected" if kind == "heartbeat" and answered else "accepted")
    found = check(told.finally_(j1="running"), facts or declared()).violations
    return sorted({v.guarantee for v in found if v.guarantee == "non-blocking"})


@pytest.mark.parametrize(("blocker", "expected"), [("complete", []), ("claim", ["non-blocking"])])
def test_what_completes_and_claims_may_wait_as_a_completion_may(
    blocker: CallKind, expected: list[str]
) -> None:
    """Rule 10: it never waits for another's claim, which is no business of its own jobs."""
    told = Told("1", "2")
    mine, theirs = told.claim("w1", "1"), told.claim("w2", "2")
    refs = (Ref(theirs.index, "2"),) if blocker == "complete" else ()
    other = told.begin(blocker, "w2", refs=refs)
    told.completing_and_claiming(mine, blocker=other)
    told.end(other)
    assert broken(told.completed("1")) in (expected, ["no-lost-job", *expected])


@pytest.mark.parametrize("kind", ["claim", "recover"])
@pytest.mark.parametrize("blocker", ["complete", "fail", "heartbeat", "recover"])
def test_no_claim_or_recovery_waits_for_a_late_worker_or_a_reaper(
    kind: CallKind, blocker: CallKind
) -> None:
    """Rule 10: not even for the operation of a worker whose lease has run out."""
    assert meeting(kind, blocker, after=LEASE + 1) == ["non-blocking"]


@pytest.mark.parametrize("blocker", ["claim", "recover"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_late_heartbeat_may_wait_for_what_takes_its_job(
    blocker: CallKind, *, answered: bool
) -> None:
    """Rule 10: also where the job is put back or buried, so that the claim does not answer it."""
    assert meeting("heartbeat", blocker, after=LEASE + 1, answered=answered) == []


@pytest.mark.parametrize("blocker", ["claim", "recover"])
def test_a_heartbeat_waits_for_nobody_while_its_lease_is_fresh(blocker: CallKind) -> None:
    """Rule 10: a claim or a recovery must leave alone what is alive."""
    assert meeting("heartbeat", blocker, after=1, answered=False) == ["non-blocking"]


def test_a_workers_heartbeat_may_wait_for_an_operation_on_any_of_its_jobs() -> None:
    """Rules 3 and 10: a heartbeat of the whole worker names every job that the worker claimed."""
    told = Told("1", "2")
    stale = told.claim("w1", "1")
    told.wait(LEASE / 2)
    fresh = told.claim("w1", "2")
    told.wait(LEASE / 2 + 1)
    recover = told.begin("recover", "reaper")
    beat = told.begin("heartbeat", "w1", refs=(Ref(fresh.index, "2"),))
    beat.waits += (LockWait("reaper", recover.index),)
    told.end(recover, "1")
    told.end(beat)
    told.on("complete", fresh, "2")
    told.on("complete", stale, "1", answer="rejected")
    told.on("complete", told.claim("w2", "1"), "1")
    facts = declared(worker_heartbeat=True)
    assert broken(told.completed("1", "2"), facts) == []


def test_who_races_another_for_a_job_waits_for_it_and_that_is_one_violation() -> None:
    """Rule 21: two claims of one job are single-claim; that one waited is not judged as well."""
    told = Told("1")
    one, other = told.race()
    other.waits += (LockWait("w1", one.index),)
    told.end(one, "1")
    told.end(other, "1")
    assert broken(told.finally_(j1="running")) == ["single-claim"]


# --- jobs that do not come back: rules 15 and 21 ------------------------------------------------


def test_a_crashed_workers_job_that_no_sweep_finds_is_stranded() -> None:
    """Rule 21: the job of a crashed worker that cannot be claimed is stale-recovery."""
    told = Told("1", bound=3)
    told.claim("w1", "1")
    told.do("crash", "w1")
    told.sweep()
    told.drain()
    assert broken(told.finally_(j1="running")) == ["stale-recovery"]


@pytest.mark.parametrize(("days", "broken_by"), [(1.5, ["stale-recovery"]), (2.5, [])])
@pytest.mark.parametrize("observable", [True, False])
def test_a_job_that_was_taken_back_waits_as_long_as_its_sql_says(
    days: float, broken_by: list[str], *, observable: bool
) -> None:
    """Rule 14: it is stranded once every span that stands there is over."""
    told = Told("1", bound=3)
    told.claim("w1", "1")
    told.recover("1", crashed="w1")
    for _ in range(2):
        if observable:
            told.do("jobs", "drainer", states={"1": "queued"})
        told.sweep()
        told.wait(2 * DAY)
    told.on("complete", told.claim("w2", "1"))
    rules = replace(declared(observable=observable), longest=days * DAY)
    assert broken(told.completed("1"), rules) == broken_by


def test_a_job_is_not_stranded_before_its_lease_is_over() -> None:
    """A sweep while the lease of a crashed worker runs proves nothing."""
    told = Told("1", bound=3)
    told.claim("w1", "1")
    told.do("crash", "w1")
    told.sweep()
    told.recover("1")
    told.on("complete", told.claim("w2", "1"))
    assert broken(told.completed("1")) == []


def test_a_job_at_its_last_attempt_need_not_come_back() -> None:
    """A crash at the last attempt ends the job; it must be reported as failed."""
    told = Told("1", bound=1)
    told.claim("w1", "1")
    told.recover("1", crashed="w1")
    told.sweep()
    assert broken(told.finally_(j1="failed")) == []


def test_a_workers_heartbeat_named_by_an_old_claim_extends_the_new_one() -> None:
    """Rule 3: which of its claims a heartbeat of the whole worker is sent for does not matter."""
    told = Told("1", bound=3)
    old = told.claim("w1", "1")
    told.recover("1")
    told.claim("w1", "1")
    told.wait(0.6 * LEASE)
    told.on("heartbeat", old)
    told.wait(0.6 * LEASE)
    told.do("crash", "w1")
    told.sweep()  # the heartbeat's lease still runs: nobody may have the job now
    told.wait(LEASE)
    told.do("recover", "reaper", "1")
    told.on("complete", told.claim("w2", "1"))
    assert broken(told.completed("1"), declared(worker_heartbeat=True)) == []


@pytest.mark.parametrize(
    ("ender", "bound", "final", "expected"),
    [
        ("complete", None, {}, []),
        ("complete", None, {"j1": "completed"}, []),
        ("fail", 1, {}, []),
        ("fail", 1, {"j1": "failed"}, []),
        ("fail", 1, {"j1": "running"}, ["no-lost-job"]),
        ("", None, {}, ["no-lost-job"]),
        ("", None, {"j1": "queued"}, ["no-lost-job"]),
        ("", 1, {"j1": "failed"}, ["no-lost-job"]),
    ],
)
def test_what_becomes_of_a_job_must_be_accounted_for(
    ender: CallKind, bound: int | None, final: dict[str, State], expected: list[str]
) -> None:
    """Rule 15: a job may be gone after an accepted complete or fail; otherwise it is lost."""
    told = Told("1", bound=bound)
    if ender:
        told.on(ender, told.claim("w1", "1"))
    told.sweep()
    assert broken(told.finally_(**final)) == expected


def test_a_recovered_job_at_its_last_attempt_may_be_gone() -> None:
    """Rule 15: a job that recover answered at its last attempt counts as failed if it is gone."""
    told = Told("1", bound=1)
    told.claim("w1", "1")
    told.recover("1", crashed="w1")
    assert broken(told.finally_()) == []


@pytest.mark.parametrize("claimed", [True, False])
def test_without_jobs_and_without_a_bound_a_job_can_be_lost(*, claimed: bool) -> None:
    """A job that no claim returns after a drain is lost, even where `jobs` cannot be asked."""
    told = Told("1")
    if claimed:
        told.claim("w1", "1")
        told.drain(crashed="w1")
    history = told.history
    expected = ["stale-recovery"] if claimed else ["no-lost-job"]
    assert broken(history, declared(observable=False)) == expected


def test_a_job_whose_enqueue_took_long_is_not_starved_before_it_is_surely_due() -> None:
    """An enqueue happens at some moment before its answer; the delay may count from there."""
    told = Told("1", bound=1)
    told.on("fail", told.claim("w1", "1"))
    slow = told.begin("enqueue", "producer", delay=20.0)
    told.wait(30.0)
    told.end(slow, "2")
    told.sweep()
    told.wait(30.0)
    told.on("complete", told.claim("w1", "2"), "2")
    assert broken(told.finally_(j1="failed", j2="completed")) == []


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("plain", ["no-starvation"]),
        ("once", []),  # rule 28: a claim may do maintenance and answer nothing
        ("soon", []),  # a queue may keep whole seconds, rounded up
        ("delayed", []),  # its time may have to be noticed by a promoter
        ("never claimed", []),  # nobody knows whether it could be claimed
        ("beside", []),  # a claim may come back empty while somebody acts
        ("capped", []),
        ("busy", []),  # who has a job may be given no other
        ("lapsed", []),  # two stale jobs are two empty claims
        ("lapsed, at last", ["no-starvation"]),
        ("failed", []),
        ("retry", []),
    ],
)
def test_two_claims_in_turn_that_nobody_disturbs_find_a_ready_job(
    case: str, found: list[str]
) -> None:
    """A job that is ready is not kept from a claim by those that others hold."""
    told = Told()
    for job in "12":
        told.enqueue(job, bound=2)
    told.enqueue("3", bound=2, delay=0.5 if case == "delayed" else 0.0)
    first, second = told.claim("w1", "1"), told.claim("w2", "2")
    if case == "failed":
        told.on("fail", first)
    told.wait({"soon": 0.5, "lapsed": LEASE, "lapsed, at last": LEASE}.get(case, 2.0))
    other = told.begin("heartbeat", "w1") if case == "beside" else None
    for _ in range({"once": 1, "lapsed": 3, "lapsed, at last": 4}.get(case, 2)):
        told.claim(
            "w2" if case == "busy" else "w3", answer="retry" if case == "retry" else "accepted"
        )
    if other is not None:
        told.end(other)
    for claim, job in ((first, "1"), (second, "2")):
        told.on("complete", claim, job)
    if case != "never claimed":
        told.on("complete", told.claim("w3", "3"), "3")
    history = told.completed("1", "2", "3")
    if case == "never claimed":
        history.final = None
    facts = declared(cap=2 if case == "capped" else None, observable=case != "never claimed")
    ids = [violation.guarantee for violation in check(history, facts).violations]
    assert [one for one in ids if one == "no-starvation"] == found


@pytest.mark.parametrize(("cap", "expected"), [(1, []), (2, ["no-starvation"])])
def test_a_job_beside_a_full_cap_is_not_starved(cap: int, expected: list[str]) -> None:
    """Until its lease is over nobody can know that a crashed worker's job does not run."""
    told = Told("1", "2")
    told.claim("w1", "1")
    told.wait(2.0)
    told.do("crash", "w1")
    told.sweep()
    told.recover("1")
    for job in ("1", "2"):
        told.on("complete", told.claim("w2", job), job)
    assert broken(told.completed("1", "2"), declared(cap=cap)) == expected


@pytest.mark.parametrize(("late", "expected"), [(-1.0, []), (2.0, ["stale-recovery"])])
def test_a_lease_may_last_longer_than_declared(late: float, expected: list[str]) -> None:
    """Rule 4: at least so long, and whole minutes are; what comes back much later is stranded."""
    told = Told("1", bound=3)
    told.claim("w1", "1")
    told.do("crash", "w1")
    told.wait(LEASE + grace(LEASE) + late)
    told.sweep()
    told.wait(LEASE)
    told.do("recover", "reaper", "1")
    told.on("complete", told.claim("w2", "1"))
    history = told.completed("1")
    assert broken(history, replace(declared(), late=grace(LEASE))) == expected
    assert broken(history) == ["stale-recovery"]  # of a queue whose leases are exact


@pytest.mark.parametrize(
    ("before", "answer", "expected"),
    [
        (LEASE / 2, "accepted", ["concurrency-limit"]),
        (LEASE / 2, "rejected", []),
        (LEASE + 1, "accepted", ["concurrency-limit"]),  # it was late, and nobody else had the job
        (LEASE + 1, "rejected", []),
    ],
)
def test_a_job_lives_and_counts_by_its_heartbeats(
    before: float, answer: Answer, expected: list[str]
) -> None:
    """What was extended runs until that is over, and fills the cap."""
    told = Told("1", "2")
    first = told.claim("w1", "1")
    told.wait(before)
    told.on("heartbeat", first, answer=answer)
    told.wait(LEASE - before / 2)
    told.on("complete", told.claim("w2", "2"), "2")
    found = check(told.finally_(j1="running", j2="completed"), declared(cap=1)).violations
    assert [one.guarantee for one in found if one.guarantee == "concurrency-limit"] == expected


def test_a_heartbeat_whose_own_lease_is_over_by_its_answer_makes_no_job_run() -> None:
    """It may have been done long before, and then the job's place was free again."""
    told = Told("1", "2")
    first = told.claim("w1", "1")
    told.wait(LEASE + 1)
    told.claim("w3")  # so that its lease is seen to be over
    beat = told.begin("heartbeat", "w1", refs=(Ref(first.index, "1"),))
    told.wait(LEASE + 1)
    told.claim("w2", "2")
    told.end(beat)
    found = check(told.history, declared(cap=1)).violations
    assert "concurrency-limit" not in {one.guarantee for one in found}


@pytest.mark.parametrize("end", ["complete", "crash", "recover", "claim"])
def test_what_has_ended_is_not_brought_back_by_a_late_heartbeat(end: CallKind) -> None:
    """A request that is sent twice, or comes too late, makes no job run."""
    told = Told("1", "2")
    first = told.claim("w1", "1")
    told.wait(LEASE + 1)
    told.claim("w3")  # so that its lease is seen to be over
    if end == "complete":
        told.on("complete", first)
    elif end == "claim":
        told.on("complete", told.claim("w4", "1"), "1")
    else:
        told.do(end, *{"crash": ("w1",), "recover": ("reaper", "1")}[end])
    told.on("heartbeat", first)
    told.claim("w2", "2")
    found = check(told.history, declared(cap=1)).violations
    assert "concurrency-limit" not in {one.guarantee for one in found}


REFUSED = "23505: duplicate key value violates unique constraint"


def erring(told: Told, kind: CallKind, claim: Call, error: str = REFUSED) -> Call:
    """An operation on the first job of a claim that is answered by an error."""
    call = told.begin(kind, claim.actor, refs=(Ref(claim.index, claim.ids[0]),))
    call.error = error
    return told.end(call, answer="error")


@pytest.mark.parametrize("kind", ["complete", "fail", "heartbeat"])
def test_an_error_that_nobody_else_has_caused_is_a_refusal(kind: CallKind) -> None:
    """Rule 7: a fresh holder who gets nothing but errors has lost the job that it holds."""
    told = Told("1")
    claim = told.claim("w1", "1")
    erring(told, kind, claim)
    history = told.history
    assert broken(history) == ["live-lease"]
    assert broken(history, replace(declared(), lease=None)) == []  # nor is a refusal judged there
    paced = broken(history, replace(declared(), paced=True))
    assert paced == ([] if kind == "fail" else ["live-lease"])  # that is backoff's to judge


@pytest.mark.parametrize(
    "why", ["again", "late", "met", "fault", "lost", "ended", "server", "begun", "token"]
)
def test_an_error_with_another_cause_is_none(why: str) -> None:
    """Who succeeds later, has lost the job, met somebody or met a fault was not refused it."""
    told = Told("1")
    claim = told.claim("w1", "1")
    facts = declared()
    match why:
        case "late":
            told.wait(LEASE)
        case "fault":
            told.do("terminate", "nemesis")
        case "lost":
            told.recover("1")
            told.on("complete", told.claim("w2", "1"))
        case "ended":
            told.on("complete", claim)
        case "begun":
            told.do("start", "w2")
        case "token":
            told.on("heartbeat", claim)
            facts = replace(facts, renews=True)
        case "met":
            other = told.begin("claim", "w2")
    erring(told, "complete", claim, "40001: " if why == "server" else REFUSED)
    if why == "met":
        told.end(other)
    if why == "again":
        told.on("complete", claim)
    assert "live-lease" not in broken(told.history, facts)


def test_a_job_that_the_queue_put_there_is_due_when_the_queue_says() -> None:
    """Rule 1: nobody else knows from when on a job that nobody enqueued may run."""
    told = Told("2", delay=7200.0)
    told.sweep()
    told.wait(8000.0)
    for job in ("1", "2"):
        told.on("complete", told.claim("w1", job), job)
    assert broken(told.completed("1", "2")) == []


@pytest.mark.parametrize("answer", ["rejected", "error"])
def test_a_lost_claim_may_be_refused_by_an_error(answer: Answer) -> None:
    """Rule 7: an error means that nothing happened, which is what fencing asks for."""
    told = Told("1")
    late = told.claim("w1", "1")
    told.recover("1")
    taken = told.claim("w2", "1")
    told.on("complete", late, answer=answer)
    told.on("complete", taken)
    found = check(told.completed("1"), declared())
    assert not found.violations
    assert found.evidence["fencing", "operations with a lost claim refused"] == 1


@pytest.mark.parametrize("late", ["complete", "fail", "heartbeat"])
def test_only_what_comes_after_the_next_claim_puts_fencing_to_the_test(late: CallKind) -> None:
    """A holder that repeats itself and is refused shows nothing of a worker that lost its job."""
    told = Told("1")
    mine = told.claim("w1", "1")
    told.on("fail", mine)
    told.on(late, mine, answer="rejected")
    told.on("complete", told.claim("w2", "1"))
    found = check(told.completed("1"), declared())
    assert not found.violations
    assert not found.evidence["fencing", "operations with a lost claim refused"]


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [("complete", "fail", "failed"), ("fail", "complete", "completed")],
)
def test_what_a_holder_adds_does_not_end_its_job_otherwise(
    first: CallKind, second: CallKind, ends: State
) -> None:
    """Rule 6: a completed job that is failed afterwards, or the reverse, breaks final-state."""
    told = Told("1", bound=1)
    mine = told.claim("w1", "1")
    told.on(first, mine)
    told.on(second, mine)
    assert broken(told.finally_(j1=ends)) == ["final-state"]


def test_what_a_worker_repeats_does_not_end_its_next_job() -> None:
    """A worker that is refused its second job because it repeated itself on the first: fencing."""
    told = Told("1", "2")
    first = told.claim("w1", "1")
    told.on("complete", first)
    second = told.claim("w1", "2")
    told.on("complete", first)
    told.on("complete", second, "2", answer="rejected")
    assert broken(told.completed("1", "2")) == ["fencing"]
    assert broken(told.completed("1", "2"), declared(lease=None)) == ["fencing"]


def test_a_completion_that_nobody_was_told_of_is_not_told_as_accepted() -> None:
    """A worker that crashed before its answer: what became of its job is unknown, and said so."""
    told = Told("1")
    mine = told.claim("w1", "1")
    told.begin("complete", refs=(Ref(mine.index, "1"),)).answer = "unknown"
    told.do("crash")
    told.recover()
    told.do("sweep", "drainer")
    (found,) = check(told.finally_(j1="running"), declared()).violations
    assert found.guarantee == "stale-recovery"
    assert "accepted" not in found.because
    assert "nobody was told" in found.because


# --- cost of the check --------------------------------------------------------------------------


def long_history(rounds: int) -> History:
    """A job that two workers claim in turn, fail, and race a recovery over."""
    told = Told("1")
    for n in range(rounds):
        claim = told.claim(f"w{n % 2}", "1")
        told.wait(LEASE + 1)
        fail = told.begin("fail", claim.actor, refs=(Ref(claim.index, "1"),))
        recover = told.begin("recover", "reaper")
        told.end(fail)
        told.end(recover)
    return told.finally_(j1="queued")


def test_the_steps_of_a_check_grow_with_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history ten times as long takes about ten times the steps, not a power of it."""
    steps = 0

    def counted(rules: Rules, job: Job, act: Act) -> list[Job] | Breach:
        nonlocal steps
        steps += 1
        return original(rules, job, act)

    original = spec.step
    monkeypatch.setattr(checker, "step", counted)
    taken = []
    for rounds in (10, 100):
        steps = 0
        check(long_history(rounds), declared())
        taken.append(steps)
    assert taken[1] <= 11 * taken[0]


def one_by_one(jobs: int) -> History:
    """A deep backlog that one worker claims in order, with a heartbeat for each job."""
    told = Told()
    enqueues = [
        told.enqueue(str(n), priority=-(n % 2), delay=0.5 if n % 50 == 0 else 0.0)
        for n in range(jobs)
    ]
    told.wait(1.0)
    for call in sorted(enqueues, key=lambda call: (-call.priority, call.began + call.delay)):
        (job,) = call.ids
        claim = told.claim("w1", job)
        told.on("heartbeat", claim, job)
        told.on("complete", claim, job)
    return told.completed(*map(str, range(jobs)))


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of Python run, loops counted each time around."""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: object) -> Any:  # noqa: ANN401
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


FREE_RUN = (lambda n: simulate(10 * n), DECLARED)
ALONE = (one_by_one, declared(worker_heartbeat=True, order="priority, fifo", cap=2))


@pytest.mark.parametrize(("history", "facts"), [FREE_RUN, ALONE], ids=["free run", "alone"])
def test_the_work_of_a_check_grows_with_the_history(
    history: Callable[[int], History], facts: Declared
) -> None:
    """A history ten times as long is ten times the work, be its claims alone or overlapping."""

    def work(told: History) -> float:
        lines = lines_run(lambda: check(told, facts))
        return lines / len(told.calls)

    short, long = history(100), history(1000)
    assert check(long, facts).violations == []
    assert work(long) <= 1.3 * work(short)


def test_a_simulated_history_is_sound_and_depends_on_its_seed_alone() -> None:
    """What the cost of a check is measured on breaks nothing, and puts much to the test."""
    found = [check(simulate(10_000, seed), DECLARED) for seed in (1, 1, 2)]
    assert [one.violations for one in found] == [[], [], []]
    assert found[0].evidence == found[1].evidence != found[2].evidence
    tested = {guarantee for guarantee, _ in found[0].evidence}
    assert {"single-claim", "stale-recovery", "live-lease", "retry-bound", "fencing"} <= tested


def test_a_history_is_judged_the_same_every_time() -> None:
    """The same calls give the same evidence and the same words, however often they are judged."""

    def judged() -> str:
        told = Told()
        for job in ("1", "2", "3", "4"):
            told.enqueue(job)
            told.on("fail", told.claim("w1", job), job)
            told.sweep()
        return repr(sorted(check(told.finally_(), declared()).evidence.items()))

    kept = [(judged(), [object() for _ in range(n)]) for n in range(100)]
    assert len({text for text, _ in kept}) == 1


# --- a queue in memory --------------------------------------------------------------------------


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
    snapshot: list[str] = field(default_factory=list)
    done: bool = False  # the open call has taken effect
    answer: Answer = "accepted"
    ids: tuple[str, ...] = ()


class Model:
    """A queue of rows, and workers whose operations take effect at some moment of their own.

    Args:
        rng: Makes every choice.
        defect: The guarantee that this queue breaks; none by default.
        calm: Whether nothing but a claim ever happens in the middle of another operation, a claim.
        patient: Whether what a holder says of a job that it has ended is accepted, and ignored.
    """

    def __init__(
        self, rng: random.Random, defect: str = "", *, calm: bool = False, patient: bool = False
    ) -> None:
        self.rng = rng
        self.calm = calm
        self.patient = patient
        self.defect = defect
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
        return self.told.finally_(**{f"j{job}": row.state for job, row in self.rows.items()})

    def _step(self) -> None:
        open_kinds = {actor.call.kind for actor in self.actors.values() if actor.call}
        quiet = not (self.calm and open_kinds)
        if self.rng.random() < 0.15 and quiet:
            self.told.wait(self.rng.choice((1.0, 0.6 * LEASE, LEASE + 1)))
            return
        actor = self.rng.choice(sorted(self.actors.values(), key=lambda one: one.name))
        if actor.name.startswith("w") and self.rng.random() < 0.06 and quiet:
            self._crash(actor)
        elif actor.call is None:
            kind = self._choice(actor)
            if quiet or open_kinds | {kind} == {"claim"}:
                self._invoke(actor, kind)
        elif not actor.done:
            self._take_effect(actor)
        else:
            self._answer(actor)

    def _choice(self, actor: Actor) -> CallKind:
        if actor.name in {"reaper", "producer"}:
            return "recover" if actor.name == "reaper" else "enqueue"
        kinds: list[CallKind] = ["claim", "claim"]
        if actor.claims:
            kinds += ["complete", "fail", "heartbeat"]
        return self.rng.choice(kinds)

    def _whole(self, actor: Actor, kind: CallKind, nth: int | None = None) -> Call:
        call = self._invoke(actor, kind, nth)
        self._take_effect(actor)
        self._answer(actor)
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
            case "recover":
                pass
            case _:
                chosen = self.rng.randrange(len(actor.claims)) if nth is None else nth
                facts["refs"] = (actor.claims[chosen][0],)
        call = self.told.begin(kind, actor.name, **facts)
        actor.call, actor.done = call, False
        actor.snapshot = self._free()
        self._note_waits(actor, call)
        return call

    def _note_waits(self, actor: Actor, call: Call) -> None:
        if self.defect != "non-blocking" or call.kind != "claim":
            return
        for other in self.actors.values():
            if other is not actor and other.call is not None and other.call.kind == "claim":
                call.waits += (LockWait(other.name, other.call.index),)

    def _free(self) -> list[str]:
        """The jobs that a claim may take, in their order."""
        early = self.defect == "not-early"
        free = [
            job
            for job, row in self.rows.items()
            if row.state == "queued" and (row.due <= self.told.now or early)
        ]
        free.sort(key=lambda job: (-self.rows[job].priority, self.rows[job].due))
        return free[::-1] if self.defect == "order" else free

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
        # A claim that picked its jobs before it locked them takes what others have taken since.
        free = actor.snapshot if self.defect == "single-claim" else self._free()
        taken = free[: call.limit + (self.defect == "claim-limit")]
        for job in taken:
            row = self.rows[job]
            row.state = "running"
            row.attempts += 1
            row.holder, row.ended = (actor.name, row.attempts), None
            row.until = self._until()
        return tuple(taken)

    def _until(self) -> float:
        if self.defect == "live-lease":
            return self.told.now + LEASE / 4
        return self.told.now + LEASE

    def _recover(self) -> tuple[str, ...]:
        if self.defect == "stale-recovery":
            return ()
        again = {"running", "completed"} if self.defect == "final-state" else {"running"}
        found = [
            job
            for job, row in self.rows.items()
            if row.state in again and row.until < self.told.now
        ]
        for job in found:
            self._give_back(self.rows[job])
        return tuple(found)

    def _give_back(self, row: Row) -> None:
        more = row.attempts < row.bound or self.defect == "retry-bound"
        row.state = "queued" if more else "failed"
        row.holder = None

    def _act(self, actor: Actor, call: Call, row: Row, token: int) -> bool:
        if row.state != "running":
            return self.patient and row.ended == (actor.name, token)
        if row.holder != (actor.name, token) and self.defect != "fencing":
            return False
        if call.kind != "heartbeat":
            row.ended = row.holder
        match call.kind:
            case "complete":
                row.state = "completed"
            case "fail" if self.defect == "no-lost-job":
                row.until, row.holder = float("inf"), None
            case "fail":
                self._give_back(row)
            case _:
                row.until = max(row.until, self._until())
        return True

    def _answer(self, actor: Actor) -> None:
        call = actor.call
        assert call is not None
        self.told.end(call, *actor.ids, answer=actor.answer)
        actor.call = None
        if call.kind == "claim":
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
            if actor.call is not None and not actor.done:
                self._take_effect(actor)
            if actor.call is not None:
                self._answer(actor)
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


MODELLED = declared(order="priority, fifo")


@settings(max_examples=80, deadline=None, database=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_a_sound_queue_is_never_accused(rng: random.Random, steps: int) -> None:
    """However its workers' operations overlap, crash and time out, a sound queue breaks nothing."""
    assert check(Model(rng).run(steps), MODELLED).violations == []


@settings(max_examples=80, deadline=None, database=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_a_queue_that_lets_its_holders_repeat_themselves_is_never_accused(
    rng: random.Random, steps: int
) -> None:
    """Rule 6: whatever a holder says of a job that it has ended may be accepted, and ignored."""
    assert check(Model(rng, patient=True).run(steps), MODELLED).violations == []


@settings(max_examples=40, deadline=None, database=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_a_sound_queue_is_never_accused_where_jobs_is_absent(
    rng: random.Random, steps: int
) -> None:
    """A queue that cannot be observed is judged by its answers alone, and not accused either."""
    history = Model(rng).run(steps)
    history.final = None
    assert check(history, declared(order="priority, fifo", observable=False)).violations == []


DEFECTS = (
    "single-claim",
    "claim-limit",
    "no-lost-job",
    "not-early",
    "order",
    "stale-recovery",
    "live-lease",
    "fencing",
    "retry-bound",
    "final-state",
    "non-blocking",
)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_queue_with_one_defect_is_accused_of_that_alone(defect: str) -> None:
    """Each planted defect is found, and blamed on its guarantee only (rule 21)."""
    found = accusations(defect, range(60))
    assert found == {defect}


def accusations(defect: str, seeds: Iterable[int]) -> set[str]:
    """What a broken queue is accused of over some random runs."""
    histories: Sequence[History] = [
        Model(random.Random(seed), defect, calm=True).run(120)  # noqa: S311 - a reproducible run, no secret
        for seed in seeds
    ]
    return {guarantee for history in histories for guarantee in broken(history, MODELLED)}


# --- what is counted in one pass, counted plainly -----------------------------------------------


def modelled(rng: random.Random, defect: str, steps: int) -> History:
    """A random history of a sound or broken queue."""
    return Model(rng, defect).run(steps)


histories = st.builds(
    modelled,
    st.randoms(use_true_random=False),
    st.sampled_from(("", *DEFECTS)),
    st.integers(1, 120),
)
plainly = settings(max_examples=60, deadline=None, database=None)


@plainly
@given(histories, st.integers(0, 300), st.integers(0, 300))
def test_a_timeline_finds_the_calls_that_were_open(history: History, start: int, end: int) -> None:
    """What overlaps a span is what began before its end and had not ended at its start."""
    expected = [
        call
        for call in history.calls
        if call.invoked < end and (call.returned is None or call.returned > start)
    ]
    assert expected == list(Timeline(history.calls).overlapping(start, end))


@plainly
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
        expected["not-early", "claims during an enqueue"] += kinds == {"claim", "enqueue"}
        expected["no-deadlock", "operations in the midst of another's"] += 1
        judged = bool(kinds & {"claim", "heartbeat", "recover"})
        expected["non-blocking", "operations in the midst of another's"] += judged
    found = check(history, MODELLED).evidence
    assert expected == Counter({what: found[what] for what in expected})


@plainly
@given(histories, st.sampled_from([LEASE, None]))
def test_fresh_leases_are_counted_against_all_who_might_have_taken_the_job(
    history: History, lease: float | None
) -> None:
    """Every claim and recovery of others counts that ran wholly while a claimed job was held."""
    takers = history.of_kind("claim", "recover")
    ends: dict[Ref | str, int] = {}  # of a claimed job, or of a worker
    for call in history.of_kind("complete", "fail", "crash"):
        for ended in (call.actor,) if call.kind == "crash" else call.refs:
            ends.setdefault(ended, call.invoked)
    never = float("inf")
    expected = sum(
        other.actor != claim.actor
        and claim.returned is not None
        and claim.returned < other.invoked
        and other.invoked < ends.get(Ref(claim.index, job), never)
        and other.invoked < ends.get(claim.actor, never)
        and other.ended < claim.began + (lease or float("inf"))
        for claim in history.of_kind("claim")
        for job in claim.ids
        for other in takers
    )
    found = check(history, declared(lease=lease, held=lease is None)).evidence
    assert expected == found["live-lease", "claims and recoveries during a fresh lease"]


@plainly
@given(histories, st.integers(1, 4))
def test_running_jobs_are_counted_at_each_claim(history: History, cap: int) -> None:
    """The first claim after which more jobs certainly ran than the cap is accused.

    A late heartbeat that brings a job back counts as one.
    """
    claims = [call for call in history.of_kind("claim") if call.ids and call.returned]

    def running(taker: Call) -> int:
        return len({
            job
            for claim in claims
            if _at(claim) <= _at(taker)
            for job in claim.ids
            if taker.ended < _lapses(history, Ref(claim.index, job), _at(taker))
            and not any(
                call.invoked < _at(taker)
                and (Ref(claim.index, job) in call.refs or _crashed(call, claim))
                for call in history.of_kind("complete", "fail", "crash")
            )
        })  # fmt: skip

    returning = [
        beat
        for beat in history.of_kind("heartbeat")
        if beat.answer == "accepted"
        for ref in beat.refs
        if _lapses(history, ref, _at(beat) - 1) <= beat.ended < _lapses(history, ref, _at(beat))
    ]
    # A claim is judged once those that began before it have answered too.
    judged = [(max(_at(one) for one in claims if one.index <= c.index), c.index) for c in claims]
    judged += [(_at(beat), beat.index) for beat in returning]
    over = [index for _, index in sorted(judged) if running(history.calls[index]) > cap]
    found = check(history, declared(cap=cap)).violations
    assert over[:1] == [v.call for v in found if v.guarantee == "concurrency-limit"]


def _at(call: Call) -> int:
    """When a call has answered."""
    assert call.returned is not None
    return call.returned


def _lapses(history: History, held: Ref, until: int) -> float:
    """When the lease on a claimed job certainly runs out, as far as is known by then."""
    claim = history.calls[held.call]
    end = claim.began + LEASE
    beats = [
        call
        for call in history.of_kind("heartbeat")
        if held in call.refs and call.answer == "accepted"
    ]
    for beat in sorted(beats, key=_at):
        between = range(_at(claim) + 1, _at(beat))
        late = beat.ended > end and any(  # somebody else may have taken it, or ended it
            (held.job in other.ids and other.returned in between)
            or (held.job in [ref.job for ref in other.refs] and other.invoked in between)
            for other in history.of_kind("claim", "recover", "complete", "fail")
            if other.ended >= end
        )
        end = beat.began + LEASE if between and _at(beat) <= until and not late else end
    return end


def _crashed(call: Call, claim: Call) -> bool:
    return call.kind == "crash" and call.actor == claim.actor


@plainly
@given(histories, st.sampled_from(["fifo", "priority, fifo"]))
def test_order_is_judged_as_if_every_pair_of_jobs_were_compared(
    history: History, order: str
) -> None:
    """The first passed-over job that precedes a taken one is named, whichever are compared."""
    facts = declared(order=order)
    found = check(history, facts)
    bad = {v.job for v in check(history, declared()).violations}
    expected, compared = first_out_of_order(history, order, bad)
    told = [(v.call, v.because) for v in found.violations if v.guarantee == "order"]
    assert expected == told
    assert compared == (found.evidence["order", "pairs of jobs compared"] > 0)


def first_out_of_order(
    history: History, order: str, bad: set[str | None]
) -> tuple[list[tuple[int, str]], bool]:
    """The first violation of an order, and whether any two jobs could be compared."""
    compared = False
    claimed: set[str] = set()
    for claim in history.of_kind("claim"):
        if claim.answer == "unknown":
            break
        beside = [c for c in history.calls if c.kind not in checker._INSTANT and c is not claim]
        free = [
            call
            for call in history.of_kind("enqueue")
            if call.returned is not None
            and call.returned < claim.invoked
            and call.ended + call.delay <= claim.began
            and (claimed | bad).isdisjoint(call.ids)
        ]
        if not any(call.overlaps(claim) for call in beside):
            for later in (call for call in free if set(call.ids) & set(claim.ids)):
                for earlier in (call for call in free if not set(call.ids) & set(claim.ids)):
                    if checker._comparable(earlier, later):
                        compared = True
                        if checker._precedes(earlier, later, order, claim):
                            violation = checker._out_of_order(claim, earlier, later)
                            return [(violation.call, violation.because)], compared
        claimed.update(claim.ids)
    return [], compared


@plainly
@given(histories)
def test_what_cannot_run_is_known_at_every_claim(history: History) -> None:
    """Jobs not due, claimed before or without an attempt left are those of the calls so far."""
    lives: defaultdict[str, Life] = defaultdict(Life)
    counted = Hindrances(lives.__getitem__)
    hindrances = []
    for call in history.calls:
        counted.see(call)
        hindrances.append(counted.now())
    for claim in history.of_kind("claim", "sweep"):
        earlier = history.calls[: claim.index]
        enqueued = [call for call in earlier if call.kind == "enqueue"]
        attempts = Counter(job for c in earlier if c.kind == "claim" for job in c.ids)
        done = {
            ref.job
            for call in earlier
            if call.kind == "complete" and call.answer == "accepted"
            for ref in call.refs
        }
        tried = [
            attempts[job] >= (call.bound or 0)
            for call in enqueued
            for job in call.ids
            if attempts[job] and job not in done
        ]
        waiting = sum(call.began + call.delay > claim.ended for call in enqueued)
        expected = (waiting, tried.count(False), tried.count(True), 0)
        assert expected == hindrances[claim.index]


# --- histories longer than memory ---------------------------------------------------------------


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for one history after the other."""
    return tmp_path_factory.mktemp("history") / "history.jsonl"


FACTS = (
    MODELLED,
    declared(order="fifo", cap=2),
    declared(lease=None, held=True),
    declared(observable=False),
    declared(worker_heartbeat=True, recovers=False, order="fifo"),
)


@settings(max_examples=100, deadline=None, database=None)
@given(
    history=histories,
    facts=st.sampled_from(FACTS),
    room=st.integers(1, 5),
    observed=st.booleans(),
)
def test_a_history_in_a_file_is_judged_like_one_in_memory(
    *, file: Path, history: History, facts: Declared, room: int, observed: bool
) -> None:
    """With one job in memory or five the same is found, in the same words, as with all of them."""
    history.final = history.final if observed else None
    write(file, history.calls, history.outcome)
    whole, stored = check(history, facts), check(Stored(file), facts, room=room)
    assert (whole.violations, whole.evidence) == (stored.violations, stored.evidence)


def test_a_cleanup_is_judged_where_nobody_else_acts() -> None:
    """What is completed while somebody looks may have ended by the time of the cleanup."""
    told = Told("1", "2")
    first, second = (told.claim(f"w{job}", job) for job in ("1", "2"))
    open_ = told.begin("complete", "w1", refs=(Ref(first.index, "1"),))
    told.do("jobs", "janitor", states={"1": "running", "2": "running"})
    told.end(open_)
    told.do("cleanup", "janitor")
    told.do("jobs", "janitor", states={"2": "running"})
    told.on("complete", second, "2")
    assert broken(told.left(j2="completed")) == []


def test_what_is_completed_again_has_ended_before() -> None:
    """Rule 6: a batch that names a completed job once more does not make it younger."""
    told = Told("1")
    claim = told.claim("w1", "1")
    told.on("complete", claim)
    told.wait(7200.0)
    told.do("complete_many", "w1", refs=(Ref(claim.index, "1"),))  # accepted, of none of them
    told.do("jobs", "janitor", states={"1": "completed"})
    told.do("cleanup", "janitor", delay=3600.0)
    told.do("jobs", "janitor", states={})
    assert broken(told.left()) == []


def test_a_spent_job_that_a_claim_may_have_ended_is_gone_after_a_cleanup() -> None:
    """Rule 28: where claims take over, they bury what has no attempt left, and answer nothing."""
    for cleaned, expected in ((True, []), (False, ["stale-recovery"])):
        told = Told("1", bound=1)
        told.claim("w1", "1")
        told.drain(crashed="w1")
        told.claim("w2")
        if cleaned:
            told.do("cleanup", "janitor")
        told.sweep()
        assert broken(told.left(), declared(recovers=False)) == expected


def test_a_job_that_an_enqueue_puts_off_is_not_ready() -> None:
    """Rule 34: an enqueue with a delay that answers a job that is there may put it off."""
    for delay, expected in ((0.0, ["no-starvation"]), (60.0, [])):
        told = Told("1")
        told.enqueue("1", delay=delay)
        told.enqueue("1")
        told.wait(10.0)
        for _ in range(3):
            told.claim("w1")
        told.wait(100.0)
        told.on("complete", told.claim("w1", "1"))
        assert broken(told.completed("1")) == expected


def test_an_error_of_a_fail_is_the_job_s_where_others_fail_at_that_attempt() -> None:
    """Where a wait is declared, what fails at an attempt for every job is backoff's to judge."""
    told = Told("1", "2")
    told.on("fail", told.claim("w1", "1"))
    erring(told, "fail", told.claim("w2", "2"))
    assert broken(told.history, replace(declared(), paced=True)) == ["live-lease"]


def test_a_cleanup_is_judged_like_one_in_memory(file: Path) -> None:
    """What was seen around a cleanup belongs to the life of a job that was laid aside."""
    told = Told()
    states: dict[str, State] = {}
    for job in ("1", "2", "3", "4"):
        told.enqueue(job)
        told.on("complete", told.claim("w1", job), job)
        states[job] = "completed"
    told.do("jobs", "drainer", states=states)
    told.do("cleanup", "drainer", delay=600.0)
    told.do("jobs", "drainer", states={job: states[job] for job in ("1", "4")})
    history = told.finally_(j1="completed", j4="completed")
    write(file, history.calls, history.outcome)
    whole, stored = check(history, declared()), check(Stored(file), declared(), room=1)
    expected = [("no-lost-job", "2"), ("no-lost-job", "3")]
    assert expected == [(found.guarantee, found.job) for found in stored.violations]
    assert (whole.violations, whole.evidence) == (stored.violations, stored.evidence)


def test_a_job_that_was_laid_aside_is_known_when_it_comes_back(file: Path) -> None:
    """A job that runs again long after it was completed is found, whatever came in between."""
    told = Told()
    for n in range(100):
        told.enqueue(str(n))
        told.on("complete", told.claim("w1", str(n)), str(n))
    again = told.claim("w2", "0")
    write(file, told.history.calls)
    (violation,) = check(Stored(file), declared(observable=False), room=1).violations
    assert ("final-state", "0", again.index) == (
        violation.guarantee,
        violation.job,
        violation.call,
    )


def test_the_memory_of_a_check_does_not_grow_with_the_history(file: Path) -> None:
    """A longer history takes hardly more memory if only so many jobs may be there at once."""

    def growth(room: int | None) -> int:
        """Bytes that four times the events add; what is garbage is collected at once."""
        peaks = []
        usual = gc.get_threshold()
        for events in (1_000, 4_000):
            history = simulate(events)
            write(file, history.calls, history.outcome)
            del history
            gc.collect()
            gc.set_threshold(100, 1, 1)
            tracemalloc.start()
            try:
                assert check(Stored(file), DECLARED, room=room).violations == []
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
                gc.set_threshold(*usual)
        return peaks[1] - peaks[0]

    assert growth(room=30) < growth(room=None) / 4


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans())), st.integers(1, 9))
def test_a_shelf_is_a_mapping_with_little_of_it_in_memory(
    uses: list[tuple[int, bool]], room: int
) -> None:
    """Whatever is put in, changed and taken out, it is a dict of which `room` values are there."""
    shelf: Shelf[int, list[int]] = Shelf(room, pickle.dumps, pickle.loads)
    plain: dict[int, list[int]] = {}
    for n, (key, changed) in enumerate(uses):
        assert plain.get(key) == shelf.get(key)
        if changed and key in plain:
            plain[key].append(n)
            shelf[key].append(n)
        elif changed:
            plain[key], shelf[key] = [n], [n]
        assert len(shelf._near) <= room
    assert plain == dict(shelf.items())
    shelf.close()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "Expecting property name"),
        ('{"kind": "claim"}', "missing 4 required positional arguments"),
        ('{"kind": "claim", "limits": 3}', "unexpected keyword argument 'limits'"),
        ('{"state": "queued"}', "'observed'"),
    ],
)
def test_a_file_that_is_no_history_is_refused(file: Path, line: str, complaint: str) -> None:
    """The message names the file, the line and what is wrong with it."""
    file.write_text(f'{{"observed":false}}\n{line}\n')
    with pytest.raises(QueueError) as refused:
        check(Stored(file), declared())
    assert str(refused.value).startswith(f"{file}:2: this is no line of a history: ")
    assert complaint in str(refused.value)


def test_a_history_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(QueueproofError, match=r"gone\.jsonl: No such file or directory"):
        check(Stored(tmp_path / "gone.jsonl"), declared())
