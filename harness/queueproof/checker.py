"""History and specification to verdicts: which answers no legal order of the calls explains.

Jobs are independent of each other, so a history is checked job by job: all orders of the calls
that respect real time are followed at once, as a set of states, and the answer at which the set
becomes empty is the violation (just-in-time linearization: G. Lowe, "Testing for linearizability",
2017; partitioned by key as in Porcupine). What concerns several jobs, limits, order and waiting,
is judged on the calls themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from queueproof.history import Answer, Call, History, Ref
from queueproof.queue import State
from queueproof.spec import (
    FINISHED,
    FOREVER,
    SHORT,
    Act,
    Breach,
    Job,
    Phase,
    Rules,
    step,
)

DEADLOCK = "40P01"  # PostgreSQL's deadlock_detected
_INSTANT = frozenset({"advance", "sweep", "jobs", "rewrite"})  # they meet nobody


class Violation(NamedTuple):
    """A broken guarantee in one history.

    Attributes:
        guarantee: Its id.
        because: The sentence that says which rule was broken, and how.
        job: The job concerned, None where it concerns several.
        call: Index of the call whose answer shows it.
        in_turn: See `spec.Breach`.
        doubtful: See `spec.Breach`.
    """

    guarantee: str
    because: str
    job: str | None
    call: int
    in_turn: bool = False
    doubtful: bool = False


@dataclass(slots=True)
class Findings:
    """What one history shows.

    Attributes:
        violations: In the order of the calls; at most one per job from the job's own life.
        evidence: (guarantee, what was seen) to how often.
    """

    violations: list[Violation] = field(default_factory=list)
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the checker must know of the queue.

    Attributes:
        lease: Seconds, or None.
        held: Its claims end inside their transaction.
        worker_heartbeat: Its heartbeat names the worker, not the job.
        recovers: It offers `recover`.
        observable: It offers `jobs`.
        order: As declared.
        cap: Most jobs running at once, or None.
    """

    lease: float | None
    held: bool
    worker_heartbeat: bool
    recovers: bool
    observable: bool
    order: str
    cap: int | None = None


def check(history: History, declared: Declared) -> Findings:
    """Judge one history against every guarantee that a history can show."""
    rules = Rules(
        lease=declared.lease,
        held=declared.held,
        worker_heartbeat=declared.worker_heartbeat,
        takes_over=declared.lease is not None and not declared.recovers,
        recoveries=history.of_kind("recover"),
    )
    findings = Findings()
    _check_limits(history, findings)
    _check_routing(history, findings)
    _check_deadlocks(history, findings)
    misrouted = {violation.job for violation in findings.violations}
    for job, acts in _by_job(history).items():
        if job in misrouted:
            continue
        _JobCheck(rules, declared, history, job, findings).run(acts)
    _check_waits(history, declared, findings)
    _check_order(history, declared, findings)
    _check_cap(history, declared, findings)
    _count_overlaps(history, findings)
    _count_fresh(history, declared, findings)
    findings.violations.sort(key=lambda violation: violation.call)
    return findings


# --- the life of one job ------------------------------------------------------------------------


def _by_job(history: History) -> dict[str, list[Act]]:
    """Every call as what it meant for each job; calls that meant nothing for a job are left out."""
    acts: dict[str, list[Act]] = {}
    lost_claims = []
    claimants: dict[str, set[str]] = {}
    for call in history.calls:
        for job in call.ids if call.kind in {"enqueue", "claim"} else ():
            acts.setdefault(job, [])
            if call.kind == "claim":
                claimants.setdefault(call.actor, set()).add(job)
        if call.kind == "claim" and call.answer == "unknown":
            lost_claims.append(call)
    for call in history.calls:
        for job, act in _acts(history, call, acts, claimants):
            if job in acts:
                acts[job].append(act)
    return acts


