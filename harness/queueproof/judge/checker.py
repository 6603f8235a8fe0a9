"""History and specification to verdicts: which answers no legal order of the calls explains.

Jobs are independent of each other, so a history is checked job by job: all orders of the calls
that respect real time are followed at once, as a set of states, and the answer at which the set
becomes empty is the violation (just-in-time linearization: G. Lowe, "Testing for linearizability",
2017; partitioned by key as in Porcupine). What concerns several jobs, limits, order and waiting,
is judged on the calls themselves.

The time that this takes grows with the length of a history. Faster than that grows only what is
rare: a sweep concerns every job, and a claim whose answer was lost every job that cannot be
explained without it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from queueproof.history.calls import Call, History, Ref
from queueproof.judge.lives import UNHINDERED, Life, Lives, Watcher, over, read
from queueproof.judge.spec import (
    FINISHED,
    FOREVER,
    SHORT,
    Act,
    Breach,
    Declared,
    Job,
    Phase,
    step,
)
from queueproof.queues.model import State
from queueproof.queues.offer import Offer
from queueproof.schedule.moments import DAY, DECADE, PRECISION, ROUNDED_UP, grace
from queueproof.schedule.programs import FAULTS

LONGEST_WAIT = DAY  # seconds; a job that was taken back comes by then, unless its SQL says more
DEADLOCK = "40P01"  # PostgreSQL's deadlock_detected
TWICE = 2  # a claim that comes back empty once may have done maintenance
# Classes of SQLSTATEs that somebody else, or the server, is to blame for.
_DISTURBED = ("08", "40", "53", "57", "58")
_ENDING = frozenset({"complete", "fail", "heartbeat"})
_INSTANT = frozenset({"advance", "sweep", "jobs", "rewrite"})  # they meet nobody


class Violation(NamedTuple):
    """A broken guarantee in one history.

    Attributes:
        guarantee: Its id.
        because: The sentence that says which rule was broken, and how.
        job: The job concerned, None where it concerns several.
        call: Index of the call whose answer shows it.
        plain: See `spec.Breach`.
        doubts: See `spec.Breach`.
        alone: See `spec.Breach`.
        follows: See `spec.Breach`.
    """

    guarantee: str
    because: str
    job: str | None
    call: int
    plain: bool = False
    doubts: tuple[str, ...] = ()
    alone: bool = False
    follows: str = ""


@dataclass(slots=True)
class CheckResult:
    """What one history shows.

    Attributes:
        violations: In the order of the calls; at most one per job from the job's own life.
        evidence: (guarantee, what was seen) to how often.
    """

    violations: list[Violation] = field(default_factory=list)
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def overlapping(self) -> int:
        """The number of operations that overlapped another."""
        return self.evidence["no-deadlock", "operations that overlapped another"]

    @property
    def first(self) -> dict[str, Violation]:
        """The first violation of each guarantee; of single-claim alone where that is broken.

        Who raced for one job shares it afterwards, and what becomes of it is nobody else's fault.
        """
        found: dict[str, Violation] = {}
        for violation in self.violations:
            found.setdefault(violation.guarantee, violation)
        raced = found.get("single-claim")
        return {"single-claim": raced} if raced else found


def declare(offer: Offer) -> Declared:
    """What the checker must know of a queue."""
    queue = offer.queue
    by_worker = "heartbeat" in queue.offers and "job" not in queue.takes("heartbeat")
    return Declared(
        lease=queue.lease_seconds,
        held=offer.held,
        worker_heartbeat=by_worker,
        recovers="recover" in queue.offers,
        observable="jobs" in queue.offers,
        order=queue.order,
        cap=queue.concurrency_limit,
        retries=offer.retries and queue.max_attempts is not None,
        session=queue.lease == "session",
        signs=by_worker or offer.beats,
        renews=offer.renews,
        waits=offer.waits is not None,
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
    """Judge one history against every guarantee that a history can show.

    Args:
        history: What was asked and answered.
        declared: What the queue declares.
    """
    lives = Lives(signs=declared.signs)
    findings = CheckResult()
    limits, deadlocks, idle = _Limits(), _Deadlocks(), _Idle(declared)
    order, cap = _Order(declared, lives), _Cap(declared, findings)
    watchers = [lives, limits, deadlocks, idle, _Overlaps(findings)]
    if declared.order != "none":
        watchers.append(order)
    if declared.cap is not None:
        watchers.append(cap)
    errors = _Errors(declared)
    if declared.lease is not None or declared.tied:
        watchers += [_Fresh(declared, findings), errors]
    read(history.calls, watchers)
    lives.see_outcome(history.final)
    routing, cleanup, own = _check_lives(declared, lives, findings)
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
        _check_waits(history, declared, findings)
    bad = {violation.job for violation in findings.violations} - {None}
    wrong = history.contradiction
    if wrong is not None and wrong.job not in bad:
        bad.add(wrong.job)
        told = Violation(wrong.raced, wrong.because, wrong.job, wrong.call)
        findings.violations.append(told)
    if bad and declared.order != "none":
        # One violation counts once: the order is judged anew, without these jobs.
        order = _Order(declared, lives, bad)
        read(history.calls, [order])
    findings.violations += order.violations + cap.violations
    found_apart = (*idle.violations, *errors.violations)
    findings.violations += [found for found in found_apart if found.job not in bad]
    findings.evidence.update(order.evidence)
    if lives.refused:
        findings.evidence["fencing", "operations with a lost claim refused"] += lives.refused
    findings.violations.sort(key=lambda violation: violation.call)
    return findings


# --- the life of one job ------------------------------------------------------------------------


def _check_lives(
    declared: Declared, lives: Lives, findings: CheckResult
) -> tuple[list[Violation], list[Violation], list[Violation]]:
    """Follow each job, in the order in which they came.

    Returns:
        Claims from another queue, cleanups that took too much, and violations in the life of jobs
        with neither.
    """
    routing: list[Violation] = []
    cleanup: list[Violation] = []
    own: list[Violation] = []
    for job, life in sorted(lives.each(), key=lambda one: (one[1].number, one[0])):
        moved, removed = _check_routing(job, life), _check_cleanup(job, life, findings)
        routing += moved
        cleanup += removed
        if life.number and not (moved or removed):
            followed = _follow(declared, lives, job, life)
            own += followed.violations
            findings.evidence.update(followed.evidence)
    if len(lives.queues) > 1:
        findings.evidence["routing", "claims beside another queue's jobs"] += lives.claims
    return routing, cleanup, own


def _follow(declared: Declared, lives: Lives, job: str, life: Life) -> CheckResult:
    acts = life.acts()
    check = _JobCheck(declared, lives, job, life)
    check.run(lives.certain(acts))
    for later in (False, True):
        # A call that was not answered may have met any job, and with many such calls the
        # explanations are too many: only a life that has none without them is read with them.
        if not check.explained and (more := lives.possible(acts, later=later)):
            check = _JobCheck(declared, lives, job, life)
            check.run(more)
    return check.findings


def _check_routing(job: str, life: Life) -> list[Violation]:
    """A claim names the queue that it takes from."""
    homes = [entry.call.queue for entry in life.entries if entry.kind == "enqueue"]
    claims = {entry.call.index: entry.call for entry in life.entries if entry.kind == "claim"}
    return [
        Violation(
            "routing",
            f"{claim.actor} claimed from queue {claim.queue!r} and was given a job of "
            f"queue {homes[-1]!r}",
            job,
            claim.index,
        )
        for claim in claims.values()
        if homes and homes[-1] != claim.queue
    ]


def _check_cleanup(job: str, life: Life, findings: CheckResult) -> list[Violation]:
    """A cleanup keeps what has not ended longer ago than its age (rule 15).

    Judged between two looks that follow each other with nothing but the cleanup in between.
    """
    found = []
    for looked_at, state, clean, kept in life.looks:
        # What is repeated changes nothing (rule 6): the first answer to the last holder counts.
        ended: dict[int, float] = {}
        for entry in life.entries:
            ends = entry.kind in {"complete", "fail"} and entry.answer == "accepted"
            if ends and entry.holder is not None and entry.call.invoked < looked_at:
                ended.setdefault(entry.holder, entry.call.began)
        waits = state in {"queued", "running"}
        since = max(ended.items(), default=(0, -FOREVER))[1]
        young = clean.ended - since < clean.delay - ROUNDED_UP
        if not waits and not young:
            continue
        if kept:
            findings.evidence["no-lost-job", "finished jobs kept by a cleanup"] += 1
            continue
        what = f"was {state}" if waits else f"had {state} since"
        age = f"{clean.delay:.0f} s"
        because = f"a cleanup of jobs that ended more than {age} ago removed one that {what}"
        found.append(Violation("no-lost-job", because, job, clean.index))
    return found


class _Config(NamedTuple):
    """One explanation of what was seen so far: a state, and the open acts that took effect."""

    job: Job
    applied: frozenset[int]


def _plainest_last(config: _Config) -> tuple[int, Phase]:
    """Sorts first the explanation in which most has happened, last the plainest."""
    return -config.job.claims, config.job.phase


class _JobCheck:
    """Follows one job through a history.

    Attributes:
        findings: The first violation in the job's life, or the evidence of a sound one.
    """

    def __init__(self, declared: Declared, lives: Lives, job: str, life: Life) -> None:
        self.declared = declared
        self.lives = lives
        self.job = job
        self.life = life
        self.findings = CheckResult()
        self.contradicted = False  # by an observation
        self.starved: Violation | None = None  # if it is claimed later; otherwise it may be lost
        self.seen: tuple[State | None, float] = None, 0.0  # its state as last shown, and since when

    @property
    def explained(self) -> bool:
        """Whether the acts explain all that was answered and observed."""
        return not self.findings.violations and not self.contradicted

    def run(self, acts: Sequence[Act]) -> None:
        """Find an order of the acts that the specification allows, or where there is none."""
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
            if act.kind in {"jobs", "sweep"}:
                configs, _ = self._explore(configs, acts, open_acts - {n})
            self._note(act, configs)
            if act.kind in {"claim", "recover"}:  # what was seen before says nothing of its wait
                self.seen = None, act.call.ended
            if act.kind == "jobs":
                if act.seen != self.seen[0]:
                    self.seen = act.seen, act.call.began
                agreeing = _agreeing(configs, act)
                self.contradicted = self.contradicted or not agreeing
                configs = agreeing or configs
                open_acts.discard(n)
                continue
            if act.kind == "sweep":
                self.starved = self.starved or self._starved(act, configs)
                if violation := self._stranded(act, configs):
                    self.findings.violations.append(violation)
                    return
                open_acts.discard(n)
                continue
            reached, breach = self._explore(configs, acts, open_acts, n)
            if not reached:
                because = breach or Breach("single-claim", "no order of the calls explains this")
                refused = act.answer == "rejected" and because.guarantee == "live-lease"
                raced = self._raced(configs, acts, open_acts) if refused else None
                because, call = raced or (because, act.call)
                late = _late_beside(acts, configs[0].job.last)
                if late and because.guarantee in {"single-claim", "live-lease", "backoff"}:
                    because = because._replace(doubts=("fencing", *because.doubts))
                if refused and not raced and self._is_gone(acts[n:]):
                    because = because._replace(
                        guarantee="no-lost-job", because=f"{because.because}: it is gone"
                    )
                claimed = act.kind == "claim" and because.guarantee != "single-claim"
                if claimed and _has_a_rival(acts, act):
                    because = because._replace(follows="single-claim")
                elif because.guarantee != "not-early" and _is_half_enqueued(acts, act):
                    because = because._replace(follows="not-early")
                self._violate(because, call)
                return
            open_acts.discard(n)
            configs = reached
        configs, _ = self._explore(configs, acts, open_acts)
        self._finish(configs, acts)

    def _is_gone(self, acts: Sequence[Act]) -> bool:
        """Nobody gets the job any more and `jobs` does not list it: rule 15 calls it lost."""
        looked = self.declared.observable and self.lives.observed and not self.lives.cleaned
        claimed = any(act.kind == "claim" and act.answer == "accepted" for act in acts)
        return looked and not claimed and self.lives.outcome(self.job) is None

    def _explore(
        self,
        configs: list[_Config],
        acts: Sequence[Act],
        open_acts: set[int],
        target: int | None = None,
    ) -> tuple[list[_Config], Breach | None]:
        """All explanations in which `target` has taken effect, or why there is none.

        Without a target: all that the open acts allow.
        """
        if not open_acts:
            return configs, None
        (only, *others) = configs
        if target is not None and open_acts == {target} and not (others or only.applied):
            # Nothing else can have come first: what follows would do the same, more slowly.
            outcome = step(self.declared, only.job, acts[target])
            if isinstance(outcome, Breach):
                return [], outcome
            return sorted((_Config(job, frozenset()) for job in outcome), key=_plainest_last), None
        reached: list[_Config] = []
        found = dict.fromkeys(configs)
        frontier = list(configs)
        breach: Breach | None = None
        while frontier:
            config = frontier.pop()
            if target in config.applied:
                reached.append(_Config(config.job, config.applied - {target}))
                continue
            for n in sorted(open_acts - config.applied):
                if not _after_whom_it_waited_for(acts, n, open_acts - config.applied):
                    continue
                outcome = step(self.declared, config.job, acts[n])
                if isinstance(outcome, Breach):
                    if n == target and (breach is None or outcome is config.job.unsure):
                        breach = outcome  # of an operation that may have been late: it was
                    continue
                for job in outcome:
                    following = _Config(job, config.applied | {n})
                    if following not in found:
                        found[following] = None
                        frontier.append(following)
        return sorted(found if target is None else reached, key=_plainest_last), breach

    def _raced(
        self, configs: list[_Config], acts: Sequence[Act], open_acts: set[int]
    ) -> tuple[Breach, Call] | None:
        """The open claim that got the job at the same time as its holder.

        That the holder is refused may be seen before that answer: it is one violation.
        """
        claims = [acts[n] for n in sorted(open_acts) if acts[n].kind == "claim"]
        for act in claims:
            for config in configs if act.answer == "accepted" else ():
                outcome = step(self.declared, config.job, act)
                if isinstance(outcome, Breach) and outcome.guarantee == "single-claim":
                    return outcome, act.call
        return None

    def _violate(self, breach: Breach, call: Call) -> None:
        violation = Violation(**breach._asdict(), job=self.job, call=call.index)
        self.findings.violations.append(violation)

    def _starved(self, act: Act, configs: list[_Config]) -> Violation | None:
        """A job was free during a whole sweep and not taken, beside jobs that cannot run."""
        if not any(entry.kind == "enqueue" for entry in self.life.entries):
            return None  # only the queue knows when it is due
        ready = all(
            job.phase == Phase.QUEUED and job.claims == 0 and self._due_by(job) < act.call.began
            for job, _ in configs
        )
        hindrance = self.lives.hindrances[act.call.index]
        cap = self.declared.cap
        full = cap is not None and self.lives.running[act.call.index] >= cap
        if not ready or full or not any(hindrance):
            return None
        because = f"a job that was due could not be claimed beside {hindrance}"
        return Violation("no-starvation", because, self.job, act.call.index)

    def _due_by(self, job: Job) -> float:
        """The moment from which the job is certainly ready: its enqueue was over by its answer.

        A delay may be kept in whole minutes: what comes late waits for nobody else.
        """
        calls = [entry.call for entry in self.life.entries if entry.kind == "enqueue"]
        late = ROUNDED_UP if any(call.delay for call in calls) else SHORT
        return max([job.due, *(call.ended + call.delay for call in calls)]) + late

    def _stranded(self, act: Act, configs: list[_Config]) -> Violation | None:
        """A crashed worker's lease has run out, the queue was swept, and its job is not back."""
        seen, since = self.seen
        for job, _ in configs:
            end = job.stale_after + self.declared.late
            over = job.phase == Phase.RUNNING and (self.declared.tied or end < act.call.began)
            back = job.phase == Phase.QUEUED and job.released
            # Where no bound is promised it may have ended, unless it is seen to wait.
            spent = job.exhausted and not (job.bound is None and seen == "queued")
            if not job.crashed or not (over or back) or spent:
                return None
        if self.lives.outcome(self.job) == "failed":
            return None  # it has ended, which is `retry-given`
        if not self.declared.lease and not self.declared.tied:
            return None
        job = configs[0].job
        if seen == "failed" and self.declared.stale_fails:
            return None
        # Taken back, it may have to wait as a failed one does (rule 14), as long as its SQL says.
        waits = seen == "queued" or job.phase == Phase.QUEUED
        if waits and act.call.began < since + self.declared.longest:
            return None
        unseen = self.declared.waits and not self.declared.observable
        if unseen and act.call.began < job.stale_after + self.declared.longest:
            return None
        if self.declared.at_least_once and job.unsure is not None:
            return Violation(job.unsure.guarantee, job.unsure.because, self.job, act.call.index)
        holder = configs[0].job.holder
        who = holder.actor if holder else "its worker"
        lapsed = " with its connection" if self.declared.tied else ", its lease has run out"
        return Violation(
            "stale-recovery",
            f"{who} crashed{lapsed}, and the job could not be claimed again",
            self.job,
            act.call.index,
        )

    def _finish(self, configs: list[_Config], acts: Sequence[Act]) -> None:
        claimed = any(act.kind == "claim" and act.answer == "accepted" for act in acts)
        if self.starved and claimed:
            self.findings.violations.append(self.starved)
            return
        self.findings.evidence["no-lost-job", "jobs followed to their end"] += 1
        for job, _ in configs:
            if job.bound is not None and job.claims == job.bound:
                self.findings.evidence["retry-bound", "jobs attempted as often as allowed"] += 1
                self.findings.evidence["retry-given", "jobs tried as often as allowed"] += 1
                break
        if self.lives.observed or not self.declared.observable:
            self._account(configs, acts)

    def _account(self, configs: list[_Config], acts: Sequence[Act]) -> None:
        """After the drain every acknowledged job must have ended, completed or failed."""
        seen = self.lives.outcome(self.job)
        ended = [job for job, _ in configs if self._ended(job, seen)]
        fails = self.declared.stale_fails
        lost = any(fails and (job.crashed or job.released) for job in ended)
        if lost or any(job.phase != Phase.FAILED or job.exhausted for job in ended):
            if fails and seen == "failed" and configs[0].job.crashed:
                what = "jobs of crashed workers that ended failed"
                self.findings.evidence["stale-recovery", what] += 1
            return
        last = self.lives.last
        assert last is not None
        where = f"`jobs` shows it as {seen}" if seen else "it is gone"
        late = configs[0].job.unsure if self.declared.at_least_once else None
        if late is not None:
            self._violate(late, last)
            return
        decided = _decided(configs)
        if decided is not None and (seen in FINISHED or (seen and _acted_on(acts, decided))):
            self._violate(Breach("final-state", f"the job had {decided}, and {where}"), last)
            return
        if decided == Phase.COMPLETED:
            because = f"its completion was accepted, and {where} for ever"
            self._violate(Breach("no-lost-job", because), last)
            return
        job = (ended or [config.job for config in configs])[0]
        if job.claims and (ended or seen == "failed"):
            if (breach := self._too_early(job, seen)) is not None:
                self._violate(breach, last)
            return
        if not self.declared.observable:
            where = "no claim returns it"
        if seen is None and self.declared.retries and any(one.failed_unheard for one, _ in configs):
            because = f"its fail was not answered, attempts were left, and {where}"
            self._violate(Breach("no-lost-job", because), last)
            return
        if unlisted := [one for one, _ in configs if self._is_unlisted(one, seen)]:
            kind, phase = unlisted[0].end_unheard, unlisted[0].phase
            end = "last fail" if kind == "fail" else kind
            because = f"its {end} was not answered, other {phase} jobs are listed, and {where}"
            self._violate(Breach("no-lost-job", because), last)
            return
        held = [one for one, _ in configs if one.phase == Phase.RUNNING]
        if any(self._is_kept(one, last) for one in held):
            return
        over = any(self._is_over(one, seen, last) for one in held)
        if over or self.lives.lost or any(one.crashed or one.released for one, _ in configs):
            unheard = any(job.phase == Phase.COMPLETED for job, _ in configs)
            what = "nobody was told whether the job was completed"
            what = what if unheard else "a worker lost the job"
            because = f"{what}, and it never came back: {where}"
            self._violate(Breach("stale-recovery", because), last)
            return
        if self.starved and any(self.lives.hindered_at_the_end()):
            self.findings.violations.append(self.starved)
            return
        if (unsure := configs[-1].job.unsure) is not None:
            self._violate(unsure, last)
            return
        self._violate(
            Breach("no-lost-job", f"the job neither ended nor can be claimed: {where}"), last
        )

    def _too_early(self, job: Job, seen: State | None) -> Breach | None:
        """A job that failed and had attempts left has ended; None where nobody knows of what."""
        tried = f"{job.claims} of {job.bound} attempts"
        if seen is not None or not self.lives.cleaned:
            return Breach("retry-given", f"the job failed for good after {tried}")
        if not self.declared.retries:
            return None  # its fail may have ended it, or a cleanup: runs with one of both tell
        because = f"a cleanup took a job that had failed after {tried}"
        return Breach("no-lost-job", because, follows="retry-given")

    def _is_kept(self, job: Job, last: Call) -> bool:
        """A live worker has it, which nothing lets complete it, and has not had it for years."""
        if self.declared.completes or job.holder is None or job.crashed:
            return False
        return last.began - job.holder.began <= self.declared.longest

    def _is_over(self, job: Job, seen: State | None, last: Call) -> bool:
        """Nobody has it any more, whether its worker has died, is slow, or cannot complete it."""
        running = seen == "running" or not self.declared.observable
        return not self.declared.completes or (running and job.fresh_until < last.began)

    def _ended(self, job: Job, seen: State | None) -> bool:
        if job.phase == Phase.COMPLETED:
            ended = seen in {None, "completed"} and not self._is_unlisted(job, seen)
            return self.declared.at_most_once or ended
        if job.phase == Phase.ABSENT:
            return seen not in {"queued", "running"}
        if self.declared.stale_fails and job.crashed and seen in {None, "failed"}:
            listed = seen is not None or not self.declared.observable
            return listed or job.phase == Phase.FAILED  # and a cleanup may have taken it since
        if not self.declared.observable:
            return job.phase == Phase.FAILED or (
                job.exhausted and (job.claims > 1 or job.bound is not None)
            )
        if seen == "failed":
            return job.phase == Phase.FAILED or job.exhausted
        if self.declared.takes_over and job.exhausted and self.lives.cleaned:
            return True  # a claim may have ended it (rule 28), and a cleanup have taken it then
        if self.declared.retries and job.failed_unheard:
            return False  # done or not, a fail of this attempt leaves a job to be run again
        return seen is None and job.phase == Phase.FAILED and not self._is_unlisted(job, seen)

    def _is_unlisted(self, job: Job, seen: State | None) -> bool:
        """Tell whether a job is gone that would be listed if its end had been done.

        One that ended by the same operation before it is listed, and that was answered (rule 15).
        """
        kind = job.end_unheard
        return bool(seen is None and kind and job.last and self.lives.keeps(kind, job.last))

    def _note(self, act: Act, configs: list[_Config]) -> None:
        """Count what makes a pass worth something: the moments at which it could have failed."""
        job = configs[0].job
        note = self._tested(job, act)
        if note:
            self.findings.evidence[note] += 1

    def _tested(self, job: Job, act: Act) -> tuple[str, str] | None:
        """Which guarantee an act puts to the test, given the state that it meets."""
        call = act.call
        match act.kind:
            case "claim" if job.phase == Phase.RUNNING or job.released:
                if job.crashed:
                    return "stale-recovery", "jobs of crashed workers claimed again"
            case "claim" if (
                act.answer == "accepted"
                and job.claims == 0
                and any(e.beside for e in self.life.entries if e.call.index == call.index)
            ):
                return "no-starvation", "jobs claimed beside others that could not run"
            case "claim" if act.answer == "accepted" and job.rests_until:
                return "backoff", "failed jobs claimed again after their wait"
            case "complete" | "fail" | "heartbeat" if act.holder and act.answer == "rejected":
                ended = job.phase in FINISHED and job.holder is not act.holder
                if job.last is not act.holder or ended:
                    return "fencing", "operations with a lost claim refused"
            case "complete" | "fail" | "heartbeat" if act.holder and self.declared.at_least_once:
                if job.last is not act.holder:
                    return "fencing", "late operations of which nothing came"
            case "recover" if self.declared.stale_fails and job.crashed:
                return "stale-recovery", "jobs of crashed workers that ended failed"
            case "sweep":
                if job.phase in FINISHED:
                    return "final-state", "sweeps over a finished job"
                if job.phase == Phase.QUEUED and job.claims == 0 and call.ended < job.due:
                    return "not-early", "sweeps over a job before its time"
        return None


