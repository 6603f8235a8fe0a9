"""The life of one job: which answer is legal in which state, as one pure step function.

What is legal is drawn as widely as the guarantees' sentences allow. After a lease has run out and
until somebody takes the job over, its holder's operations may be accepted or rejected; a queue may
recover in `claim` itself or through `recover`; an operation whose answer was lost may or may not
have happened. All times are seconds on the database's clock, and every comparison asks whether a
thing is certain: an operation began at some moment between `began` and `ended`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from queueproof.history.calls import Answer, Call, CallKind
from queueproof.judge.violations import Violation
from queueproof.queues.model import State
from queueproof.schedule.moments import DECADE, grace, spoken
from queueproof.schedule.programs import FaultKind

FOREVER = float("inf")
SHORT = 1.0  # seconds; real time that passes between two calls without a move of the clock
LONG = 10.0  # seconds; of more than that nobody asks for fractions


class Phase(StrEnum):
    """The phase of a job's life."""

    ABSENT = "absent"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


FINISHED = frozenset({Phase.COMPLETED, Phase.FAILED})


class Job(NamedTuple):
    """A job's state."""

    phase: Phase = Phase.ABSENT
    due: float = 0.0  # earliest moment at which it may be claimed
    bound: int | None = None  # most attempts; None where none is promised
    claims: int = 0
    last: Call | None = None  # the latest claim of the job, whatever became of it
    # The claim call whose worker may still act on the job: it holds it, or it lost its lease and
    # nobody has taken the job over yet. In a finished job: who finished it.
    holder: Call | None = None
    fresh_until: float = 0.0  # until then the holder's lease certainly runs
    stale_after: float = 0.0  # from then on it has certainly run out
    crashed: bool = False  # the holder's worker is gone
    released: bool = False  # the job was recovered after that holder
    recovered: bool = False  # a recovery has answered the job since it was claimed
    failed_once: bool = False  # a `fail` was accepted, so that the queue may have ended the job
    # That answer was lost, of the first of several attempts, since when nobody has claimed the job.
    failed_unheard: bool = False
    # The operation that ended it, where that was not answered; else empty.
    end_unheard: CallKind | Literal[""] = ""
    # What an operation broke if it was accepted, which nobody was told, or if it fell on this job,
    # which it did not name, or if it did more than be accepted.
    unsure: Violation | None = None
    rests_until: float = 0.0  # until then it waits after a fail that was accepted (rule 11)
    tokens: int = 0  # how often a heartbeat has changed the holder's token, where they do
    # The enqueue that answered this job last although it was there; None where it has been
    # completed since.
    again: Call | None = None

    @property
    def requeued(self) -> bool:
        """True when such an enqueue may have come since the job was claimed."""
        if self.again is None or self.holder is None:
            return False
        return (self.again.returned or FOREVER) > self.holder.invoked

    @property
    def spent(self) -> bool:
        """True if certainly no attempt is left."""
        return self.bound is not None and self.claims >= self.bound

    @property
    def exhausted(self) -> bool:
        """True if no attempt is left; also where nothing is promised, so that one may be."""
        return self.bound is None or self.spent

    def runs_with(self, worker: str) -> bool:
        """True if that worker holds it."""
        holder = self.holder if self.phase == Phase.RUNNING else None
        return holder is not None and holder.actor == worker


ActKind: TypeAlias = CallKind | Literal["sign"]
"""The kind of a call for one job; a sign is whatever shows that its worker is alive."""