def _acts(
    history: History, call: Call, jobs: Iterable[str], claimants: dict[str, set[str]]
) -> Iterator[tuple[str, Act]]:
    if call.answer in {"retry", "error", "pending"}:
        return
    match call.kind:
        case "enqueue" | "recover":
            named = call.ids if call.answer == "accepted" else jobs
            for job in named:
                yield job, Act(call, call.kind, call.answer)
        case "claim":
            if call.answer == "unknown":
                for job in jobs:
                    yield job, Act(call, "claim", "unknown")
            for job in (*call.ids, *call.repeated):
                yield job, Act(call, "claim")
        case "complete" | "fail" | "complete_many":
            kind = "fail" if call.kind == "fail" else "complete"
            for ref in call.refs:
                yield ref.job, Act(call, kind, _answer_for(call, ref), history.calls[ref.call])
        case "heartbeat":
            for ref in call.refs:
                yield ref.job, Act(call, "heartbeat", call.answer, history.calls[ref.call])
            for job in claimants.get(call.actor, set()) - {ref.job for ref in call.refs}:
                yield job, Act(call, "heartbeat", call.answer, named=False)
        case "crash":
            for job in jobs:
                yield job, Act(call, "crash")
        case "jobs":
            for job, state in (call.states or {}).items():
                yield job, Act(call, "jobs", seen=state)
        case "sweep":
            for job in jobs:
                yield job, Act(call, "sweep")


def _answer_for(call: Call, ref: Ref) -> Answer:
    if call.kind != "complete_many" or call.answer != "accepted":
        return call.answer
    return "accepted" if ref.job in call.ids else "rejected"


class _Config(NamedTuple):
    """One explanation of what was seen so far: a state, and the open acts that took effect."""

    job: Job
    applied: frozenset[int]