def _after_whom_it_waited_for(acts: Sequence[Act], n: int, left: AbstractSet[int]) -> bool:
    """Whether an act does not come before a claim that it had to wait for, and that is left.

    It goes on once that claim has committed: what it does to the job is done after it.
    """
    if acts[n].kind not in _ENDING:
        return True
    waited = {wait.call for wait in acts[n].call.waits}
    return not any(acts[m].kind == "claim" and acts[m].call.index in waited for m in left - {n})


def _has_a_rival(acts: Sequence[Act], claim: Act) -> bool:
    """Whether another claim got the job while this one was under way, as it turned out."""
    return any(
        act is not claim
        and act.kind == "claim"
        and act.answer == "accepted"
        and act.call.overlaps(claim.call)
        for act in acts
    )


def _is_half_enqueued(acts: Sequence[Act], late: Act) -> bool:
    """True when an earlier claim got the job beside its enqueue, which may have undone much."""
    enqueues = [act.call for act in acts if act.kind == "enqueue"]
    claims = (act.call for act in acts if act.kind == "claim" and act is not late)
    return any(claim.overlaps(enqueue) for claim in claims for enqueue in enqueues)


def _late_beside(acts: Sequence[Act], last: Call | None) -> bool:
    """An operation with an older claim was accepted while a job's last claim was made.

    It may have been done after that, and have given away what it no longer had.
    """
    return last is not None and any(
        act.kind in _ENDING
        and act.answer != "rejected"
        and act.holder is not last
        and act.call.overlaps(last)
        for act in acts
    )


