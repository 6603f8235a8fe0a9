"""The judgement of several jobs at once: limits, the cap, order, waits, errors, idle workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet

from queueproof.history.calls import Call, History, Ref
from queueproof.judge.holds import Holds, Undisturbed
from queueproof.judge.lives import UNHINDERED, Lives, Watcher
from queueproof.judge.spec import FOREVER, SHORT, Declared
from queueproof.judge.violations import CheckResult, Violation
from queueproof.schedule.moments import PRECISION, ROUNDED_UP
from queueproof.schedule.programs import FAULTS, worker_of

DEADLOCK = "40P01"  # PostgreSQL's deadlock_detected
TWICE = 2  # a claim that comes back empty once may have done maintenance
# Classes of SQLSTATEs that somebody else, or the server, is to blame for.
_DISTURBED = ("08", "40", "53", "57", "58")


class Limits(Watcher):
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
            case "complete" | "complete_many" | "fail":
                refs = (ref for ref in call.refs if call.answer_for(ref) != "rejected")
                own.difference_update(ref.job for ref in refs)
            case "crash":
                own.clear()

    def settle(self, call: Call) -> None:
        """A claim has got jobs."""
        if call.kind == "claim":
            self._own[call.actor].update(call.ids)


class Deadlocks(Watcher):
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


class Cap(Watcher):
    """The jobs that certainly run are counted when a claim or a late heartbeat adds to them."""

    def __init__(self, declared: Declared, holds: Holds, findings: CheckResult) -> None:
        self.violations: list[Violation] = []
        self._cap = declared.cap or 0
        self._holds = holds
        self._findings = findings

    def settle(self, call: Call) -> None:
        """Count; a heartbeat may have brought back what had run out."""
        if self.violations or not (call.ids if call.kind == "claim" else call.kind == "heartbeat"):
            return
        running = len({one.ref.job for one in self._holds.fresh(call)})
        if running == self._cap and call.kind == "claim":
            self._findings.evidence["concurrency-limit", "claims that reached the cap"] += 1
        if running > self._cap:
            because = f"{running} jobs were running at once; at most {self._cap} may"
            self.violations.append(Violation("concurrency-limit", because, None, call.index))


class Meetings(Watcher):
    """Counts the pairs of calls by different actors that were open at once, and what was held."""

    def __init__(self, declared: Declared, holds: Holds, findings: CheckResult) -> None:
        self._leased = declared.lease is not None or declared.tied
        self._holds = holds
        self._findings = findings
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._open: list[Call] = []

    def see(self, call: Call) -> None:
        """A call begins: it overlaps every call that is open, and may take what others hold."""
        if call.returned is None:
            return
        for other in self._open:
            if other.actor != call.actor:
                self._pairs[other.kind, call.kind] += 1
        self._open.append(call)
        if self._leased and call.kind in {"claim", "recover"}:
            others = sum(one.actor != call.actor for one in self._holds.fresh(call))
            what = "live-lease", "claims and recoveries while a lease was fresh"
            self._findings.evidence[what] += others

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
                evidence["not-early", "claims while an enqueue was not committed"] += n
            evidence["no-deadlock", "operations that overlapped another"] += n
            if not UNHINDERED.isdisjoint(kinds):
                evidence["non-blocking", "operations that overlapped another"] += n


class Errors(Watcher):
    """An error that nobody else can have caused refuses a holder its job (rule 7).

    Judged where nobody else was in the middle of anything, no fault has happened, and the holder
    did not succeed with it later.
    """

    def __init__(self, declared: Declared, holds: Holds, alone: Undisturbed) -> None:
        self.violations: list[Violation] = []
        self._declared = declared
        self._holds, self._alone = holds, alone
        self._met: dict[tuple[Ref, str], Violation] = {}  # by the operation that met an error
        self._over = False

    def see(self, call: Call) -> None:
        """An end succeeds later, or a fault happens."""
        self._over = self._over or call.kind in FAULTS
        if call.kind not in {"complete", "complete_many", "fail"}:
            return
        for ref in call.refs:
            if call.answer_for(ref) in {"accepted", "unknown"}:
                self._met.pop((ref, call.kind.removesuffix("_many")), None)

    def settle(self, call: Call) -> None:
        """A heartbeat succeeds, or an error that nobody met is looked at."""
        if call.kind == "heartbeat" and call.answer == "accepted":
            for ref in self._holds.named(call):
                self._met.pop((ref, call.kind), None)
        if call.answer == "error" and call in self._alone and not self._over:
            self._look(call)

    def _look(self, call: Call) -> None:
        named = self._holds.named(call)
        if not named or call.error.startswith(_DISTURBED):
            return
        for ref in named:
            one = self._holds.of(ref)
            if one is None or call.ended >= one.end:
                return
            if self._declared.renews and call.token < one.beats:
                return  # it could not know the new token
        because = (
            f"{call.actor} was answered {call.error[:5]} by {call.kind} although it holds the job,"
            f" its {self._declared.fresh} and nobody else acted"
        )
        # One that comes of the wait, or of what was caught, is backoff's.
        follows = "backoff" if call.kind == "fail" and self._declared.paced else ""
        for ref in named:
            found = Violation("live-lease", because, ref.job, call.index, follows=follows)
            self._met.setdefault((ref, call.kind.removesuffix("_many")), found)

    def end(self) -> None:
        """Count what never succeeded later, once for each call."""
        calls = {found.call: found for found in reversed(self._met.values())}
        self.violations += sorted(calls.values(), key=lambda found: found.call)


class Idle(Watcher):
    """A claim that nobody disturbs gets a job that is ready, whatever the others hold.

    A claim may do maintenance, or bury a spent job, and answer nothing (rule 28): as many
    in turn are let pass as there are jobs that this may be about, and one more. Judged are jobs
    without a delay, which no maintenance has to make claimable, that a later claim has got.
    """

    def __init__(self, declared: Declared, holds: Holds, alone: Undisturbed) -> None:
        self.violations: list[Violation] = []
        self._cap = FOREVER if declared.cap is None else declared.cap
        self._least = TWICE + declared.passes
        self._holds, self._alone = holds, alone
        self._over = False
        self._ready: dict[str, Call] = {}  # never claimed, to its enqueue
        self._put_off: set[str] = set()  # enqueued with a delay
        self._claimed: set[str] = set()  # once: an enqueue that answers it may leave it as it is
        self._begun: set[str] = set()  # claimed, and not completed
        self._empty = 0  # claims in turn that nobody met and that got nothing
        self._passed: dict[str, Violation] = {}  # if it is claimed later

    def see(self, call: Call) -> None:
        """A job comes, is taken, or ends."""
        if self._over or call.kind in {"sweep", "jobs", "rewrite"}:
            return
        if call.queue != "default" or (call.kind == "claim" and call.answer == "unknown"):
            self._over = True  # any job may have been taken
        elif call.kind != "claim" or call.answer not in {"accepted", "error", "retry"}:
            self._empty = 0
            self._take_effect(call)
        elif call.ids:
            self._empty = 0
            self._take(call)

    def _take_effect(self, call: Call) -> None:
        match call.kind:
            case "enqueue" if call.answer == "accepted" and call.delay:
                self._put_off.update(call.ids)  # one that is there may have to wait now (rule 34)
                for job in call.ids:
                    self._ready.pop(job, None)
            case "enqueue" if call.answer == "accepted":
                known = self._put_off | self._claimed
                self._ready |= {job: call for job in call.ids if job not in known}
            case "complete" | "complete_many":
                self._begun -= call.accepted

    def _take(self, claim: Call) -> None:
        for job in claim.ids:
            self._ready.pop(job, None)
            self._put_off.discard(job)
            self._claimed.add(job)
            self._begun.add(job)
            if job in self._passed:
                self.violations.append(self._passed.pop(job))
                self._over = True

    def settle(self, call: Call) -> None:
        """A claim is over that got nothing, and no other call overlapped it."""
        empty = call.kind == "claim" and call.answer in {"accepted", "error", "retry"}
        if self._over or not empty or call.ids or call not in self._alone:
            return
        # Of one statement the claim does not see what the completion frees.
        full = self._cap < FOREVER and call.index in self._alone.joined
        if full or self._holds.by(call.actor):
            return
        self._empty += 1
        begun = self._begun - {one.ref.job for one in self._holds.fresh(call)}
        if self._empty < len(begun) + self._least or len(self._begun) >= self._cap:
            return
        for job, enqueue in self._ready.items():
            if enqueue.answer == "accepted" and enqueue.ended + SHORT <= call.began:
                got = f"an error ({call.error})" if call.error else "nothing"
                because = f"{call.actor} got {got}, nobody else acted, and job {job} was ready"
                self._passed.setdefault(job, Violation("no-starvation", because, job, call.index))


class Ordering(Watcher):
    """Among jobs never claimed before, a claim made while nobody else acts takes the first ones.

    Args:
        bad: Jobs that something else is wrong with.
    """

    def __init__(
        self,
        declared: Declared,
        lives: Lives,
        alone: Undisturbed,
        bad: AbstractSet[str | None] = frozenset(),
    ) -> None:
        self.violations: list[Violation] = []
        self.evidence: Counter[tuple[str, str]] = Counter()
        self._order = declared.order
        self._lives, self._alone = lives, alone
        self._bad = bad
        self._over = False
        self._free: dict[str, Call] = {}  # the enqueues of jobs that no claim has taken
        self._choice: tuple[list[Call], list[Call]] = [], []  # what the last claim took, and left

    def see(self, call: Call) -> None:
        """A job comes, or jobs are taken."""
        match call.kind:
            case _ if self._over:
                return
            case "enqueue" if call.answer == "accepted" and self._bad.isdisjoint(call.ids):
                if not self._free.keys().isdisjoint(call.ids):
                    self._over = True  # it may have another place now
                elif not any(self._lives.claimed_before(job, call) for job in call.ids):
                    self._free |= dict.fromkeys(call.ids, call)
            case "claim" if call.answer == "unknown":
                self._over = True  # it may have touched any job: none is certainly free
            case "claim" if call.ids:
                free = [one for one in self._free.values() if _could_take(call, one)]
                taken = {one.index for one in free if not set(one.ids).isdisjoint(call.ids)}
                self._choice = (
                    [one for one in free if one.index in taken],
                    [one for one in free if one.index not in taken],
                )
                for job in call.ids:
                    self._free.pop(job, None)

    def settle(self, call: Call) -> None:
        """A claim is over, and no other call overlapped it."""
        taken, left = self._choice
        if self._over or call.kind != "claim" or not call.ids or call not in self._alone:
            return
        for later in taken:
            compared = [one for one in left if _before(one, later) or _before(later, one)]
            self.evidence["order", "pairs of jobs compared"] += len(compared)
            for earlier in compared:
                if _precedes(earlier, later, self._order, call):
                    self.violations.append(_out_of_order(call, earlier, later))
                    self._over = True
                    return


def _could_take(claim: Call, enqueue: Call) -> bool:
    """True if a job was there, due, and in the claim's queue."""
    due = enqueue.ended + enqueue.delay <= claim.began
    return enqueue.is_over_before(claim) and due and enqueue.queue == claim.queue


