"""The state of one run: who acts and may do what, on which connection, and what was recorded."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from queueproof.history.calls import Call, CallKind, Ref
from queueproof.queues.model import Claim, Result
from queueproof.run.actors import Actor, Flight
from queueproof.run.lab import Lab
from queueproof.run.record import Beat, Event, Run
from queueproof.run.session import Session
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.moments import MARGIN
from queueproof.schedule.programs import FAULTS, MAINTENANCE, Do, Program, worker_of

_APART = frozenset({"sql", "stops", "goes on", "done", "commit"})
"""Events between a statement and its answer while nobody else acts, and nobody is awaited."""
POOL = 5  # connections that take turns; a prime, as operations repeat every few transactions


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that hold for every run of a runner."""

    split: bool  # a statement outside a transaction is split from its commit
    # Claims end with their connection: a worker whose connection breaks while it has some begins a
    # new life, under another name.
    tied: bool
    one_each: bool  # a worker has one job at a time
    held: bool  # claims end inside their transaction
    passes: int  # how often in a row claims may pass a ready job by
    beats_idle: bool  # workers send heartbeats that name no job
    retryable: frozenset[str]  # SQLSTATEs after which nothing has happened
    conditions: Conditions  # for every session


class RunState:
    """The state in the middle of a run, and its record; `Execution` acts on it."""

    def __init__(self, lab: Lab, terms: Terms, program: Program) -> None:
        self.lab = lab
        self.terms = terms
        self.queue = lab.queue
        self.record = Run()
        self.actors: dict[str, Actor] = {}  # everybody who has acted, or is about to
        # Those that are claimed from.
        self.queues = program.queues if "queue" in lab.queue.takes("claim") else ["default"]
        self.reserve = deque(program.reserve)  # jobs that are still to be enqueued
        self.moment = 0  # the count that orders all events
        self.stands_at: float | None = None  # the moment of an open transaction of the producer's
        self.splitting = False  # statements are split from their commits, and stop inside
        self.disturbed = False  # a fault has happened, which workers may answer as they like
        self._owners: dict[int, Actor] = {}
        self._turn = 0

    def actor(self, name: str) -> Actor:
        """The actor under a name, from now on at the latest."""
        if name not in self.actors:
            worker = worker_of(name)
            actor = Actor(name, identity(worker), beside=worker != name)
            if actor.beside:
                own = self.actor(worker)
                actor.claims, actor.ended, actor.renewed = own.claims, own.ended, own.renewed
            self.actors[name] = actor
        return self.actors[name]

    def able(self, actor: Actor) -> bool:
        """True if an actor can go on; drops for good what is not `possible` at its turn."""
        if not actor.alive or actor.blocked:
            return False
        if actor.flight is not None:
            return True
        while actor.todo and not self.possible(actor, actor.todo[0]):
            actor.todo.popleft()
        return bool(actor.todo) and not self.must_wait(actor.todo[0])

    def must_wait(self, do: Do) -> bool:
        """True if a leader is in the middle of what no other process may do beside it."""
        if not self.queue.leader or do.kind not in MAINTENANCE:
            return False
        flights = (actor.flight for actor in self.actors.values())
        return any(flight.call.kind in MAINTENANCE for flight in flights if flight)

    def possible(self, actor: Actor, do: Do) -> bool:
        """True if an operation has a subject: a job that a claim did not get cannot be ended."""
        match do.kind:
            case "heartbeat" if actor.beside and self.lab.by_clients:
                return False  # a worker process does one thing after another
            case "heartbeat" if not actor.has(do.job) and not actor.beside:
                return self.terms.beats_idle  # one without a job's columns
            case "complete" | "fail" | "heartbeat":
                known = actor.has(do.job) and do.kind in self.queue.offers
                return known and self._may_name(actor, [actor.claims[do.job]])
            case "complete_many":
                batch = actor.batch(do.batch, do.part)
                known = bool(batch) and "complete_many" in self.queue.offers
                return known and self._may_name(actor, batch)
            case "complete_and_claim":
                batch = actor.batch(do.batch, do.part)
                return bool(batch) and not actor.holding and self._may_name(actor, batch)
            case "claim":
                # Its worker claims nothing else until it ends.
                return not actor.holding and not (self.terms.one_each and actor.holds)
            case "crash":
                return self.victim(actor, do).alive
            case "lose":
                victim = self.victim(actor, do)
                return victim.alive and not victim.cut_off
            case "enqueue":
                return bool(self.reserve)
            case "advance" | "align" | "until" | "rewrite":
                return True
            case "start":
                return "start" in self.queue.offers and actor.identity not in self.lab.started
            case "recover" | "jobs" | "cleanup" | "promote":
                return do.kind in self.queue.offers
            case _:
                return FAULTS[do.kind].of_server or self.victim(actor, do).alive

    def _may_name(self, actor: Actor, claims: list[tuple[Ref, Claim]]) -> bool:
        """True if a worker may act on some of its claims.

        In the transaction of a claim it acts on that claim and no other. It knows when that
        transaction has ended, and then sends nothing of it (rule 19).
        """
        if actor.holding:
            return claims == actor.claims[-1:]
        return not any(self.record.history.calls[ref.call].held for ref, _ in claims)

    def victim(self, actor: Actor, do: Do) -> Actor:
        """To whom a crash or a fault happens: without a number to the actor itself."""
        return self.actor(f"w{do.worker}") if do.worker else actor

    def may_stop(self, actor: Actor) -> bool:
        """True if a running statement may stop at a gate, or wait for somebody the run knows of."""
        if self.terms.conditions.gate is not None and actor.name != DRAINER:
            return True
        others = (other for other in self.actors.values() if other is not actor)
        return any(other.flight is not None or other.holding for other in others)

    def connection(self, actor: Actor, call: Call) -> Session:
        """The connection that an operation begins on."""
        second = call.kind == "heartbeat" and actor.holding
        if self.terms.conditions.pooled:
            if actor.holding and not second and actor.pooled is not None:
                return actor.pooled  # an open transaction keeps its connection
            return self.next_of_pool(actor, call)
        session = self.lab.session(f"{actor.name}, second connection" if second else actor.name)
        session.stepped = self.splitting or actor.name != DRAINER  # a story shows what it sends
        self._owners |= dict.fromkeys(session.pids, actor)
        return session

    def next_of_pool(self, actor: Actor, call: Call) -> Session:
        """The connection that a transaction pooler may give to an actor's next transaction.

        It may be any that is idle. This is never the one that the actor had before. The first of
        the others soon brings together what one actor left in a session and the next actor;
        going round keeps them apart as long as possible.
        """
        numbers: Iterable[int] = itertools.count(1)
        if self.terms.conditions.pooled == "round robin":
            turns = ((self._turn + n) % POOL + 1 for n in range(POOL))
            numbers = itertools.chain(turns, itertools.count(POOL + 1))
        for number in numbers:
            session = self.lab.session(f"connection {number}")
            if session is not actor.pooled and not session.in_transaction:
                break
        self._turn = number
        if not actor.holding:
            actor.pooled = session
        self._owners[session.pid] = actor
        self.note(actor, "connection", str(number), call=call)
        return session

    def owner(self, pid: int) -> Actor | None:
        """The actor whose backend it is; None where the run knows of none."""
        return self._owners.get(pid) or self.actors.get(self.lab.owner_of(pid) or "")

    def known(self, pids: Sequence[int]) -> list[Actor]:
        """The actors whose backends these are."""
        found = [self.owner(pid) for pid in pids]
        # A heartbeat on a second connection may wait for its own worker's open transaction.
        return [other for other in self.actors.values() if other in found]

    def disown(self, actor: Actor, sessions: Iterable[Session] | None = None) -> None:
        """Forget that connections are an actor's: those of some sessions, or all."""
        own = {pid for pid, owner in self._owners.items() if owner is actor}
        if sessions is not None:
            own &= {session.pid for session in sessions}
        for pid in own:
            del self._owners[pid]

    def invoke(self, kind: CallKind, actor: Actor) -> Call:
        """Record that an operation begins at this moment."""
        calls = self.record.history.calls
        calls.append(Call(len(calls), kind, actor.name, self.moment, self.now()))
        return calls[-1]

    def now(self) -> float:
        """The time, which stands still for jobs that are enqueued in one transaction."""
        return self.lab.now() if self.stands_at is None else self.stands_at

    def end(self, call: Call) -> None:
        """Record that a call has returned; what it answered is known by then."""
        self.moment += 1
        call.end(self.moment, self.now())

    def instant(
        self, kind: CallKind, actor: str, *, delay: float = 0.0, began: float | None = None
    ) -> Call:
        """Record something that takes no time.

        Args:
            delay: By how many seconds the clock moved.
            began: When it began on the database's clock, in seconds; None: now.
        """
        calls = self.record.history.calls
        self.moment += 1
        began = self.lab.now() if began is None else began
        call = Call(len(calls), kind, actor, self.moment, began, delay=delay, answer="accepted")
        calls.append(call)
        self.end(call)
        return call

    def until(self, seconds: float) -> tuple[float, float]:
        """Seconds to the moment before a limit, and what a story says of them.

        A story leaves out the real time that has passed: with the same seed it is the same.
        """
        calls, now = self.record.history.calls, self.lab.now()
        begins = [call for call in calls if _begins_a_limit(call)]
        began = begins[-1].began if begins else now
        since = calls[begins[-1].index :] if begins else []
        told = seconds - MARGIN - sum(call.delay for call in since if call.kind == "advance")
        return max(0.0, began + seconds - MARGIN - now), max(0.0, told)

    def note(self, actor: Actor, event: Event, text: str = "", call: Call | None = None) -> None:
        """Add a line to the trace, about a call or else the one that the actor has begun."""
        flight = actor.flight
        if call is None and flight is not None:
            call = flight.call
        session = flight.session.name if flight else ""
        step = flight.step if flight and event == "sql" else None
        index = call.index if call else -1
        self.record.trace.append(Beat(actor.name, index, event, text, session, step))

    def note_read(self, flight: Flight, result: Result) -> None:
        """Keep what a statement within an operation read, unless others acted meanwhile."""
        if not result.rows:
            return
        trace = self.record.trace
        for n in range(len(trace) - 1, -1, -1):
            beat = trace[n]
            if beat.call != flight.call.index or beat.event not in _APART:
                return
            if beat.event == "sql":
                first = (next(iter(row.values())).text for row in result.rows)
                read = tuple(one.decode(errors="replace") for one in first if one is not None)
                trace[n] = replace(beat, read=read)
                return

    def note_stop(self, actor: Actor, flight: Flight) -> None:
        """Add to the trace that a statement has stopped inside."""
        where = "query" if flight.cursor == "declared" else self.terms.conditions.gate
        if where == "every":
            where = "row" if self.lab.is_at_row(flight.session) else "statement"
        self.note(actor, "stops", where or "statement")


def _begins_a_limit(call: Call) -> bool:
    """True if a delay, a lease or a backoff is counted from a call."""
    if call.kind in {"enqueue", "claim"}:
        return bool(call.ids)
    return call.kind in {"heartbeat", "fail"} and call.answer == "accepted" and bool(call.refs)
