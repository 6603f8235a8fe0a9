"""History and specification to verdicts: which answers no legal order of the calls explains.

Jobs are independent of each other, so a history is checked job by job: all orders of the calls
that respect real time are followed at once, as a set of states, and the answer at which the set
becomes empty is the violation (just-in-time linearization: G. Lowe, "Testing for linearizability",
2017; partitioned by key as in Porcupine). What concerns several jobs, limits, order and waiting,
is judged on the calls themselves.

The time that this takes grows with the length of a history, so that free-running workers can be
judged too. Faster than that grows only what is rare: a sweep concerns every job, and a claim whose
answer was lost every job that cannot be explained without it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import NamedTuple

from queueproof.guarantees import Offer
from queueproof.history import Answer, Call, History, Ref, Timeline
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


def declare(offer: Offer) -> Declared:
    """What the checker must know of a queue."""
    queue = offer.queue
    return Declared(
        lease=queue.lease.total_seconds() if queue.lease else None,
        held=offer.held,
        worker_heartbeat="heartbeat" in queue.offers and "job" not in queue.takes("heartbeat"),
        recovers="recover" in queue.offers,
        observable="jobs" in queue.offers,
        order=queue.order,
        cap=queue.concurrency_limit,
    )


def check(history: History, declared: Declared) -> Findings:
    """Judge one history against every guarantee that a history can show."""
    rules = Rules(
        lease=declared.lease,
        held=declared.held,
        worker_heartbeat=declared.worker_heartbeat,
        takes_over=declared.lease is not None and not declared.recovers,
        recoveries=Timeline(history.of_kind("recover")),
    )
    findings = Findings()
    _check_limits(history, findings)
    _check_routing(history, findings)
    _check_deadlocks(history, findings)
    _check_cleanup(history, findings)
    misrouted = {violation.job for violation in findings.violations}  # or cleaned up too early
    index = _Index(history)
    lives = _Lives(history)
    for job in lives.jobs:
        if job in misrouted:
            continue
        life = _JobCheck(rules, declared, index, job)
        life.run(lives.certain(job))
        if not life.explained and (acts := lives.possible(job)):
            # A call that was not answered may have met any job, and with many such calls the
            # explanations are too many: only a life that has none without them is read with them.
            life = _JobCheck(rules, declared, index, job)
            life.run(acts)
        findings.violations += life.findings.violations
        findings.evidence.update(life.findings.evidence)
    _check_waits(history, declared, findings)
    _check_order(history, index, declared, findings)
    _check_cap(history, declared, findings)
    _count_overlaps(history, findings)
    _count_fresh(history, declared, findings)
    findings.violations.sort(key=lambda violation: violation.call)
    return findings


# --- what a job looks up among all calls --------------------------------------------------------


class _Hindrance(NamedTuple):
    """How many jobs cannot run at a moment, by the reason why."""

    waiting: int = 0
    held: int = 0
    spent: int = 0
    elsewhere: int = 0

    def __str__(self) -> str:
        reasons = "not due yet", "claimed before", "without an attempt left", "of another queue"
        counted = zip(self, reasons, strict=True)
        return ", ".join(f"{n} job{'s' if n > 1 else ''} {why}" for n, why in counted if n)


class _Index:
    """Facts about all calls, gathered once.

    Attributes:
        history: The calls.
        enqueues: The enqueues that answered a job.
        hindrances: By the index of a call what could not run when it was invoked: for claims that
            got a job, sweeps and the last call.
        lost: Whether the answer of a claim or of a recovery was lost.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.enqueues: defaultdict[str, list[Call]] = defaultdict(list)
        for call in history.of_kind("enqueue"):
            for job in call.ids:
                self.enqueues[job].append(call)
        self.hindrances = dict(_hindrances(history))
        self.lost = any(c.answer == "unknown" for c in history.of_kind("claim", "recover"))


