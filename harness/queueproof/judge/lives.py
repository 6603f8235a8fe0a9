"""From the calls of a history to the lives of its jobs: what each call meant for each of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, takewhile
from typing import NamedTuple

from queueproof.history.calls import Call, CallKind, Ref
from queueproof.judge.spec import FOREVER, Act, ActKind
from queueproof.queues.model import State


class Watcher:
    """Somebody who sees every call of a history, one after the other."""

    def see(self, call: Call) -> None:
        """A call is invoked; what it was answered is known."""

    def settle(self, call: Call) -> None:
        """A call is answered, and all that was invoked before that has been seen."""

    def end(self) -> None:
        """There are no more."""


def read(calls: Iterable[Call], watchers: Sequence[Watcher]) -> None:
    """Show calls to watchers, in the order of what happened."""
    settling = [one.settle for one in watchers if type(one).settle is not Watcher.settle]
    seeing = [one.see for one in watchers]
    open_calls: list[tuple[int, int, Call]] = []  # a heap by the moment of the answer
    for call in calls:
        while open_calls and open_calls[0][0] < call.invoked:
            _, _, answered = heappop(open_calls)
            for settle in settling:
                settle(answered)
        for see in seeing:
            see(call)
        if call.returned is not None:
            heappush(open_calls, (call.returned, call.index, call))
    for _, _, answered in sorted(open_calls):
        for settle in settling:
            settle(answered)
    for one in watchers:
        one.end()


# --- the lives of all jobs ----------------------------------------------------------------------


class Look(NamedTuple):
    """A job was looked at before and after a cleanup, with nothing else in between."""

    invoked: int  # when the first look was invoked
    state: State
    cleanup: Call
    kept: bool  # whether the second look showed the job


@dataclass(slots=True)
class Life:
    """The meaning of the calls for one job, in the order of invocation."""

    # How many jobs had been enqueued or claimed when it first was, itself included; 0: it never
    # was.
    number: int = 0
    acts: list[Act] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    bound: float | None = None  # most attempts; None while no enqueue has named it
    claims: int = 0  # how often it was claimed
    done: bool = False  # whether it was completed
    cleaned: bool = False  # whether it had no attempt left at a cleanup, which may have removed it
    running: bool = False  # whether it was claimed and has neither ended nor been recovered since

    @property
    def enqueues(self) -> list[Call]:
        """Those that were answered it; of a job that the queue's own schema put there none."""
        return [act.call for act in self.acts if act.kind == "enqueue"]

    @property
    def hindered(self) -> str:
        """Why it cannot run, as far as its attempts tell."""
        if self.bound is None or not self.claims or self.done:
            return ""
        return "removed" if self.cleaned else "held" if self.claims < self.bound else "spent"


class Hindrance(NamedTuple):
    """The number of jobs that cannot run at a moment, by the reason why."""

    waiting: int = 0
    held: int = 0
    spent: int = 0
    removed: int = 0
    elsewhere: int = 0

    def __str__(self) -> str:
        gone = "that a cleanup may have removed"
        spent = "without an attempt left"
        reasons = "not due yet", "claimed before", spent, gone, "of another queue"
        counted = zip(self, reasons, strict=True)
        return ", ".join(f"{n} job{'s' if n > 1 else ''} {why}" for n, why in counted if n)


