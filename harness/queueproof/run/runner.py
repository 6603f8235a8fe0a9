"""One run: a program's steps sent to the server in the order that a schedule gives."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from queueproof import waits
from queueproof.errors import QueueError, ServerError, ServerUnavailableError
from queueproof.history.calls import Answer, Call, History, Ref, Wait
from queueproof.judge.answers import contradiction, flood
from queueproof.queues.model import Claim, JobRow, Operation, Result, State, Step
from queueproof.queues.sqltext import first_keyword, only_selects
from queueproof.queues.worker import ProgramError
from queueproof.run.lab import DEFAULT_BOUND, Lab
from queueproof.run.session import ConnectionLostError, Session, execute, unanswered
from queueproof.schedule.actors import DRAINER, PROMOTER, identity
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.moments import DAY, DECADE, HOUR, MARGIN, past
from queueproof.schedule.programs import FAULTS, HEARTBEATS, MAINTENANCE, Do, JobSpec, Program

FIRST_LOOK = 0.00015  # seconds; most statements answer sooner, and nobody asks who blocks them
ALONE_LOOK = 0.005  # the same, where nobody else is in the middle of anything
LAST_LOOK = 0.001  # each look waits twice as long as the one before, and at most this
DRAIN_CLAIMS = 200  # more than any program enqueues: a claim that never empties must not hang a run
DRAIN_BATCH = 10
EMPTY = 2  # claims in a row that come back empty, after which there is nothing to be had
RETRIES = 10
SURE = 3  # runs without a pooler that all differ from the one with it
POOL = 5  # connections that take turns; a prime, as operations repeat every few transactions

_DEADLOCK = "40P01"
_TERMINATED = ServerError("57P01", "terminating connection due to administrator command")
_KILLED = ServerError("08006", "server closed the connection unexpectedly")
# No disk, no memory, shutting down, I/O error: nothing that an operation of a queue has done.
_SERVER_TROUBLE = ("53", "57P", "58")

# Statements that take no lock and show nothing: no worker can act differently after them. What a
# program is asked to do is no statement at all.
_QUIET = frozenset({"", "BEGIN", "START", "SET", "SAVEPOINT", "RELEASE"})
# An autocommit statement is BEGIN, itself, COMMIT. The moment before that COMMIT, when its locks
# are held and its effect is unseen, is a seam.
_HOLDABLE = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES"})
_UNWRITTEN = "SELECT pg_catalog.pg_current_xact_id_if_assigned() IS NULL"
_NO_ADVISORY_LOCK = (
    "NOT EXISTS (SELECT FROM pg_catalog.pg_locks"
    " WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid())"
)

# A cursor has its snapshot when it is declared, and reads and locks when rows are fetched: between
# the two is what a client leaves between the protocol's Bind and Execute.
_DECLARE = 'DECLARE "~queueproof" NO SCROLL CURSOR FOR '
_FETCH = 'FETCH ALL FROM "~queueproof"'
_CLOSE = 'CLOSE "~queueproof"'


@dataclass(frozen=True, slots=True)
class Beat:
    """One line of a run's trace.

    Attributes:
        actor: Who acted.
        call: Index of the call, -1 for none.
        event: `start`, `connection` (of a pool), `sql`, `done` (not committed yet), `stops`,
            `waits`, `goes on`, `commit`, `rewrite`, `answer`, `lost` (the answer), `error`,
            `rollback`, `clock`, `crash`, `cut` (the connection), `terminate` or `restart`.
        text: SQL, what was answered, or which gate it stops at.
        session: Whose connection it happened on; nothing where it was on none.
        step: What was sent, for `sql`.
    """

    actor: str
    call: int
    event: str
    text: str = ""
    session: str = ""
    step: Step | None = field(default=None, compare=False)


@dataclass(slots=True)
class Choice:
    """A moment at which the schedule chose.

    Attributes:
        options: How many actors could go on.
        taken: Which one did; 0 is the one that acted last, if it could.
        preempts: Whether any other option takes the turn from an actor that could go on.
    """

    options: int
    taken: int
    preempts: bool


@dataclass(slots=True)
class Run:
    """What one run did.

    Attributes:
        history: What was asked and answered.
        trace: What happened, in order.
        choices: Every moment at which the schedule chose.
        steps: Statements that actors sent in the stages.
        errors: What the server answered to which step, by the index of the call.
        certain: How many choices had been met when several sessions waited and a lock was
            released: from then on the server decides who goes on. None where that never was.
        faults: Which fault of `FAULTS` hit which operation, after how many of its statements.
        short: The first claim that got fewer jobs than it always gets without the pooler.
    """

    history: History = field(default_factory=History)
    trace: list[Beat] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    steps: int = 0
    errors: dict[int, tuple[ServerError, Step]] = field(default_factory=dict)
    certain: int | None = None
    faults: list[tuple[str, str, int]] = field(default_factory=list)
    short: Call | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether the schedule alone did not decide what happened."""
        return self.certain is not None


@dataclass(slots=True)
class _Flight:
    """An operation between its invocation and its answer."""

    call: Call
    session: Session
    generator: Operation[Any]
    step: Step
    do: Do
    named: Sequence[Claim] = ()
    split: bool = True  # its statements are split from their commits, and stop inside
    whole: bool = False  # nobody acts between its statements, unless it waits
    gated: bool = False  # it has stopped inside its statement
    cursor: Literal["declared", "fetched"] | None = None  # what was last done to its query's
    blockers: Sequence[int] = ()  # the backends that it was last seen to wait for
    stale: bool = False  # somebody acted since the running statement began
    wrapped: bool = False  # the running statement stands in a transaction of the harness
    holding: Result | None = None  # the answer of a statement whose COMMIT is still to come
    committed: int = 0  # how many of its transactions have taken effect
    between: bool = False  # its last transaction has ended and the next has not begun
    victim: bool = False  # it was cancelled to end a deadlock
    sent: int = 0  # statements, a COMMIT of the harness included