def _hindrances(history: History) -> Iterator[tuple[int, _Hindrance]]:
    due: list[float] = []  # of delayed jobs, in order
    elsewhere = 0
    bounds: dict[str, float] = {}
    attempts: Counter[str] = Counter()
    done: set[str] = set()
    held: set[str] = set()
    spent: set[str] = set()
    for call in history.calls:
        taking = call.kind == "claim" and call.ids
        if taking or call.kind == "sweep" or call is history.calls[-1]:
            waiting = len(due) - bisect_right(due, call.ended)
            yield call.index, _Hindrance(waiting, len(held), len(spent), elsewhere)
        jobs: Sequence[str] = call.ids
        match call.kind:
            case "enqueue":
                elsewhere += call.queue != "default"
                if call.delay:
                    insort(due, call.began + call.delay)
                bounds.update((job, call.bound or FOREVER) for job in jobs)
            case "claim" if jobs:
                attempts.update(jobs)
            case "complete" | "complete_many" if call.answer == "accepted":
                jobs = [ref.job for ref in call.refs]
                done.update(jobs)
            case _:
                continue
        for job in jobs:
            held.discard(job)
            spent.discard(job)
            if job in bounds and attempts[job] and job not in done:
                (held if attempts[job] < bounds[job] else spent).add(job)


# --- the life of one job ------------------------------------------------------------------------


class _Lives:
    """What the calls meant for each job, in the order of invocation.

    Attributes:
        jobs: To the acts that name the job, or that are its worker's.
    """

    def __init__(self, history: History) -> None:
        self.jobs: dict[str, list[Act]] = {
            job: []
            for call in history.calls
            if call.kind in {"enqueue", "claim"}
            for job in call.ids
        }
        reader = _Reader(history)
        for call in history.calls:
            for job, act in reader.acts(call):
                if job in self.jobs:
                    self.jobs[job].append(act)
        self._sweeps = [Act(call, "sweep") for call in history.of_kind("sweep")]
        nameless = _nameless(history)
        self._nameless = Timeline(nameless)
        self._enqueues = [call for call in nameless if call.kind == "enqueue"]

    def certain(self, job: str) -> list[Act]:
        """The acts of a job without the calls that may as well have met another one."""
        acts = self.jobs[job]
        known = any(act.kind == "enqueue" for act in acts)
        makers = [] if known else [Act(call, "enqueue", "unknown") for call in self._makers(acts)]
        return _in_order(acts, makers, self._sweeps)

    def possible(self, job: str) -> list[Act]:
        """The acts of a job with all calls that may have met it; none where there are no more."""
        acts = self.jobs[job]
        makers = self._makers(acts)
        begins = [act.call for act in acts if act.kind == "enqueue"] + makers
        claimed = max((act.call.index for act in acts if act.kind == "claim"), default=0)
        ends = [
            act.call
            for act in acts
            if act.kind == "complete" and act.answer == "accepted" and act.call.index > claimed
        ]
        meanwhile = self._nameless.overlapping(
            min((call.invoked for call in begins), default=0),
            min((call.returned or FOREVER for call in ends), default=FOREVER),
        )
        known = {act.call.index for act in acts}
        others = [
            Act(call, call.kind, call.answer)
            for call in meanwhile
            if call.index not in known and (call.kind != "enqueue" or call in makers)
        ]
        return _in_order(acts, others, self._sweeps) if others else []

    def _makers(self, acts: Sequence[Act]) -> list[Call]:
        """The enqueues without an answer that may have made a job."""
        if any(act.kind == "enqueue" for act in acts):
            return self._enqueues  # one that was told the same id again
        return [call for call in self._enqueues if not _over(acts[0].call, call)]


def _in_order(*acts: Sequence[Act]) -> list[Act]:
    return sorted(chain(*acts), key=lambda act: act.call.index)


def _nameless(history: History) -> list[Call]:
    """The calls that may have met any job: unanswered ones, and the crashes of their actors."""
    found = []
    actors: set[str] = set()
    for call in history.calls:
        lost = call.kind in {"enqueue", "claim", "recover"} and call.answer == "unknown"
        if lost:
            actors.add(call.actor)
        if lost or (call.kind == "crash" and call.actor in actors):
            found.append(call)
    return found


