"""How long a failed job waits before its next attempt, measured on the clock that is moved.

No column is read: a wait lies between the last moment at which a claim came back empty and the
first at which it did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from queueproof.errors import ServerError
from queueproof.queues.model import FAILURE, TRACEBACK, Claim, JobRow, Queue
from queueproof.queues.offer import Offer
from queueproof.run.lab import DEFAULT_BOUND, Lab
from queueproof.run.session import drive, noted
from queueproof.schedule.actors import identity
from queueproof.schedule.moments import DAY, DECADE, MARGIN
from queueproof.space.pieces import DELAY, MOST_ATTEMPTS

ONE_BY_ONE = 12
BEATEN = 3  # the attempt at which a heartbeat comes before the failure
LATER = (46, 47, 64, 1024)  # where 2 ** n passes an interval, a float's precision, a float
SEVERAL = 8  # jobs; of those that fail once
CLOSE = 0.02  # seconds before a wait is over; nothing is said where more real time has passed
FINE, COARSE = 1.13, 3.0  # a probe's distance from the one before it
WORK = 7207.3  # seconds that a job takes, where no lease says that it may not
WORKER = identity("w1")


class RetryWait(NamedTuple):
    """The wait after one failure.

    Attributes:
        attempt: The attempt that failed, from 1.
        least: Seconds after the failure's answer after which a claim still came back empty.
        most: Seconds after which the job was claimed; infinite where it never was.
        worked: Seconds from the claim to the failure.
    """

    attempt: int
    least: float
    most: float
    worked: float = 0.0


class _Look(NamedTuple):
    """A claim's answer.

    Attributes:
        job: What it got.
        recovery: The statements of the recovery that came before, without which it got nothing.
    """

    job: Claim | None
    recovery: Sequence[str] = ()


@dataclass(slots=True)
class RetryWaits:
    """The waits of one job.

    Attributes:
        found: One for each failure that was measured.
        broken: What is wrong with them; empty where nothing is.
        operation: The one that is to blame: `fail`, or what ended a wait early.
        sent: Its statements.
    """

    found: list[RetryWait] = field(default_factory=list)
    broken: str = ""
    operation: str = "fail"
    sent: Sequence[str] = ()


def watch(lab: Lab, offer: Offer) -> RetryWaits:
    """Fail one job again and again, and measure how long it stays away each time.

    Args:
        lab: Where the queue is installed; it is reset.
        offer: What the queue brings.
    """
    lab.reset()
    queue = offer.queue
    takes_bound = "max_attempts" in queue.takes("enqueue")
    bound = queue.max_attempts or (DEFAULT_BOUND if takes_bound else LATER[-1] + 1)
    drive(lab.session("producer"), lab.start("enqueue", **lab.defaults()))
    lab.promote(1)
    waits = RetryWaits()
    job = _claim(lab)
    for attempt in range(1, min(bound, LATER[-1] + 1)):
        if job is None:
            break
        if attempt == BEATEN:
            _beat(lab, queue, job)
        # A wait is counted from the failure, and not from the claim: every other job takes long.
        worked = _work(queue) if attempt % 2 else 0.0
        lab.advance(worked)
        lab.advance(lab.until_aligned())
        failed_at = lab.now()
        sent: list[str] = []
        waits.sent = sent
        caught = FAILURE if attempt == 1 else TRACEBACK
        try:
            accepted = _end(lab, "fail", job, sent=sent, caught=caught)
        except ServerError as error:
            waits.broken = f"fail at attempt {attempt} answered ERROR {error}"
            break
        if not accepted:
            break
        least = _least(queue, waits.found)
        wait, (job, recovery) = _measure(lab, offer, attempt, failed_at, least)
        if job is None and _has_ended(lab, queue):
            if attempt > MOST_ATTEMPTS:  # so late it is what the wait has grown to
                waits.broken = f"after attempt {attempt} the job had ended, with attempts left"
            break
        waits.found.append(wait._replace(worked=worked))
        waits.broken = _complaint(wait, least)
        if waits.broken:
            if recovery:
                waits.operation, waits.sent = "recover", recovery
            return waits
    if waits.found and not waits.broken:
        _cut_short(lab, offer, waits)
    if waits.found and not waits.broken and queue.backoff_seconds:
        _elsewhere(lab, offer, waits)
    if waits.found and not waits.broken:
        with suppress(ServerError):  # judged elsewhere
            waits.broken = _claimed_late(lab, offer, waits.found[0].least)
    if waits.found and not waits.broken and queue.backoff_seconds:
        with suppress(ServerError):  # judged elsewhere
            waits.broken = _one_of_several(lab, offer)
    return waits


def unasked(offer: Offer, waits: RetryWaits) -> str:
    """What a reader might think was asked, and was not; empty where all was.

    Args:
        offer: What the queue brings.
        waits: Those that were measured.
    """
    last = max((wait.attempt for wait in waits.found), default=0)
    if not last or last >= LATER[0]:
        return ""
    why = f": max_attempts is {offer.queue.max_attempts}" if offer.queue.max_attempts else ""
    return f"none after attempt {last}, where a wait may overflow{why}"


def _elsewhere(lab: Lab, offer: Offer, waits: RetryWaits) -> None:
    """See whether a job of another queue, or of another priority, waits as well.

    Args:
        lab: Where.
        offer: What the queue brings.
        waits: Of a job that is like most.
    """
    queue = offer.queue
    takes = queue.takes("enqueue")
    kinds: list[dict[str, object]] = [{"priority": 9}] if "priority" in takes else []
    if "delay" in takes:
        kinds.append({"delay": timedelta(seconds=DELAY)})
    if "queue" in takes & queue.takes("claim"):
        kinds.append({"queue": "other"})
    for kind in kinds:
        sent: list[str] = []
        with suppress(ServerError):  # judged elsewhere
            waits.broken = _of_a_kind(lab, offer, kind, sent)
        if waits.broken:
            waits.sent = sent
            return


def _of_a_kind(lab: Lab, offer: Offer, kind: Mapping[str, object], sent: list[str]) -> str:
    lab.reset()
    drive(lab.session("producer"), lab.start("enqueue", **{**lab.defaults(), **kind}))
    lab.advance(DAY if "delay" in kind else 0.0)
    lab.promote(1)
    where = str(kind.get("queue", "default"))
    job = _claim(lab, queue=where)
    if job is None:
        return ""
    lab.advance(lab.until_aligned())
    failed_at = lab.now()
    if not _end(lab, "fail", job, sent=sent):
        return ""
    lab.advance(offer.queue.backoff_seconds / 2)
    early = _look(lab, offer, queue=where).job
    waited = lab.now() - failed_at
    if early is None or early.id != job.id or waited >= offer.queue.backoff_seconds:
        return ""
    ((name, value),) = kind.items()
    told = "that was delayed, and claimed a day later," if name == "delay" else f"of {name} {value}"
    return (
        f"after attempt 1 a job {told} came back within {waited:.1f} s; "
        f"its `backoff` asks for at least {offer.queue.backoff_seconds:.1f} s"
    )


def _claimed_late(lab: Lab, offer: Offer, wait: float) -> str:
    """See whether a job waits after its second failure that was claimed a day after it was due."""
    lab.reset()
    drive(lab.session("producer"), lab.start("enqueue", **lab.defaults()))
    job: Claim | None = None
    failed_at = 0.0
    for attempt in (1, 2):
        job = _look(lab, offer).job
        if job is None or not _end(lab, "fail", job):
            return ""
        failed_at = lab.now()
        lab.advance(DAY if attempt == 1 else wait / 2)
    assert job is not None
    early = _look(lab, offer).job
    waited = lab.now() - failed_at
    least = wait * (1 - offer.queue.jitter)
    if early is None or early.id != job.id or waited >= least:
        return ""
    return (
        f"after attempt 2, which began a day after it was due, the job came back within "
        f"{waited:.1f} s; its `backoff` asks for at least {least:.1f} s"
    )


def _one_of_several(lab: Lab, offer: Offer) -> str:
    """See whether one of several jobs that have failed once comes back early: waits may differ."""
    lab.reset()
    for _ in range(SEVERAL):
        drive(lab.session("producer"), lab.start("enqueue", **lab.defaults()))
    lab.promote(SEVERAL)
    lab.advance(lab.until_aligned())
    failed_at: dict[str, float] = {}
    workers = [f"w{n + 1}" for n in range(SEVERAL)]
    for worker in workers:
        job = _claim(lab, worker)
        if job is not None:
            failed_at[job.id] = lab.now()
            _end(lab, "fail", job, worker)
    least = offer.queue.backoff_seconds
    lab.advance(max(0.0, min(failed_at.values(), default=0.0) + least - CLOSE - lab.now()))
    for worker in workers:
        job = _look(lab, offer, worker).job
        waited = lab.now() - failed_at.get(job.id, 0.0) if job else least
        if waited < least:
            return (
                f"after attempt 1 one of {len(failed_at)} jobs came back within {waited:.2f} s; "
                f"its `backoff` asks for at least {least:.2f} s"
            )
    return ""


def _cut_short(lab: Lab, offer: Offer, waits: RetryWaits) -> None:
    """Find what ends the wait of a failed job early.

    That is another job's completion, a recovery, or what its own worker sends once more (rule 6).

    Args:
        lab: Where.
        offer: What the queue brings.
        waits: Of a job that nothing was beside.
    """
    queue, wait = offer.queue, waits.found[0].least
    ways = [("complete", _beside), ("recover", _beside)]
    ways += [(kind, _repeated) for kind in ("heartbeat", "fail")]
    for what, ending in ways:
        if what in queue.offers and (what != "recover" or queue.lease_seconds is not None):
            sent: list[str] = []
            with suppress(ServerError):  # judged elsewhere
                waits.broken = ending(lab, offer, what, wait, sent)
            if waits.broken:
                waits.operation, waits.sent = what, sent
                return


def _repeated(lab: Lab, offer: Offer, what: str, wait: float, sent: list[str]) -> str:
    """See what a worker's late heartbeat or second fail does to the wait."""
    queue = offer.queue
    lab.reset()
    drive(lab.session("producer"), lab.start("enqueue", **lab.defaults()))
    lab.promote(1)
    job = _claim(lab)
    if job is None or lab.session("w1").in_transaction:
        return ""
    failed_at = lab.now()
    if not _end(lab, "fail", job):
        return ""
    _end(lab, what, job, sent=sent)
    least = wait * (1 - queue.jitter)
    for part in (0.5, 0.95):
        lab.advance(max(0.0, failed_at + part * least - lab.now()))
        early = _look(lab, offer).job
        waited = lab.now() - failed_at
        if early is not None:
            same = early.id == job.id
            return _told(f"late {what}", waited, least) if same and waited < least else ""
    return ""


