"""The life of one job: an order of its calls that the specification allows, or where there is none.

All orders that respect real time are followed at once, as a set of states, and the answer at which
the set becomes empty is the violation (just-in-time linearization: G. Lowe, "Testing for
linearizability", 2017; partitioned by key as in Porcupine).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from queueproof.history.calls import Call
from queueproof.judge.lives import Hindrance, Life, Lives
from queueproof.judge.spec import FINISHED, FOREVER, SHORT, Act, Declared, Job, Phase, step
from queueproof.judge.violations import CheckResult, Violation
from queueproof.queues.model import State
from queueproof.schedule.moments import ROUNDED_UP

_ENDING = frozenset({"complete", "fail", "heartbeat"})


def check_lives(
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
    for job, life in sorted(lives.by_job.items(), key=lambda one: (one[1].number, one[0])):
        moved, removed = _check_routing(job, life), _check_cleanup(job, life, findings)
        routing += moved
        cleanup += removed
        if life.number and not (moved or removed):
            followed = _follow(declared, lives, job, life)
            own += followed.violations
            findings.evidence.update(followed.evidence)
    if len(lives.queues) > 1:
        findings.evidence["routing", "claims beside another queue's jobs"] += len(lives.claims)
    return routing, cleanup, own


def _follow(declared: Declared, lives: Lives, job: str, life: Life) -> CheckResult:
    check = _JobCheck(declared, lives, job, life, lives.certain(life.acts))
    for later in (False, True):
        # A call that was not answered may have met any job, and with many such calls the
        # explanations are too many: only a life that has none without them is read with them.
        if not check.explained and (more := lives.possible(life.acts, later=later)):
            check = _JobCheck(declared, lives, job, life, more)
    return check.findings


def _check_routing(job: str, life: Life) -> list[Violation]:
    """A claim names the queue that it takes from."""
    home = life.enqueues[-1].queue if life.enqueues else None
    told = "{} claimed from queue {!r} and was given a job of queue {!r}"
    claims = {act.call.index: act.call for act in life.acts if act.kind == "claim"}
    return [
        Violation("routing", told.format(claim.actor, claim.queue, home), job, claim.index)
        for claim in claims.values()
        if home not in {None, claim.queue}
    ]


def _check_cleanup(job: str, life: Life, findings: CheckResult) -> list[Violation]:
    """A cleanup keeps what has not ended longer ago than its age (rule 15).

    Judged between two looks that follow each other with nothing but the cleanup in between.
    """
    found = []
    for looked_at, state, clean, kept in life.looks:
        # What is repeated changes nothing (rule 6): the first answer to the last holder counts.
        ended: dict[int, float] = {}
        for act in life.acts:
            ends = act.kind in {"complete", "fail"} and act.answer == "accepted"
            if ends and act.holder is not None and act.call.invoked < looked_at:
                ended.setdefault(act.holder.index, act.call.began)
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

    Args:
        acts: What is taken for its life.
    """

    def __init__(
        self, declared: Declared, lives: Lives, job: str, life: Life, acts: Sequence[Act]
    ) -> None:
        self.declared = declared
        self.lives = lives
        self.job = job
        self.life = life
        self.acts = acts
        enqueued = any(act.kind == "enqueue" for act in acts)
        # A job that nobody enqueued was put there by the queue's own schema.
        first = Job() if enqueued else Job(phase=Phase.QUEUED)
        self.configs = [_Config(first, frozenset())]
        self.open: set[int] = set()  # acts that are under way
        self.findings = CheckResult()  # its first violation, or the evidence of a sound life
        self.contradicted = False  # by an observation
        self.starved: Violation | None = None  # if it is claimed later; otherwise it may be lost
        self.seen: tuple[State | None, float] = None, 0.0  # its state as last shown, and since when
        self._run()

    @property
    def jobs(self) -> list[Job]:
        """The states that it may be in, the plainest explanation's last."""
        return [config.job for config in self.configs]

    @property
    def explained(self) -> bool:
        """True when the acts explain all that was answered and observed."""
        return not self.findings.violations and not self.contradicted

    def _run(self) -> None:
        """Find an order of the acts that the specification allows, or where there is none."""
        calls = [(n, act.call) for n, act in enumerate(self.acts)]
        events = [(call.invoked, 0, n) for n, call in calls]
        events += [(call.returned, 1, n) for n, call in calls if call.returned]
        for _, is_return, n in sorted(events):
            if not is_return:
                self.open.add(n)
                continue
            act = self.acts[n]
            if act.kind in {"jobs", "sweep"}:
                self.open.discard(n)
                self.configs, _ = self._explore()
            # What makes a pass worth something: the moments at which it could have failed.
            if note := self._tested(act):
                self.findings.evidence[note] += 1
            if act.kind in {"claim", "recover"}:  # what was seen before says nothing of its wait
                self.seen = None, act.call.ended
            if act.kind == "jobs":
                if act.seen != self.seen[0]:
                    self.seen = act.seen, act.call.began
                agreeing = [config for config in self.configs if _agrees(config.job, act)]
                self.contradicted = self.contradicted or not agreeing
                self.configs = agreeing or self.configs
            elif act.kind == "sweep":
                self.starved = self.starved or self._starved(act)
                if violation := self._stranded(act):
                    self.findings.violations.append(violation)
                    return
            else:
                reached, breach = self._explore(n)
                if not reached:
                    self._blame(n, breach)
                    return
                self.open.discard(n)
                self.configs = reached
        self.configs, _ = self._explore()
        self._finish()

    def _blame(self, n: int, breach: Violation | None) -> None:
        """Nothing explains the answer to an act: note what it breaks."""
        act, acts = self.acts[n], self.acts
        because = breach or Violation("single-claim", "no order of the calls explains this")
        refused = act.answer == "rejected" and because.guarantee == "live-lease"
        raced = self._raced() if refused else None
        because, call = raced or (because, act.call)
        late = _late_beside(acts, self.configs[0].job.last)
        if late and because.guarantee in {"single-claim", "live-lease", "backoff"}:
            because = because._replace(doubts=("fencing", *because.doubts))
        # Nobody gets it any more and `jobs` does not list it: rule 15 calls it lost.
        looked = self.declared.observable and self.lives.observed
        gone = looked and not _is_claimed(acts[n:]) and self.lives.outcome(self.job) is None
        if refused and not raced and gone:
            because = self._refused_gone(act, because)
        claimed = act.kind == "claim" and because.guarantee != "single-claim"
        if claimed and _has_a_rival(acts, act):
            because = because._replace(follows="single-claim")
        elif because.guarantee != "not-early" and _is_half_enqueued(acts, act):
            because = because._replace(follows="not-early")
        self._violate(because, call)

    def _refused_gone(self, refused: Act, breach: Violation) -> Violation:
        """The holder of a job that is gone was refused: by then it may have been ended for it.

        A cleanup takes what somebody has ended before, or what it should not.
        """
        assert refused.holder is not None
        held = range(refused.holder.index + 1, refused.call.index)
        if self.lives.cleaned and any(call.index in held for call in self.lives.taking):
            return breach._replace(follows="no-lost-job")
        return breach._replace(guarantee="no-lost-job", because=f"{breach.because}: it is gone")

    def _explore(self, target: int | None = None) -> tuple[list[_Config], Violation | None]:
        """All explanations in which `target` has taken effect, or why there is none.

        Without a target: all that the open acts allow.
        """
        if not self.open:
            return self.configs, None
        (only, *others) = self.configs
        if target is not None and self.open == {target} and not (others or only.applied):
            # Nothing else can have come first: what follows would do the same, more slowly.
            outcome = step(self.declared, only.job, self.acts[target])
            if isinstance(outcome, Violation):
                return [], outcome
            return sorted((_Config(job, frozenset()) for job in outcome), key=_plainest_last), None
        reached: list[_Config] = []
        found = dict.fromkeys(self.configs)
        frontier = list(self.configs)
        breach: Violation | None = None
        while frontier:
            config = frontier.pop()
            if target in config.applied:
                reached.append(_Config(config.job, config.applied - {target}))
                continue
            left = self.open - config.applied
            for n in sorted(left):
                if not _after_whom_it_waited_for(self.acts, n, left):
                    continue
                outcome = step(self.declared, config.job, self.acts[n])
                if isinstance(outcome, Violation):
                    job = config.job
                    # An operation that may have been late was; so was one beside an enqueue.
                    surer = breach is None or outcome is job.unsure or job.requeued
                    if n == target and surer:
                        breach = outcome
                    continue
                for job in outcome:
                    following = _Config(job, config.applied | {n})
                    if following not in found:
                        found[following] = None
                        frontier.append(following)
        return sorted(found if target is None else reached, key=_plainest_last), breach

    def _raced(self) -> tuple[Violation, Call] | None:
        """The open claim that got the job at the same time as its holder.

        That the holder is refused may be seen before that answer: it is one violation.
        """
        claims = [self.acts[n] for n in sorted(self.open) if self.acts[n].kind == "claim"]
        for act in claims:
            for config in self.configs if act.answer == "accepted" else ():
                outcome = step(self.declared, config.job, act)
                if isinstance(outcome, Violation) and outcome.guarantee == "single-claim":
                    return outcome, act.call
        return None

    def _violate(self, breach: Violation, call: Call) -> None:
        if not breach.follows and self._is_told_again(call):
            breach = breach._replace(follows="claim-limit")
        self.findings.violations.append(breach._replace(job=self.job, call=call.index))

    def _is_told_again(self, call: Call) -> bool:
        """A claim up to a call has told one of its workers of a job that it had.

        A claim that answers all that its worker has begins no attempt, and nobody can tell.
        """
        actors = {act.call.actor for act in self.life.acts if act.kind == "claim"}
        lease = FOREVER if self.declared.lease is None else self.declared.lease
        return any(
            again.actor in actors and again.invoked <= call.invoked
            for first, again in self.lives.told_again
            if len(again.ids) > again.limit or again.began < first.began + lease
        )

    def _starved(self, act: Act) -> Violation | None:
        """A job was free during a whole sweep and not taken, beside jobs that cannot run."""
        if not self.life.enqueues:
            return None  # only the queue knows when it is due
        ready = all(
            job.phase == Phase.QUEUED and job.claims == 0 and self._due_by(job) < act.call.began
            for job in self.jobs
        )
        hindrance = self._of_others(self.lives.hindrances[act.call.index])
        cap = self.declared.cap
        full = cap is not None and self.lives.running[act.call.index] >= cap
        if not ready or full or not any(hindrance):
            return None
        because = f"a job that was due could not be claimed beside {hindrance}"
        return Violation("no-starvation", because, self.job, act.call.index)

    def _of_others(self, hindrance: Hindrance) -> Hindrance:
        """The same without this job, which may itself be one of another queue."""
        own = sum(call.queue != "default" for call in self.life.enqueues)
        return hindrance._replace(elsewhere=hindrance.elsewhere - own)

    def _due_by(self, job: Job) -> float:
        """The moment from which the job is certainly ready: its enqueue was over by its answer.

        A delay may be kept in whole minutes: what comes late waits for nobody else.
        """
        calls = self.life.enqueues
        late = ROUNDED_UP if any(call.delay for call in calls) else SHORT
        return max([job.due, *(call.ended + call.delay for call in calls)]) + late

    def _stranded(self, act: Act) -> Violation | None:
        """A crashed worker's lease has run out, the queue was swept, and its job is not back."""
        seen, since = self.seen
        for job in self.jobs:
            end = job.stale_after + self.declared.late
            over = job.phase == Phase.RUNNING and (self.declared.tied or end < act.call.began)
            back = job.phase == Phase.QUEUED and job.released
            # Where no bound is promised it may have ended, unless it is seen, or runs again.
            spent = job.exhausted and (job.bound is not None or not self._goes_on(act, seen))
            if not job.crashed or not (over or back) or spent:
                return None
        late = self.declared.stale_fails and seen == "running"  # when it should have ended
        if self.lives.outcome(self.job) == "failed" and not late:
            return None  # it has ended, which is `retry-given`
        leased = self.declared.lease or self.declared.tied
        if not leased or (seen == "failed" and self.declared.stale_fails):
            return None
        job = self.configs[0].job
        # Taken back, it may have to wait as a failed one does (rule 14), as long as its SQL says.
        waits = seen == "queued" or job.phase == Phase.QUEUED
        if waits and act.call.began < since + self.declared.longest:
            return None
        unseen = self.declared.waits and not self.declared.observable
        if unseen and act.call.began < job.stale_after + self.declared.longest:
            return None
        if self.declared.at_least_once and job.unsure is not None:
            return Violation(job.unsure.guarantee, job.unsure.because, self.job, act.call.index)
        who = job.holder.actor if job.holder else "its worker"
        lapsed = " with its connection" if self.declared.tied else ", its lease has run out"
        lacks = "still counts as running" if late else "could not be claimed again"
        because = f"{who} crashed{lapsed}, and the job {lacks}"
        follows = self._why_stranded(job, seen, self.lives.hindrances[act.call.index])
        return Violation("stale-recovery", because, self.job, act.call.index, follows=follows)

    def _why_stranded(self, job: Job, seen: State | None, hindrance: Hindrance) -> str:
        """The guarantee whose break explains that a job does not come back; empty for none."""
        if self.lives.observed and self.lives.outcome(self.job) is None:
            return "retry-given" if job.recovered else "no-lost-job" if self.lives.cleaned else ""
        # What keeps others from being claimed may keep a job, too, that its recovery put back.
        kept = seen == "queued" and (hindrance.spent or hindrance.removed)
        return "no-starvation" if kept else ""

    def _goes_on(self, sweep: Act, seen: State | None) -> bool:
        """A job has not ended: it is seen to wait or to run; where nobody sees it, a claim gets it.

        An enqueue that names it may have made it run again.
        """
        if seen is not None:
            return seen not in FINISHED
        later = (one for one in self.life.acts if one.call.index > sweep.call.index)
        told = (one.kind for one in later if one.answer == "accepted")
        return next((kind for kind in told if kind in {"claim", "enqueue"}), "") == "claim"

    def _finish(self) -> None:
        if self.starved and _is_claimed(self.acts):
            self.findings.violations.append(self.starved)
            return
        self.findings.evidence["no-lost-job", "jobs followed to their end"] += 1
        if any(job.bound is not None and job.claims == job.bound for job in self.jobs):
            self.findings.evidence["retry-bound", "jobs stopped at the last attempt"] += 1
            self.findings.evidence["retry-given", "jobs that got all their attempts"] += 1
        if self.lives.observed or not self.declared.observable:
            breach = self._unaccounted()
            if breach is not None and breach.call < 0 and self.lives.last is not None:
                self._violate(breach, self.lives.last)
            elif breach is not None:
                self.findings.violations.append(breach)

    def _unaccounted(self) -> Violation | None:
        """After the drain every acknowledged job must have ended, completed or failed."""
        jobs, seen = self.jobs, self.lives.outcome(self.job)
        ended = [job for job in jobs if self._ended(job, seen)]
        fails = self.declared.stale_fails
        lost = any(fails and (job.crashed or job.released) for job in ended)
        if lost or any(job.phase != Phase.FAILED or job.exhausted for job in ended):
            if fails and seen == "failed" and jobs[0].crashed:
                what = "jobs of crashed workers that ended failed"
                self.findings.evidence["stale-recovery", what] += 1
            return None
        last = self.lives.last
        assert last is not None
        where = f"`jobs` shows it as {seen}" if seen else "it is gone"
        late = jobs[0].unsure if self.declared.at_least_once else None
        expires = self.declared.lease or self.declared.tied
        if late is not None and (expires or not jobs[0].crashed):
            return late  # but for a death that nobody would have recovered from
        decided = _decided(jobs)
        if decided is not None and (seen in FINISHED or (seen and _acted_on(self.acts, decided))):
            return Violation("final-state", f"the job had {decided}, and {where}")
        if decided == Phase.COMPLETED:
            return Violation("no-lost-job", f"its completion was accepted, and {where} for ever")
        job = (ended or jobs)[0]
        if job.claims and (ended or seen == "failed"):
            return self._too_early(job, seen)
        if not self.declared.observable:
            where = "no claim returns it"
        if seen is None and self.declared.retries and any(one.failed_unheard for one in jobs):
            because = f"its fail was not answered, attempts were left, and {where}"
            return Violation("no-lost-job", because)
        if unlisted := [one for one in jobs if self._is_unlisted(one, seen)]:
            kind, phase = unlisted[0].end_unheard, unlisted[0].phase
            end = "last fail" if kind == "fail" else kind
            because = f"its {end} was not answered, other {phase} jobs are listed, and {where}"
            return Violation("no-lost-job", because)
        held = [one for one in jobs if one.phase == Phase.RUNNING]
        if any(self._is_kept(one, last) for one in held):
            return None
        lost = self.lives.lost or any(one.crashed or one.released for one in jobs)
        lost = lost or any(self._is_over(one, seen, last) for one in held)
        # It had been taken back and waited, and a cleanup has come.
        back = all(one.phase == Phase.QUEUED and one.recovered for one in jobs)
        back = back and seen is None and self.lives.cleaned
        if lost and not back:
            what = "a worker lost the job"
            if any(job.phase == Phase.COMPLETED for job in jobs):
                what = "nobody was told whether the job was completed"
            because = f"{what}, and it never came back: {where}"
            follows = self._why_stranded(jobs[0], seen, self.lives.hindered_now())
            return Violation("stale-recovery", because, follows=follows)
        if self.starved and any(self._of_others(self.lives.hindered_now())):
            return self.starved
        if (unsure := jobs[-1].unsure) is not None:
            return unsure
        because = f"the job neither ended nor can be claimed: {where}"
        return Violation("no-lost-job", because, follows="retry-given" if back else "")

    def _too_early(self, job: Job, seen: State | None) -> Violation | None:
        """A job that failed and had attempts left has ended; None where nobody knows of what."""
        tried = f"{job.claims} of {job.bound} attempts"
        if seen is not None or not self.lives.cleaned:
            return Violation("retry-given", f"the job failed for good after {tried}")
        if not self.declared.retries:
            return None  # its fail may have ended it, or a cleanup: runs with one of both tell
        because = f"a cleanup took a job that had failed after {tried}"
        return Violation("no-lost-job", because, follows="retry-given")

    def _may_be_ended(self, job: Job) -> bool:
        """A claim may have ended it (rule 28), or whoever began since."""
        since = job.last.invoked if job.last else FOREVER
        began = any(one.kind == "start" and one.invoked > since for one in self.lives.taking)
        return began or self.declared.takes_over

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
        if job.exhausted and self.lives.cleaned and self._may_be_ended(job):
            return True  # and a cleanup may have taken it then
        if self.declared.retries and job.failed_unheard:
            return False  # done or not, a fail of this attempt leaves a job to be run again
        return seen is None and job.phase == Phase.FAILED and not self._is_unlisted(job, seen)

    def _is_unlisted(self, job: Job, seen: State | None) -> bool:
        """Tell whether a job is gone that would be listed if its end had been done.

        One that ended by the same operation before it is listed, and that was answered (rule 15).
        """
        kind = job.end_unheard
        return bool(seen is None and kind and job.last and self.lives.keeps(kind, job.last))

    def _tested(self, act: Act) -> tuple[str, str] | None:
        """The guarantee that an act puts to the test, given the state that it meets."""
        job, call = self.configs[0].job, act.call
        match act.kind:
            case "claim" if job.phase == Phase.RUNNING or job.released:
                if job.crashed:
                    return "stale-recovery", "jobs of crashed workers claimed again"
            case "claim" if act.answer == "accepted" and job.claims == 0 and act.beside:
                return "no-starvation", "jobs claimed although others could not run"
            case "claim" if act.answer == "accepted" and job.rests_until:
                return "backoff", "failed jobs claimed again after their wait"
            case "complete" | "fail" | "heartbeat" if act.holder and act.answer == "rejected":
                ended = job.phase in FINISHED and job.holder is not act.holder
                if job.last is not act.holder or ended:
                    return "fencing", "late calls refused"
            case "complete" | "fail" | "heartbeat" if act.holder and self.declared.at_least_once:
                if job.last is not act.holder:
                    return "fencing", "late operations of which nothing came"
            case "recover" if self.declared.stale_fails and job.crashed:
                return "stale-recovery", "jobs of crashed workers that ended failed"
            case "sweep":
                if job.phase in FINISHED:
                    return "final-state", "operations that left a finished job alone"
                if job.phase == Phase.QUEUED and job.claims == 0 and call.ended < job.due:
                    return "not-early", "operations that left a job alone before its time"
        return None