class _Reader:
    """Reads calls, in the order of invocation, as what they meant for single jobs."""

    def __init__(self, history: History) -> None:
        self._calls = history.calls
        self._holds: defaultdict[str, dict[str, Call]] = defaultdict(dict)  # by actor, by job
        self._latest: dict[str, Call] = {}  # claim of a job

    def acts(self, call: Call) -> Iterator[tuple[str, Act]]:
        """What a call meant for the jobs that it names, and for those that its worker may hold."""
        if call.answer in {"retry", "error", "pending"}:
            return
        match call.kind:
            case "enqueue" | "recover":
                for job in call.ids:
                    yield job, Act(call, call.kind, call.answer)
            case "claim":
                for job in call.ids:
                    self._holds[call.actor][job] = self._latest[job] = call
                for job in (*call.ids, *call.repeated):
                    yield job, Act(call, "claim")
            case "complete" | "fail" | "complete_many":
                kind = "fail" if call.kind == "fail" else "complete"
                for ref in call.refs:
                    claim = self._calls[ref.call]
                    answer = _answer_for(call, ref)
                    if answer == "accepted" and self._holds[claim.actor].get(ref.job) is claim:
                        del self._holds[claim.actor][ref.job]
                    yield ref.job, Act(call, kind, answer, claim)
            case "heartbeat":
                for ref in call.refs:
                    yield ref.job, Act(call, "heartbeat", call.answer, self._calls[ref.call])
                for job in self._held(call) - {ref.job for ref in call.refs}:
                    yield job, Act(call, "heartbeat", call.answer, named=False)
            case "crash":
                for job in self._held(call):
                    yield job, Act(call, "crash")
            case "jobs":
                for job, state in (call.states or {}).items():
                    yield job, Act(call, "jobs", seen=state)

    def _held(self, call: Call) -> set[str]:
        """The jobs that a call's worker got and, when it is invoked, nobody has taken over."""
        holds = self._holds[call.actor]
        for job, claim in list(holds.items()):
            latest = self._latest[job]
            if _over(claim, latest) and _over(latest, call):
                del holds[job]
        return set(holds)


def _over(call: Call, other: Call) -> bool:
    """Whether a call had been answered when another was invoked."""
    return (call.returned or FOREVER) < other.invoked


def _answer_for(call: Call, ref: Ref) -> Answer:
    if call.kind != "complete_many" or call.answer != "accepted":
        return call.answer
    return "accepted" if ref.job in call.ids else "rejected"


class _Config(NamedTuple):
    """One explanation of what was seen so far: a state, and the open acts that took effect."""

    job: Job
    applied: frozenset[int]


def _order(config: _Config) -> tuple[int, Phase]:
    """Sorts first the explanation in which most has happened, last the plainest."""
    return -config.job.claims, config.job.phase


class _JobCheck:
    """Follows one job through a history.

    Attributes:
        findings: The first violation in the job's life, or the evidence of a sound one.
    """

    def __init__(self, rules: Rules, declared: Declared, index: _Index, job: str) -> None:
        self.rules = rules
        self.declared = declared
        self.index = index
        self.job = job
        self.findings = Findings()
        self.contradicted = False  # by an observation
        self.starved: Violation | None = None  # if it is claimed later; otherwise it may be lost

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
            if act.kind == "jobs":
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
                self._violate(because, act.call)
                return
            open_acts.discard(n)
            configs = reached
        configs, _ = self._explore(configs, acts, open_acts)
        self._finish(configs, acts)

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
            outcome = step(self.rules, only.job, acts[target])
            if isinstance(outcome, Breach):
                return [], outcome
            return sorted((_Config(job, frozenset()) for job in outcome), key=_order), None
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
                outcome = step(self.rules, config.job, acts[n])
                if isinstance(outcome, Breach):
                    if n == target:
                        breach = breach or outcome
                    continue
                for job in outcome:
                    following = _Config(job, config.applied | {n})
                    if following not in found:
                        found[following] = None
                        frontier.append(following)
        return sorted(found if target is None else reached, key=_order), breach

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
        hindrance = self.index.hindrances[act.call.index]
        if not ready or not any(hindrance):
            return None
        because = f"a job that was due could not be claimed beside {hindrance}"
        return Violation("no-starvation", because, self.job, act.call.index)

    def _due_by(self, job: Job) -> float:
        """From when on the job is certainly due: its enqueue happened before its answer."""
        enqueues = self.index.enqueues[self.job]
        return max([job.due, *(call.ended + call.delay for call in enqueues)]) + SHORT

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
        claimed = any(act.kind == "claim" and act.answer == "accepted" for act in acts)
        if self.starved and claimed:
            self.findings.violations.append(self.starved)
            return
        self.findings.evidence["no-lost-job", "jobs followed to their end"] += 1
        for job, _ in configs:
            if job.bound is not None and job.claims == job.bound:
                self.findings.evidence["retry-bound", "jobs attempted as often as allowed"] += 1
                break
        if self.index.history.final is not None or not self.declared.observable:
            self._account(configs)

    def _account(self, configs: list[_Config]) -> None:
        """After the drain every acknowledged job must have ended, one way or the other."""
        history = self.index.history
        seen = history.final.get(self.job) if history.final is not None else None
        if any(self._ended(job, seen) for job, _ in configs):
            return
        job = configs[0].job
        last = history.calls[-1]
        where = f"`jobs` shows it as {seen}" if seen else "it is gone"
        if job.phase == Phase.COMPLETED:
            because = f"its completion was accepted, and {where} for ever"
            self._violate(Breach("no-lost-job", because), last)
            return
        if not self.declared.observable:
            where = "no claim returns it"
        if self.index.lost or any(job.crashed or job.released for job, _ in configs):
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
        if self.starved and any(self.index.hindrances[last.index]):
            self.findings.violations.append(self.starved)
            return
        self._violate(
            Breach("no-lost-job", f"the job neither ended nor can be claimed: {where}"), last
        )

    def _ended(self, job: Job, seen: State | None) -> bool:
        if job.phase in {Phase.COMPLETED, Phase.ABSENT}:
            return seen not in {"queued", "running"}
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
                and any(self.index.hindrances[call.index])
            ):
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