def _told(after: str, waited: float, wait: float) -> str:
    return (
        f"after a {after} the failed job came back within {waited:.1f} s; "
        f"its `backoff` asks for at least {wait:.1f} s"
    )


def _beside(lab: Lab, offer: Offer, what: str, wait: float, sent: list[str]) -> str:
    queue = offer.queue
    lab.reset()
    for _ in range(2):
        drive(lab.session("producer"), lab.start("enqueue", **lab.defaults()))
    lab.promote(2)
    job = _claim(lab)
    if job is None or lab.session("w1").in_transaction:
        return ""
    other = _claim(lab, "w2")
    if what == "recover" and queue.lease_seconds is not None:
        # It will have been claimed for longer than a lease before its wait is over.
        lab.advance(max(0.0, queue.lease_seconds - wait / 4))
    failed_at = lab.now()
    if other is None or not _end(lab, "fail", job):
        return ""
    if what == "complete":
        _end(lab, "complete", other, "w2", sent)
    else:
        lab.advance(wait / 2)
        drive(lab.session("reaper"), noted(lab.start("recover", **lab.defaults()), sent))
    early = _claim(lab)
    waited = lab.now() - failed_at
    if early is None or early.id != job.id or waited >= wait * (1 - queue.jitter):
        return ""
    return _told(what, waited, wait)