class Act(NamedTuple):
    """The meaning of one call for one job."""

    call: Call
    kind: ActKind  # the call's kind; a batch completion is `complete` for each of its jobs
    answer: Answer = "accepted"
    holder: Call | None = None  # the claim call that the operation names, None where it names none
    # False for an operation of the job's worker that names another job: a heartbeat, or what was
    # accepted after its claim had ended.
    named: bool = True
    seen: State | None = None  # the state that an observation reported
    # The last moment before a claim's answer at which a recovery was under way; 0 where no other
    # claim got the job.
    recovery: float = 0.0
    beside: bool = False  # for a claim: whether there were jobs that could not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Facts of the queue that the judge must know: rules of a job's life, and what is beside it."""

    lease: float | None  # seconds; None: a claim never runs out
    held: bool  # the claim is the row lock of a transaction left open
    worker_heartbeat: bool  # the heartbeat names a worker, not a job
    recovers: bool  # it offers `recover`
    session: bool = False  # a claim ends with its worker's connection, and with nothing else
    renews: bool = False  # a heartbeat changes the token
    at_least_once: bool = False  # a late completion may count while the next attempt runs
    at_most_once: bool = False  # a claim ends the job
    stale_fails: bool = False  # a crashed worker's job ends failed
    # A worker that holds a job claims nothing: a claim hands it its own job back.
    one_each: bool = False
    backoff: float = 0.0  # seconds that a failed job waits at least
    observable: bool = True  # it offers `jobs`
    order: str = "none"
    cap: int | None = None  # most jobs running at once, or None
    retries: bool = False  # a job that fails comes back while it has attempts left
    signs: bool = False  # whatever a worker does may beat for all that it holds
    waits: bool = False  # a job that was taken back may have to wait
    late: float = 0.0  # seconds by which a lease may last longer than declared
    passes: int = 0  # how often in a row claims may pass a ready job by
    paced: bool = False  # it declares a backoff, and is judged by it whether its fail works
    longest: float = DECADE  # seconds that a job which was taken back may be seen to wait
    completes: bool = True  # a worker can complete what it holds

    @property
    def takes_over(self) -> bool:
        """True if `claim` itself takes over stale jobs: there is a lease and no `recover`."""
        return self.lease is not None and not self.recovers

    @property
    def tied(self) -> bool:
        """True if a claim ends with its worker's connection, and not by time."""
        return self.held or self.session

    @property
    def fresh(self) -> str:
        """The condition of a claim that has not ended."""
        if self.session:
            return "connection is open"
        return "transaction is open" if self.held else "lease is fresh"


def certainly_fresh(rules: Declared, job: Job, call: Call) -> bool:
    """True if the holder's lease ran during the whole call, when the job stood so before it."""
    if job.crashed:
        return False
    if rules.lease is None:
        return rules.tied
    return call.ended < job.fresh_until


def step(rules: Declared, job: Job, act: Act) -> list[Job] | Violation:
    """The states that a job may be in after an act, or the guarantee that the act breaks."""
    unknown = act.answer == "unknown"
    match act.kind:
        case "enqueue":
            return _enqueue(job, act.call, unknown=unknown)
        case "claim":
            outcome = _claim(rules, job, act)
            if unknown:  # it may have taken the job; its worker is gone
                return [job, *(one._replace(crashed=True) for one in _possible(outcome))]
            if isinstance(outcome, Violation) and rules.at_least_once and job.unsure is not None:
                return job.unsure  # a late operation was accepted, and made it run once more
            return outcome
        case "complete" | "fail":
            if not act.named:
                return [_after_ended_claim(job, act)]
            if act.answer == "rejected":
                return _reject(rules, job, act)
            outcome = _finish(rules, job, act)
            return _perhaps(job, act, outcome) if unknown else outcome
        case "heartbeat":
            if act.answer == "rejected":
                if act.named and _is_holder(job, act):
                    return _reject(rules, job, act)
                return [_sign(rules, job, act.call)]  # refused, it may extend the others (rule 3)
            outcome = _heartbeat(rules, job, act)
            return _perhaps(job, act, outcome) if unknown else outcome
        case "recover":
            outcome = _recover(rules, job, act.call)
            return [job, *_possible(outcome)] if unknown else outcome
        case "crash":
            return [_crash(rules, job, act.call)]
        case "sign":
            return [_sign(rules, job, act.call)]
        case "complete_many" | "jobs" | "cleanup" | "promote" | "start":
            return [job]
        case "advance" | "rewrite" | "sweep":
            return [job]
        case _:
            _: FaultKind = act.kind
            return [job]


def _possible(outcome: list[Job] | Violation) -> list[Job]:
    return [] if isinstance(outcome, Violation) else outcome


def _perhaps(job: Job, act: Act, outcome: list[Job] | Violation) -> list[Job]:
    """The states after an operation of which nobody knows whether it took effect."""
    if isinstance(outcome, Violation):
        return [job._replace(unsure=job.unsure or outcome)]
    if act.kind == "heartbeat":
        return [job, *outcome]
    first = act.kind == "fail" and job.claims == 1 and not job.exhausted
    unheard = [
        one._replace(
            failed_unheard=one.failed_unheard or first,
            end_unheard=act.call.kind if one.phase in FINISHED else "",
        )
        for one in outcome
    ]
    return [job, *unheard]