def _acted_on(acts: Sequence[Act], decided: Phase) -> bool:
    """Whether somebody acted on a job, and was not refused, once its end had been accepted."""
    kind = "complete" if decided == Phase.COMPLETED else "fail"
    ends = [act.call.returned or 0 for act in acts if act.kind == kind and act.answer == "accepted"]
    # Of several failures the last attempt's decides.
    end = (min if decided == Phase.COMPLETED else max)(ends, default=FOREVER)
    later = (act for act in acts if act.call.invoked > end and act.named)
    return any(act.kind in _ENDING and act.answer in {"accepted", "unknown"} for act in later)


def _decided(configs: list[_Config]) -> Phase | None:
    """The final state that a job has certainly reached; None where it has not."""
    phases = {job.phase for job, _ in configs}
    if phases == {Phase.COMPLETED}:
        return Phase.COMPLETED
    spent = all(job.failed_once and job.bound is not None and job.exhausted for job, _ in configs)
    return Phase.FAILED if spent and phases <= {Phase.QUEUED, Phase.FAILED} else None


def _agreeing(configs: list[_Config], act: Act) -> list[_Config]:
    """The explanations that agree with an observation."""

    def agrees(job: Job) -> bool:
        if act.seen in {"failed", "completed"}:
            # What runs for the last time, or beyond its lease, may be called failed (rule 35).
            spent = job.exhausted or job.stale_after <= act.call.began
            runs = act.seen == "failed" and job.phase == Phase.RUNNING and spent
            return runs or job.phase == act.seen
        return job.phase not in FINISHED

    return [config for config in configs if agrees(config.job)]


