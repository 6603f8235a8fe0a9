"""The time that a failed job waits before its next attempt, measured on the clock that is moved.

No column is read: a wait lies between the last moment at which a claim came back empty and the
first at which it did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from queueproof.errors import ServerError
from queueproof.probes.probe import Probe, Seen, Tell, asked, enqueue, reported, telling, untold
from queueproof.queues.model import FAILURE, TRACEBACK, Claim, Queue
from queueproof.queues.offer import Offer
from queueproof.run.lab import DEFAULT_BOUND, Lab
from queueproof.run.session import drive, noted
from queueproof.schedule.moments import APART, DAY, DECADE, MARGIN, past
from queueproof.space.pieces import DELAY, MOST_ATTEMPTS

ONE_BY_ONE = 12  # attempts measured finely: by then a wait that doubles has met any usual cap
BEATEN = 3  # the attempt at which a heartbeat comes before the failure
LOST = 4  # the attempt that ends with its worker: it is no reason to wait less after the next
LATER = (46, 47, 64, 1024)  # where 2 ** n passes an interval, a float's precision, a float
SEVERAL = 8  # jobs; of those that fail once
DRAWN = 3  # times: of one round all may wait long enough by chance, or be asked too late
CLOSE = 0.02  # seconds before a wait is over; nothing is said where more real time has passed
FINE, COARSE = 1.13, 3.0  # a probe's distance from the one before it
WORK = 7207.3  # seconds that a job takes, where no lease says that it may not; else well inside it
_BESIDE = frozenset({"complete", "recover"})  # which meet a job that another worker holds


class RetryWait(NamedTuple):
    """The wait after one failure."""

    attempt: int  # the attempt that failed, from 1
    least: float  # seconds after the failure's answer after which a claim still came back empty
    most: float  # seconds after which the job was claimed; infinite where it never was
    worked: float = 0.0  # seconds from the claim to the failure


@dataclass(slots=True)
class RetryWaits:
    """The waits of one job."""

    found: list[RetryWait] = field(default_factory=list)  # one for each failure that was measured
    broken: str = ""  # what is wrong with them; empty where nothing is
    operation: str = "fail"  # the one that is to blame: `fail`, or what ended a wait early
    sent: Sequence[str] = ()


class Case(NamedTuple):
    """A way in which the wait of a failed job may end early."""

    told: str  # the job, as a sentence of its breach has it behind "after"; `{}` is how many failed
    facts: Mapping[str, object] = {}  # in what it differs from most jobs
    jobs: int = 1  # how many alike fail
    fails: int = 1  # how often each fails; it is claimed again a day after it was due
    # What comes while it waits: another job's completion, a recovery, or what its own worker sends
    # once more (rule 6); or nothing.
    meanwhile: str = ""
    close: bool = False  # whether it is asked for at the last moment
    seed: int = 0  # of what its SQL draws by lot

    @property
    def workers(self) -> list[str]:
        """One for each job."""
        return [f"w{n + 1}" for n in range(self.jobs)]

    @property
    def queue(self) -> str:
        """The queue that the jobs are claimed from."""
        return str(self.facts.get("queue", "default"))


class Backoff(Probe):
    """`backoff`, failure by failure."""

    def points(self, _offer: Offer, _level: int, /) -> list[bool]:
        """All is asked at once."""
        return [True]

    def look(
        self, lab: Lab, offer: Offer, _points: Sequence[bool], _level: int, tell: Tell, /
    ) -> Seen:
        """Measure the waits of one job, and see what ends one early."""
        waits = measure(lab, offer, tell)
        evidence = {"waits measured": sum(wait.most < float("inf") for wait in waits.found)}
        if waits.broken:
            return Seen(evidence, broken=waits.broken, found=waits, data=True)
        return Seen(evidence, remark=_unasked(offer, waits))


def measure(lab: Lab, offer: Offer, tell: Tell = untold) -> RetryWaits:
    """Fail one job again and again, and others once, and measure how long they stay away."""
    waits = RetryWaits()
    _fail_again_and_again(lab, offer, waits, tell)
    for case in _cases(offer.queue) if waits.found else ():
        if waits.broken:
            break
        sent: list[str] = []
        with suppress(ServerError):  # judged elsewhere
            waits.broken = _ends_early(lab, offer, case, waits.found[0].least, sent)
        if waits.broken:
            waits.operation, waits.sent = case.meanwhile or "fail", sent
    return waits


def _fail_again_and_again(lab: Lab, offer: Offer, waits: RetryWaits, tell: Tell) -> None:
    lab.reset()
    queue = offer.queue
    takes_bound = "max_attempts" in queue.takes("enqueue")
    bound = queue.max_attempts or (DEFAULT_BOUND if takes_bound else LATER[-1] + 1)
    enqueue(lab)
    lab.promote(1)
    lab.advance(APART)  # a queue may keep milliseconds, and round them up
    job = _claim(lab)
    lost = bound > LOST + 2 and _may_be_lost(offer)
    for turn in telling(range(1, min(bound - lost, LATER[-1] + 1)), tell):
        attempt = turn + (lost and turn >= LOST)
        if job is not None and lost and turn == LOST:
            lab.advance(past(queue.lease_seconds or 0.0))
            _, job, _ = _measure(lab, offer, attempt, lab.now(), 0.0)
        if job is None:
            return
        # A heartbeat must not change the wait; there is none where the claim is its transaction.
        beats = attempt == BEATEN and "heartbeat" in queue.offers
        if beats and not lab.session("w1").in_transaction:
            with suppress(ServerError):  # judged where heartbeats are
                _end(lab, "heartbeat", job)
        # A wait is counted from the failure, and not from the claim: every other job takes long.
        works = WORK if queue.lease_seconds is None else 0.6 * queue.lease_seconds
        worked = works if attempt % 2 else 0.0
        lab.advance(worked)
        lab.advance(lab.until_aligned())
        failed_at = lab.now()
        sent: list[str] = []
        waits.sent = sent
        # The same error again, and then another one: a wait may follow from how often one came.
        caught = FAILURE if attempt <= (2 if bound > BEATEN else 1) else TRACEBACK
        try:
            accepted = _end(lab, "fail", job, sent=sent, caught=caught)
        except ServerError as error:
            waits.broken = f"fail at attempt {attempt} answered ERROR {error}"
            return
        if not accepted:
            return
        known = (wait.least * (1 - queue.jitter) for wait in waits.found)
        least = max([queue.backoff_seconds, *known])
        wait, job, recovery = _measure(lab, offer, attempt, failed_at, least)
        if job is None and _has_ended(lab):
            if attempt > MOST_ATTEMPTS:  # so late it is what the wait has grown to
                waits.broken = f"after attempt {attempt} the job had ended, with attempts left"
            return
        waits.found.append(wait._replace(worked=worked))
        waits.broken = _complaint(wait, least)
        if waits.broken:
            if recovery:
                waits.operation, waits.sent = "recover", recovery
            return


def _may_be_lost(offer: Offer) -> bool:
    """Tell whether a job is tried again once its lease is over, though its worker goes on."""
    queue = offer.queue
    leased = queue.lease_seconds is not None and not offer.tied
    return leased and queue.stale is None and not (offer.beats or queue.beats_by_worker)


def _unasked(offer: Offer, waits: RetryWaits) -> str:
    """Why the cases that a reader might think of were not asked; empty where all were."""
    last = max((wait.attempt for wait in waits.found), default=0)
    if not last or last >= LATER[0]:
        return ""
    bound = offer.queue.max_attempts
    if bound and last + 1 >= bound:
        return f"max_attempts = {bound} allows no more"
    return "later waits were not tried, and may overflow"


def _cases(queue: Queue) -> Iterator[Case]:
    """The operations by which a queue may end a wait, of those that it offers."""
    takes = queue.takes("enqueue")
    for what in ("complete", "recover"):
        if what in queue.offers and (what != "recover" or queue.lease_seconds is not None):
            yield Case(f"a {what} the failed job", meanwhile=what)
    for what in ("heartbeat", "fail"):
        if what in queue.offers:
            yield Case(f"a late {what} the failed job", meanwhile=what)
    declared = queue.backoff_seconds > 0
    if declared and "priority" in takes:
        yield Case("attempt 1 a job of priority 9", {"priority": 9})
    if declared and "delay" in takes:
        late = {"delay": timedelta(seconds=DELAY)}
        yield Case("attempt 1 a job that was delayed, and claimed a day later,", late)
    if declared and queue.routes:
        yield Case("attempt 1 a job of queue other", {"queue": "other"})
    yield Case("attempt 2, which began a day after it was due, the job", fails=2)
    for seed in range(DRAWN if declared else 0):  # waits may differ
        yield Case("attempt 1 one of {} jobs", jobs=SEVERAL, close=True, seed=seed)


def _ends_early(lab: Lab, offer: Offer, case: Case, wait: float, sent: list[str]) -> str:
    """See whether a failed job comes back before its wait is over.

    Args:
        wait: Seconds, as measured for a job that nothing was beside.
        sent: Gets the statements of what ends it.
    """
    queue = offer.queue
    least = queue.backoff_seconds if case.facts or case.close else wait * (1 - queue.jitter)
    lab.reset(seed=case.seed)
    failed_at = _failed(lab, offer, case, wait, sent)
    if not failed_at:
        return ""
    began = min(failed_at.values())
    for moment in (least - CLOSE,) if case.close else (0.5 * least, 0.95 * least):
        lab.advance(max(0.0, began + moment - lab.now()))
        for worker in case.workers:
            early, _ = _look(lab, offer, worker, case.queue)
            waited = lab.now() - failed_at.get(early.id, 0.0) if early else least
            if waited < least:
                told = case.told.format(len(failed_at))
                return _too_early(told, waited, least, 2 if case.close else 1)
    return ""


def _failed(
    lab: Lab, offer: Offer, case: Case, wait: float, sent: list[str]
) -> Mapping[str, float]:
    """Have the jobs of a case fail, and what comes meanwhile come; when each has failed."""
    beside = case.meanwhile in _BESIDE
    enqueue(lab, case.jobs + beside, **case.facts)
    lab.advance(DAY if "delay" in case.facts else 0.0)
    lab.promote(case.jobs + beside)
    lab.advance(lab.until_aligned())
    failed_at: dict[str, float] = {}
    for worker in case.workers * case.fails:
        if case.fails > 1 and failed_at:
            lab.advance(DAY)
        job, _ = _look(lab, offer, worker, case.queue)
        if job is None or (case.meanwhile and lab.session(worker).in_transaction):
            continue
        other = _claim(lab, "w2") if beside else job
        if other is None:
            continue
        if case.meanwhile == "recover":
            # The other will have been claimed for longer than a lease before the wait is over.
            lab.advance(max(0.0, (offer.queue.lease_seconds or 0.0) - wait / 4))
        sent.clear()
        failed_at[job.id] = lab.now()
        if not _end(lab, "fail", job, worker, sent):
            return {}
        if not case.meanwhile:
            continue
        sent.clear()
        if case.meanwhile == "recover":
            lab.advance(wait / 2)
            drive(lab.session("reaper"), noted(asked(lab, "recover"), sent))
        else:
            _end(lab, case.meanwhile, other, "w2" if beside else worker, sent)
    return failed_at


def _too_early(told: str, waited: float, least: float, digits: int) -> str:
    """The sentence on a job that came back."""
    return (
        f"after {told} came back within {waited:.{digits}f} s; "
        f"its `backoff` asks for at least {least:.{digits}f} s"
    )


def _complaint(wait: RetryWait, least: float) -> str:
    if wait.most < least:
        digits = 1 if least - wait.most > MARGIN else 3
        return _too_early(f"attempt {wait.attempt} the job", wait.most, least, digits)
    if wait.most == float("inf") and wait.attempt > 1:
        # A job that never comes back at all is lost: that is no-lost-job's business.
        return f"after attempt {wait.attempt} the job had not come back within ten years"
    return ""


def _measure(
    lab: Lab, offer: Offer, attempt: int, failed_at: float, least: float
) -> tuple[RetryWait, Claim | None, Sequence[str]]:
    """Claim at ever later moments until the job comes: its next attempt, as `_look` has it."""
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
            return RetryWait(attempt, empty, lab.now() - failed_at), job, sent
        empty = max(0.0, asked - took)
        offset = first.pop(0) if first else max(asked, 1.0) * factor
    return RetryWait(attempt, empty, float("inf")), None, ()


def _look(
    lab: Lab, offer: Offer, worker: str = "w1", queue: str = "default"
) -> tuple[Claim | None, Sequence[str]]:
    """The job that a claim gets once all has been done that time does by itself (rule 28).

    A recovery comes last, so that it is seen whether it was what put the job in line: its
    statements are told where a claim before it got nothing.
    """
    lab.promote(1)
    if offer.queue.beats_by_worker:
        with suppress(ServerError):  # a worker that holds nothing beats all the same
            drive(lab.session("w1"), asked(lab, "heartbeat"))
    job = _claim(lab, worker, queue)
    if job is not None or "recover" not in offer.queue.offers:
        return job, ()
    sent: list[str] = []
    lab.maintain(1, sent)
    return _claim(lab, worker, queue), sent


def _claim(lab: Lab, worker: str = "w1", queue: str = "default") -> Claim | None:
    session = lab.session(worker)
    claims: Sequence[Claim] = ()
    with suppress(ServerError):  # judged where claims are
        claims = drive(session, asked(lab, "claim", worker, queue=queue))
    if not claims and session.in_transaction:
        session.run("ROLLBACK")
    return claims[0] if claims else None


def _has_ended(lab: Lab) -> bool:
    """True if the only job has ended with attempts left, which breaks retry-given."""
    states = reported(lab)
    return "jobs" in lab.queue.offers and not (states["queued"] or states["running"])


def _end(
    lab: Lab,
    kind: str,
    job: Claim,
    worker: str = "w1",
    sent: list[str] | None = None,
    *,
    caught: str = FAILURE,
) -> bool:
    session = lab.session(worker)
    operation = asked(lab, kind, worker, job=job, error=caught)
    try:
        return bool(drive(session, operation if sent is None else noted(operation, sent)))
    finally:
        if session.in_transaction:
            session.run("ROLLBACK")