def _enqueue(job: Job, call: Call, *, unknown: bool) -> list[Job]:
    if job.phase != Phase.ABSENT:
        # An enqueue whose answer was lost made another job, if any.
        return [job] if unknown else _enqueued_again(job, call)
    queued = job._replace(phase=Phase.QUEUED, due=call.began + call.delay, bound=call.bound)
    return [job, queued] if unknown else [queued]


def _enqueued_again(job: Job, call: Call) -> list[Job]:
    """An enqueue answered a job that is there (rule 34).

    It may count its attempts anew, and have it run once more after its end.
    """
    due = min(job.due, call.began + call.delay)
    again = job._replace(bound=None, due=due, rests_until=0.0, again=call)
    if job.phase not in FINISHED:
        return [again]
    return [job, again._replace(phase=Phase.QUEUED, holder=None, recovered=False, again=None)]


def _running(rules: Declared, job: Job, call: Call) -> Job:
    lease = FOREVER if rules.lease is None else rules.lease
    return job._replace(
        phase=Phase.COMPLETED if rules.at_most_once else Phase.RUNNING,
        claims=job.claims + 1,
        last=call,
        holder=call,
        fresh_until=call.began + lease,
        stale_after=call.ended + lease,
        crashed=False,
        released=False,
        recovered=False,
        failed_unheard=False,
        unsure=None,
        tokens=0,
    )


def _claim(rules: Declared, job: Job, act: Act) -> list[Job] | Violation:
    call = act.call
    who = call.actor
    if job.phase == Phase.ABSENT:
        return Violation("not-early", f"{who} claimed a job that was still being enqueued")
    if job.phase in FINISHED and job.last is not None and job.last.overlaps(call):
        return Violation(
            "single-claim",
            f"{who} got a job that {job.last.actor} claimed meanwhile and that has {job.phase}",
        )
    if rules.at_most_once and job.last is not None:
        because = f"{who} got a job that {job.last.actor} had claimed, and a claim ends the job"
        return Violation("single-claim", because)
    if rules.stale_fails and (breach := _revived(job, call)):
        return breach
    if job.phase == Phase.COMPLETED or (job.phase == Phase.FAILED and not job.spent):
        return Violation("final-state", f"{who} claimed a job that had already {job.phase}")
    if job.phase == Phase.RUNNING and job.holder is not None and _still_held(rules, job, call):
        if rules.one_each and job.runs_with(who) and job.holder is not call:
            again = _running(rules, job, call)
            return [again, again._replace(claims=job.claims)]  # counted as an attempt, or not
        if job.unsure is not None and not job.holder.overlaps(call):
            return job.unsure
        return _double_hold(rules, job, job.holder, act)
    if (kept := _answered_again(rules, job, call)) is not None:
        return kept if job.spent else [_running(rules, job, call), *kept]
    if job.spent:
        return Violation(
            "retry-bound",
            f"{who} started attempt {job.claims + 1} of a job that may run "
            f"{'once' if job.bound == 1 else f'{job.bound} times'}",
        )
    if job.claims == 0 and call.ended < job.due:
        early = _shown(job.due - call.ended)
        return Violation("not-early", f"{who} claimed a job at least {early} before its time")
    if job.phase == Phase.QUEUED and call.ended < job.rests_until:
        waited = call.ended - (job.rests_until - rules.backoff)
        because = (
            f"{who} claimed a job within {_shown(waited)} of its failure at attempt "
            f"{job.claims}; its `backoff` asks for at least {_shown(rules.backoff)}"
        )
        return Violation("backoff", because)
    return [_running(rules, job, call)]


def _shown(seconds: float) -> str:
    """A time, with fractions of a second where these matter."""
    return spoken(round(seconds)) if seconds >= LONG else f"{seconds:.2g} s"


def _answered_again(rules: Declared, job: Job, call: Call) -> list[Job] | None:
    """The states of a job that its holder is answered as the lease runs out: no attempt may begin.

    A claim may have read it before that, and answers what its worker holds.
    """
    if not job.runs_with(call.actor) or job.holder is call or call.began >= job.fresh_until:
        return None
    again = _running(rules, job, call)
    same = again._replace(claims=job.claims, fresh_until=job.fresh_until)
    return [job._replace(stale_after=again.stale_after), same]


def _revived(job: Job, call: Call) -> Violation | None:
    """A job is claimed that should have ended as failed with its worker."""
    lapsed = job.phase == Phase.RUNNING and job.crashed and job.stale_after < call.began
    if not lapsed and not (job.phase == Phase.FAILED and job.recovered):
        return None
    because = f"{call.actor} got a job that should have failed when its worker was lost"
    return Violation("stale-recovery", because)