# --- what concerns several jobs -----------------------------------------------------------------


class _Limits(Watcher):
    """A claim takes no more than it asks for."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._own: defaultdict[str, set[str]] = defaultdict(set)  # jobs that an actor has

    def see(self, call: Call) -> None:
        """Count what a claim got; a job that is there twice is single-claim."""
        own = self._own[call.actor]
        match call.kind:
            case "claim" if len(call.ids) > call.limit:
                because = f"{call.actor} asked for at most {call.limit} and was given"
                because = f"{because} {len(call.ids)}"
                if again := [job for job in call.ids if job in own]:
                    jobs = f"job{'s' if len(again) > 1 else ''} {' and '.join(again)}"
                    because = f"{because}, among them {jobs}, which it had claimed before"
                told = Violation("claim-limit", because, None, call.index, plain=bool(again))
                self.violations.append(told)
            case "complete" | "complete_many" | "fail" if call.answer != "rejected":
                own.difference_update(ref.job for ref in call.refs)
            case "crash":
                own.clear()

    def settle(self, call: Call) -> None:
        """A claim has got jobs."""
        if call.kind == "claim":
            self._own[call.actor].update(call.ids)


class _Deadlocks(Watcher):
    """40P01 is a deadlock, whether the scheduler saw the circle or the server did."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._last: Call | None = None

    def see(self, call: Call) -> None:
        """Look at the error that a call was answered."""
        again, self._last = call.is_one_with(self._last), call
        if call.error.startswith(DEADLOCK) and not again:
            others = " and ".join(dict.fromkeys(wait.blocker for wait in call.waits))
            because = (
                f"{call.actor}, in {_noun(call)}, and {others or 'another'} waited for each other"
            )
            self.violations.append(Violation("no-deadlock", because, None, call.index))


