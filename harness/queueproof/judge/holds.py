"""Certain holds on jobs with their ends, and calls that nobody met, to judge several jobs by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from queueproof.history.calls import Call, Ref
from queueproof.judge.lives import Watcher
from queueproof.judge.spec import FOREVER, Declared

_INSTANT = frozenset({"advance", "sweep", "jobs", "rewrite"})  # they meet nobody


@dataclass(slots=True, eq=False)
class Hold:
    """A claimed job that, as far as answers tell, nobody has ended or taken since."""

    ref: Ref  # the claim and the job
    actor: str
    end: float  # its lease certainly runs until then, in seconds
    beats: int = 0  # accepted heartbeats for it, each of which may have changed its token


class Holds(Watcher):
    """The holds of workers: from the answer of a claim until it may be over for another reason.

    A lease that runs out stays, as a late heartbeat may bring it back: see `fresh`.
    """

    def __init__(self, declared: Declared) -> None:
        self._lease = FOREVER if declared.lease is None else declared.lease
        self._by_worker = declared.worker_heartbeat
        self._held: dict[Ref, Hold] = {}

    def of(self, ref: Ref) -> Hold | None:
        """The hold of a claim on a job; None where it is over, or another claim has the job too."""
        rivals = [one for one in self._held if one.job == ref.job]
        return self._held.get(ref) if rivals[-1:] == [ref] else None

    def by(self, actor: str) -> list[Ref]:
        """The claims of an actor that may still hold."""
        return [ref for ref, one in self._held.items() if one.actor == actor]

    def fresh(self, call: Call) -> Iterator[Hold]:
        """The holds whose leases run beyond the end of a call."""
        return (one for one in self._held.values() if call.ended < one.end)

    def named(self, call: Call) -> list[Ref]:
        """The claims that an operation is about: of a worker's heartbeat all that it holds."""
        return list(call.refs) if call.refs or not self._by_worker else self.by(call.worker)

    def see(self, call: Call) -> None:
        """From its invocation on a call may end what somebody holds."""
        match call.kind:
            case "complete" | "complete_many" | "fail" if call.answer not in {"retry", "error"}:
                refused = {ref for ref in call.refs if call.answer_for(ref) == "rejected"}
                ended = {ref.job for ref in call.refs if ref not in refused}
                self._drop(lambda one: one in refused or one.job in ended)
            case "recover":
                self._drop(lambda one: one.job in call.ids)
            case "crash":
                self._drop(lambda one: self._held[one].actor == call.actor)
            case "claim" if call.answer == "unknown":
                self._held.clear()  # it may have taken any job
            case "start":
                self._held.clear()  # who begins may take back what it thinks nobody has

    def _drop(self, over: Callable[[Ref], bool]) -> None:
        for ref in [ref for ref in self._held if over(ref)]:
            del self._held[ref]

    def settle(self, call: Call) -> None:
        """A claim has got jobs, or a heartbeat has extended what its worker holds."""
        end = call.began + self._lease  # at the earliest with the request for it
        if call.kind == "claim":
            refs = [Ref(call.index, job) for job in call.ids]
            self._held |= {ref: Hold(ref, call.actor, end) for ref in refs}
        elif call.kind == "heartbeat" and call.answer == "accepted":
            for ref in self.named(call):
                if (one := self._held.get(ref)) is not None:
                    one.end, one.beats = max(one.end, end), one.beats + 1


class Undisturbed(Watcher):
    """Tells, once a call is over, whether any other was open meanwhile.

    Of a completion and a claim that are one operation the claim is the one that nobody met.
    """

    def __init__(self) -> None:
        self.joined: set[int] = set()  # the indexes of such claims
        self._open: list[Call] = []
        self._met: set[int] = set()

    def __contains__(self, call: Call) -> bool:
        return call.index not in self._met

    def see(self, call: Call) -> None:
        """A call begins beside those that are open."""
        if call.kind in _INSTANT:
            return
        joined = [one for one in self._open if call.is_one_with(one)]
        self._met.update(one.index for one in self._open)
        if joined:
            self.joined.add(call.index)
        if len(joined) < len(self._open):
            self._met.add(call.index)
        self._open.append(call)

    def settle(self, call: Call) -> None:
        """A call is over."""
        if call.kind not in _INSTANT:
            self._open.remove(call)