def _work(queue: Queue) -> float:
    """How long a job takes, in seconds: well inside its lease."""
    return WORK if queue.lease_seconds is None else 0.6 * queue.lease_seconds


def _least(queue: Queue, found: Sequence[RetryWait]) -> float:
    return max([queue.backoff_seconds, *(wait.least * (1 - queue.jitter) for wait in found)])


def _complaint(wait: RetryWait, least: float) -> str:
    if wait.most < least:
        digits = 1 if least - wait.most > MARGIN else 3
        return (
            f"after attempt {wait.attempt} the job came back within {wait.most:.{digits}f} s; "
            f"its `backoff` asks for at least {least:.{digits}f} s"
        )
    if wait.most == float("inf") and wait.attempt > 1:
        # A job that never comes back at all is lost: that is no-lost-job's business.
        return f"after attempt {wait.attempt} the job had not come back within ten years"
    return ""


def _measure(
    lab: Lab, offer: Offer, attempt: int, failed_at: float, least: float
) -> tuple[RetryWait, _Look]:
    """Claim at ever later moments until the job comes: its next attempt."""
    factor = FINE if attempt <= ONE_BY_ONE or attempt in LATER else COARSE
    took = lab.now() - failed_at  # the wait may have begun as late as the fail was answered
    empty = 0.0
    first = [0.0, least - MARGIN, least - CLOSE] if least > MARGIN else [0.0]
    offset = first.pop(0)
    while offset < DECADE:
        lab.advance(max(0.0, failed_at + offset - lab.now()))
        asked = lab.now() - failed_at
        job, sent = _look(lab, offer)
        if job is not None:
            return RetryWait(attempt, empty, lab.now() - failed_at), _Look(job, sent)
        empty = max(0.0, asked - took)
        offset = first.pop(0) if first else max(asked, 1.0) * factor
    return RetryWait(attempt, empty, float("inf")), _Look(None)