def _before(one: Call, other: Call, apart: float = 0.0) -> bool:
    ended = one.ended + apart
    rounded = ROUNDED_UP if one.delay > other.delay else 0.0  # each in whole minutes
    due = ended + one.delay + rounded <= other.began + other.delay
    return one.is_over_before(other) and due and (not apart or ended <= other.began)


def _precedes(one: Call, other: Call, order: str, claim: Call) -> bool:
    """True if a claim that could take either job must take the first one."""
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


def check_waits(history: History, declared: Declared, findings: CheckResult) -> None:
    """Add the waits that no worker should have to bear."""
    # Waits between two claims of one job are that.
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
            if worker_of(wait.blocker) == call.worker or allowed.may_wait(call, blocker):
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
        self._claims = history.of_kind("claim")
        ends = history.of_kind("complete", "complete_many", "fail")
        self._ends = [call for call in ends if call.answer == "accepted"]
        self._beats = [one for one in history.of_kind("heartbeat") if one.answer == "accepted"]

    def took_twice(self, call: Call) -> bool:
        """True if two claims took one job: the wait between them is the same violation."""
        return call.kind == "claim" and any(
            other is not call and other.overlaps(call) and not set(other.ids).isdisjoint(call.ids)
            for other in self._claims
        )

    def may_wait(self, call: Call, blocker: Call | None) -> bool:
        """True if a wait is allowed: a heartbeat may wait for whoever takes its job.

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
            ended = {ref for end in self._ends if end.is_over_before(call) for ref in end.refs}
            # A worker that must beat itself may be late though it has no job.
            ended = set() if self._declared.worker_heartbeat else ended
            own = [claim for claim in self._claims if claim.actor == call.actor]
            refs = [Ref(claim.index, job) for claim in own for job in claim.ids]
            mine += [ref for ref in refs if ref not in ended]
        takes = blocker.kind in {"claim", "recover"}
        if takes and any(self._maybe_stale(ref, call) for ref in mine):
            return True
        jobs = {ref.job for ref in blocker.refs} | set(blocker.ids)
        return call.kind != "claim" and not jobs.isdisjoint(ref.job for ref in mine)

    def _maybe_stale(self, ref: Ref, call: Call) -> bool:
        """True if the lease of a claimed job may have run out before a call ended."""
        if self._declared.lease is None:
            return False
        beats = [beat for beat in self._beats if ref in beat.refs and beat.invoked < call.invoked]
        renewed = beats[-1] if beats else self._calls[ref.call]
        return call.ended >= renewed.began + self._declared.lease