def _agreeing(configs: list[_Config], act: Act) -> list[_Config]:
    """Those explanations that an observation agrees with."""

    def agrees(job: Job) -> bool:
        if act.seen in {"failed", "completed"}:
            return job.phase == act.seen
        return job.phase not in FINISHED

    return [config for config in configs if agrees(config.job)]


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


def _check_cleanup(history: History, findings: Findings) -> None:
    """A cleanup keeps what has not ended longer ago than its age (queue-file.md, 15).

    Judged between two looks that follow each other with nothing but the cleanup in between.
    """
    if not history.of_kind("cleanup"):
        return
    calls, ends = history.calls, _ends_by_job(history)
    for before, clean, after in zip(calls, calls[1:], calls[2:], strict=False):
        if clean.kind != "cleanup" or before.states is None or after.states is None:
            continue
        for job, state in before.states.items():
            ended = [end.began for end in ends.get(job, ()) if end.invoked < before.invoked]
            waits = state in {"queued", "running"}
            if not waits and not (ended and clean.ended - max(ended) < clean.delay):
                continue
            if job in after.states:
                findings.evidence["no-lost-job", "finished jobs kept by a cleanup"] += 1
                continue
            what = f"was {state}" if waits else f"had {state} since"
            because = (
                f"a cleanup of jobs that ended more than {clean.delay:.0f} s ago removed one that "
                f"{what}"
            )
            findings.violations.append(Violation("no-lost-job", because, job, clean.index))


def _ends_by_job(history: History) -> dict[str, list[Call]]:
    """The calls by which workers may have ended each job."""
    ends: dict[str, list[Call]] = {}
    for call in history.of_kind("complete", "complete_many", "fail"):
        for ref in call.refs if call.answer == "accepted" else ():
            ends.setdefault(ref.job, []).append(call)
    return ends


def _check_cap(history: History, declared: Declared, findings: Findings) -> None:
    """When a claim answers, the jobs that are certainly running then are counted."""
    if declared.cap is None:
        return
    lease = FOREVER if declared.lease is None else declared.lease
    running: list[tuple[str, Call, float]] = []  # job, its claim, when it may have ended
    ends = _first_ends(history)
    counted: dict[int, int] = {}
    claims = [call for call in history.of_kind("claim") if call.ids and call.returned]
    for claim in sorted(claims, key=lambda claim: claim.returned or 0):
        answered = claim.returned or 0
        for job in claim.ids:
            over = min(ends.get(Ref(claim.index, job), FOREVER), ends.get(claim.actor, FOREVER))
            running.append((job, claim, over))
        running = [
            (job, other, over)
            for job, other, over in running
            if over >= answered and claim.ended < other.began + lease
        ]
        counted[claim.index] = len({job for job, _, _ in running})
    for claim in claims:
        n = counted[claim.index]
        if n == declared.cap:
            findings.evidence["concurrency-limit", "claims that reached the cap"] += 1
        if n > declared.cap:
            because = f"{n} jobs were running at once; at most {declared.cap} may"
            findings.violations.append(Violation("concurrency-limit", because, None, claim.index))
            return


