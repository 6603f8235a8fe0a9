"""The course of one run: its stages, who goes on, and each step from sending to answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, assert_never

from queueproof import waits
from queueproof.errors import QueueError, RaisedError, ServerError, ServerUnavailableError
from queueproof.history.calls import Answer, Call, LockWait, Ref
from queueproof.judge.answers import flood
from queueproof.queues.model import FAILURE, Claim, Result, Step
from queueproof.queues.sqltext import first_keyword, only_selects
from queueproof.queues.worker import WorkerError
from queueproof.run.actors import Actor, Flight, reachable
from queueproof.run.answers import enqueue, in_order, mistaken, read_answer, told
from queueproof.run.lab import Lab
from queueproof.run.record import Beat, Choice
from queueproof.run.session import ConnectionLostError, execute, unanswered
from queueproof.run.state import RunState, Terms
from queueproof.schedule.actors import DRAINER, PROMOTER, identity
from queueproof.schedule.moments import APART
from queueproof.schedule.programs import (
    FAULTS,
    HEARTBEATS,
    START,
    Do,
    FaultKind,
    JobSpec,
    OperationKind,
    Program,
)

FIRST_LOOK = 0.001  # seconds; most statements answer sooner, and nobody asks who blocks them
ALONE_LOOK = 0.005  # the same, where nobody else is in the middle of anything
LAST_LOOK = 0.002  # each look waits twice as long as the one before, and at most this

_DEADLOCK = "40P01"
_TERMINATED = ServerError("57P01", "terminating connection due to administrator command")
_KILLED = ServerError("08006", "server closed the connection unexpectedly")
# No disk, no memory, shutting down, I/O error: nothing that an operation of a queue has done.
_SERVER_TROUBLE = ("53", "57P", "58")

# Statements that take no lock and show nothing: no worker can act differently after them. What a
# worker process is asked to do is no statement at all.
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


class Execution:
    """One run under a schedule, from the first enqueue to the end of its last stage."""

    def __init__(self, lab: Lab, terms: Terms, program: Program, schedule: Sequence[int]) -> None:
        self.state = RunState(lab, terms, program)
        self.lab = lab
        self.queue = lab.queue
        self._terms = terms
        self._conditions = terms.conditions
        self._program = program
        self._schedule = deque(schedule)
        self._declaring = self._conditions.gate in {"query", "every"} and "query" in lab.gates
        self._alone = False  # whoever acts: nobody could do anything before its commit

    def go_through(self) -> None:
        """Enqueue the program's jobs, and have its stages follow one another."""
        program = self._program
        names = dict.fromkeys([*(name for stage in program.stages for name, _ in stage), DRAINER])
        later = {name for stage in program.stages for name, dos in stage if START in dos}
        self.lab.prepare(name for name in names if name not in later)
        for name in names:
            if identity(name) in self.lab.started:
                self.state.actor(name)  # which lives, and beats, before it does anything
        for specs in program.batches:
            self._enqueue(specs)
        if program.jobs and "promote" in self.queue.offers:
            self.perform(self.state.actor(PROMOTER), Do("promote"))
        for number, stage in enumerate(program.stages):
            self._let_arrive(stage)
            self._split(split=self._terms.split and len(stage) > 1)
            self._stage(number, stage)
        self._split(split=False)

    def _split(self, *, split: bool) -> None:
        """Have operations stop between their statements and inside them, or not any more."""
        if split != self.state.splitting:
            self.state.splitting = split
            self.lab.stops = split

    def _enqueue(self, specs: Sequence[JobSpec]) -> None:
        """Enqueue jobs; several in one transaction of the producer's, where its SQL allows that."""
        producer = self.state.actor("producer")
        joined = len(specs) > 1 and self.queue.joins_transactions and not self._conditions.pooled
        if not joined:
            self._enqueue_each(producer, specs)
            return
        record = self.state.record
        made, told = len(record.history.calls), len(record.trace)
        self._space_out()
        self.state.stands_at = self.lab.now()
        session = self.lab.session(producer.name)
        session.run("BEGIN")
        self._enqueue_each(producer, specs)
        self.state.stands_at = None
        if session.in_transaction:
            session.run("COMMIT")
            return
        # An error has undone all of them: a key that is a time, for one. Each for itself, then.
        for index in range(made, len(record.history.calls)):
            record.errors.pop(index, None)
        del record.history.calls[made:], record.trace[told:]
        self._enqueue_each(producer, specs)

    def _enqueue_each(self, producer: Actor, specs: Sequence[JobSpec]) -> None:
        for spec in specs:
            self.state.reserve.appendleft(spec)
            self.perform(producer, Do("enqueue"))

    def _space_out(self) -> None:
        """Have real time decide nothing about the order of what is enqueued one by one."""
        made = any(call.kind == "enqueue" for call in self.state.record.history.calls)
        if made and self.queue.order.endswith("fifo") and self.state.stands_at is None:
            self.lab.advance(APART)  # told nowhere: it is what else lies between two enqueues

    def _let_arrive(self, stage: Iterable[tuple[str, tuple[Do, ...]]]) -> None:
        """Have real time decide nothing about who finds what was enqueued a moment ago.

        A queue may keep milliseconds, and round them up. Nobody is told of it, as between two
        enqueues; where a transaction is open it would cost all plans.
        """
        calls = self.state.record.history.calls
        fresh = bool(calls) and calls[-1].kind in {"enqueue", "promote"}
        if fresh and not self.lab.is_busy and all(name != "clock" for name, _ in stage):
            self.lab.advance(APART)

    def _stage(self, number: int, stage: Iterable[tuple[str, tuple[Do, ...]]]) -> None:
        acting = []
        for name, dos in stage:
            acting.append(self.state.actor(name))
            acting[-1].todo.extend(dos)
        last: Actor | None = None
        while True:
            able = [actor for actor in acting if self.state.able(actor)]
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
                inside = going_on and able[0].flight is not None and able[0].flight.gated
                choice = Choice(len(able), taken, going_on, number, inside)
                self.state.record.choices.append(choice)
            last = able[taken]
            others = (other.flight for other in acting if other is not last)
            self._alone = len(able) == 1 and not any(others)
            self._go_on(last)
            self.settle_blocked()
            while last.flight is not None and last.flight.whole and not last.blocked:
                self._go_on(last)
                self.settle_blocked()

    def _go_on(self, actor: Actor) -> None:
        for other in self.state.actors.values():
            if other is not actor and other.flight is not None:
                other.flight.stale = True
        flight = actor.flight
        if flight is None:
            flight = self._do(actor, actor.todo.popleft())
            if flight is None:
                return
        if flight.gated:
            self.state.note(actor, "goes on")
            self._pass_gate(actor, flight)
            return
        if flight.uncommitted is not None:
            self.state.note(actor, "commit")
            self._launch(actor, flight, Step("COMMIT"))
            return
        while True:
            step = flight.step
            keyword = first_keyword(step.sql)
            if flight.between and self._conditions.pooled:
                flight.session = self.state.next_of_pool(actor, flight.call)
                flight.between = False
            inside = flight.session.in_transaction or not self.lab.ends_transactions
            wraps = flight.split and not inside and keyword in _HOLDABLE
            flight.wrapped = wraps and not self._alone
            flight.sent += wraps and not flight.wrapped  # its commit goes with it
            if step.commits:
                self.state.note(actor, "commit")
            elif step.request is None:
                self.state.note(actor, "sql", step.sql)
            self._launch(actor, flight, step)
            if actor.flight is not flight or actor.blocked or flight.gated or keyword not in _QUIET:
                return

    def _do(self, actor: Actor, do: Do) -> Flight | None:
        """Begin an operation, or do what takes no time."""
        match kind := do.kind:
            case "crash":
                self.crash(self.state.victim(actor, do))
            case "advance":
                self._let_pass(actor, do, do.seconds)
            case "until":
                self._let_pass(actor, do, *self.state.until(do.seconds))
            case "align":
                self._let_pass(actor, do, self.lab.until_aligned(), 0.0)
            case "rewrite":
                self.lab.tables.rewrite()
                self.state.note(actor, "rewrite", call=self.state.instant("rewrite", actor.name))
            case "lose" | "terminate" | "restart":
                self._inflict(actor, kind, self.state.victim(actor, do))
            case _:
                return self._begin(actor, do, kind)
        return None

    def _let_pass(self, actor: Actor, do: Do, seconds: float, told: float | None = None) -> None:
        self.advance(actor, seconds, told)
        self.pass_time(promotes=not do.whole)

    def _launch(self, actor: Actor, flight: Flight, step: Step) -> None:
        begin = flight.wrapped and not flight.session.in_transaction
        stops = self._declaring and flight.split and not self._alone
        if stops and only_selects(step.sql):  # in a transaction, as a cursor must be
            flight.cursor = "declared"
            step = step._replace(sql=_DECLARE + step.sql)
        try:
            flight.session.send(step, begin=begin)
        except WorkerError as error:
            self._die(actor, flight, error)
            return
        flight.sent += 1
        flight.stale = False
        self._await(actor, flight)

    def _pass_gate(self, actor: Actor, flight: Flight) -> None:
        flight.gated = False
        actor.late = actor.late or flight.stale
        if flight.cursor == "declared":
            flight.cursor = "fetched"
            flight.session.send(Step(_FETCH))
        else:
            self.lab.open_gate(flight.session)
        self._await(actor, flight)

    def _await(self, actor: Actor, flight: Flight) -> None:
        """Settle a running statement: it answers, stops at a gate, or waits for somebody."""
        if self._settle(flight, FIRST_LOOK if self.state.may_stop(actor) else ALONE_LOOK):
            self._receive(actor, flight)
        elif flight.gated:
            self.state.note_stop(actor, flight)
        else:
            actor.blocked = True
            blockers = self.state.known(flight.blockers)
            for other in blockers:
                call = other.flight.call.index if other.flight else None
                for one in flight.calls:
                    one.waits += (LockWait(other.name, call, flight.stale or other.late),)
            self.state.note(actor, "waits", " and ".join(other.name for other in blockers))

    def _settle(self, flight: Flight, look: float = 0.0) -> bool:
        """Wait until a session has answered (True), or has stopped or waits for another (False).

        Args:
            look: Seconds until somebody asks whom it waits for; none for one that has waited.
        """
        session = flight.session
        limit: waits.Limit | None = None
        while not session.ready(look):
            pids = [] if session.said else self.lab.blockers(session)
            # What it has not said yet would be heard at the next gate, which it has not reached.
            if session.said or (self.lab.control_pid in pids and not session.gate):
                if flight.split:
                    flight.gated = True
                    return False
                self.lab.open_gate(session)
            if any(self.state.owner(pid) for pid in pids):
                flight.blockers = pids
                return False
            look = min(max(2 * look, FIRST_LOOK), LAST_LOOK)
            limit = limit or waits.Limit(waits.STATEMENT, flight.call.kind)
            if limit.is_over():
                raise unanswered(self.lab.shown(flight.step), limit.seconds, flight.call.kind)
        return True

    def settle_blocked(self) -> None:
        """Let actors go on whose locks were released, until nothing changes any more."""
        waiting = sum(actor.blocked for actor in self.state.actors.values())
        changed = True
        while changed:
            changed = False
            for actor in self.state.actors.values():
                flight = actor.flight
                if not actor.blocked or flight is None:
                    continue
                answered = self._settle(flight)
                if not (answered or flight.gated):
                    continue
                actor.blocked, changed = False, True
                if waiting > 1 and self.state.record.certain is None:
                    self.state.record.certain = len(self.state.record.choices)
                if answered:
                    self.state.note(actor, "goes on")
                    self._receive(actor, flight)
                else:
                    self.state.note_stop(actor, flight)

    def _receive(self, actor: Actor, flight: Flight) -> None:
        """Take a statement's answer; bring the operation to its next statement or its end."""
        try:
            result = flight.session.result()
        except ServerError as error:
            self._fail(actor, flight, error)
            return
        except WorkerError as error:
            self._die(actor, flight, error)
            return
        if flight.cursor == "declared":
            if self._conditions.isolation or self.lab.tables.read_by(flight.session):
                flight.gated = True
                self.state.note_stop(actor, flight)
            else:  # at most a function, whose statements have snapshots of their own
                self._pass_gate(actor, flight)
            return
        if flight.cursor == "fetched":
            flight.session.run(_CLOSE)
            flight.cursor = None
            result = replace(result, command="SELECT")
        if flight.uncommitted is not None:
            result, flight.uncommitted, flight.wrapped = flight.uncommitted, None, False
            flight.committed += 1
        elif flight.wrapped:
            result = replace(result, in_transaction=False)
            if not self._harmless(flight, result):
                flight.uncommitted = result
                self.state.note(actor, "done")
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
            self.state.note(actor, "done")
        try:
            flight.step = flight.generator.send(result)
        except StopIteration as stop:
            self._finish(actor, flight, stop.value)
        except ServerError as error:
            self._fail(actor, flight, error)
        else:
            self.state.note_read(flight, result)

    def _harmless(self, flight: Flight, result: Result) -> bool:
        """True if a statement neither wrote nor locked: then its commit shows nothing."""
        if result.affected and result.command != "SELECT":
            return False
        # What answered nothing got no lock by trying; and pg_locks takes longer than the rest.
        asked = _UNWRITTEN if not result.rows else f"{_UNWRITTEN} AND {_NO_ADVISORY_LOCK}"
        (row,) = execute(flight.session, Step(asked)).rows
        return next(iter(row.values())).text == b"t"

    def _begin(
        self, actor: Actor, do: Do, kind: OperationKind | Literal["complete_and_claim"]
    ) -> Flight | None:
        """Invoke an operation, up to its first statement."""
        if kind == "enqueue":
            self._space_out()
        self.state.moment += 1
        call = self.state.invoke("complete_many" if kind == "complete_and_claim" else kind, actor)
        arguments = self._arguments(actor, do, call)
        claim = None
        if kind == "complete_and_claim":
            claim = self.state.invoke("claim", actor)
            claim.limit, claim.queue = call.limit, do.queue
        generator = self.lab.start(kind, actor.name, **arguments)
        if kind == "start":
            self.lab.started.add(actor.identity)
        self.state.note(actor, "start", call=call)
        session = self.state.connection(actor, call)
        split = self.state.splitting and not do.whole
        flight = Flight(call, session, generator, Step(""), do, split, do.whole, claim=claim)
        actor.flight = flight
        try:
            flight.step = next(generator)
        except StopIteration as stop:
            self._finish(actor, flight, stop.value)
            return None
        return flight

    def _arguments(self, actor: Actor, do: Do, call: Call) -> dict[str, object]:
        arguments: dict[str, object] = {"queue": do.queue, "worker": actor.identity}
        if self.queue.lease_time is not None:
            arguments["lease"] = self.queue.lease_time
        match do.kind:
            case "enqueue":
                arguments |= enqueue(call, self.queue, self.state.reserve.popleft())
            case "claim":
                limit = self.queue.most("claim", do.limit, held=self._terms.held)
                call.limit = arguments["limit"] = limit
                call.queue = do.queue
            case "heartbeat" if not actor.has(do.job):
                pass
            case "complete" | "fail" | "heartbeat":
                ref, claim = actor.claims[do.job]
                call.refs, call.token = (ref,), actor.renewed[ref]
                arguments |= {"job": claim, "error": FAILURE}
            case "complete_many" | "complete_and_claim":
                batch = actor.batch(do.batch, do.part)
                if do.kind == "complete_and_claim":
                    limit = self.queue.most(do.kind, len(batch), held=self._terms.held)
                    call.limit = arguments["limit"] = limit
                call.refs = tuple(ref for ref, _ in batch)
                call.token = min(actor.renewed[ref] for ref in call.refs)
                arguments["jobs"] = [claim for _, claim in batch]
            case "cleanup":
                call.delay = do.seconds
                arguments["age"] = timedelta(seconds=do.seconds)
            case _:
                pass
        return arguments

    def _finish(self, actor: Actor, flight: Flight, value: Any) -> None:  # noqa: ANN401 - any answer of an operation
        """An operation has answered."""
        actor.flight = None
        actor.late = actor.late and flight.session.in_transaction
        values = (value,) if flight.claim is None else value
        for call, own in zip(flight.calls, values, strict=True):
            self._answered(actor, flight, call, own)

    def _answered(self, actor: Actor, flight: Flight, call: Call, value: Any) -> None:  # noqa: ANN401 - any answer of an operation
        if call.kind == "claim":
            history, ids = self.state.record.history, [claim.id for claim in value]
            wrong = flood(history.calls, call.limit, ids) or mistaken(history.calls, value)
            if wrong:
                raise QueueError(wrong, self.queue.source_of(flight.do.kind))
            value = in_order(history.of_kind("enqueue"), value)
        read_answer(call, value)
        if flight.session.in_transaction and self.state.stands_at is None:
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
        elif call.moved and flight.do.again < len(self.state.record.history.of_kind("enqueue")):
            # Until nothing is due any more; it may count what it does each time.
            actor.todo.appendleft(flight.do._replace(again=flight.do.again + 1))
        self.state.end(call)
        self.state.note(actor, "answer", told(call, value), call=call)

    def _stays_open(self, actor: Actor, flight: Flight) -> None:
        """An operation ended inside a transaction: only a claim that got a job may."""
        call = flight.call
        if call.kind == "claim" and not call.ids and self.lab.ends_transactions:
            self._roll_back(actor, flight)
        elif call.kind == "claim" and call.ids:
            call.held = actor.holding = True
        else:
            raise QueueError(
                f"{flight.do.kind} leaves its transaction open: end it with COMMIT"
                + ("" if self.lab.ends_transactions else ", and answer when the database has"),
                flight.step.source,
            )

    def _roll_back(self, actor: Actor, flight: Flight) -> None:
        flight.session.run("ROLLBACK")
        beat = Beat(actor.name, flight.call.index, "rollback", session=flight.session.name)
        self.state.record.trace.append(beat)

    def _fail(self, actor: Actor, flight: Flight, error: ServerError) -> None:
        """The server answered with an error: the operation is over, unless the queue goes on."""
        repeated = self.lab.reconnects and self.state.disturbed  # what the fault did, by the worker
        said = "" if repeated or isinstance(error, RaisedError) else error.sqlstate
        if said == _TERMINATED.sqlstate:
            raise ConnectionLostError(f"{error}, during {flight.call.kind}")
        if said.startswith(_SERVER_TROUBLE):
            raise ServerUnavailableError(f"the server gave up in the middle of the run: {error}")
        if actor.cut_off:
            self._lose(actor, flight)
        else:
            self._abort(actor, flight, error)

    def _abort(self, actor: Actor, flight: Flight, error: ServerError) -> None:
        flight.uncommitted, flight.wrapped, flight.cursor = None, False, None
        actor.late = False
        lost = actor.holding and flight.call.kind != "heartbeat"
        if flight.session.in_transaction:
            if not self.lab.ends_transactions:
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
        state = _DEADLOCK if flight.victim else error.sqlstate
        actor.flight = None
        for call in flight.calls:
            call.error = f"{state}: {'deadlock detected' if flight.victim else error.message}"
            call.answer = _answer_of_error(state, flight, self._terms.retryable)
            self.state.end(call)
            self.state.record.errors[call.index] = (error, flight.step)
        self.state.note(actor, "error", flight.call.error, call=flight.call)
        if lost:
            # The error rolled back the transaction that was the claim: the worker lost its job.
            self.crash(actor)

    def advance(self, actor: Actor, seconds: float, told: float | None = None) -> None:
        """Move the database's clock; a story may be told another span, 0 for about a second."""
        call = self.state.instant("advance", actor.name, delay=seconds if told is None else told)
        self.lab.advance(seconds)
        self.state.note(actor, "clock", f"{seconds:g}", call=call)

    def pass_time(self, *, promotes: bool = True) -> None:
        """Do what happens by itself while time passes, unless it would have to wait.

        Due jobs are promoted, and workers that hold nothing beat. Those that hold something beat
        when the program says so: it may be about their lease.
        """
        promotes = promotes and "promote" in self.queue.offers
        if promotes and not self.state.must_wait(Do("promote")):
            self.perform(self.state.actor(PROMOTER), Do("promote", whole=True))
        if not self._terms.beats_idle:
            return
        known = {call.actor for call in self.state.record.history.of_kind("claim")}
        for actor in list(self.state.actors.values()):
            lives = actor.name in known or actor.identity in self.lab.started
            if lives and not actor.beside and not actor.holds:
                self.perform(actor, Do("heartbeat", job=len(actor.claims), whole=True))

    def crash(self, actor: Actor) -> None:
        """A worker's process dies: its connections close, and its name never acts again."""
        heartbeats = self.state.actors.get(f"{actor.name}{HEARTBEATS}")
        if heartbeats is not None and heartbeats.alive:
            self.crash(heartbeats)
        flight = actor.flight
        unfinished = actor.unfinished()
        if flight is not None:
            if actor.blocked or flight.gated:
                self.lab.interrupt(flight.session)
            for call in flight.calls if flight.committed else ():
                call.answer = "unknown"
        actor.alive, actor.blocked, actor.holding, actor.flight = False, False, False, None
        actor.todo.clear()
        if self._conditions.pooled:
            # PgBouncer closes what a dead client had a transaction open on. Locks and settings
            # that the client left in the sessions of others stay there.
            self.state.disown(actor, unfinished)
            for session in unfinished:
                self.lab.discard(session)
        else:
            self.state.disown(actor)
            for key in (actor.name, f"{actor.name}, second connection"):
                self.lab.drop(key)
        if not actor.beside:
            call = self.state.instant("crash", actor.name)
            self.state.note(actor, "crash", call=call)

    def _inflict(self, nemesis: Actor, kind: FaultKind, victim: Actor) -> None:
        about = "" if FAULTS[kind].of_server else victim.name
        self.state.note(nemesis, "fault", about, call=self.state.instant(kind, nemesis.name))
        self.state.disturbed = True
        match kind:
            case "lose":
                # The backend does not notice while it works or waits: what it does takes effect.
                victim.cut_off = True
            case "terminate":
                self._hit("terminate", victim)
                for key in (victim.name, f"{victim.name}, second connection"):
                    self.lab.terminate(key)
                self._disconnect(victim, _TERMINATED)
            case "restart":
                self.lab.restart()
                for actor in [actor for actor in self.state.actors.values() if actor.alive]:
                    self._hit("restart", actor)
                    self._disconnect(actor, _KILLED)
            case _:
                assert_never(kind)

    def _hit(self, fault: FaultKind, actor: Actor) -> None:
        """Record where a fault meets an actor: in the middle of an operation, or after one."""
        if actor.flight is not None:
            self.state.record.faults.append((fault, actor.flight.call.kind, actor.flight.sent))
            return
        for call in reversed(self.state.record.history.calls):
            if call.kind in self.queue.offers and call.actor == actor.name:
                self.state.record.faults.append((fault, f"after {call.kind}", 0))
                return

    def _lose(self, actor: Actor, flight: Flight) -> None:
        """The server has acted, and its answer is lost: the worker never learns of it."""
        self._hit("lose", actor)
        self._end_unheard(actor, flight)

    def _die(self, actor: Actor, flight: Flight, error: WorkerError) -> None:
        """A worker process has ended. After a fault it may; otherwise it is an error."""
        if not self.state.disturbed:
            raise error
        self._end_unheard(actor, flight)

    def _end_unheard(self, actor: Actor, flight: Flight) -> None:
        for call in flight.calls:
            call.answer = "unknown"
        self.state.note(actor, "lost")
        actor.flight = None
        self.crash(actor)
        for call in flight.calls:
            self.state.end(call)

    def _disconnect(self, actor: Actor, error: ServerError) -> None:
        """A worker's connections are gone: it sees an error, and connects anew."""
        released = (self._terms.tied or actor.holding) and bool(actor.open_claims())
        self.state.disown(actor)
        flight = actor.flight
        if flight is not None:
            actor.blocked = flight.gated = False
            if self.lab.reconnects:
                self._await(actor, flight)
            else:
                flight.session = self.state.connection(actor, flight.call)
                self._abort(actor, flight, error)
        if released and actor.alive:
            self.crash(actor)

    def _break_deadlock(self) -> bool:
        """Cancel one of the actors of a deadlock; False where there is none.

        The victim is always the one that joined the program last: Postgres' own choice depends on
        its timers, and replays would differ.
        """
        waiting = {
            actor.name: {
                other.name for other in self.state.known(self.lab.blockers(actor.flight.session))
            }
            for actor in self.state.actors.values()
            if actor.blocked and actor.flight
        }
        circle = [name for name in waiting if name in reachable(waiting, name)]
        if not circle:
            return False
        victim = self.state.actors[circle[-1]]
        flight = victim.flight
        assert flight is not None
        # A heartbeat that waits for its own worker's transaction stands alone in its circle.
        flight.victim = len(circle) > 1
        flight.session.cancel()
        victim.blocked = False
        self._receive(victim, flight)
        self.settle_blocked()
        return True

    def perform(self, actor: Actor, do: Do) -> Call | None:
        """One operation from beginning to end; None where it has no subject or is still waiting.

        A promotion goes on until it moves nothing more.
        """
        if not actor.alive or actor.flight is not None or not self.state.possible(actor, do):
            return None
        index, later = len(self.state.record.history.calls), len(actor.todo)
        actor.todo.appendleft(do)
        while len(actor.todo) > later:
            self._go_on(actor)
            self.run_out(actor)
            if actor.flight is not None:
                return None
        return self.state.record.history.calls[index]

    def run_out(self, actor: Actor) -> None:
        """Bring an actor's operation to its end, unless it has to wait for somebody."""
        while actor.flight is not None and not actor.blocked:
            self._go_on(actor)
        self.settle_blocked()


def _answer_of_error(sqlstate: str, flight: Flight, retry_on: frozenset[str]) -> Answer:
    if sqlstate in retry_on:
        return "retry"
    return "unknown" if flight.committed else "error"