@dataclass(slots=True)
class _Actor:
    """Somebody who acts: a worker, a reaper, a producer, the clock, a nemesis."""

    name: str
    identity: str
    beside: bool = False  # it sends heartbeats for a worker that acts as well, whose claims it has
    todo: deque[Do] = field(default_factory=deque)
    flight: _Flight | None = None
    blocked: bool = False
    alive: bool = True
    cut_off: bool = False  # its connection is cut when the server has acted on its next message
    claims: list[tuple[Ref, Claim]] = field(default_factory=list)
    ended: set[Ref] = field(default_factory=set)
    lost: set[Ref] = field(default_factory=set)  # of which it was told that it has them no more
    renewed: Counter[Ref] = field(default_factory=Counter)  # accepted heartbeats
    holding: bool = False  # its session stands in the transaction of its claim
    late: bool = False  # a statement of its open transaction stood still, and saw an old snapshot
    pooled: Session | None = None  # the connection of a pool that its last transaction ran on

    def open_claims(self) -> list[int]:
        """Which of its claims it has not ended."""
        return [n for n, (ref, _) in enumerate(self.claims) if ref not in self.ended]


class Runner:
    """Runs programs under schedules.

    Args:
        lab: Where.
        split: Whether a statement outside a transaction is split from its commit.
        held: Whether claims end inside their transaction: they are made with limit 1.
        tied: Whether claims end with their connection: a worker whose connection breaks while it
            has some begins a new life, under another name.
        anew: Whether workers that are programs begin their lives anew in each run, which is slow.
        conditions: What holds for every session.

    Attributes:
        conditions: The same.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        split: bool = True,
        held: bool = False,
        tied: bool = False,
        anew: bool = False,
        conditions: Conditions = PLAIN,
    ) -> None:
        self._lab = lab
        self._anew = anew and lab.by_clients
        self.conditions = conditions
        self._queue = lab.queue
        self._split = split
        self._tied = tied
        self._held = held
        self._one_each = lab.queue.jobs_per_worker is not None
        self._batch_size = 1 if held or self._one_each else DRAIN_BATCH
        beats = "heartbeat" in lab.queue.offers
        self._beats_idle = beats and "job" not in lab.queue.takes("heartbeat")
        lease = lab.queue.lease_time
        self._lease = lease.total_seconds() if lease else None
        # At a stricter level than its own a queue's workers try again (queue-file.md, 8).
        stricter = {"40001", _DEADLOCK} if conditions.isolation else set()
        # What a fault prevents may have happened in part, whatever the queue expects.
        faults = {_DEADLOCK, _TERMINATED.sqlstate, _KILLED.sqlstate}
        self._retryable = (lab.queue.retry_on - faults) | stricter

    def run(self, program: Program, schedule: Sequence[int] = ()) -> Run:
        """One run from a fresh start.

        Args:
            program: Who does what.
            schedule: The option taken at each choice; 0, go on, where it has ended.

        Raises:
            QueueError: An operation did something that no queue may, or its answers contradict each
                other.
            ConnectionLostError: The server closed a connection.
        """
        run = self._run_once(program, schedule)
        wrong = contradiction(run.history.calls, by_worker=self._beats_idle)
        if wrong is not None and self._lab.by_clients:
            # What a program keeps from one run to the next is judged with programs started anew.
            self._lab.forget_sessions()
            run = self._run_once(program, schedule)
            wrong = contradiction(run.history.calls, by_worker=self._beats_idle)
        if wrong is not None:
            raise QueueError(wrong.because, self._queue.source_of(wrong.operation))
        if self.conditions.pooled and not program.races:
            run.short = self.short(program, run)
        return run

    def short(self, program: Program, run: Run) -> Call | None:
        """The first claim that got less than it gets without a pooler, every time.

        By itself a claim that came back empty proves nothing: only the queue knows when a failed
        job is due. But what it gives workers who act in turn does not depend on connections.
        """
        plain = Runner(self._lab, split=self._split, held=self._held)
        for _ in range(SURE):
            own = plain._run_once(program).history
            for call, other in zip(run.history.calls, own.calls, strict=False):
                if (call.kind, call.actor) != (other.kind, other.actor):
                    return None
                if len(call.ids) != len(other.ids):
                    break
            else:
                return None
            if call.kind != "claim" or len(call.ids) > len(other.ids):
                return None
            if len(other.ids) > other.limit:
                return None  # what it gets by itself depends on the plan
        return call

    def _run_once(self, program: Program, schedule: Sequence[int] = ()) -> Run:
        if self._anew:
            self._lab.forget_sessions()
        self._lab.set_gate(self.conditions.gate)
        self._lab.set_sessions(self.conditions.settings, self.conditions.skew)
        self._lab.reset()
        self._run = Run()
        self._moment = 0
        self._turn = 0
        self._actors: dict[str, _Actor] = {}
        self._owners: dict[int, _Actor] = {}
        self._schedule = deque(schedule)
        self._reserve = deque(program.reserve)
        self._queues = program.queues if "queue" in self._queue.takes("claim") else ["default"]
        self._recovered = Counter[str]()  # by the drain, how often each job
        self._splitting = False
        self._disturbed = False  # by a fault, which programs may answer as they like
        self._states: Mapping[str, State] | None = None  # as last seen while the run was drained
        names = dict.fromkeys([*(name for stage in program.stages for name, _ in stage), DRAINER])
        self._lab.prepare(names)
        for name in names:
            if identity(name) in self._lab.started:
                self._actor(name)  # which lives, and beats, before it does anything
        for spec in program.jobs:
            self._reserve.appendleft(spec)
            self._perform(self._actor("producer"), Do("enqueue"))
        if program.jobs and "promote" in self._queue.offers:
            self._perform(self._actor(PROMOTER), Do("promote"))
        self._splitting = self._split
        for stage in program.stages:
            self._stage(stage)
        self._splitting = False
        self._drain()
        return self._run

    # --- stages and choices ---------------------------------------------------------------------

    def _actor(self, name: str) -> _Actor:
        if name not in self._actors:
            worker = name.removesuffix(HEARTBEATS)
            actor = _Actor(name, identity(worker), beside=worker != name)
            if actor.beside:
                own = self._actor(worker)
                actor.claims, actor.ended, actor.renewed = own.claims, own.ended, own.renewed
            self._actors[name] = actor
        return self._actors[name]

    def _stage(self, stage: Iterable[tuple[str, tuple[Do, ...]]]) -> None:
        acting = []
        for name, dos in stage:
            actor = self._actor(name)
            actor.todo.extend(dos)
            acting.append(actor)
        last: _Actor | None = None
        while True:
            able = [actor for actor in acting if self._able(actor)]
            if not able:
                if self._break_deadlock():
                    continue
                return
            going_on = last in able
            if last is not None and going_on:
                able.remove(last)
                able.insert(0, last)
            taken = 0
            if len(able) > 1:
                if self._schedule:
                    taken = self._schedule.popleft() % len(able)
                self._run.choices.append(Choice(len(able), taken, preempts=going_on))
            last = able[taken]
            self._go_on(last)
            self._settle_blocked()
            while last.flight is not None and last.flight.whole and not last.blocked:
                self._go_on(last)
                self._settle_blocked()

    def _able(self, actor: _Actor) -> bool:
        if not actor.alive or actor.blocked:
            return False
        if actor.flight is not None:
            return True
        while actor.todo and not self._possible(actor, actor.todo[0]):
            actor.todo.popleft()
        return bool(actor.todo) and not self._must_wait(actor.todo[0])

    def _must_wait(self, do: Do) -> bool:
        """Whether a leader is in the middle of what no other process may do beside it."""
        if not self._queue.leader or do.kind not in MAINTENANCE:
            return False
        flights = (actor.flight for actor in self._actors.values())
        return any(flight.call.kind in MAINTENANCE for flight in flights if flight)

    def _possible(self, actor: _Actor, do: Do) -> bool:
        """Whether the operation has a subject: a job that a claim did not get cannot be ended."""
        match do.kind:
            case "heartbeat" if actor.beside and self._lab.by_clients:
                return False  # a program does one thing after another
            case "heartbeat" if do.n >= len(actor.claims) and not actor.beside:
                return self._beats_idle  # one without a job's columns
            case "complete" | "fail" | "heartbeat":
                known = do.n < len(actor.claims) and do.kind in self._queue.offers
                return known and self._may_name(actor, actor.claims[do.n : do.n + 1])
            case "complete_many":
                batch = self._batch(actor, do.n)
                known = bool(batch) and "complete_many" in self._queue.offers
                return known and self._may_name(actor, batch)
            case "claim":
                # Its worker claims nothing else until it ends.
                return not actor.holding and not (self._one_each and self._holds(actor))
            case "crash" | "terminate":
                return self._victim(actor, do).alive
            case "lose":
                victim = self._victim(actor, do)
                return victim.alive and not victim.cut_off
            case "enqueue":
                return bool(self._reserve)
            case "advance" | "align" | "until" | "rewrite" | "restart":
                return True
            case _:
                return do.kind in self._queue.offers

    @staticmethod
    def _holds(actor: _Actor) -> bool:
        """Whether a worker has a job, as far as it knows."""
        return any(ref not in actor.ended and ref not in actor.lost for ref, _ in actor.claims)

    def _may_name(self, actor: _Actor, claims: list[tuple[Ref, Claim]]) -> bool:
        """Whether a worker may act on some of its claims.

        In the transaction of a claim it acts on that claim and no other. It knows when that
        transaction has ended, and then sends nothing of it (queue-file.md, 19).
        """
        if actor.holding:
            return claims == actor.claims[-1:]
        return not any(self._run.history.calls[ref.call].held for ref, _ in claims)

    @staticmethod
    def _batch(actor: _Actor, nth: int) -> list[tuple[Ref, Claim]]:
        """What the worker's `nth` successful claim got."""
        calls = list(dict.fromkeys(ref.call for ref, _ in actor.claims))
        batch = [c for c in actor.claims if nth < len(calls) and c[0].call == calls[nth]]
        # A worker finishes its jobs in any order: every other one names its batch backwards.
        return batch[::-1] if actor.name == "w2" else batch

    def _victim(self, actor: _Actor, do: Do) -> _Actor:
        return self._actor(f"w{do.n}") if do.n else actor

    # --- one step of one actor ------------------------------------------------------------------

    def _go_on(self, actor: _Actor) -> None:
        for other in self._actors.values():
            if other is not actor and other.flight is not None:
                other.flight.stale = True
        flight = actor.flight
        if flight is None:
            do = actor.todo.popleft()
            if do.kind == "crash":
                self._crash(self._victim(actor, do))
                return
            if do.kind == "advance":
                self._advance(actor, do.seconds)
                self._pass_time()
                return
            if do.kind == "until":
                self._advance(actor, self._until(do.seconds))
                self._pass_time()
                return
            if do.kind == "align":
                self._advance(actor, self._lab.until_aligned())
                self._pass_time()
                return
            if do.kind == "rewrite":
                self._lab.rewrite_tables()
                self._note(actor, "rewrite", call=self._instant("rewrite", actor.name))
                return
            if do.kind in FAULTS:
                self._inflict(actor, do)
                return
            flight = self._begin(actor, do)
            if flight is None:
                return
        self._run.steps += 1
        if flight.gated:
            self._note(actor, "goes on")
            self._pass_gate(actor, flight)
            return
        if flight.holding is not None:
            self._note(actor, "commit")
            self._launch(actor, flight, Step("COMMIT"))
            return
        while True:
            step = flight.step
            keyword = first_keyword(step.sql)
            if flight.between and self.conditions.pooled:
                self._change_connection(actor, flight)
            inside = flight.session.in_transaction or self._lab.by_clients
            flight.wrapped = flight.split and not inside and keyword in _HOLDABLE
            if step.commits:
                self._note(actor, "commit")
            elif step.request is None:
                self._note(actor, "sql", step.sql)
            self._launch(actor, flight, step)
            stopped = actor.blocked or flight.gated
            if actor.flight is not flight or stopped or keyword not in _QUIET:
                return

    def _launch(self, actor: _Actor, flight: _Flight, step: Step) -> None:
        begin = flight.wrapped and not flight.session.in_transaction
        own = not self._lab.by_clients
        if own and flight.split and self.conditions.gate == "query" and only_selects(step.sql):
            flight.cursor = "declared"
            step = step._replace(sql=_DECLARE + step.sql)
        try:
            flight.session.send(step, begin=begin)
        except ProgramError as error:
            self._die(actor, flight, error)
            return
        flight.sent += 1
        flight.stale = False
        self._await(actor, flight)

    def _pass_gate(self, actor: _Actor, flight: _Flight) -> None:
        flight.gated = False
        actor.late = actor.late or flight.stale
        if flight.cursor == "declared":
            flight.cursor = "fetched"
            flight.session.send(Step(_FETCH))
        else:
            self._lab.open_gate(flight.session)
        self._await(actor, flight)

    def _await(self, actor: _Actor, flight: _Flight) -> None:
        """Settle a running statement: it answers, stops at a gate, or waits for somebody."""
        if self._settle(flight, FIRST_LOOK if self._may_stop(actor) else ALONE_LOOK):
            self._receive(actor, flight)
            return
        if flight.gated:
            self._note_stop(actor, flight)
            return
        actor.blocked = True
        blockers = self._known(flight.blockers)
        for other in blockers:
            call = other.flight.call.index if other.flight else None
            flight.call.waits.append(Wait(other.name, call, flight.stale or other.late))
        self._note(actor, "waits", " and ".join(other.name for other in blockers))

    def _may_stop(self, actor: _Actor) -> bool:
        """Whether a running statement may stop at a gate, or wait for somebody the run knows of."""
        if self.conditions.gate is not None and actor.name != DRAINER:
            return True
        return any(
            other.flight is not None or other.holding
            for other in self._actors.values()
            if other is not actor
        )

    def _settle(self, flight: _Flight, look: float = 0.0) -> bool:
        """Wait until a session has answered (True), or has stopped or waits for another (False).

        Args:
            flight: Its operation.
            look: Seconds until somebody asks whom it waits for; none for one that has waited.
        """
        session = flight.session
        limit: waits.Limit | None = None
        while not session.ready(look):
            pids = self._lab.blockers(flight.session)
            if self._lab.control_pid in pids:
                if flight.split:
                    flight.gated = True
                    return False
                self._lab.open_gate(flight.session)
            if any(self._owner(pid) for pid in pids):
                flight.blockers = pids
                return False
            look = min(max(2 * look, FIRST_LOOK), LAST_LOOK)
            limit = limit or waits.Limit(waits.STATEMENT, flight.call.kind)
            if limit.is_over():
                step = flight.step
                if self._lab.by_clients and step.sql:
                    step = step._replace(sql=f"its last statement was {step.sql}")
                raise unanswered(step, limit.seconds, flight.call.kind)
        return True

    def _owner(self, pid: int) -> _Actor | None:
        """Whose backend it is; nobody's that the run knows of otherwise."""
        return self._owners.get(pid) or self._actors.get(self._lab.owner_of(pid) or "")

    def _known(self, pids: Sequence[int]) -> list[_Actor]:
        """Whose some backends are."""
        found = [self._owner(pid) for pid in pids]
        # A heartbeat on a second connection may wait for its own worker's open transaction.
        return [other for other in self._actors.values() if other in found]

    def _settle_blocked(self) -> None:
        """Let those go on whose locks were released, until nothing changes any more."""
        waiting = sum(actor.blocked for actor in self._actors.values())
        changed = True
        while changed:
            changed = False
            for actor in self._actors.values():
                flight = actor.flight
                if not actor.blocked or flight is None:
                    continue
                answered = self._settle(flight)
                if answered or flight.gated:
                    actor.blocked = False
                    changed = True
                    if waiting > 1 and self._run.certain is None:
                        self._run.certain = len(self._run.choices)
                    if answered:
                        self._note(actor, "goes on")
                    else:
                        self._note_stop(actor, flight)
                if answered:
                    self._receive(actor, flight)

    def _receive(self, actor: _Actor, flight: _Flight) -> None:
        """Take a statement's answer; bring the operation to its next statement or its end."""
        try:
            result = flight.session.result()
        except ServerError as error:
            self._fail(actor, flight, error)
            return
        except ProgramError as error:
            self._die(actor, flight, error)
            return
        if flight.cursor == "declared":
            if self._lab.reads_tables(flight.session):
                flight.gated = True
                self._note_stop(actor, flight)
            else:  # at most a function, whose statements have snapshots of their own
                self._pass_gate(actor, flight)
            return
        if flight.cursor == "fetched":
            flight.session.run(_CLOSE)
            flight.cursor = None
            result = replace(result, command="SELECT")
        if flight.holding is not None:
            result, flight.holding, flight.wrapped = flight.holding, None, False
            flight.committed += 1
        elif flight.wrapped:
            result = replace(result, in_transaction=False)
            if not self._harmless(flight, result):
                flight.holding = result
                self._note(actor, "done")
                return
            flight.session.run("COMMIT")
            flight.wrapped = False
        elif not result.in_transaction and result.command not in {"ROLLBACK", ""}:
            flight.committed += 1
        flight.between = not flight.session.in_transaction
        half = result.offered is not None and result.offered.commits
        if actor.cut_off and first_keyword(flight.step.sql) not in _QUIET and not half:
            self._lose(actor, flight)
            return
        if half:
            self._note(actor, "done")
        try:
            flight.step = flight.generator.send(result)
        except StopIteration as stop:
            self._finish(actor, flight, stop.value)
        except ServerError as error:
            self._fail(actor, flight, error)

    def _harmless(self, flight: _Flight, result: Result) -> bool:
        """Whether a statement neither wrote nor locked: then its commit shows nothing."""
        if result.affected and result.command != "SELECT":
            return False
        # What answered nothing got no lock by trying; and pg_locks takes longer than the rest.
        asked = _UNWRITTEN if not result.rows else f"{_UNWRITTEN} AND {_NO_ADVISORY_LOCK}"
        row = execute(flight.session, Step(asked)).rows[0]
        return next(iter(row.values())).text == b"t"

    # --- operations -----------------------------------------------------------------------------

    def _begin(self, actor: _Actor, do: Do) -> _Flight | None:
        """Invoke an operation, up to its first statement."""
        self._moment += 1
        history = self._run.history
        call = Call(len(history.calls), do.kind, actor.name, self._moment, self._lab.now())
        history.calls.append(call)
        arguments, named = self._arguments(actor, do, call)
        generator = self._lab.start(do.kind, actor.name, **arguments)
        self._note(actor, "start", call=call)
        session = self._connection(actor, call)
        try:
            step = next(generator)
        except StopIteration as stop:
            flight = _Flight(call, session, generator, Step(""), do, named)
            actor.flight = flight
            self._finish(actor, flight, stop.value)
            return None
        split = self._splitting and not do.whole
        actor.flight = _Flight(call, session, generator, step, do, named, split, do.whole)
        return actor.flight

    def _connection(self, actor: _Actor, call: Call) -> Session:
        """The connection that an operation begins on."""
        second = call.kind == "heartbeat" and actor.holding
        if self.conditions.pooled:
            if actor.holding and not second and actor.pooled is not None:
                return actor.pooled  # an open transaction keeps its connection
            return self._next_of_pool(actor, call)
        session = self._lab.session(f"{actor.name}, second connection" if second else actor.name)
        session.stepped = self._splitting or actor.name != DRAINER  # a story shows what it sends
        self._owners |= dict.fromkeys(session.pids, actor)
        return session

    def _change_connection(self, actor: _Actor, flight: _Flight) -> None:
        flight.session = self._next_of_pool(actor, flight.call)
        flight.between = False

    def _next_of_pool(self, actor: _Actor, call: Call) -> Session:
        """The connection that a transaction pooler may give to an actor's next transaction.

        It may be any that is idle. This is never the one that the actor had before. The first of
        the others soon brings together what one actor left in a session and the next actor;
        going round keeps them apart as long as possible.
        """
        numbers: Iterable[int] = itertools.count(1)
        if self.conditions.pooled == "round robin":
            turns = ((self._turn + n) % POOL + 1 for n in range(POOL))
            numbers = itertools.chain(turns, itertools.count(POOL + 1))
        for number in numbers:
            session = self._lab.session(f"connection {number}")
            if session is not actor.pooled and not session.in_transaction:
                break
        self._turn = number
        if not actor.holding:
            actor.pooled = session
        self._owners[session.pid] = actor
        self._note(actor, "connection", str(number), call=call)
        return session

    def _arguments(
        self, actor: _Actor, do: Do, call: Call
    ) -> tuple[dict[str, object], Sequence[Claim]]:
        arguments: dict[str, object] = {"queue": do.queue, "worker": actor.identity}
        if self._queue.lease_time is not None:
            arguments["lease"] = self._queue.lease_time
        named: list[Claim] = []
        match do.kind:
            case "enqueue":
                arguments |= self._enqueue_arguments(self._reserve.popleft(), call)
            case "claim":
                takes = self._queue.takes("claim")
                many = "limit" in takes and not self._one_each
                call.limit = arguments["limit"] = max(1, do.n) if many else 1
                call.queue = do.queue
            case "heartbeat" if do.n >= len(actor.claims):
                pass
            case "complete" | "fail" | "heartbeat":
                ref, claim = actor.claims[do.n]
                call.refs, named, call.token = (ref,), [claim], actor.renewed[ref]
                arguments |= {"job": claim, "error": "it failed"}
            case "complete_many":
                batch = self._batch(actor, do.n)
                call.refs = tuple(ref for ref, _ in batch)
                call.token = min(actor.renewed[ref] for ref in call.refs)
                named = [claim for _, claim in batch]
                arguments["jobs"] = named
            case "cleanup":
                call.delay = do.seconds
                arguments["age"] = timedelta(seconds=do.seconds)
            case _:
                pass
        return arguments, named

    def _enqueue_arguments(self, spec: JobSpec, call: Call) -> dict[str, object]:
        takes = self._queue.takes("enqueue")
        header = self._queue.max_attempts
        call.priority = spec.priority if "priority" in takes else 0
        call.delay = spec.delay if "delay" in takes else 0.0
        bound = header
        if "max_attempts" in takes:
            bound = spec.bound or header or DEFAULT_BOUND
        call.bound = bound if header is not None else None
        call.queue = spec.queue if "queue" in takes else "default"
        return {
            "queue": spec.queue,
            "payload": f'{{"call": {call.index}}}',
            "priority": call.priority,
            "delay": timedelta(seconds=call.delay),
            "max_attempts": bound or DEFAULT_BOUND,
        }

    def _finish(self, actor: _Actor, flight: _Flight, value: Any) -> None:  # noqa: ANN401
        """An operation has answered."""
        call = flight.call
        actor.flight = None
        actor.late = actor.late and flight.session.in_transaction
        self._read_answer(call, value)
        if flight.session.in_transaction:
            self._stays_open(actor, flight)
        elif call.kind in {"complete", "complete_many", "fail"}:
            actor.holding = False
        if call.kind == "claim":
            actor.claims += [(Ref(call.index, claim.id), claim) for claim in value]
        elif call.kind in {"complete", "fail"}:
            (actor.ended if call.answer == "accepted" else actor.lost).update(call.refs)
        elif call.kind == "heartbeat" and isinstance(value, Claim):
            actor.renewed.update(call.refs)
            renewed = [(ref, value if ref in call.refs else one) for ref, one in actor.claims]
            actor.claims[:] = renewed  # its second connection has them too
        elif call.kind == "complete_many" and call.answer == "accepted":
            actor.ended.update(ref for ref in call.refs if ref.job in call.ids)
        elif call.moved and flight.do.n < len(self._run.history.of_kind("enqueue")):
            # Until nothing is due any more; it may count what it does each time.
            actor.todo.appendleft(flight.do._replace(n=flight.do.n + 1))
        self._return(call)
        self._note(actor, "answer", self._told(call, value), call=call)

    def _read_answer(self, call: Call, value: Any) -> None:  # noqa: ANN401
        call.answer = "accepted"
        match call.kind:
            case "enqueue" | "recover":
                call.ids = tuple(value)
            case "claim":
                ids = [claim.id for claim in value]
                if told := flood(self._run.history.calls, call.limit, ids):
                    raise QueueError(told, self._queue.source_of("claim"))
                call.ids = tuple(dict.fromkeys(ids))
                call.repeated = tuple(i for n, i in enumerate(ids) if i in ids[:n])
            case "complete" | "fail" | "heartbeat":
                call.answer = "accepted" if value else "rejected"
            case "promote":
                call.moved = value or 0
            case "complete_many":
                call.answer = "unknown" if value is None else "accepted"
                call.ids = tuple(value or ())
            case "jobs":
                rows: list[JobRow] = value
                call.states = {row.id: row.state for row in rows}
                call.ids = tuple(row.id for row in rows)

    def _stays_open(self, actor: _Actor, flight: _Flight) -> None:
        """An operation ended inside a transaction: only a claim that got a job may."""
        call = flight.call
        if call.kind == "claim" and not call.ids and not self._lab.by_clients:
            self._roll_back(actor, flight)
        elif call.kind == "claim" and call.ids:
            call.held = actor.holding = True
        else:
            raise QueueError(
                f"{call.kind} leaves its transaction open: end it with COMMIT"
                + (", and answer when the database has" if self._lab.by_clients else ""),
                flight.step.source,
            )

    def _roll_back(self, actor: _Actor, flight: _Flight) -> None:
        flight.session.run("ROLLBACK")
        beat = Beat(actor.name, flight.call.index, "rollback", session=flight.session.name)
        self._run.trace.append(beat)

    def _fail(self, actor: _Actor, flight: _Flight, error: ServerError) -> None:
        """The server answered with an error: the operation is over, unless the queue goes on."""
        told = self._lab.by_clients and self._disturbed  # the program repeats what the fault did
        if error.sqlstate == _TERMINATED.sqlstate and not told:
            raise ConnectionLostError(f"{error}, during {flight.call.kind}")
        if error.sqlstate.startswith(_SERVER_TROUBLE) and not told:
            raise ServerUnavailableError(f"the server gave up in the middle of the run: {error}")
        if actor.cut_off:
            self._lose(actor, flight)
        else:
            self._abort(actor, flight, error)

    def _abort(self, actor: _Actor, flight: _Flight, error: ServerError) -> None:
        flight.holding, flight.wrapped, flight.cursor = None, False, None
        actor.late = False
        lost = actor.holding and flight.call.kind != "heartbeat"
        if flight.session.in_transaction:
            if self._lab.by_clients:
                raise QueueError(
                    f"{flight.call.kind} answered with an error ({error}) and left its transaction "
                    "open: a program ends what it began"
                )
            self._roll_back(actor, flight)
        flight.between = True
        try:
            flight.step = flight.generator.throw(error)
        except ServerError as unhandled:
            error = unhandled
        except StopIteration as stop:
            self._finish(actor, flight, stop.value)
            return
        else:
            return
        call = flight.call
        state = _DEADLOCK if flight.victim else error.sqlstate
        call.error = f"{state}: {'deadlock detected' if flight.victim else error.message}"
        call.answer = _answer_of_error(state, flight, self._retryable)
        actor.flight = None
        self._return(call)
        self._note(actor, "error", call.error, call=call)
        self._run.errors[call.index] = (error, flight.step)
        if lost:
            # The error rolled back the transaction that was the claim: the worker lost its job.
            self._crash(actor)

    def _return(self, call: Call) -> None:
        self._moment += 1
        call.returned, call.ended = self._moment, self._lab.now()

    def _instant(self, kind: str, actor: str) -> Call:
        """Record something that takes no time."""
        history = self._run.history
        self._moment += 1
        call = Call(len(history.calls), kind, actor, self._moment, self._lab.now())
        history.calls.append(call)
        call.answer = "accepted"
        self._return(call)
        return call

    def _advance(self, actor: _Actor, seconds: float) -> None:
        call = self._instant("advance", actor.name)
        call.delay = seconds
        self._lab.advance(seconds)
        self._note(actor, "clock", f"{seconds:g}", call=call)

    def _pass_time(self) -> None:
        """What goes on by itself while time passes, as far as nobody stands in its way.

        Due jobs are promoted, and workers that hold nothing beat. Those that hold something beat
        when the program says so: it may be about their lease.
        """
        if "promote" in self._queue.offers and not self._must_wait(Do("promote")):
            self._perform(self._actor(PROMOTER), Do("promote", whole=True))
        if not self._beats_idle:
            return
        known = {call.actor for call in self._run.history.of_kind("claim")}
        for actor in list(self._actors.values()):
            lives = actor.name in known or actor.identity in self._lab.started
            if lives and not actor.beside and not self._holds(actor):
                self._perform(actor, Do("heartbeat", len(actor.claims), whole=True))

    def _until(self, seconds: float) -> float:
        """How far the clock is from the moment before a limit, in tenths of a second."""
        began = [call.began for call in self._run.history.calls if _begins_a_limit(call)]
        left = (began[-1] if began else self._lab.now()) + seconds - MARGIN - self._lab.now()
        return max(0, int(left * 10)) / 10

    def _crash(self, actor: _Actor) -> None:
        """A worker's process dies: its connections close, and its name never acts again."""
        heartbeats = self._actors.get(f"{actor.name}{HEARTBEATS}")
        if heartbeats is not None and heartbeats.alive:
            self._crash(heartbeats)
        flight = actor.flight
        unfinished = self._unfinished(actor)
        if flight is not None:
            if (actor.blocked or flight.gated) and not self._lab.by_clients:
                flight.session.cancel()
            if flight.committed:
                flight.call.answer = "unknown"
        actor.alive, actor.blocked, actor.holding, actor.flight = False, False, False, None
        actor.todo.clear()
        if self.conditions.pooled:
            # PgBouncer closes what a dead client had a transaction open on. Locks and settings
            # that the client left in the sessions of others stay there.
            for session in unfinished:
                del self._owners[session.pid]
                self._lab.discard(session)
        else:
            for pid in [pid for pid, owner in self._owners.items() if owner is actor]:
                del self._owners[pid]
            for key in (actor.name, f"{actor.name}, second connection"):
                self._lab.drop(key)
        if not actor.beside:
            call = self._instant("crash", actor.name)
            self._note(actor, "crash", call=call)

    # --- faults ---------------------------------------------------------------------------------

    def _inflict(self, nemesis: _Actor, do: Do) -> None:
        victim = self._victim(nemesis, do)
        call = self._instant(do.kind, nemesis.name)
        self._disturbed = True
        match do.kind:
            case "lose":
                self._note(nemesis, "cut", victim.name, call=call)
                # The backend does not notice while it works or waits: what it does takes effect.
                victim.cut_off = True
            case "terminate":
                self._note(nemesis, "terminate", victim.name, call=call)
                self._hit("terminate", victim)
                for key in (victim.name, f"{victim.name}, second connection"):
                    self._lab.terminate(key)
                self._disconnect(victim, _TERMINATED)
            case _:
                self._note(nemesis, "restart", call=call)
                self._lab.restart()
                for actor in [actor for actor in self._actors.values() if actor.alive]:
                    self._hit("restart", actor)
                    self._disconnect(actor, _KILLED)

    def _hit(self, fault: str, actor: _Actor) -> None:
        """Record where a fault meets an actor: in the middle of an operation, or after one."""
        if actor.flight is not None:
            self._run.faults.append((fault, actor.flight.call.kind, actor.flight.sent))
            return
        calls = self._run.history.of_kind(*self._queue.offers)
        last = next((call.kind for call in reversed(calls) if call.actor == actor.name), None)
        if last is not None:
            self._run.faults.append((fault, f"after {last}", 0))

    def _lose(self, actor: _Actor, flight: _Flight) -> None:
        """The server has acted, and its answer does not arrive: nobody knows, and nobody asks."""
        self._hit("lose", actor)
        self._end_unheard(actor, flight)

    def _die(self, actor: _Actor, flight: _Flight, error: ProgramError) -> None:
        """A program has ended, of a fault if there was one: that is its own business.

        Raises:
            ProgramError: There was none.
        """
        if not self._disturbed:
            raise error
        self._end_unheard(actor, flight)

    def _end_unheard(self, actor: _Actor, flight: _Flight) -> None:
        flight.call.answer = "unknown"
        self._note(actor, "lost")
        actor.flight = None
        self._crash(actor)
        self._return(flight.call)

    def _disconnect(self, actor: _Actor, error: ServerError) -> None:
        """A worker's connections are gone: it sees an error, and connects anew."""
        released = (self._tied or actor.holding) and bool(actor.open_claims())
        for pid in [pid for pid, owner in self._owners.items() if owner is actor]:
            del self._owners[pid]
        flight = actor.flight
        if flight is not None:
            actor.blocked = flight.gated = False
            if self._lab.by_clients:  # which see it themselves, and go on
                self._await(actor, flight)
            else:
                flight.session = self._connection(actor, flight.call)
                self._abort(actor, flight, error)
        if released and actor.alive:
            self._crash(actor)

    @staticmethod
    def _unfinished(actor: _Actor) -> list[Session]:
        """The connections on which an actor has a transaction open."""
        found = [actor.pooled] if actor.holding and actor.pooled else []
        if actor.flight is not None and not actor.flight.between:
            found.append(actor.flight.session)
        return [session for session in dict.fromkeys(found) if session.in_transaction]

    # --- deadlocks ------------------------------------------------------------------------------

    def _break_deadlock(self) -> bool:
        """Cancel one of those that wait in a circle; whether there was such a circle.

        The victim is always the one that joined the program last: Postgres' own choice depends on
        its timers, and replays would differ.
        """
        circle = self._circle()
        if not circle:
            return False
        victim = circle[-1]
        flight = victim.flight
        assert flight is not None
        # A heartbeat that waits for its own worker's transaction stands alone in its circle.
        flight.victim = len(circle) > 1
        flight.session.cancel()
        victim.blocked = False
        self._receive(victim, flight)
        self._settle_blocked()
        return True

    def _circle(self) -> list[_Actor]:
        waiting = {
            actor.name: {
                other.name for other in self._known(self._lab.blockers(actor.flight.session))
            }
            for actor in self._actors.values()
            if actor.blocked and actor.flight
        }
        return [self._actors[name] for name in waiting if name in _reachable(waiting, name)]

    # --- the end of a run -----------------------------------------------------------------------

    def _perform(self, actor: _Actor, do: Do) -> Call | None:
        """One operation from beginning to end; None where it has no subject or is still waiting.

        A promotion goes on until it moves nothing more.
        """
        if not actor.alive or actor.flight is not None or not self._possible(actor, do):
            return None
        index, later = len(self._run.history.calls), len(actor.todo)
        actor.todo.appendleft(do)
        while len(actor.todo) > later:
            self._go_on(actor)
            self._run_out(actor)
            if actor.flight is not None:
                return None
        return self._run.history.calls[index]

    def _run_out(self, actor: _Actor) -> None:
        """Bring the actor's operation to its end, if nobody stands in its way."""
        while actor.flight is not None and not actor.blocked:
            self._go_on(actor)
        self._settle_blocked()

    def _drain(self) -> None:
        """End what is open, then claim and complete until every job has come out."""
        self._finish_open()
        drainer = self._actor(DRAINER)
        moves = [0.0]
        if self._lease is not None:
            moves.append(past(self._lease))
        moves += [HOUR, DAY, 40 * DAY, DECADE]
        for seconds in moves:
            if seconds:
                self._advance(drainer, seconds)
                self._pass_time()
            if not self._sweep(drainer):
                break

    def _finish_open(self) -> None:
        """Live workers complete what they hold; those that cannot are gone."""
        workers = [actor for actor in self._actors.values() if actor.claims or actor.flight]
        for _ in workers:  # ending one may let another go on
            for actor in workers:
                self._run_out(actor)
                for nth in actor.open_claims() if not actor.beside else ():
                    for _ in range(RETRIES):
                        call = self._complete(actor, nth)
                        if call is None or call.answer not in {"retry", "error"}:
                            break
        for actor in workers:
            able = not self._queue.offers.isdisjoint({"complete", "complete_many"})
            unfinished = actor.open_claims() and not able and not actor.beside
            if actor.alive and (actor.blocked or actor.holding or unfinished):
                self._crash(actor)
                self._settle_blocked()

    def _complete(self, actor: _Actor, nth: int) -> Call | None:
        """Complete a claimed job, in its batch where the queue completes in batches only."""
        ref = actor.claims[nth][0]
        if "complete" in self._queue.offers or "complete_many" not in self._queue.offers:
            return self._perform(actor, Do("complete", nth))
        if ref in actor.ended:
            return None  # the batch of another job
        calls = list(dict.fromkeys(claimed.call for claimed, _ in actor.claims))
        return self._perform(actor, Do("complete_many", calls.index(ref.call)))

    def _sweep(self, drainer: _Actor) -> bool:
        """Maintain and claim until nothing more comes; whether a job may still come out later.

        A claim may do maintenance of its own, or end a spent job and answer nothing
        (queue-file.md, 28): what comes back empty has not said that there is nothing.
        """
        began = self._lab.now()
        empty = 0
        first = len(drainer.claims)
        for _ in range(DRAIN_CLAIMS):
            if len(drainer.claims) - first >= DRAIN_CLAIMS:
                break  # it answers the same jobs for ever
            moved = self._maintain(drainer)
            got = [self._empty(drainer, queue) for queue in self._queues]
            before = self._states
            outstanding = self._outstanding(drainer)
            changed = before is not None and before != self._states
            empty = 0 if changed else 1 if moved or any(got) else empty + 1
            if not outstanding or empty >= self._enough():
                break
        sweep = self._instant("sweep", drainer.name)
        sweep.began = began
        return outstanding

    def _enough(self) -> int:
        """After how many empty claims in a row there is nothing more to be had."""
        if self._states is not None and "queued" not in self._states.values():
            return 1  # what a claim does to a running job shows
        claimed = {job for call in self._run.history.of_kind("claim") for job in call.ids}
        if self._states is None:
            return EMPTY + len(claimed - self._done())
        return EMPTY + sum(self._states.get(job) == "running" for job in claimed)

    def _maintain(self, drainer: _Actor) -> bool:
        """Recover and promote until neither changes anything; whether a recovery did."""
        found = False
        refused = 0
        for _ in range(DRAIN_CLAIMS if "recover" in self._queue.offers else 0):
            recovered = self._perform(drainer, Do("recover"))
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
        self._perform(drainer, Do("promote"))
        return found

    def _empty(self, drainer: _Actor, queue: str) -> bool:
        """Claim and complete until nothing more comes; whether anything did."""
        refused = 0
        first = len(drainer.claims)
        for _ in range(DRAIN_CLAIMS):
            before = len(drainer.claims)
            call = self._perform(drainer, Do("claim", self._batch_size, queue=queue))
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

    def _outstanding(self, drainer: _Actor) -> bool:
        """Whether a job may still come out."""
        if "jobs" in self._queue.offers:
            call = self._perform(drainer, Do("jobs"))
            if call is not None and call.states is not None:
                self._run.history.final = self._states = call.states
                listed = any(state in {"queued", "running"} for state in call.states.values())
                return listed or self._leaves_out(call.states)
        history = self._run.history
        enqueued = {job for call in history.of_kind("enqueue") for job in call.ids}
        return bool(enqueued - self._done())

    def _done(self) -> set[str]:
        """The jobs whose completion was accepted."""
        return {
            ref.job
            for call in self._run.history.of_kind("complete", "complete_many")
            if call.answer == "accepted"
            for ref in call.refs
        }

    def _leaves_out(self, states: Mapping[str, State]) -> bool:
        """Whether a list lacks a job that nothing has ended: it is lost, or the list is wrong."""
        if self._disturbed:
            return False
        unseen = set[str]()
        for call in self._run.history.calls:
            if call.kind == "enqueue":
                unseen.update(call.ids)
            elif call.kind == "cleanup":
                unseen.clear()
            elif call.kind == "recover":
                unseen.difference_update(call.ids)
            elif call.kind in {"complete", "complete_many", "fail"} and call.answer == "accepted":
                unseen.difference_update(ref.job for ref in call.refs)
        return not unseen <= states.keys()

    # --- the trace ------------------------------------------------------------------------------

    def _note(self, actor: _Actor, event: str, text: str = "", call: Call | None = None) -> None:
        flight = actor.flight
        if call is None and flight is not None:
            call = flight.call
        session = flight.session.name if flight else ""
        step = flight.step if flight and event == "sql" else None
        index = call.index if call else -1
        self._run.trace.append(Beat(actor.name, index, event, text, session, step))

    def _note_stop(self, actor: _Actor, flight: _Flight) -> None:
        where = self.conditions.gate
        if where == "every":
            where = "row" if self._lab.is_at_row(flight.session) else "statement"
        self._note(actor, "stops", where or "statement")

    @staticmethod
    def _told(call: Call, value: Any) -> str:  # noqa: ANN401
        match call.kind:
            case "claim":
                if not value:
                    return "nothing"
                return ", ".join(_describe(claim) for claim in value)
            case "enqueue":
                return f"job {', '.join(call.ids)}"
            case "recover":
                return f"job {', '.join(call.ids)}" if call.ids else "nothing"
            case "promote":
                return f"{call.moved} jobs" if call.moved else "done"
            case "complete_many" if call.answer == "accepted":
                return f"job {', '.join(call.ids)} accepted" if call.ids else "rejected"
            case "jobs":
                states = call.states or {}
                return ", ".join(f"job {job}: {state}" for job, state in states.items())
            case _:
                return call.answer


def _begins_a_limit(call: Call) -> bool:
    """Whether a delay, a lease or a backoff is counted from a call."""
    if call.kind in {"enqueue", "claim"}:
        return bool(call.ids)
    return call.kind in {"heartbeat", "fail"} and call.answer == "accepted" and bool(call.refs)


def _reachable(waiting: Mapping[str, set[str]], start: str) -> set[str]:
    """Everybody whom an actor waits for, directly or through others."""
    reached: set[str] = set()
    frontier = set(waiting[start])
    while frontier:
        name = frontier.pop()
        reached.add(name)
        frontier |= waiting.get(name, set()) - reached
    return reached


def _describe(claim: Claim) -> str:
    shown = [
        f"{name} {value}"
        for name, value in claim.token.items()
        if name in {"attempt", "attempts", "try", "tries"}
    ]
    return f"job {claim.id}" + (f" ({', '.join(shown)})" if shown else "")


def _answer_of_error(sqlstate: str, flight: _Flight, retry_on: frozenset[str]) -> Answer:
    if sqlstate in retry_on:
        return "retry"
    return "unknown" if flight.committed else "error"