def _after_whom_it_waited_for(acts: Sequence[Act], n: int, left: AbstractSet[int]) -> bool:
    """True unless an act comes before a claim that it had to wait for, and that is left.

    It goes on once that claim has committed: what it does to the job is done after it.
    """
    if acts[n].kind not in _ENDING:
        return True
    waited = {wait.call for wait in acts[n].call.waits}
    return not any(acts[m].kind == "claim" and acts[m].call.index in waited for m in left - {n})


def _is_claimed(acts: Sequence[Act]) -> bool:
    return any(act.kind == "claim" and act.answer == "accepted" for act in acts)


def _has_a_rival(acts: Sequence[Act], claim: Act) -> bool:
    """True when another claim got the job while this one was under way, as it turned out."""
    return _is_claimed([act for act in acts if act is not claim and act.call.overlaps(claim.call)])


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
    """True when somebody acted on a job, and was not refused, once its end had been accepted."""
    kind = "complete" if decided == Phase.COMPLETED else "fail"
    ends = [act.call.returned or 0 for act in acts if act.kind == kind and act.answer == "accepted"]
    # Of several failures the last attempt's decides.
    end = (min if decided == Phase.COMPLETED else max)(ends, default=FOREVER)
    later = (act for act in acts if act.call.invoked > end and act.named)
    return any(act.kind in _ENDING and act.answer in {"accepted", "unknown"} for act in later)


def _decided(jobs: list[Job]) -> Phase | None:
    """The final state that a job has certainly reached; None where it has not."""
    phases = {job.phase for job in jobs}
    if phases == {Phase.COMPLETED}:
        return Phase.COMPLETED
    spent = all(job.failed_once and job.spent for job in jobs)
    return Phase.FAILED if spent and phases <= {Phase.QUEUED, Phase.FAILED} else None


def _agrees(job: Job, act: Act) -> bool:
    """True if a state agrees with an observation."""
    if act.seen not in FINISHED:
        return job.phase not in FINISHED
    # What runs for the last time, or beyond its lease, may be called failed (rule 35).
    spent = job.exhausted or job.stale_after <= act.call.began
    runs = act.seen == "failed" and job.phase == Phase.RUNNING and spent
    return runs or job.phase == act.seen