class _Cap(Watcher):
    """When a claim answers, the jobs that are certainly running then are counted."""

    def __init__(self, declared: Declared, findings: CheckResult) -> None:
        self.violations: list[Violation] = []
        self._cap = declared.cap or 0
        self._lease = FOREVER if declared.lease is None else declared.lease
        self._findings = findings
        self._running: dict[Ref, str] = {}  # to its worker
        self._stale: list[tuple[float, Ref]] = []  # a heap by the ends that leases had
        self._ends: dict[Ref, float] = {}  # of their leases now
        self._copies: Counter[str] = Counter()  # how often a job is running
        self._claims: deque[int] = deque()  # that are not judged yet, in the order of invocation
        self._counted: dict[int, int] = {}
        self._lapsed: dict[str, tuple[Ref, str]] = {}  # leases that ran out, with their workers

    def see(self, call: Call) -> None:
        """From its invocation on an operation may end a job, and a crash all of a worker's."""
        match call.kind:
            case "claim" if call.ids and call.returned:
                self._claims.append(call.index)
            case "complete" | "complete_many" | "fail":
                for ref in call.refs:
                    self._end(ref)
                    self._lapsed.pop(ref.job, None)
            case "crash":
                for ref in [ref for ref, one in self._running.items() if one == call.actor]:
                    self._end(ref)
                gone = [job for job, (_, actor) in self._lapsed.items() if actor == call.actor]
                for job in gone:
                    del self._lapsed[job]

    def _end(self, ref: Ref) -> None:
        self._ends.pop(ref, None)
        if self._running.pop(ref, None) is not None:
            self._copies[ref.job] -= 1
            if not self._copies[ref.job]:
                del self._copies[ref.job]

    def settle(self, call: Call) -> None:
        """Count when a claim has got something, or a late heartbeat has brought a job back."""
        if call.kind in {"heartbeat", "recover"}:
            self._expire(call)
        if call.kind == "recover":
            for job in call.ids:
                self._lapsed.pop(job, None)
        if call.kind == "heartbeat" and call.answer == "accepted":
            for ref in call.refs:
                if ref in self._ends:  # it was fresh all the while
                    self._begin(ref, call)
                elif self._lapsed.get(ref.job) == (ref, call.actor) and (
                    call.ended < call.began + self._lease  # it may have been long over else
                ):
                    self._run(ref, call)
                    self._counted[call.index] = len(self._copies)
                    self._judge(call.index)
        if call.kind != "claim" or not call.ids:
            return
        for job in call.ids:
            self._run(Ref(call.index, job), call)
        self._expire(call)
        self._counted[call.index] = len(self._copies)
        while self._claims and self._claims[0] in self._counted:
            self._judge(self._claims.popleft())

    def _run(self, ref: Ref, call: Call) -> None:
        """A job runs from now on."""
        self._lapsed.pop(ref.job, None)
        self._running[ref] = call.actor
        self._copies[ref.job] += 1
        self._begin(ref, call)

    def _expire(self, call: Call) -> None:
        """Leases have run out by the answer of a call."""
        while self._stale and self._stale[0][0] <= call.ended:
            end, ref = heappop(self._stale)
            if self._ends.get(ref) == end:  # no heartbeat has come since
                self._lapsed[ref.job] = ref, self._running[ref]
                self._end(ref)

    def _begin(self, ref: Ref, call: Call) -> None:
        """A lease begins, at the earliest with the request for it."""
        if self._lease < FOREVER:
            self._ends[ref] = call.began + self._lease
            heappush(self._stale, (self._ends[ref], ref))

    def _judge(self, claim: int) -> None:
        n = self._counted.pop(claim)
        if self.violations:
            return
        if n == self._cap:
            self._findings.evidence["concurrency-limit", "claims that reached the cap"] += 1
        if n > self._cap:
            because = f"{n} jobs were running at once; at most {self._cap} may"
            self.violations.append(Violation("concurrency-limit", because, None, claim))