class _JobCheck:
    """Follows one job through a history."""

    def __init__(
        self, rules: Rules, declared: Declared, history: History, job: str, findings: Findings
    ) -> None:
        self.rules = rules
        self.declared = declared
        self.history = history
        self.job = job
        self.findings = findings
        self.starved: Violation | None = None  # if it is claimed later; otherwise it may be lost

    def run(self, acts: Sequence[Act]) -> None:
        """Record the first violation in the job's life, or the evidence of a sound one."""
        enqueued = any(act.kind == "enqueue" for act in acts)
        # A job that nobody enqueued was put there by the queue's own schema.
        first = Job() if enqueued else Job(phase=Phase.QUEUED)
        configs = [_Config(first, frozenset())]
        events = sorted(
            [(act.call.invoked, 0, n) for n, act in enumerate(acts)]
            + [(act.call.returned, 1, n) for n, act in enumerate(acts) if act.call.returned]
        )
        open_acts: set[int] = set()
        for _, is_return, n in events:
            if not is_return:
                open_acts.add(n)
                continue
            act = acts[n]
            self._note(act, configs)
            if act.kind == "jobs":
                configs = _consistent(configs, act)
                open_acts.discard(n)
                continue
            if act.kind == "sweep":
                self.starved = self.starved or self._starved(act, configs)
                if violation := self._stranded(act, configs):
                    self.findings.violations.append(violation)
                    return
                open_acts.discard(n)
                continue
            reached, breach = self._linearize(configs, acts, open_acts, n)
            if not reached:
                because = breach or Breach("single-claim", "no order of the calls explains this")
                self._violate(because, act.call)
                return
            open_acts.discard(n)
            configs = [_Config(c.job, c.applied - {n}) for c in reached]
        self._finish(configs, acts)

    def _linearize(
        self, configs: list[_Config], acts: Sequence[Act], open_acts: set[int], target: int
    ) -> tuple[list[_Config], Breach | None]:
        """All explanations in which `target` has taken effect, or why there is none."""
        reached: list[_Config] = []
        seen = set(configs)
        frontier = list(configs)
        breach: Breach | None = None
        while frontier:
            config = frontier.pop()
            if target in config.applied:
                reached.append(config)
                continue
            for n in sorted(open_acts - config.applied):
                outcome = step(self.rules, config.job, acts[n])
                if isinstance(outcome, Breach):
                    if n == target:
                        breach = breach or outcome
                    continue
                for job in outcome:
                    following = _Config(job, config.applied | {n})
                    if following not in seen:
                        seen.add(following)
                        frontier.append(following)
        return reached, breach

    def _violate(self, breach: Breach, call: Call) -> None:
        self.findings.violations.append(
            Violation(
                breach.guarantee,
                breach.because,
                self.job,
                call.index,
                breach.in_turn,
                breach.doubtful,
            )
        )

    def _starved(self, act: Act, configs: list[_Config]) -> Violation | None:
        """A job was free during a whole sweep, jobs that cannot run were not, and it is there."""
        ready = all(
            job.phase == Phase.QUEUED and job.claims == 0 and self._due_by(job) < act.call.began
            for job, _ in configs
        )
        hindrance = _hindrance(self.history, act.call) if ready else ""
        if not hindrance:
            return None
        because = f"a job that was due could not be claimed beside {hindrance}"
        return Violation("no-starvation", because, self.job, act.call.index)

    def _due_by(self, job: Job) -> float:
        """From when on the job is certainly due: its enqueue happened before its answer."""
        calls = [call for call in self.history.of_kind("enqueue") if self.job in call.ids]
        return max([job.due, *(call.ended + call.delay for call in calls)]) + SHORT

    def _stranded(self, act: Act, configs: list[_Config]) -> Violation | None:
        """A crashed worker's lease has run out, the queue was swept, and its job is not back."""
        for job, _ in configs:
            over = job.crashed and (self.rules.held or job.stale_after < act.call.began)
            if job.phase != Phase.RUNNING or not over or job.exhausted:
                return None
        if not self.declared.lease and not self.rules.held:
            return None
        holder = configs[0].job.holder
        who = holder.actor if holder else "its worker"
        return Violation(
            "stale-recovery",
            f"{who} crashed, its lease has run out, and the job could not be claimed again",
            self.job,
            act.call.index,
        )

    def _finish(self, configs: list[_Config], acts: Sequence[Act]) -> None:
        if all(job.suspect for job, _ in configs):
            suspect = configs[0].job.suspect
            assert suspect is not None
            culprit = [a for a in acts if a.holder is not None and a.answer == "accepted"][-1]
            self._violate(suspect, culprit.call)
            return
        if self.starved and any(job.claims for job, _ in configs):
            self.findings.violations.append(self.starved)
            return
        self.findings.evidence["no-lost-job", "jobs followed to their end"] += 1
        for job, _ in configs:
            if job.bound is not None and job.claims == job.bound:
                self.findings.evidence["retry-bound", "jobs attempted as often as allowed"] += 1
                break
        if self.history.final is not None or not self.declared.observable:
            self._account(configs)

    def _account(self, configs: list[_Config]) -> None:
        """After the drain every acknowledged job must have ended, one way or the other."""
        seen = self.history.final.get(self.job) if self.history.final is not None else None
        if any(self._ended(job, seen) for job, _ in configs):
            return
        job = configs[0].job
        last = self.history.calls[-1]
        where = f"`jobs` shows it as {seen}" if seen else "it is gone"
        if not self.declared.observable:
            where = "no claim returns it"
        crashed = (
            job.crashed
            or job.released
            or any(
                call.answer == "unknown" and call.kind in {"claim", "recover"}
                for call in self.history.calls
            )
        )
        if crashed:
            if self.rules.lease is None and not self.rules.held:
                return
            self._violate(
                Breach(
                    "stale-recovery",
                    f"its worker lost it, and the job never came back: {where}",
                ),
                last,
            )
            return
        if self.starved and _hindrance(self.history, last):
            self.findings.violations.append(self.starved)
            return
        self._violate(
            Breach("no-lost-job", f"the job neither ended nor can be claimed: {where}"), last
        )

    def _ended(self, job: Job, seen: State | None) -> bool:
        if job.phase in {Phase.COMPLETED, Phase.ABSENT}:
            return True
        if not self.declared.observable:
            return job.phase == Phase.FAILED or (
                job.exhausted and (job.claims > 1 or job.bound is not None)
            )
        if seen == "failed":
            # A crash at an attempt that was not the last must bring the job back, not end it.
            return job.phase == Phase.FAILED or job.exhausted or job.failed_once
        return seen is None and job.phase == Phase.FAILED

    def _note(self, act: Act, configs: list[_Config]) -> None:
        """Count what makes a pass worth something: the moments at which it could have failed."""
        job = configs[0].job
        note = _tested(self.history, job, act)
        if note:
            self.findings.evidence[note] += 1


