"""History and specification to verdicts: which answers no legal order of the calls explains.

Jobs are independent of each other, so a history is checked job by job (`follow`). What concerns
several jobs, limits, order and waiting, is judged on the calls themselves (`several`).
"""

from __future__ import annotations

from queueproof.history.calls import History
from queueproof.judge.follow import check_lives
from queueproof.judge.holds import Holds, Undisturbed
from queueproof.judge.lives import Lives, read
from queueproof.judge.several import (
    Cap,
    Deadlocks,
    Errors,
    Idle,
    Limits,
    Meetings,
    Ordering,
    check_waits,
)
from queueproof.judge.spec import Declared
from queueproof.judge.violations import CheckResult, Violation
from queueproof.queues.offer import Offer
from queueproof.schedule.moments import DAY, DECADE, grace

LONGEST_WAIT = DAY  # seconds; a job that was taken back comes by then, unless its SQL says more


def declare(offer: Offer) -> Declared:
    """The facts of a queue that the checker must know."""
    queue = offer.queue
    return Declared(
        lease=queue.lease_seconds,
        held=offer.held,
        worker_heartbeat=queue.beats_by_worker,
        recovers="recover" in queue.offers,
        observable="jobs" in queue.offers,
        order=queue.order,
        cap=queue.concurrency_limit,
        retries=offer.retries and queue.max_attempts is not None,
        session=queue.lease == "session",
        signs=queue.beats_by_worker or offer.beats,
        renews=offer.renews,
        waits=offer.waits is not None,
        passes=offer.passes,
        late=grace(queue.lease_seconds or 0.0) if offer.late else 0.0,
        at_least_once=queue.delivery == "at-least-once",
        at_most_once=queue.delivery == "at-most-once",
        stale_fails=queue.stale == "fails",
        one_each=queue.jobs_per_worker is not None,
        paced=queue.backoff is not None,
        backoff=queue.backoff_seconds,
        completes=queue.completes,
        longest=DECADE if queue.longest_span is None else max(LONGEST_WAIT, queue.longest_span),
    )


def check(history: History, declared: Declared) -> CheckResult:
    """Judge one history against every guarantee that a history can show."""
    findings = CheckResult()
    lives = Lives(history.final, signs=declared.signs)
    holds, alone = Holds(declared), Undisturbed()
    limits, deadlocks = Limits(), Deadlocks()
    idle, errors = Idle(declared, holds, alone), Errors(declared, holds, alone)
    order, cap = Ordering(declared, lives, alone), Cap(declared, holds, findings)
    # Counted is what others hold when a call begins, so before the call may end that.
    watchers = [lives, limits, deadlocks, Meetings(declared, holds, findings), holds, alone, idle]
    if declared.order != "none":
        watchers.append(order)
    if declared.cap is not None:
        watchers.append(cap)
    if declared.lease is not None or declared.tied:
        watchers.append(errors)
    read(history.calls, watchers)
    routing, cleanup, own = check_lives(declared, lives, findings)
    over_limit = {violation.call for violation in limits.violations}
    findings.violations = [
        *limits.violations,
        *routing,
        *deadlocks.violations,
        *cleanup,
        # What a claim answers beyond its limit may be what its worker has already.
        *(found for found in own if not (found.alone and found.call in over_limit)),
    ]
    if lives.waited:
        check_waits(history, declared, findings)
    bad = {violation.job for violation in findings.violations} - {None}
    wrong = history.contradiction
    if wrong is not None and wrong.job not in bad:
        bad.add(wrong.job)
        findings.violations.append(Violation(wrong.raced, wrong.because, wrong.job, wrong.call))
    if bad and declared.order != "none":
        # One violation counts once: the order is judged anew, without these jobs.
        order = Ordering(declared, lives, alone, bad)
        read(history.calls, [order])
    findings.violations += order.violations + cap.violations
    found_apart = (*idle.violations, *errors.violations)
    findings.violations += [found for found in found_apart if found.job not in bad]
    findings.evidence.update(order.evidence)
    if lives.refused:
        findings.evidence["fencing", "late calls refused"] += lives.refused
    findings.violations.sort(key=lambda violation: violation.call)
    return findings