class _Overlaps(Watcher):
    """Counts the pairs of calls by different actors that were open at once."""

    def __init__(self, findings: CheckResult) -> None:
        self._findings = findings
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._open: list[Call] = []

    def see(self, call: Call) -> None:
        """A call begins: it overlaps every call that is open."""
        if call.returned is None:
            return
        for other in self._open:
            if other.actor != call.actor:
                self._pairs[other.kind, call.kind] += 1
        self._open.append(call)

    def settle(self, call: Call) -> None:
        """A call is over, and overlaps nothing from now on."""
        self._open.remove(call)

    def end(self) -> None:
        """Count the pairs as evidence of the guarantees that they test."""
        evidence = self._findings.evidence
        for kinds, n in self._pairs.items():
            if kinds == ("claim", "claim"):
                evidence["single-claim", "overlapping claims"] += n
            if "enqueue" in kinds and "claim" in kinds:
                evidence["not-early", "claims during an enqueue"] += n
            evidence["no-deadlock", "operations that overlapped another"] += n
            if not UNHINDERED.isdisjoint(kinds):
                evidence["non-blocking", "operations that overlapped another"] += n


@dataclass(slots=True, eq=False)
class _Held:
    """A claimed job whose lease is fresh.

    Attributes:
        actor: Who holds it.
        taken: Claims and recoveries that others had begun when it was claimed.
        late: Those of others since then that ended when the lease may have been over.
    """

    actor: str
    taken: int
    late: int = 0


class _Fresh(Watcher):
    """Counts claims and recoveries that could have taken a job whose lease was fresh."""

    def __init__(self, declared: Declared, findings: CheckResult) -> None:
        self._lease = FOREVER if declared.lease is None else declared.lease
        self._findings = findings
        self._all = 0  # claims and recoveries that have begun
        self._own: Counter[str] = Counter()  # of these an actor's
        self._held: dict[Ref, _Held] = {}
        self._limits: list[tuple[float, Ref]] = []  # ends of leases, in order

    def see(self, call: Call) -> None:
        """A call tries to take jobs or ends one, or its worker crashes."""
        while self._limits and self._limits[0][0] <= call.began:
            self._let_go(self._limits.pop(0)[1])
        match call.kind:
            case "claim" | "recover" if call.returned is not None:
                self._all += 1
                self._own[call.actor] += 1
                for limit, ref in self._limits:
                    if limit > call.ended:
                        break
                    if (held := self._held.get(ref)) and held.actor != call.actor:
                        held.late += 1
            case "complete" | "complete_many" | "fail" if call.answer not in {"retry", "error"}:
                for ref in call.refs:
                    self._let_go(ref)
            case "crash":
                for ref in [ref for ref, one in self._held.items() if one.actor == call.actor]:
                    self._let_go(ref)
                self._own.pop(call.actor, None)

    def _others(self, actor: str) -> int:
        return self._all - self._own[actor]

    def _let_go(self, ref: Ref) -> None:
        held = self._held.pop(ref, None)
        if held is not None:
            self._findings.evidence["live-lease", "claims and recoveries during a fresh lease"] += (
                self._others(held.actor) - held.taken - held.late
            )

    def settle(self, call: Call) -> None:
        """A claim has got jobs."""
        if call.kind != "claim":
            return
        for job in call.ids:
            ref = Ref(call.index, job)
            self._held[ref] = _Held(call.actor, self._others(call.actor))
            if self._lease < FOREVER:
                insort(self._limits, (call.began + self._lease, ref))

    def end(self) -> None:
        """What is still held counts as well."""
        for ref in tuple(self._held):
            self._let_go(ref)


class _Claimed(NamedTuple):
    """A claim that has a job.

    Attributes:
        ref: The claim and the job.
        actor: Whose it is.
        end: When its lease runs out at the earliest.
        tokens: Accepted heartbeats, each of which may have changed its token.
    """

    ref: Ref
    actor: str
    end: float
    tokens: int = 0