def _hindrance(history: History, sweep: Call) -> str:
    """The jobs that cannot run at a moment, in words."""
    enqueued = [call for call in history.of_kind("enqueue") if call.invoked < sweep.invoked]
    waiting = sum(call.began + call.delay > sweep.ended for call in enqueued)
    attempts = Counter(
        job for call in history.of_kind("claim") if call.invoked < sweep.invoked for job in call.ids
    )
    done = {
        ref.job
        for call in history.of_kind("complete", "complete_many")
        if call.answer == "accepted" and call.invoked < sweep.invoked
        for ref in call.refs
    }
    spent = sum(
        job not in done and attempts[job] >= (call.bound or FOREVER)
        for call in enqueued
        for job in call.ids
    )
    held = sum(
        job not in done and 0 < attempts[job] < (call.bound or FOREVER)
        for call in enqueued
        for job in call.ids
    )
    elsewhere = sum(call.queue != "default" for call in enqueued)
    parts = {
        "not due yet": waiting,
        "claimed before": held,
        "without an attempt left": spent,
        "of another queue": elsewhere,
    }
    return ", ".join(f"{n} job{'s' if n > 1 else ''} {what}" for what, n in parts.items() if n)


def _consistent(configs: list[_Config], act: Act) -> list[_Config]:
    """Those explanations that an observation agrees with; all of them where none does."""

    def agrees(job: Job) -> bool:
        if act.seen in {"failed", "completed"}:
            return job.phase == act.seen
        return job.phase not in FINISHED

    return [config for config in configs if agrees(config.job)] or configs


def _tested(history: History, job: Job, act: Act) -> tuple[str, str] | None:
    """Which guarantee an act puts to the test, given the state that it meets."""
    call = act.call
    match act.kind:
        case "claim" if job.phase == Phase.RUNNING or job.released:
            if job.crashed:
                return "stale-recovery", "jobs of crashed workers claimed again"
        case "claim" if job.claims == 0 and _hindrance(history, call):
            return "no-starvation", "jobs claimed beside others that could not run"
        case "complete" | "fail" | "heartbeat" if act.holder and act.answer == "rejected":
            if job.holder is not act.holder or job.phase in FINISHED:
                return "fencing", "operations with a lost claim refused"
        case "sweep":
            if job.phase in FINISHED:
                return "final-state", "sweeps over a finished job"
            if job.phase == Phase.QUEUED and job.claims == 0 and call.ended < job.due:
                return "not-early", "sweeps over a job before its time"
    return None


# --- what concerns several jobs -----------------------------------------------------------------


def _check_limits(history: History, findings: Findings) -> None:
    for call in history.of_kind("claim"):
        taken = len(call.ids)  # a job that is there twice is single-claim
        if taken > call.limit:
            findings.violations.append(
                Violation(
                    "claim-limit",
                    f"{call.actor} asked for at most {call.limit} and was given {taken}",
                    None,
                    call.index,
                )
            )


def _check_routing(history: History, findings: Findings) -> None:
    """A claim names the queue that it takes from."""
    home = {job: call.queue for call in history.of_kind("enqueue") for job in call.ids}
    elsewhere = len(set(home.values())) > 1
    for call in history.of_kind("claim"):
        if elsewhere:
            findings.evidence["routing", "claims beside another queue's jobs"] += 1
        for job in call.ids:
            if home.get(job, call.queue) != call.queue:
                because = (
                    f"{call.actor} claimed from queue {call.queue!r} and was given a job of "
                    f"queue {home[job]!r}"
                )
                findings.violations.append(Violation("routing", because, job, call.index))


def _check_deadlocks(history: History, findings: Findings) -> None:
    """40P01 is a deadlock, whether the scheduler saw the circle or the server did."""
    for call in history.calls:
        if call.error.startswith(DEADLOCK):
            others = " and ".join(dict.fromkeys(wait.blocker for wait in call.waits))
            because = (
                f"{call.actor}, in {_noun(call)}, and {others or 'another'} waited for each other"
            )
            findings.violations.append(Violation("no-deadlock", because, None, call.index))