class Lives(Watcher):
    """Gathers what the calls meant for each job.

    Args:
        signs: True when any operation of a worker may extend all that it holds.
        outcome: What the last look at the queue showed; None where nobody looked.
    """

    def __init__(self, outcome: Mapping[str, State] | None, *, signs: bool) -> None:
        self.observed = outcome is not None  # whether somebody looked at the end
        self._outcome = outcome or {}
        self._signs = signs
        # What could not run at each sweep, by the sweep's index.
        self.hindrances: dict[int, Hindrance] = {}
        # How many jobs were running at each sweep, by the sweep's index.
        self.running: dict[int, int] = {}
        self.last: Call | None = None
        self.lost = False  # whether the answer of a claim or of a recovery was lost
        self.waited = False  # true when a worker waited that must never wait
        self.claims: dict[int, Call] = {}  # every claim, by its index
        self.queues: set[str] = set()  # those that jobs went to
        self.refused = 0  # operations with a lost claim that were answered by an error
        self.cleaned = False  # whether there was a cleanup
        self.taking: list[Call] = []  # the calls that may have ended, or taken, what others hold
        # Two claims that told a worker of one job, which it may still have had.
        self.told_again: list[tuple[Call, Call]] = []
        # The life of each job that any call named.
        self.by_job: defaultdict[str, Life] = defaultdict(Life)
        self._nameless: list[Call] = []
        self._losers: set[str] = set()  # actors of some of the nameless
        self._due: list[float] = []  # when jobs are
        self._elsewhere = 0  # jobs of other queues
        self._named = 0
        self._holds: defaultdict[str, dict[str, Call]] = defaultdict(dict)  # by actor, by job
        self._sweeps: list[Act] = []
        self._recovering = 0  # recoveries that are under way
        self._recovered = 0  # when the last of the others was answered
        self._answered = 0.0  # when the last of all calls so far was
        self._before: tuple[Call | None, Call | None] = (None, None)

    # --- as they are told -----------------------------------------------------------------------

    def see(self, call: Call) -> None:
        """Note what a call meant for the jobs that it names, and for those its worker may hold."""
        self.last = call
        self.waited = self.waited or (bool(call.waits) and call.kind in UNHINDERED)
        self._look(call)
        self._note_unanswered(call)
        if call.kind in {"claim", "recover", "start"}:
            self.taking.append(call)
        match call.kind:
            case "enqueue" if call.ids:
                self.queues.add(call.queue)
            case "claim":
                self.claims[call.index] = call
            case "recover" | "start":  # who begins may take back what it thinks nobody has
                self._recovering += 1
            case "cleanup":
                self.cleaned = True
                for life in self.by_job.values():
                    life.cleaned = life.cleaned or (life.hindered == "spent" and not life.running)
            case "sweep":
                self._sweeps.append(Act(call, "sweep"))
                self.hindrances[call.index] = self.hindered_now()
                self.running[call.index] = sum(life.running for life in self.by_job.values())
        if call.answer == "error":
            self.refused += any(self._has_been_lost(ref) for ref in call.refs)
        if call.answer not in {"retry", "error", "pending"}:
            for job, act in self._acts(call):
                life = self.by_job[job]
                life.acts.append(act)
                if not life.number and act.kind in {"enqueue", "claim"}:
                    self._named += 1
                    life.number = self._named
        self._take_effect(call)

    def _take_effect(self, call: Call) -> None:
        """Note what a call changed, as far as anybody was told."""
        if call.kind == "enqueue" and call.ids:
            self._elsewhere += call.queue != "default"
            self._due.append(call.began + call.delay)
        for job in call.ids if call.kind in {"enqueue", "claim", "recover"} else ():
            life = self.by_job[job]
            life.running = call.kind == "claim" or (call.kind == "enqueue" and life.running)
            life.claims += call.kind == "claim"
            if call.kind == "enqueue":
                life.bound = call.bound or FOREVER
        for job in call.accepted if call.kind in {"complete", "complete_many", "fail"} else ():
            life = self.by_job[job]
            life.done, life.running = life.done or call.kind != "fail", False

    def hindered_now(self) -> Hindrance:
        """Jobs that could not run when the last call was invoked; after that: those it left."""
        assert self.last is not None
        waiting = sum(due > self.last.ended for due in self._due)
        why = Counter(life.hindered for life in self.by_job.values())
        return Hindrance(waiting, why["held"], why["spent"], why["removed"], self._elsewhere)

    def _has_been_lost(self, ref: Ref) -> bool:
        """True if a job has been claimed since."""
        acts = self.by_job[ref.job].acts
        return any(act.kind == "claim" and act.call.index > ref.call for act in acts)

    def _note_unanswered(self, call: Call) -> None:
        """Note calls that may have met any job: unanswered ones, and crashes of their actors."""
        lost = call.kind in {"enqueue", "claim", "recover"} and call.answer == "unknown"
        if lost:
            self._losers.add(call.actor)
            self.lost = self.lost or call.kind != "enqueue"
        if lost or (call.kind == "crash" and call.actor in self._losers):
            self._nameless.append(call)
        if call.kind == "crash":
            self._losers.discard(call.actor)

    def _look(self, call: Call) -> None:
        first, clean = self._before
        alone = self._answered <= call.invoked
        self._before = clean, call if alone else None
        self._answered = max(self._answered, FOREVER if call.returned is None else call.returned)
        if clean is None or clean.kind != "cleanup" or first is None:
            return
        if first.states is None or call.states is None:
            return
        for job, state in first.states.items():
            self.by_job[job].looks.append(Look(first.invoked, state, clean, job in call.states))

    def _acts(self, call: Call) -> Iterator[tuple[str, Act]]:
        if self._signs and call.kind in _SIGNS:
            named = {*call.ids, *(ref.job for ref in call.refs)}
            for job in self._holds[call.worker].keys() - named:
                yield job, Act(call, "sign")
        match call.kind:
            case "enqueue" | "recover":
                for job in call.ids:
                    yield job, Act(call, call.kind, call.answer)
            case "claim" if call.ids:
                beside = any(self.hindered_now())
                for job in call.ids:
                    if (first := self._holds[call.actor].get(job)) is not None:
                        self.told_again.append((first, call))
                    self._holds[call.actor][job] = call
                for job in (*call.ids, *call.repeated):
                    yield job, Act(call, "claim", beside=beside)
            case "complete" | "fail" | "complete_many":
                kind: ActKind = "fail" if call.kind == "fail" else "complete"
                if call.answer == "accepted":
                    for job in self._beside(call):
                        yield job, Act(call, kind, named=False)
                for ref in call.refs:
                    answer = call.answer_for(ref)
                    held = self._holds[call.actor].get(ref.job)
                    if answer == "accepted" and held is not None and held.index == ref.call:
                        del self._holds[call.actor][ref.job]
                    yield ref.job, Act(call, kind, answer, self.claims[ref.call])
            case "heartbeat":
                for ref in call.refs:
                    yield ref.job, Act(call, "heartbeat", call.answer, self.claims[ref.call])
                for job in self._holds[call.worker].keys() - {ref.job for ref in call.refs}:
                    yield job, Act(call, "heartbeat", call.answer, named=False)
            case "crash":
                for job in self._holds.pop(call.actor, ()):
                    yield job, Act(call, "crash")
            case "jobs":
                for job, state in (call.states or {}).items():
                    yield job, Act(call, "jobs", seen=state)

    def _beside(self, call: Call) -> tuple[str, ...]:
        """The other jobs that an actor holds, where its call on an ended claim is accepted."""
        holds = self._holds[call.actor]
        named = {ref.job for ref in call.refs}
        own = {job: claim.index for job, claim in holds.items()}
        ended = (ref for ref in call.refs if own.get(ref.job) != ref.call)
        if all(call.answer_for(ref) == "rejected" for ref in ended):
            return ()
        return tuple(job for job in holds if job not in named)

    def settle(self, call: Call) -> None:
        """A recovery is over, or a claim has taken jobs over."""
        if call.kind in {"recover", "start"}:
            self._recovering -= 1
            if call.kind == "start" or call.ids or call.answer != "accepted":
                self._recovered = call.returned or 0  # another one has changed nothing
        if call.kind != "claim":
            return
        recovery = FOREVER if self._recovering else self._recovered
        for job in call.ids:
            for held in self._holds.values():
                if job in held and held[job].is_over_before(call):
                    del held[job]
            if recovery:
                acts = self.by_job[job].acts
                claims = [n for n, act in enumerate(acts) if act.kind == "claim"]
                own = [n for n in claims if acts[n].call is call]
                for n in own if own != claims else ():
                    acts[n] = acts[n]._replace(recovery=recovery)

    # --- as they are read -----------------------------------------------------------------------

    def outcome(self, job: str) -> State | None:
        """The state that a job was seen in at the end."""
        return self._outcome.get(job)

    def keeps(self, kind: CallKind, before: Call) -> bool:
        """Tell whether the last look lists a job that an operation had ended before a call.

        Args:
            kind: The operation, and it was accepted.
            before: The call. Where jobs are cleaned up after a while this one is there for less.
        """
        end = "failed" if kind == "fail" else "completed"
        ended = (life.acts for job, life in self.by_job.items() if self.outcome(job) == end)
        return not self.cleaned and any(
            act.call.kind == kind and act.answer == "accepted" and act.call.ended < before.began
            for act in chain(*ended)
        )

    def claimed_before(self, job: str, call: Call) -> bool:
        """True where a claim that got a job had been invoked before a call."""
        life = self.by_job.get(job)
        acts = life.acts if life else ()
        return any(act.kind == "claim" and act.call.index < call.index for act in acts)

    def certain(self, acts: Sequence[Act]) -> list[Act]:
        """The acts of a job, without calls that may have met another job instead."""
        known = any(act.kind == "enqueue" for act in acts)
        makers = [] if known else [Act(call, "enqueue", "unknown") for call in self._makers(acts)]
        return _in_order(acts, makers, self._sweeps)

    def possible(self, acts: Sequence[Act], *, later: bool) -> list[Act]:
        """The acts of a job with every call that may have met it; empty where no call is added.

        Args:
            later: Whether those count that were made after the last of its acts.
        """
        makers = self._makers(acts)
        begins = [act.call for act in acts if act.kind == "enqueue"] + makers
        claimed = max((act.call.index for act in acts if act.kind == "claim"), default=0)
        accepted = [act for act in acts if act.named and act.answer == "accepted"]
        completed = [act.call for act in accepted if act.kind == "complete"]
        ends = [call for call in completed if call.index > claimed]
        last = FOREVER if later else max(act.call.returned or FOREVER for act in acts)
        start = min((call.invoked for call in begins), default=0)
        end = min((call.returned or FOREVER for call in ends), default=last)
        # A claim without an answer is a sign of life for what its worker held, and may be more.
        known = {act.call.index for act in acts if act.kind != "sign"}
        others = [
            Act(call, call.kind, call.answer)
            for call in self._nameless
            if call.invoked < end and (call.returned or FOREVER) > start
            if call.index not in known and (call.kind != "enqueue" or call in makers)
        ]
        return _in_order(acts, others, self._sweeps) if others else []

    def _makers(self, acts: Sequence[Act]) -> list[Call]:
        """The enqueues without an answer that may have made a job."""
        enqueues = [call for call in self._nameless if call.kind == "enqueue"]
        if any(act.kind == "enqueue" for act in acts):
            return enqueues  # one that was told the same id again
        return list(takewhile(lambda call: not acts[0].call.is_over_before(call), enqueues))


UNHINDERED = frozenset({"claim", "heartbeat", "recover"})
_SIGNS = frozenset({"claim", "complete", "complete_many", "fail"})


def _in_order(*acts: Sequence[Act]) -> list[Act]:
    return sorted(chain(*acts), key=lambda act: act.call.index)