def _first_ends(history: History) -> dict[Ref | str, int]:
    """From when on a claimed job may not run any more, and all of a crashed worker's."""
    ends: dict[Ref | str, int] = {}
    for call in history.of_kind("complete", "complete_many", "fail", "crash"):
        for ended in (call.actor,) if call.kind == "crash" else call.refs:
            ends.setdefault(ended, call.invoked)
    return ends


def _check_waits(history: History, declared: Declared, findings: Findings) -> None:
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
    return {"recover": "a recovery", "enqueue": "an enqueue"}.get(call.kind, f"a {call.kind}")


class _Allowed:
    """Which waits are nobody's fault."""

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
        """Who races another claim for a job waits for its row: one violation counts once."""
        return call.kind == "claim" and any(
            other is not call and other.overlaps(call)
            for job in call.ids
            for other in self._of_job[job]
        )

    def may_wait(self, call: Call, blocker: Call | None) -> bool:
        """Queue-file.md, 10: waiting for an operation on the very job that it names is allowed."""
        if blocker is None:
            return False
        if blocker.kind == "cleanup":
            return True
        if call.kind == "recover" and blocker.kind == "recover":
            return True  # another reaper is not a worker
        if call.kind == "heartbeat":
            if blocker.kind == "recover" and all(self._maybe_stale(r, call) for r in call.refs):
                return True
            jobs = {ref.job for ref in blocker.refs} | set(blocker.ids)
            if self._declared.worker_heartbeat:  # it names all jobs of its worker
                refs = self._of_actor[call.actor]
                if blocker.kind == "recover" and any(self._maybe_stale(r, call) for r in refs):
                    return True
                if any(claim.actor == call.actor for job in jobs for claim in self._of_job[job]):
                    return True
            return not jobs.isdisjoint(ref.job for ref in call.refs)
        # A claim or a reaper may meet a job's late owner, whose lease must then have run out.
        return blocker.kind in {"complete", "complete_many", "fail", "heartbeat"} and any(
            self._maybe_stale(ref, call) for ref in blocker.refs
        )

    def _maybe_stale(self, ref: Ref, call: Call) -> bool:
        """Whether the lease of a claimed job may have run out before a call ended."""
        if self._declared.lease is None:
            return False
        beats = self._beats[ref]
        n = bisect_left(beats, call.invoked, key=lambda beat: beat.invoked)
        renewed = beats[n - 1] if n else self._calls[ref.call]
        return call.ended >= renewed.began + self._declared.lease


def _check_order(history: History, index: _Index, declared: Declared, findings: Findings) -> None:
    """Among jobs never claimed before, a claim made while nobody else acts takes the first ones."""
    if declared.order == "none":
        return
    bad = {violation.job for violation in findings.violations}
    free = _Free(call for call in history.of_kind("enqueue") if bad.isdisjoint(call.ids))
    acting = Timeline([call for call in history.calls if call.kind not in _INSTANT])
    for claim in history.of_kind("claim"):
        if claim.answer == "unknown":
            return  # it may have touched any job: none is certainly free from here on
        if not claim.ids:
            continue
        taken = free.take(claim, [call for job in claim.ids for call in index.enqueues[job]])
        if not taken or not _alone(claim, acting):
            continue
        for later in taken:
            compared = free.passed(later)
            findings.evidence["order", "pairs of jobs compared"] += len(compared)
            if any(_precedes(earlier, later, declared.order) for earlier in compared):
                wholly = free.passed(later, wholly=True)
                passed_over = [c for c in wholly if _precedes(c, later, declared.order)]
                earlier = min(passed_over, key=lambda call: call.index)
                findings.violations.append(_out_of_order(claim, earlier, later))
                return


def _alone(claim: Call, acting: Timeline) -> bool:
    meanwhile = acting.overlapping(claim.invoked, claim.returned or FOREVER)
    return next(meanwhile) is claim and next(meanwhile, None) is None