def _check_cap(history: History, declared: Declared, findings: Findings) -> None:
    """When a claim answers, the jobs that are certainly running then are counted."""
    if declared.cap is None:
        return
    claims = [call for call in history.of_kind("claim") if call.ids and call.returned]
    lease = FOREVER if declared.lease is None else declared.lease
    for claim in claims:
        running = {
            job
            for other in claims
            if (other.returned or 0) <= (claim.returned or 0) and claim.ended < other.began + lease
            for job in other.ids
            if not _may_have_ended(history, Ref(other.index, job), other.actor, claim)
        }
        if len(running) == declared.cap:
            findings.evidence["concurrency-limit", "claims that reached the cap"] += 1
        if len(running) > declared.cap:
            because = f"{len(running)} jobs were running at once; at most {declared.cap} may"
            findings.violations.append(Violation("concurrency-limit", because, None, claim.index))
            return


def _may_have_ended(history: History, ref: Ref, actor: str, claim: Call) -> bool:
    """Whether a claimed job was perhaps not running any more when a claim answered."""
    answered = claim.returned or 0
    return any(
        call.invoked < answered
        and (ref in call.refs or (call.kind == "crash" and call.actor == actor))
        for call in history.of_kind("complete", "complete_many", "fail", "crash")
    )


def _check_waits(history: History, declared: Declared, findings: Findings) -> None:
    if any(violation.guarantee == "single-claim" for violation in findings.violations):
        return
    for call in history.of_kind("claim", "heartbeat", "recover"):
        if _took_twice(history, call):
            continue
        for wait in call.waits:
            blocker = None if wait.call is None else history.calls[wait.call]
            if wait.blocker == call.actor or _may_wait(history, declared, call, blocker):
                continue
            what = "holds a job" if blocker is None else f"is in the middle of {_noun(blocker)}"
            findings.violations.append(
                Violation(
                    "non-blocking",
                    f"{call.actor} had to wait in {_noun(call)} while {wait.blocker} {what}",
                    None,
                    call.index,
                )
            )
            break


def _took_twice(history: History, call: Call) -> bool:
    """Who races another claim for a job waits for its row: one violation counts once."""
    return call.kind == "claim" and any(
        other is not call and other.overlaps(call) and not set(other.ids).isdisjoint(call.ids)
        for other in history.of_kind("claim")
    )


def _noun(call: Call) -> str:
    return {"recover": "a recovery", "enqueue": "an enqueue"}.get(call.kind, f"a {call.kind}")


def _may_wait(history: History, declared: Declared, call: Call, blocker: Call | None) -> bool:
    """Queue-file.md, 10: waiting for an operation on the very job that it names is allowed."""
    if blocker is None:
        return False
    if blocker.kind == "cleanup":
        return True
    if call.kind == "recover" and blocker.kind == "recover":
        return True  # another reaper is not a worker
    if call.kind == "heartbeat":
        if blocker.kind == "recover" and all(
            _maybe_stale(history, declared, ref, call) for ref in call.refs
        ):
            return True
        refs = set(call.refs)
        if declared.worker_heartbeat:  # it names all jobs of its worker
            refs |= {
                Ref(claim.index, job)
                for claim in history.of_kind("claim")
                if claim.actor == call.actor
                for job in claim.ids
            }
            if blocker.kind == "recover" and any(
                _maybe_stale(history, declared, ref, call) for ref in refs
            ):
                return True
        named = {ref.job for ref in refs}
        return bool(named & ({ref.job for ref in blocker.refs} | set(blocker.ids)))
    # A claim or a reaper may meet a job's late owner, whose lease must then have run out.
    return blocker.kind in {"complete", "complete_many", "fail", "heartbeat"} and any(
        _maybe_stale(history, declared, ref, call) for ref in blocker.refs
    )


def _maybe_stale(history: History, declared: Declared, ref: Ref, call: Call) -> bool:
    """Whether the lease of a claimed job may have run out before a call ended."""
    if declared.lease is None:
        return False
    beats = [
        beat.began
        for beat in history.of_kind("heartbeat")
        if ref in beat.refs and beat.answer == "accepted" and beat.invoked < call.invoked
    ]
    return call.ended >= max([history.calls[ref.call].began, *beats]) + declared.lease


