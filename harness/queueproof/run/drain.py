"""The end of a run: what is open is ended, and every job that can comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from queueproof.history.calls import Call
from queueproof.queues.model import State
from queueproof.run.actors import Actor
from queueproof.run.answers import done
from queueproof.run.execution import Execution
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.moments import DAY, DECADE, HOUR, grace, past
from queueproof.schedule.programs import Do

DRAIN_CLAIMS = 400  # more than any program enqueues: a claim that never empties must not hang a run
DRAIN_BATCH = 10  # jobs of a claim: few enough that a batch which is too long shows
EMPTY = 2  # claims in a row that come back empty, after which there is nothing to be had
RETRIES = 10  # of an operation that the server refused: it may be refused for ever


def moves(lease: float | None) -> list[float]:
    """Seconds by which the clock moves, one sweep after the other, before a job is given up."""
    leases = [past(lease), past(grace(lease))] if lease else []
    return [0.0, *leases, HOUR, DAY, 40 * DAY, DECADE]


class Drain:
    """Claims and completes until every job has come out, or none does any more."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._state = execution.state
        self._queue = execution.queue
        self._history = execution.state.record.history
        self._recovered = Counter[str]()  # how often each job
        self._empty_at_least = EMPTY + execution.state.terms.passes
        self._states: Mapping[str, State] | None = None  # as last seen
        self._waited = False  # until a lease is over

    def run(self) -> None:
        """End what is open, then claim and complete until every job has come out."""
        self._finish_open()
        drainer = self._state.actor(DRAINER)
        for seconds in moves(self._queue.lease_seconds):
            if seconds:
                self._execution.advance(drainer, seconds)
                self._execution.pass_time()
            self._waited = bool(seconds)
            if not self._sweep(drainer):
                break

    def _finish_open(self) -> None:
        """Have live workers complete what they hold, and end those that cannot."""
        workers = [actor for actor in self._state.actors.values() if actor.claims or actor.flight]
        refused = set[tuple[str, int]]()  # a second no says nothing more, and lengthens the story
        for _ in workers:  # ending one may let another go on
            for actor in workers:
                self._execution.run_out(actor)
                for nth in actor.open_claims() if not actor.beside else ():
                    if (actor.name, nth) in refused:
                        continue
                    for _ in range(RETRIES):
                        call = self._complete(actor, nth)
                        if call is None or call.answer not in {"retry", "error"}:
                            break
                    if call is not None and call.answer == "rejected":
                        refused.add((actor.name, nth))
        for actor in workers:
            unfinished = actor.open_claims() and not self._queue.completes and not actor.beside
            if actor.alive and (actor.blocked or actor.holding or unfinished):
                self._execution.crash(actor)
                self._execution.settle_blocked()

    def _complete(self, actor: Actor, nth: int) -> Call | None:
        """Complete a claimed job, in its batch where the queue completes in batches only."""
        ref = actor.claims[nth][0]
        if "complete" in self._queue.offers or "complete_many" not in self._queue.offers:
            return self._execution.perform(actor, Do("complete", job=nth))
        if ref in actor.ended:
            return None  # the batch of another job
        calls = list(dict.fromkeys(claimed.call for claimed, _ in actor.claims))
        return self._execution.perform(actor, Do("complete_many", batch=calls.index(ref.call)))

    def _sweep(self, drainer: Actor) -> bool:
        """Maintain and claim until nothing more comes; whether a job may still come out later.

        A claim may do maintenance of its own, or end a spent job and answer nothing
        (rule 28): what comes back empty has not said that there is nothing. So the first look at
        the states, with nothing to compare it with, counts as a change.
        """
        began = self._execution.lab.now()
        empty = 0
        first = len(drainer.claims)
        for _ in range(DRAIN_CLAIMS):
            got_since = drainer.claims[first:]
            times = Counter(ref.job for ref, _ in got_since).values()
            if len(got_since) >= DRAIN_CLAIMS or min(times, default=0) >= RETRIES:
                break  # it answers the same jobs for ever
            moved = self._maintain(drainer)
            got = [self._empty(drainer, queue) for queue in self._state.queues]
            before = self._states
            outstanding = self._outstanding(drainer)
            changed = before != self._states
            empty = 0 if changed else 1 if moved or any(got) else empty + 1
            if not outstanding or empty >= self._enough():
                break
        self._state.instant("sweep", drainer.name, began=began)
        return outstanding

    def _enough(self) -> int:
        """After how many empty claims in a row there is nothing more to be had."""
        if self._states is not None and "queued" not in self._states.values():
            # What a claim does to a running job shows; a recovery may note first whom it misses.
            return self._empty_at_least if self._waited else 1
        claimed = {job for call in self._history.of_kind("claim") for job in call.ids}
        if self._states is None:
            return self._empty_at_least + len(claimed - done(self._history.calls))
        return self._empty_at_least + sum(self._states.get(job) == "running" for job in claimed)

    def _maintain(self, drainer: Actor) -> bool:
        """Recover and promote, each until it changes nothing; whether a recovery did.

        Twice, where a promotion did: it may count what it does each time, so it proves nothing.
        """
        found = False
        for _ in range(EMPTY):
            known = len(self._history.calls)
            found = self._recover(drainer) or found
            self._execution.perform(drainer, Do("promote"))
            if not any(call.moved for call in self._history.calls[known:]):
                break
        return found

    def _recover(self, drainer: Actor) -> bool:
        """Recover until there is nothing to be recovered; whether there was anything."""
        found = False
        refused = 0
        for _ in range(DRAIN_CLAIMS if "recover" in self._queue.offers else 0):
            recovered = self._execution.perform(drainer, Do("recover"))
            if recovered is None:
                break
            if recovered.answer != "accepted" and refused < RETRIES:
                refused += 1
                continue
            # One that answers the same job for ever changes nothing.
            if all(self._recovered[job] >= RETRIES for job in recovered.ids):
                break
            self._recovered.update(recovered.ids)
            found = True
        return found

    def _empty(self, drainer: Actor, queue: str) -> bool:
        """Claim and complete until nothing more comes; whether anything did."""
        refused = 0
        first = len(drainer.claims)
        for _ in range(DRAIN_CLAIMS):
            before = len(drainer.claims)
            call = self._execution.perform(drainer, Do("claim", limit=DRAIN_BATCH, queue=queue))
            if call is None:
                break
            if call.answer in {"retry", "error"} and refused < RETRIES:
                refused += 1
            elif not call.ids:
                break
            for nth in range(before, len(drainer.claims)):
                self._complete(drainer, nth)
            if drainer.holding:  # nothing here ends its transaction
                break
        return len(drainer.claims) > first

    def _outstanding(self, drainer: Actor) -> bool:
        """True if a job may still come out."""
        if "jobs" in self._queue.offers:
            call = self._execution.perform(drainer, Do("jobs"))
            if call is not None and call.states is not None:
                self._history.final = self._states = call.states
                listed = any(state in {"queued", "running"} for state in call.states.values())
                return listed or self._leaves_out(call.states)
        left = set[str]()
        for call in sorted(self._history.calls, key=lambda call: call.returned or 0):
            if call.kind in {"enqueue", "claim", "recover"}:
                left.update(call.ids)
            elif call.kind in {"complete", "complete_many"}:
                left -= call.accepted
            elif call.kind in {"fail", "heartbeat"}:
                left |= call.accepted  # it may be tried again or go on, even if done
        return bool(left)

    def _leaves_out(self, states: Mapping[str, State]) -> bool:
        """True if a list lacks a job that nothing has ended: it is lost, or the list is wrong."""
        if self._state.disturbed:
            return False
        unseen = set[str]()
        for call in self._history.calls:
            if call.kind == "enqueue":
                unseen.update(call.ids)
            elif call.kind == "cleanup":
                unseen.clear()
            elif call.kind == "recover":
                unseen.difference_update(call.ids)
            elif call.kind in {"complete", "complete_many", "fail"}:
                unseen -= call.accepted
        return not unseen <= states.keys()