def _look(lab: Lab, offer: Offer, worker: str = "w1", queue: str = "default") -> _Look:
    """What a claim gets once all has been done that time does by itself (rule 28).

    A recovery comes last, so that it is seen whether it was what put the job in line.
    """
    lab.promote(1)
    takes = offer.queue.takes
    if "heartbeat" in offer.queue.offers and "job" not in takes("heartbeat"):
        with suppress(ServerError):  # a worker that holds nothing beats all the same
            drive(lab.session("w1"), lab.start("heartbeat", **lab.defaults(), worker=WORKER))
    job = _claim(lab, worker, queue)
    if job is not None or "recover" not in offer.queue.offers:
        return _Look(job)
    sent: list[str] = []
    lab.maintain(1, sent)
    return _Look(_claim(lab, worker, queue), sent)


def _claim(lab: Lab, worker: str = "w1", queue: str = "default") -> Claim | None:
    session = lab.session(worker)
    arguments = {**lab.defaults(), "worker": identity(worker), "limit": 1, "queue": queue}
    try:
        claims: Sequence[Claim] = drive(session, lab.start("claim", **arguments))
    except ServerError:
        claims = ()  # judged where claims are
    if not claims and session.in_transaction:
        session.run("ROLLBACK")
    return claims[0] if claims else None


def _has_ended(lab: Lab, queue: Queue) -> bool:
    """Whether the only job has ended with attempts left, which breaks retry-given."""
    if "jobs" not in queue.offers:
        return False
    rows: Sequence[JobRow] = drive(lab.session("w1"), lab.start("jobs", **lab.defaults()))
    return not any(row.state in {"queued", "running"} for row in rows)


def _beat(lab: Lab, queue: Queue, job: Claim) -> None:
    """Send a heartbeat, which must not change the wait; none where the claim is its transaction."""
    if "heartbeat" in queue.offers and not lab.session("w1").in_transaction:
        with suppress(ServerError):  # judged where heartbeats are
            _end(lab, "heartbeat", job)


def _end(
    lab: Lab,
    operation: str,
    job: Claim,
    worker: str = "w1",
    sent: list[str] | None = None,
    *,
    caught: str = FAILURE,
) -> bool:
    session = lab.session(worker)
    arguments = {**lab.defaults(), "worker": identity(worker), "job": job, "error": caught}
    asked = lab.start(operation, **arguments)
    try:
        return bool(drive(session, asked if sent is None else noted(asked, sent)))
    finally:
        if session.in_transaction:
            session.run("ROLLBACK")