def _still_held(rules: Declared, job: Job, call: Call) -> bool:
    if rules.lease is None and not rules.tied:
        return not job.crashed
    return certainly_fresh(rules, job, call)


def _double_hold(rules: Declared, job: Job, holder: Call, act: Act) -> Violation:
    """Blame (rule 21): a lease that was taken over, or a claim that raced another."""
    call = act.call
    mine = holder.actor == call.actor
    if job.requeued:
        because = f"{call.actor} got a job that {holder.actor} holds, as it had been enqueued again"
        return Violation("single-claim", because, alone=mine)
    owner = "the same claim" if holder is call else f"{holder.actor}"
    raced = holder.overlaps(call)
    leased = rules.lease is not None or rules.tied
    taken_over = leased and (
        rules.takes_over or call.began - holder.ended > SHORT or act.recovery > holder.invoked
    )
    # A claim that answers all that its worker holds answers more than it was asked for.
    own = ("claim-limit",) if mine and holder is not call else ()
    if not raced and (job.recovered or taken_over):
        because = f"{call.actor} got a job that {owner} holds, while its {rules.fresh}"
        doubts = own if job.recovered else (*own, "single-claim")
        return Violation("live-lease", because, doubts=doubts, alone=mine)
    because = f"{call.actor} got a job that {owner} already holds"
    return Violation("single-claim", because, plain=not raced, doubts=own, alone=mine)


def _is_holder(job: Job, act: Act) -> bool:
    return job.holder is not None and job.holder is act.holder


def _finish(rules: Declared, job: Job, act: Act) -> list[Job] | Violation:
    verb = "complete" if act.kind == "complete" else "fail"
    if job.phase in {Phase.QUEUED, Phase.RUNNING} and _is_holder(job, act):
        if act.kind == "complete":
            over = job._replace(phase=Phase.COMPLETED, crashed=False, released=False, again=None)
            return [over, over._replace(phase=Phase.QUEUED, holder=None)] if job.again else [over]
        # One that had lost the job may have failed what was in line by then.
        held = job.phase == Phase.RUNNING and _still_held(rules, job, act.call)
        rests = act.call.began + rules.backoff if held else 0.0
        ended = job._replace(crashed=False, released=False, failed_once=True)
        return [
            ended._replace(phase=Phase.QUEUED, holder=None, due=act.call.began, rests_until=rests),
            ended._replace(phase=Phase.FAILED),
        ]
    return _accepted_after_its_end(rules, job, act, verb)


def _accepted_after_its_end(
    rules: Declared, job: Job, act: Act, verb: str
) -> list[Job] | Violation:
    """An operation was accepted although its claim had ended (rules 5 and 6)."""
    who = act.call.worker
    if act.kind == "heartbeat" and rules.worker_heartbeat:
        # Sent for an older claim, it may extend what the worker holds now.
        return _extended(rules, job, act._replace(named=False)) if job.runs_with(who) else [job]
    if job.last is act.holder and (job.phase == Phase.QUEUED or _is_holder(job, act)):
        return _repeated(job, act)
    if job.phase == Phase.RUNNING and job.holder is not None:
        mine = job.holder.actor == who
        since = (
            "it has claimed the job again since" if mine else f"{job.holder.actor} has the job now"
        )
        because = f"{who}'s {act.kind} was accepted, although its claim had ended and {since}"
    else:
        mine = job.last is not None and job.last.actor == who and job.last is not act.holder
        ended = f"had lost and that had {job.phase}" if job.phase in FINISHED else "had given back"
        because = f"{who} was allowed to {verb} a job that it {ended}"
    breach = Violation("fencing", because, plain=True, alone=mine)
    return _late(job, act, breach) if rules.at_least_once else breach


def _late(job: Job, act: Act, breach: Violation) -> list[Job]:
    """A late operation may be accepted, and a completion may count (rule 27).

    If more comes of it, if the job runs once more, or the attempt that has begun since is not
    accepted or does not end with its worker, then it is the breach.
    """
    doubted = job._replace(unsure=job.unsure or breach)
    if act.kind == "complete" and job.phase != Phase.COMPLETED:
        return [doubted, doubted._replace(phase=Phase.COMPLETED)]
    return [doubted]


def _repeated(job: Job, act: Act) -> list[Job]:
    """A holder names a job again that it has ended and nobody has claimed since (rule 6).

    That changes nothing that was decided. A job that is to be tried again may be completed after
    all.
    """
    if act.kind == "complete" and job.phase == Phase.QUEUED and not job.spent:
        return [job, job._replace(phase=Phase.COMPLETED, holder=act.holder)]
    return [job if act.answer == "unknown" else job._replace(end_unheard="")]