class _Errors(Watcher):
    """An error that nobody else can have caused refuses a holder its job (rule 7).

    Judged where nobody else was in the middle of anything, no fault has happened, and the holder
    did not succeed with it later.
    """

    def __init__(self, declared: Declared) -> None:
        self.violations: list[Violation] = []
        self._declared = declared
        self._lease = FOREVER if declared.lease is None else declared.lease
        self._held: dict[str, _Claimed] = {}  # by its job
        self._met: dict[tuple[Ref, str], Violation] = {}  # by the operation that met an error
        self._claims = Counter[str]()  # of a job
        self._failed = 0  # the latest attempt that a fail was seen to end
        self._over = False
        self._acting = 0  # calls that are open and meet somebody
        self._last: Call | None = None
        self._alone: Call | None = None  # a call with an error, as long as no other has met it

    def see(self, call: Call) -> None:
        """From its invocation on a call may end a claim, or disturb another call."""
        others = self._acting - call.is_one_with(self._last)
        self._last = call
        if call.kind not in _INSTANT:
            self._alone = None if others or call.answer != "error" else call
            self._acting += 1
        match call.kind:
            case "complete" | "complete_many" | "fail" if call.answer in {"accepted", "unknown"}:
                self._free(ref.job for ref in call.refs)
                for ref in call.refs:
                    if call.kind == "fail" and call.answer == "accepted":
                        self._failed = max(self._failed, self._claims[ref.job])
                    elif call.answer == "accepted":
                        self._claims.pop(ref.job, None)
                    for kind in ("complete", "complete_many", "fail", "heartbeat"):
                        self._met.pop((ref, kind), None)
            case "recover":
                self._free(call.ids)
            case "crash":
                self._free([job for job, one in self._held.items() if one.actor == call.actor])
            case "claim" if call.answer == "unknown":
                self._held.clear()  # it may have taken any job
            case "start":
                self._held.clear()  # who begins may take back what it thinks nobody has
            case kind if kind in FAULTS:
                self._over = True

    def _free(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._held.pop(job, None)

    def settle(self, call: Call) -> None:
        """A lease begins, or the error of a call that nobody met is looked at."""
        self._acting -= call.kind not in _INSTANT
        end = call.began + self._lease
        if call.kind == "claim":
            self._claims.update(call.ids)
            for job in call.ids:
                self._held[job] = _Claimed(Ref(call.index, job), call.actor, end)
        if call.kind == "heartbeat" and call.answer == "accepted":
            for ref in self._named(call):
                self._met.pop((ref, call.kind), None)
                one = self._held.get(ref.job)
                if one is not None and one.ref == ref:
                    beaten = one._replace(end=max(one.end, end), tokens=one.tokens + 1)
                    self._held[ref.job] = beaten
        if call is self._alone and not self._over:
            self._look(call)

    def _named(self, call: Call) -> list[Ref]:
        """The claims that an operation is about: of a worker's heartbeat all that it holds."""
        if call.refs or not self._declared.worker_heartbeat:
            return list(call.refs)
        return [one.ref for one in self._held.values() if one.actor == call.actor]

    def _look(self, call: Call) -> None:
        named = self._named(call)
        # An error of the wait is backoff's: it comes of the attempt, and not of the job.
        late = all(self._claims[ref.job] > self._failed for ref in named)
        paced = call.kind == "fail" and self._declared.paced and late
        if paced or not named or call.error.startswith(_DISTURBED):
            return
        for ref in named:
            one = self._held.get(ref.job)
            if one is None or one.ref != ref or call.ended >= one.end:
                return
            if self._declared.renews and call.token < one.tokens:
                return  # it could not know the new token
        because = (
            f"{call.actor} was answered {call.error[:5]} by {call.kind} although it holds the job,"
            f" its {self._declared.fresh} and nobody else acted"
        )
        for ref in named:
            found = Violation("live-lease", because, ref.job, call.index)
            self._met.setdefault((ref, call.kind), found)

    def end(self) -> None:
        """What never succeeded later counts, once for each call."""
        calls = {found.call: found for found in reversed(self._met.values())}
        self.violations += sorted(calls.values(), key=lambda found: found.call)


def _check_waits(history: History, declared: Declared, findings: CheckResult) -> None:
    if any(violation.guarantee == "single-claim" for violation in findings.violations):
        return
    waited = [call for call in history.of_kind("claim", "heartbeat", "recover") if call.waits]
    if not waited:
        return
    allowed = _Allowed(history, declared)
    for call in waited:
        if allowed.took_twice(call):
            continue
        for wait in call.waits:
            blocker = None if wait.call is None else history.calls[wait.call]
            if wait.stale:
                continue  # an old snapshot waits, or makes wait, even with SKIP LOCKED
            if wait.blocker == call.actor or allowed.may_wait(call, blocker):
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


def _noun(call: Call) -> str:
    if call.kind == "complete_many" and call.limit:
        return "a complete_and_claim"
    return {"recover": "a recovery", "enqueue": "an enqueue"}.get(call.kind, f"a {call.kind}")


class _Allowed:
    """Tells which waits break nothing."""

    def __init__(self, history: History, declared: Declared) -> None:
        self._calls = history.calls
        self._declared = declared
        self._of_job: defaultdict[str, list[Call]] = defaultdict(list)
        self._of_actor: defaultdict[str, list[Ref]] = defaultdict(list)
        for claim in history.of_kind("claim"):
            for job in claim.ids:
                self._of_job[job].append(claim)
                self._of_actor[claim.actor].append(Ref(claim.index, job))
        self._beats: defaultdict[Ref, list[Call]] = defaultdict(list)
        for beat in history.of_kind("heartbeat"):
            for ref in beat.refs if beat.answer == "accepted" else ():
                self._beats[ref].append(beat)

    def took_twice(self, call: Call) -> bool:
        """Whether two claims took one job: the wait between them is the same violation."""
        return call.kind == "claim" and any(
            other is not call and other.overlaps(call)
            for job in call.ids
            for other in self._of_job[job]
        )

    def may_wait(self, call: Call, blocker: Call | None) -> bool:
        """Whether a wait is allowed: a heartbeat may wait for whoever takes its job.

        A claim may take a job without answering it: it buries the job, or puts it back.
        """
        if blocker is None:
            return False
        if blocker.kind in {"cleanup", "enqueue", "start"}:
            return True  # no worker's business with a job (rule 10)
        before = self._calls[call.index - 1]
        if call.kind == "claim" and call.is_one_with(before):
            # The completion may wait, for a job of its own and for others that end theirs.
            if blocker.kind in {"complete", "complete_many", "fail"}:
                return True
            call = before
        elif call.kind == "recover":
            return False
        mine = list(call.refs)
        # A heartbeat may name all jobs of its worker, and a claim may be a sign of life as well.
        if self._declared.worker_heartbeat or call.kind == "claim":
            mine += self._of_actor[call.actor]
        takes = blocker.kind in {"claim", "recover"}
        if takes and any(self._maybe_stale(ref, call) for ref in mine):
            return True
        jobs = {ref.job for ref in blocker.refs} | set(blocker.ids)
        return call.kind != "claim" and not jobs.isdisjoint(ref.job for ref in mine)

    def _maybe_stale(self, ref: Ref, call: Call) -> bool:
        """Whether the lease of a claimed job may have run out before a call ended."""
        if self._declared.lease is None:
            return False
        beats = self._beats[ref]
        n = bisect_left(beats, call.invoked, key=lambda beat: beat.invoked)
        renewed = beats[n - 1] if n else self._calls[ref.call]
        return call.ended >= renewed.began + self._declared.lease


class _Idle(Watcher):
    """A claim that nobody disturbs gets a job that is ready, whatever the others hold.

    A claim may do maintenance, or bury a spent job, and answer nothing (rule 28): as many
    in turn are let pass as there are jobs that this may be about, and one more. Judged are jobs
    without a delay, which no maintenance has to make claimable, that a later claim has got.
    """

    def __init__(self, declared: Declared) -> None:
        self.violations: list[Violation] = []
        self._cap = FOREVER if declared.cap is None else declared.cap
        self._lease = FOREVER if declared.lease is None else declared.lease
        self._over = False
        self._ready: dict[str, Call] = {}  # never claimed, to its enqueue
        self._put_off: set[str] = set()  # enqueued with a delay
        self._claimed: set[str] = set()  # once: an enqueue that answers it may leave it as it is
        self._begun: set[str] = set()  # claimed, and not completed
        self._held: dict[Ref, Call] = {}  # by somebody who lives, to the claim
        self._acting = 0  # calls that are open and meet somebody
        self._last: Call | None = None
        self._alone: Call | None = None  # an empty claim, as long as no other call has met it
        self._empty = 0  # such claims in turn
        self._passed: dict[str, Violation] = {}  # if it is claimed later

    def see(self, call: Call) -> None:
        """A job comes, is taken, or ends; or a claim goes away empty."""
        if self._over or call.kind in {"sweep", "jobs", "rewrite"}:
            return
        one = call.is_one_with(self._last)
        # Of one statement the claim does not see what the completion frees.
        others = self._acting - one
        alone = not others and not (one and self._cap < FOREVER)
        self._last, self._alone = call, None
        self._acting += call.kind not in _INSTANT
        if call.queue != "default" or (call.kind == "claim" and call.answer == "unknown"):
            self._over = True  # any job may have been taken
        elif call.kind != "claim" or call.answer not in {"accepted", "error", "retry"}:
            self._empty = 0
            self._take_effect(call)
        elif call.ids:
            self._empty = 0
            self._take(call)
        elif alone and not any(held.actor == call.actor for held in self._held.values()):
            self._alone = call

    def _take_effect(self, call: Call) -> None:
        match call.kind:
            case "enqueue" if call.answer == "accepted" and call.delay:
                self._put_off.update(call.ids)  # one that is there may have to wait now (rule 34)
                for job in call.ids:
                    self._ready.pop(job, None)
            case "enqueue" if call.answer == "accepted":
                known = self._put_off | self._claimed
                self._ready |= {job: call for job in call.ids if job not in known}
            case "complete" | "complete_many" | "fail" if call.answer != "rejected":
                for ref in call.refs:
                    self._held.pop(ref, None)
                    if call.kind != "fail" and call.answer == "accepted":
                        self._begun.discard(ref.job)
            case "crash":
                for ref in [ref for ref, held in self._held.items() if held.actor == call.actor]:
                    del self._held[ref]

    def _take(self, claim: Call) -> None:
        for job in claim.ids:
            self._ready.pop(job, None)
            self._put_off.discard(job)
            self._claimed.add(job)
            self._begun.add(job)
            self._held[Ref(claim.index, job)] = claim
            if job in self._passed:
                self.violations.append(self._passed.pop(job))
                self._over = True

    def settle(self, call: Call) -> None:
        """A claim is over, and no other call overlapped it."""
        self._acting -= call.kind not in _INSTANT
        if call is not self._alone or self._over:
            return
        self._empty += 1
        held = {ref.job for ref, one in self._held.items() if call.ended < one.began + self._lease}
        if self._empty < len(self._begun - held) + TWICE or len(self._begun) >= self._cap:
            return
        for job, enqueue in self._ready.items():
            if enqueue.answer == "accepted" and enqueue.ended + SHORT <= call.began:
                got = f"an error ({call.error})" if call.error else "nothing"
                because = f"{call.actor} got {got}, nobody else acted, and job {job} was ready"
                self._passed.setdefault(job, Violation("no-starvation", because, job, call.index))


class _Order(Watcher):
    """Among jobs never claimed before, a claim made while nobody else acts takes the first ones.

    Args:
        declared: Which order, if any.
        lives: Who knows what was claimed.
        bad: Jobs that something else is wrong with.
    """

    def __init__(
        self, declared: Declared, lives: Lives, bad: AbstractSet[str | None] = frozenset()
    ) -> None:
        self.violations: list[Violation] = []
        self.evidence: Counter[tuple[str, str]] = Counter()
        self._order = declared.order
        self._over = False
        self._lives = lives
        self._bad = bad
        self._free = _Free()
        self._acting = 0  # calls that are open and meet somebody
        self._last: Call | None = None
        self._alone: Call | None = None  # a claim, as long as no other call has met it
        self._taken: list[Call] = []  # what it took

    def see(self, call: Call) -> None:
        """A job comes, or jobs are taken."""
        if self._over:
            return
        others = self._acting - call.is_one_with(self._last)
        alone = not others
        self._last = call
        if call.kind not in _INSTANT:
            self._alone = None
            self._acting += 1
        match call.kind:
            case "enqueue" if call.answer == "accepted" and self._bad.isdisjoint(call.ids):
                if self._free.knows(call):
                    self._stop()  # it may have another place now
                elif not any(self._lives.claimed_before(job, call) for job in call.ids):
                    self._free.add(call)
            case "claim" if call.answer == "unknown":
                self._stop()  # it may have touched any job: none is certainly free from here on
            case "claim" if call.ids:
                self._taken = self._free.take(call)
                self._alone = call if alone and self._taken else None

    def _stop(self) -> None:
        self._over = True
        self._free = _Free()

    def settle(self, call: Call) -> None:
        """A claim is over, and no other call overlapped it."""
        if call.kind not in _INSTANT:
            self._acting -= 1
        if call is not self._alone:
            return
        self._alone = None
        for later in self._taken:
            compared = self._free.passed(later)
            self.evidence["order", "pairs of jobs compared"] += len(compared)
            if any(_precedes(earlier, later, self._order, call) for earlier in compared):
                wholly = self._free.passed(later, wholly=True)
                passed_over = [c for c in wholly if _precedes(c, later, self._order, call)]
                earlier = min(passed_over, key=lambda call: call.index)
                self.violations.append(_out_of_order(call, earlier, later))
                self._stop()
                return


class _Free:
    """The jobs that a claim may take and that no claim has taken before."""

    def __init__(self) -> None:
        self._known: defaultdict[str, list[Call]] = defaultdict(list)  # enqueues of a job
        self._coming: list[tuple[float, int, Call]] = []  # a heap by the moment of the answer
        self._early: list[tuple[float, float, Call]] = []  # a heap by the moment they are due
        self._lines: defaultdict[str, dict[tuple[bool, int], OrderedDict[int, Call]]]
        self._lines = defaultdict(dict)  # by queue, and by whether they were delayed and priority
        self._taken: set[int] = set()  # of those that are coming or early

    def knows(self, enqueue: Call) -> bool:
        """Whether a job that comes is there already."""
        return any(job in self._known for job in enqueue.ids)

    def add(self, enqueue: Call) -> None:
        """A job comes."""
        if enqueue.returned is not None:
            heappush(self._coming, (enqueue.returned, enqueue.index, enqueue))
            for job in enqueue.ids:
                self._known[job].append(enqueue)

    def take(self, claim: Call) -> list[Call]:
        """A claim takes jobs: the enqueues of those that it was free to take, in order."""
        while self._coming and self._coming[0][0] < claim.invoked:
            returned, _, call = heappop(self._coming)
            heappush(self._early, (call.ended + call.delay, returned, call))
        while self._early and self._early[0][0] <= claim.began:
            _, _, call = heappop(self._early)
            if call.index in self._taken:
                self._taken.discard(call.index)
                continue
            lines = self._lines[call.queue]
            lines.setdefault((call.delay > 0, call.priority), OrderedDict())[call.index] = call
        free = []
        for call in [call for job in claim.ids for call in self._known.pop(job, ())]:
            line = self._lines[call.queue].get((call.delay > 0, call.priority))
            if not (line and line.pop(call.index, None)):
                self._taken.add(call.index)
            elif call.queue == claim.queue:
                free.append(call)
        return sorted(free, key=lambda call: call.index)

    def passed(self, later: Call, *, wholly: bool = False) -> list[Call]:
        """The jobs left in a taken one's queue that can be compared to it, or enough of them.

        Jobs without a delay stand in the order in which their enqueues were answered: the first of
        a priority that can be compared decides for all that follow it.
        """
        found: list[Call] = []
        for (delayed, _), line in self._lines[later.queue].items():
            comparable = (call for call in line.values() if _comparable(call, later))
            found += islice(comparable, None if delayed or wholly else 1)
        return found


def _comparable(one: Call, other: Call) -> bool:
    """Whether the enqueue order and the due order of two jobs are certain and agree."""
    return _before(one, other) or _before(other, one)


def _before(one: Call, other: Call, apart: float = 0.0) -> bool:
    ended = one.ended + apart
    rounded = ROUNDED_UP if one.delay > other.delay else 0.0  # each in whole minutes
    due = ended + one.delay + rounded <= other.began + other.delay
    return over(one, other) and due and (not apart or ended <= other.began)


def _precedes(one: Call, other: Call, order: str, claim: Call) -> bool:
    """Whether a claim that could take either job must take the first one."""
    if order.startswith("priority") and one.priority != other.priority:
        # A queue may round times up: what came later may not have been due yet.
        late = ROUNDED_UP if one.delay else SHORT
        due = _before(one, other) or one.ended + one.delay + late <= claim.began
        return one.priority > other.priority and due
    return order.endswith("fifo") and _before(one, other, PRECISION)


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