def _check_order(history: History, declared: Declared, findings: Findings) -> None:
    """Among jobs never claimed before, a claim made while nobody else acts takes the first ones."""
    if declared.order == "none":
        return
    enqueued = [c for c in history.of_kind("enqueue") if c.answer == "accepted"]
    acting = [c for c in history.calls if c.kind not in _INSTANT]
    bad = {violation.job for violation in findings.violations}
    claimed: set[str] = set()
    for claim in history.of_kind("claim"):
        if claim.answer == "unknown":
            return  # it may have touched any job: none is certainly free from here on
        alone = not any(other is not claim and other.overlaps(claim) for other in acting)
        if alone and claim.ids:
            free = [
                call
                for call in enqueued
                if (call.returned or FOREVER) < claim.invoked
                and call.queue == claim.queue
                and call.ended + call.delay <= claim.began
                and claimed.isdisjoint(call.ids)
                and bad.isdisjoint(call.ids)
            ]
            taken = [call for call in free if set(call.ids) & set(claim.ids)]
            passed = [call for call in free if not set(call.ids) & set(claim.ids)]
            for later in taken:
                for earlier in (c for c in passed if _comparable(c, later)):
                    findings.evidence["order", "pairs of jobs compared"] += 1
                    if _precedes(earlier, later, declared.order):
                        findings.violations.append(_out_of_order(claim, earlier, later))
                        return
        claimed.update(claim.ids)


def _comparable(one: Call, other: Call) -> bool:
    """Whether the enqueue order and the due order of two jobs are certain and agree."""
    return _before(one, other) or _before(other, one)


def _before(one: Call, other: Call) -> bool:
    first = (one.returned or FOREVER) < other.invoked
    return first and one.ended + one.delay <= other.began + other.delay


def _precedes(one: Call, other: Call, order: str) -> bool:
    if order == "priority, fifo" and one.priority != other.priority:
        return one.priority > other.priority
    return _before(one, other)


def _out_of_order(claim: Call, earlier: Call, later: Call) -> Violation:
    reason = (
        f"of priority {earlier.priority} over {later.priority}"
        if earlier.priority != later.priority
        else "enqueued before it"
    )
    return Violation(
        "order",
        f"{claim.actor} was given job {later.ids[0]} although job {earlier.ids[0]}, {reason}, "
        "was free",
        later.ids[0],
        claim.index,
    )


def _count_overlaps(history: History, findings: Findings) -> None:
    calls = [call for call in history.calls if call.returned is not None]
    for n, call in enumerate(calls):
        for other in calls[n + 1 :]:
            if other.actor == call.actor or not call.overlaps(other):
                continue
            kinds = {call.kind, other.kind}
            if kinds == {"claim"}:
                findings.evidence["single-claim", "overlapping claims"] += 1
            if "enqueue" in kinds and "claim" in kinds:
                findings.evidence["not-early", "claims during an enqueue"] += 1
            findings.evidence["no-deadlock", "operations in the midst of another's"] += 1
            if kinds & {"claim", "heartbeat", "recover"}:
                findings.evidence["non-blocking", "operations in the midst of another's"] += 1


def _count_fresh(history: History, declared: Declared, findings: Findings) -> None:
    """Count claims and recoveries that could have taken a job whose lease was fresh."""
    if declared.lease is None and not declared.held:
        return
    lease = FOREVER if declared.lease is None else declared.lease
    ended = {
        ref: call.invoked
        for call in history.of_kind("complete", "complete_many", "fail")
        for ref in call.refs
    }
    for claim in history.of_kind("claim"):
        for job in claim.ids:
            until = ended.get(Ref(claim.index, job), FOREVER)
            findings.evidence["live-lease", "claims and recoveries during a fresh lease"] += sum(
                call.actor != claim.actor
                and (claim.returned or FOREVER) < call.invoked < until
                and call.ended < claim.began + lease
                for call in history.of_kind("claim", "recover")
            )