def _after_ended_claim(job: Job, act: Act) -> Job:
    """An operation with an ended claim may have hit what its worker holds now."""
    if not job.runs_with(act.call.actor):
        return job
    because = (
        f"{act.call.actor} was allowed to {act.kind} a job that it had ended, and lost another"
        " that it holds"
    )
    return job._replace(unsure=job.unsure or Violation("fencing", because, alone=True))


def _reject(rules: Declared, job: Job, act: Act) -> list[Job] | Violation:
    holds = job.phase == Phase.RUNNING and _is_holder(job, act)
    if holds and act.call.token < job.tokens:
        return [job]  # a heartbeat has changed the token since, and it could not know
    if holds and (rules.tied or rules.lease is not None) and certainly_fresh(rules, job, act.call):
        because = f"{act.call.actor} was refused {act.kind} although it holds the job"
        if job.requeued:
            return Violation("single-claim", f"{because}, which had been enqueued again")
        return job.unsure or Violation("live-lease", f"{because} and its {rules.fresh}")
    return [job]


def _extended(rules: Declared, job: Job, act: Act) -> list[Job]:
    lease = FOREVER if rules.lease is None else rules.lease
    # A lease lasts at least the declared time (rule 4): what was left of it may be added, once.
    # Each heartbeat sets the end anew, and they do not add up (rule 32).
    ended = act.call.ended
    stale_after = min(max(job.stale_after, ended), ended + grace(lease)) + lease
    if not act.named:
        # A heartbeat may extend its job only or all jobs of its worker (rule 3): this one is of
        # another job, so that it moves the certain end of the lease and not its certain run.
        return [job._replace(stale_after=stale_after)]
    return [
        job._replace(
            phase=Phase.RUNNING,
            fresh_until=max(job.fresh_until, act.call.began + lease),
            stale_after=stale_after,
            released=False,
            tokens=job.tokens + rules.renews,
        )
    ]


def _sign(rules: Declared, job: Job, call: Call) -> Job:
    """Another operation of the holder: it may have extended the lease of all that it holds."""
    if not job.runs_with(call.worker) or rules.lease is None:
        return job
    return job._replace(stale_after=max(job.stale_after, call.ended + rules.lease))


def _heartbeat(rules: Declared, job: Job, act: Act) -> list[Job] | Violation:
    # A worker's heartbeat is accepted because the worker lives. If the lease has run out, a
    # claim may have put the job back before, and have answered nothing (rules 14 and 28).
    lapsed = rules.worker_heartbeat and act.call.ended >= job.fresh_until
    if not act.named:
        if job.holder is None or not job.runs_with(act.call.worker):
            return [job]
        # One that names no job is for all that its worker had when it was sent (rule 3).
        meant = rules.worker_heartbeat and not act.call.overlaps(job.holder)
        return _extended(rules, job, act._replace(named=meant and not lapsed))
    if _is_holder(job, act) and job.phase == Phase.RUNNING:
        return _extended(rules, job, act._replace(named=not lapsed))
    if _is_holder(job, act) and job.phase == Phase.QUEUED:
        return [job] if rules.worker_heartbeat else _extended(rules, job, act)
    return _accepted_after_its_end(rules, job, act, "extend")


def _recover(rules: Declared, job: Job, call: Call) -> list[Job] | Violation:
    if job.phase != Phase.RUNNING:
        return [job]
    if certainly_fresh(rules, job, call) and job.holder is not None:
        return Violation(
            "live-lease",
            f"{call.actor} recovered a job from {job.holder.actor}, whose {rules.fresh}",
        )
    if rules.stale_fails:
        return [job._replace(phase=Phase.FAILED, holder=None, released=True, recovered=True)]
    queued = job._replace(phase=Phase.QUEUED, released=True, recovered=True)
    if not job.exhausted:
        return [queued]
    return [queued, job._replace(phase=Phase.FAILED, holder=None, released=True)]


def _crash(rules: Declared, job: Job, call: Call) -> Job:
    if job.holder is None or job.holder.actor != call.actor or job.phase in FINISHED:
        return job
    if rules.held and job.phase == Phase.RUNNING:
        return job._replace(phase=Phase.QUEUED, holder=None, crashed=True, released=True)
    return job._replace(crashed=True)