class _Free:
    """The jobs that a claim may take and none has taken before.

    Args:
        enqueues: Of these jobs.
    """

    def __init__(self, enqueues: Iterable[Call]) -> None:
        answered = [
            (call.returned, call)
            for call in enqueues
            if call.answer == "accepted" and call.returned is not None
        ]
        self._coming = deque(sorted(answered, key=itemgetter(0)))
        self._early: list[tuple[float, int, Call]] = []  # a heap by the moment they are due
        self._lines: defaultdict[str, dict[tuple[bool, int], OrderedDict[int, Call]]]
        self._lines = defaultdict(dict)  # by queue, and by whether they were delayed and priority
        self._taken: set[int] = set()

    def take(self, claim: Call, enqueues: Iterable[Call]) -> list[Call]:
        """A claim takes the jobs of some enqueues: those that it was free to take, in order."""
        while self._coming and self._coming[0][0] < claim.invoked:
            returned, call = self._coming.popleft()
            heappush(self._early, (call.ended + call.delay, returned, call))
        while self._early and self._early[0][0] <= claim.began:
            _, _, call = heappop(self._early)
            if call.index not in self._taken:
                lines = self._lines[call.queue]
                lines.setdefault((call.delay > 0, call.priority), OrderedDict())[call.index] = call
        free = []
        for call in enqueues:
            self._taken.add(call.index)
            line = self._lines[call.queue].get((call.delay > 0, call.priority))
            if line and line.pop(call.index, None) and call.queue == claim.queue:
                free.append(call)
        return sorted(free, key=lambda call: call.index)

    def passed(self, later: Call, *, wholly: bool = False) -> list[Call]:
        """What was left in a taken job's queue and can be compared to it, or enough of it.

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


def _before(one: Call, other: Call) -> bool:
    return _over(one, other) and one.ended + one.delay <= other.began + other.delay


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
    """Count the pairs of calls by different actors that were open at once."""
    pairs: Counter[tuple[str, str]] = Counter()
    open_calls: list[tuple[int, str, str]] = []
    for call in history.calls:
        if call.returned is None:
            continue
        open_calls = [other for other in open_calls if other[0] > call.invoked]
        for _, kind, actor in open_calls:
            if actor != call.actor:
                pairs[kind, call.kind] += 1
        open_calls.append((call.returned, call.kind, call.actor))
    for kinds, n in pairs.items():
        if kinds == ("claim", "claim"):
            findings.evidence["single-claim", "overlapping claims"] += n
        if "enqueue" in kinds and "claim" in kinds:
            findings.evidence["not-early", "claims during an enqueue"] += n
        findings.evidence["no-deadlock", "operations in the midst of another's"] += n
        if not {"claim", "heartbeat", "recover"}.isdisjoint(kinds):
            findings.evidence["non-blocking", "operations in the midst of another's"] += n


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
    by_actor: defaultdict[str, list[Call]] = defaultdict(list)
    answered = [call for call in history.of_kind("claim", "recover") if call.returned is not None]
    for call in answered:
        by_actor[call.actor].append(call)
    everyone = _Takers(answered)
    takers = {actor: _Takers(calls) for actor, calls in by_actor.items()}
    for claim in answered:
        for job in claim.ids if claim.kind == "claim" else ():
            until = ended.get(Ref(claim.index, job), FOREVER)
            span = (claim.returned or FOREVER, until, claim.began + lease)
            findings.evidence["live-lease", "claims and recoveries during a fresh lease"] += (
                everyone.between(*span) - takers[claim.actor].between(*span)
            )


class _Takers:
    """Claims and recoveries, to be counted by when they were open.

    Args:
        calls: In the order of invocation.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._invoked = [call.invoked for call in calls]
        self._began = [call.began for call in calls]
        self._latest_end = list(accumulate((call.ended for call in calls), max))

    def between(self, after: float, before: float, until: float) -> int:
        """How many were invoked between two moments and had ended by a time in seconds."""
        first = bisect_right(self._invoked, after)
        last = min(bisect_left(self._invoked, before), bisect_left(self._began, until))
        # One that began in time has ended in time as well, but for those open at that time.
        certain = max(first, min(last, bisect_left(self._latest_end, until)))
        return certain - first + sum(call.ended < until for call in self._calls[certain:last])
