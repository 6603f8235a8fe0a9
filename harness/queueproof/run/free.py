"""Free runs: one process per worker and no scheduler, with faults at chosen steps.

What a worker does next depends on the seed and on what it was answered; who comes first is up to
the operating system. Each operation is an interval, and the history is checked by intervals, so
that nothing is told which any order of the operations explains. A run is bounded by its jobs and
operations, not by time, and cannot be replayed: it is a last line behind controlled runs.
"""

from __future__ import annotations

import os
import random
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, assert_never

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queueproof import waits
from queueproof.errors import QueueError, QueueproofError, ServerError
from queueproof.history.calls import Call, CallKind, History, Ref
from queueproof.judge.checker import CheckResult, Declared, Violation, check
from queueproof.queues.model import FAILURE, OPERATIONS, Claim, Queue, State
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import SqlFileQueue, load
from queueproof.queues.worker import Json, WorkerError, WorkerQueue
from queueproof.run.answers import enqueue_arguments, read_answer, record_enqueue
from queueproof.run.drain import DRAIN_BATCH, EMPTY, RETRIES, moves
from queueproof.run.host import describe
from queueproof.run.lab import DEFAULT_BOUND, Lab
from queueproof.run.open import twin_of
from queueproof.run.places import (
    ANSWERED,
    ASKED,
    AT_WORK,
    BETWEEN,
    SEVERAL,
    ClaimedJob,
    FreeFault,
    Leftover,
    Pause,
    Pending,
    Strike,
    WorkerLife,
    WorkerPlace,
    plan,
)
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.moments import past
from queueproof.schedule.programs import JobSpec, OperationKind

RECOVERED = 12  # operations of all workers between two recoveries
ENOUGH = 60  # operations of others, after which a paused worker goes on, whatever they did
CLAIMS = 20  # of the drainer for each job: a claim that never empties must not hang a run

_LOOK = 0.005  # seconds between two looks at what only the server knows
_NAME = "queueproof/"  # what the names of the workers' connections begin with
_DEADLOCKED = "1s"  # after this the server looks for one; nobody else does here
_REMEMBERED = 5  # claims that a worker has ended

_NEVER_RETRIED = frozenset({"40P01", "57P01", "08006"})  # as in controlled runs
_UPKEEP: tuple[OperationKind, ...] = ("promote", "recover")
_WEIGHTS: Mapping[OperationKind, int] = {
    "complete": 10,
    "complete_many": 3,
    "fail": 3,
    "heartbeat": 4,
}

_BACKENDS = """
SELECT pid, application_name, state FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
"""
_HINDERS = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_stat_activity AS waiting, pg_catalog.pg_stat_activity AS paused
  WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock'
    AND paused.pid = ANY (pg_catalog.pg_blocking_pids(waiting.pid))
    AND paused.application_name = '{}'
)
"""
_TERMINATE = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND application_name = '{}'
"""


@dataclass(frozen=True, slots=True)
class Free:
    """What a free run showed.

    Attributes:
        history: What was asked and answered, and what else happened.
        findings: What that breaks.
        hits: Faults, each with the operation that it met and where in it.
        workers: How many there were at once.
        seed: Of their choices.
    """

    history: History
    findings: CheckResult
    hits: Sequence[tuple[str, str, str]]
    workers: int
    seed: int

    @property
    def evidence(self) -> dict[str, int]:
        """What makes a run without violations worth something."""
        asked = [call for call in self.history.calls if call.kind in OPERATIONS]
        faults = Counter(kind for kind, _, _ in self.hits)
        found = {
            "operations": len(asked),
            "operations in the midst of another's": self.findings.overlapping,
            "answers lost": sum(call.answer == "unknown" for call in asked),
            **{told: faults[kind] for kind, told in SEVERAL.items()},
            "distinct steps hit": len(set(self.hits)),
        }
        return {what: n for what, n in found.items() if n}

    @property
    def broken(self) -> dict[str, Violation]:
        """See `Findings.first`."""
        return self.findings.first


def free_run(
    lab: Lab,
    offer: Offer,
    declared: Declared,
    *,
    jobs: int,
    workers: int,
    seed: int,
    faults: Mapping[FreeFault, int],
) -> Free:
    """Run a queue under real concurrency, and check what was answered.

    A server that is to be killed is a twin of the lab's. One that is not ours is never killed.

    Args:
        lab: Where the queue is installed.
        offer: What it brings.
        declared: What the checker must know of it.
        jobs: How many are enqueued.
        workers: How many processes work at once, beside a producer and a reaper.
        seed: Of all choices.
        faults: How many of each kind of `FreeFault`.

    Raises:
        QueueproofError: The workers cannot be started, or one died or fell silent by itself.
    """
    queue = _as_worker(lab.queue)
    wanted = {kind: n for kind, n in faults.items() if n and _applies(kind, lab, offer)}
    where = twin_of(lab) if "restart" in wanted else lab
    run = _Run(where, queue, offer, jobs=jobs, workers=workers, seed=seed, faults=wanted)
    with _watching_for_deadlocks(where):
        history = run.run()
    return Free(history, check(history, declared), tuple(run.hits), workers, seed)


def _applies(kind: FreeFault, lab: Lab, offer: Offer) -> bool:
    match kind:
        case "restart":
            return lab.server.ours
        case "pause":  # past a lease
            return offer.queue.lease_seconds is not None
        case _:
            return True


def _as_worker(queue: Queue) -> WorkerQueue:
    """The queue as worker processes: it has them, or a host runs its statements.

    Raises:
        QueueproofError: Other processes cannot load it.
    """
    if isinstance(queue, WorkerQueue):
        return queue
    if isinstance(queue, SqlFileQueue):
        if not Path(queue.name).is_file() or load(queue.name).digest != queue.digest:
            raise QueueproofError(
                f"{queue.name}: the workers of a free run read the file anew, and it has changed; "
                "save it and check again"
            )
    elif "<" in queue.name:
        raise QueueproofError(
            f"{queue.name}: the workers of a free run import the class; define it at the top of a "
            "module"
        )
    hosted = WorkerQueue(
        queue.name,
        [sys.executable, "-m", "queueproof.run.host", queue.name],
        written=queue.written,
        # What was found from here must be found from there.
        environment={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    hosted.described_by(describe(queue))
    return hosted


@contextmanager
def _watching_for_deadlocks(lab: Lab) -> Iterator[None]:
    """Have the server look for deadlocks soon, in sessions that begin inside the block."""
    name = sql.Identifier(str(conninfo_to_dict(lab.conninfo)["dbname"]))

    def alter(how: str) -> None:
        lab.server.administer(sql.SQL("ALTER DATABASE {} " + how).format(name))

    if not lab.server.superuser:
        yield
        return
    alter(f"SET deadlock_timeout = '{_DEADLOCKED}'")
    try:
        yield
    finally:
        alter("RESET deadlock_timeout")


class _Run:
    """One free run.

    Attributes:
        hits: See `Free`.
    """

    def __init__(
        self,
        lab: Lab,
        queue: WorkerQueue,
        offer: Offer,
        *,
        jobs: int,
        workers: int,
        seed: int,
        faults: Mapping[FreeFault, int],
    ) -> None:
        self.hits: list[tuple[str, str, str]] = []
        self._lab = lab
        self._queue = queue
        self._hosted = queue is not lab.queue
        self._offer = offer
        self._jobs = jobs
        self._lease = queue.lease_seconds
        self._queues = ["default"]
        if "queue" in queue.takes("claim") and "queue" in queue.takes("enqueue"):
            self._queues.append("other")
        self._places = plan(jobs, workers, seed, faults, lease=self._lease, queues=self._queues)
        self._calls: list[Call] = []
        self._named: list[tuple[Call, Sequence[ClaimedJob]]] = []
        self._lives: list[WorkerLife] = []
        self._pauses: list[Pause] = []
        self._leftovers: list[Leftover] = []
        self._own: set[int] = set()  # backends of the harness
        self._moment = 0
        self._ahead = 0.0
        self._lives_of: Counter[str] = Counter()
        self._answered = 0  # operations of workers
        self._recover_at = RECOVERED
        self._kept = 0  # how often the reaper did something
        self._listen()

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> History:
        """Run everything, from the first process to the last look at the jobs."""
        self._lab.reset()
        self._own = {pid for pid, _, _ in self._backends()}
        try:
            for place in self._places:
                if place.role != "reaper" or self._upkeep:
                    self._start_life(place)
            self._until(lambda: all(life.ready for life in self._lives))
            self._work()
            self._end_work()
            final = self._drain()
        finally:
            for life in self._lives:
                life.process.kill()
            self._lives.clear()
        self._until(lambda: not self._names())
        return self._written(final)

    def _written(self, final: Mapping[str, State] | None) -> History:
        """The history, its calls in the order of invocation."""
        calls = sorted(self._calls, key=lambda call: call.invoked)
        numbers = {call: number for number, call in enumerate(calls)}
        named = dict(self._named)
        return History(
            [
                replace(
                    call,
                    index=number,
                    refs=tuple(Ref(numbers[one.call], one.claim.id) for one in named.get(call, ())),
                )
                for call, number in numbers.items()
            ],
            final,
        )

    def _work(self) -> None:
        """Keep all workers busy until each has done its share."""
        while True:
            for place in self._places:
                self._go_on(place)
            self._wake()
            if not any(life.pending or life.paused or not life.ready for life in self._lives):
                if all(place.finished for place in self._places):
                    return
                continue
            self._pump()

    def _go_on(self, place: WorkerPlace) -> None:
        """Begin the next operation of a place whose worker is idle."""
        life = place.life
        if life is None or not life.idle:
            return
        if place.role == "reaper":
            if self._answered >= self._recover_at:
                self._recover_at = self._answered + RECOVERED
                self._begin(life, self._next_upkeep())
            return
        if place.finished:
            return
        if (seconds := place.moves.pop(place.begun, None)) is not None:
            self._advance(seconds)
        fault = place.faults.pop(place.begun, None)
        if fault is not None and fault.kind == "pause":
            place.pauses.append(fault)
            fault = None
        if fault is None and place.pauses and life.held:
            fault = place.pauses.pop()
        place.begun += 1
        place.operations = max(0, place.operations - 1)
        if fault is None:
            self._choose(life)
        else:
            self._inflict(life, fault)

    @property
    def _upkeep(self) -> list[OperationKind]:
        return [kind for kind in _UPKEEP if kind in self._queue.offers]

    def _next_upkeep(self) -> OperationKind:
        """What the reaper does next: recover and promote in turn."""
        self._kept += 1
        known = self._upkeep
        return known[self._kept % len(known)]

    def _choose(self, life: WorkerLife, *, late: bool = False) -> None:
        """Begin what a worker wants to do next.

        Args:
            life: Which worker.
            late: Whether it acts on a job that it holds, come what may.
        """
        place, rng = life.place, life.place.rng
        if place.role == "producer":
            self._enqueue(life)
            return
        kinds = [kind for kind in _WEIGHTS if kind in self._queue.offers]
        one_each = self._queue.jobs_per_worker is not None
        busy = late or life.holding or (one_each and bool(life.held))
        luck = 0.0 if busy else 1.0 if place.pauses else rng.random()
        if life.held and kinds and luck < 0.7:  # noqa: PLR2004 - a share of all its turns
            (kind,) = rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])
            one = rng.choice(life.held)
            # Of a job that it has claimed twice only the last claim: a batch names each job once.
            batch = {one.claim.id: one for one in life.held}.values()
            self._act(life, kind, [*batch] if kind == "complete_many" else [one])
        elif life.over and kinds and not self._offer.held and luck < 0.73:  # noqa: PLR2004 - the same
            self._act(life, rng.choice(kinds), [rng.choice(life.over)])
        elif place.jobs and luck < 0.85:  # noqa: PLR2004 - the same
            self._enqueue(life)
        else:
            self._claim(life, rng.choice((1, 1, 2, 5)), place.queue)

    # --- lives ----------------------------------------------------------------------------------

    def _start_life(self, place: WorkerPlace) -> WorkerLife:
        """Start a worker process; it may be asked something once it is ready."""
        self._lives_of[place.role] += 1
        nth = self._lives_of[place.role]
        name = f"w{nth}" if place.role == "worker" else f"{place.role}{nth if nth > 1 else ''}"
        life = WorkerLife(name, place, self._queue.spawn(name))
        place.life = life
        self._lives.append(life)
        dsn = make_conninfo(self._lab.conninfo, application_name=_NAME + name)
        life.process.send(self._queue.request("init", dsn=dsn, queue="default"))
        return life

    def _die(self, life: WorkerLife, *, cut: bool = False, again: bool = True) -> None:
        """A worker's process is killed, with all that it holds.

        Args:
            life: Which worker.
            cut: Whether the server ends its connections first, of which nobody hears.
            again: Whether another one takes its place.
        """
        crash = self._invoke("crash", life.name)
        crash.answer = "accepted"
        lost = [] if life.pending is None else life.pending.calls
        for call in lost:
            call.answer = "unknown"
        hidden = any(pid not in self._own and not _known(name) for pid, name, _ in self._backends())
        if cut:
            self._lab.execute(_TERMINATE.format(_NAME + life.name))
        life.process.kill()
        # Of a connection that hides whose it is nobody can say when it has come to its end.
        self._leftovers.append(Leftover(_NAME + life.name, [crash] if hidden else [crash, *lost]))
        self._lives.remove(life)
        self._pauses = [pause for pause in self._pauses if pause.life is not life]
        life.place.life = None
        if again and not life.place.finished:
            self._start_life(life.place)

    def _backends(self) -> list[tuple[int, str, str]]:
        """Process ids of the database's backends, the names of their clients, and what they do."""
        found = self._lab.execute(_BACKENDS)
        return [(int(str(pid)), str(name), str(state)) for pid, name, state in found]

    def _names(self) -> set[str]:
        """Whose backends there are."""
        return {name for _, name, _ in self._backends() if _known(name)}

    def _return_leftovers(self) -> None:
        """See which dead processes have no backends any more."""
        names = self._names() if self._leftovers else set()
        for leftover in [leftover for leftover in self._leftovers if leftover.name not in names]:
            self._leftovers.remove(leftover)
            self._listen()
            for call in leftover.calls:
                self._return(call)

    # --- time -----------------------------------------------------------------------------------

    def _invoke(self, kind: CallKind, actor: str) -> Call:
        self._moment += 2  # between two moments there is room for one more
        call = Call(len(self._calls), kind, actor, self._moment, self._lab.now())
        self._calls.append(call)
        return call

    def _return(self, call: Call) -> None:
        self._moment += 2
        call.end(self._moment, self._lab.now())

    def _advance(self, seconds: float) -> None:
        """Move the clock, whatever is going on."""
        call = self._invoke("advance", "clock")
        call.delay = seconds
        self._lab.advance(seconds, beside=True)
        self._ahead += seconds
        call.answer = "accepted"
        self._return(call)

    # --- operations -----------------------------------------------------------------------------

    def _begin(
        self,
        life: WorkerLife,
        kind: OperationKind,
        named: Sequence[ClaimedJob] = (),
        **arguments: object,
    ) -> Call:
        """Ask a worker for an operation."""
        if self._queue.moves_clock and life.ahead != self._ahead:
            life.ahead = self._ahead
            told = life.process.ask(self._queue.request("clock", ahead=self._ahead))
            self._queue.read_error("clock", told)
        request = self._queue.request(kind, worker=identity(life.name), **arguments)
        call = self._invoke(kind, life.name)
        if named:
            self._named.append((call, named))
            call.token = min(life.renewed[one.call.invoked, one.claim.id] for one in named)
        life.pending = Pending(call, request, named)
        try:
            life.process.send(request)
        except WorkerError:
            self._gone(life)
        return call

    def _enqueue(self, life: WorkerLife) -> Call:
        """Enqueue one more job."""
        rng = life.place.rng
        life.place.jobs -= 1
        spec = JobSpec(
            priority=rng.choice((0, 0, 1)),
            delay=rng.choice((0.0, 0.0, 0.0, 0.0, 13.7)),
            bound=rng.choice((1, 2, self._queue.max_attempts or DEFAULT_BOUND)),
            queue=rng.choice(self._queues),
        )
        arguments = enqueue_arguments(self._queue, spec, len(self._calls))
        call = self._begin(life, "enqueue", (), **arguments)
        record_enqueue(call, self._queue, spec)
        return call

    def _claim(self, life: WorkerLife, limit: int, queue: str) -> Call:
        limit = self._queue.most("claim", limit, held=self._offer.held)
        call = self._begin(life, "claim", limit=limit, queue=queue)
        call.limit = limit
        call.queue = queue
        return call

    def _act(self, life: WorkerLife, kind: OperationKind, named: Sequence[ClaimedJob]) -> Call:
        """Act on jobs that a worker has, or had."""
        named = tuple(named)
        if kind == "complete_many":
            return self._begin(life, kind, named, jobs=[one.claim for one in named])
        return self._begin(life, kind, named[:1], job=named[0].claim, error=FAILURE)

    def _perform(self, place: WorkerPlace, begin: Callable[[WorkerLife], Call]) -> Call:
        """An operation from its beginning to its end, with nobody else acting."""
        life = place.life or self._start_life(place)
        self._until(lambda: life.ready)
        call = begin(life)
        self._until(lambda: call.returned is not None)
        return call

    # --- answers --------------------------------------------------------------------------------

    def _listen(self) -> None:
        """A worker was heard: the limit on silence begins anew."""
        self._silence = waits.Limit(waits.STATEMENT, "an answer of any worker")

    def _until(self, condition: Callable[[], bool]) -> None:
        """Take answers until a condition holds."""
        while not condition():
            self._pump()

    def _pump(self) -> None:
        """Take the answers that are there, or wait for one."""
        asked = {
            life.process.stdout: life
            for life in self._lives
            if (life.pending or not life.ready) and not life.paused
        }
        self._silence.is_over()  # raises where the run is to stop
        poll = select.poll()
        for one in asked:
            poll.register(one, select.POLLIN)
        struck = any(life.pending and life.pending.fate for life in self._lives)
        watching = self._leftovers or self._pauses or struck or not asked
        found = poll.poll((_LOOK if watching else waits.SLICE) * 1000)
        for one, _ in found:
            self._hear(asked[one])
        self._strike_the_busy()
        self._return_leftovers()
        if found:
            return
        for pause in list(self._pauses):
            if self._lab.execute(_HINDERS.format(_NAME + pause.life.name)) == [(True,)]:
                self._resume(pause)
        if self._silence.is_over():
            self._give_up(list(asked.values()))

    def _give_up(self, asked: Sequence[WorkerLife]) -> NoReturn:
        """Nothing has happened for too long."""
        waits.connect(self._lab.conninfo).finish()  # a frozen server is nobody's fault here
        waited = f"for {self._silence.seconds:g} s"
        if not asked:
            raise QueueError(f"{self._queue.name}: a killed worker's backend goes on {waited}")
        kind = asked[0].pending.call.kind if asked[0].pending else "init"
        name = asked[0].name
        raise QueueError(f"{self._queue.name}: {name} has not answered {kind} {waited}")

    def _hear(self, life: WorkerLife) -> None:
        """A worker has written something, or has ended."""
        if life not in self._lives:  # it has died of what another one answered
            return
        if life.pending is not None and life.pending.fate:
            self._strike(life, Strike(life.pending.fate.kind, ANSWERED))
            return
        life.process.receive()
        try:
            life.process.check()
        except WorkerError:
            self._gone(life)
            return
        if life.process.answer is not None:
            self._take(life)

    def _gone(self, life: WorkerLife) -> None:
        """A worker has ended by itself: it may, if its connection was cut.

        Raises:
            WorkerError: It had no reason.
        """
        if not life.disturbed:
            life.process.check()
        self._die(life)

    def _take(self, life: WorkerLife) -> None:
        """Take the answer of a worker."""
        self._listen()
        pending, answer = life.pending, life.process.take()
        if pending is None:
            self._greet(life, answer)
            return
        life.pending = None
        call = pending.call
        try:
            value = self._queue.read(call.kind, pending.request, answer)
        except ServerError as error:
            call.error = f"{error.sqlstate}: {error.message}"
            # What the queue does not expect may have happened in part.
            nothing = error.sqlstate in self._queue.retry_on - _NEVER_RETRIED and not pending.hit
            call.answer = "retry" if nothing else "unknown"
        else:
            read_answer(call, value)
            if call.kind == "claim":
                life.held += [ClaimedJob(call, claim) for claim in value]
            if call.kind == "heartbeat" and isinstance(value, Claim):
                (old,) = pending.named
                life.held = [ClaimedJob(old.call, value) if x is old else x for x in life.held]
                life.renewed[old.call.invoked, old.claim.id] += 1
            if pending.hit and call.answer == "rejected":
                call.answer = "unknown"  # a library may have tried twice
        for one in pending.calls:
            self._return(one)
        self._remember(life, pending)

    def _greet(self, life: WorkerLife, answer: Json) -> None:
        """What a worker answers before it is asked for operations."""
        if life.started:
            self._queue.read_error("start", answer)
        else:
            self._queue.described_by(answer)
            if "start" in self._queue.offers:
                life.started = True
                life.process.send(self._queue.request("start", worker=identity(life.name)))
                return
        life.ready = True

    def _remember(self, life: WorkerLife, pending: Pending) -> None:
        """Note what follows from an answer."""
        call = pending.call
        self._answered += life.place.role == "worker"
        if call.kind == "claim":
            for pause in self._pauses:
                pause.retaken = pause.retaken or not pause.jobs.isdisjoint(call.ids)
            life.holding = self._offer.held and bool(call.ids)
        elif call.kind in {"complete", "complete_many", "fail"}:
            if call.answer in {"accepted", "rejected"}:
                life.held = [one for one in life.held if one not in pending.named]
                life.over = [*life.over, *pending.named][-_REMEMBERED:]
            elif life.holding:
                self._die(life)  # what was rolled back was its claim
                return
            life.holding = False
        elif life.holding and call.error and call.kind != "heartbeat":
            self._die(life)

    # --- faults ---------------------------------------------------------------------------------

    def _inflict(self, life: WorkerLife, fault: Strike) -> None:
        """Begin an operation, and let something happen to it."""
        if fault.kind == "restart":
            self._until(lambda: all(one.ready for one in self._lives))
        if fault.way == BETWEEN:
            self._strike(life, fault)
            if fault.kind == "pause" or life not in self._lives:
                return
        self._choose(life, late=fault.kind == "pause")
        if fault.way == BETWEEN or life.pending is None:
            return
        if fault.way == ASKED:
            self._strike(life, fault)
        else:
            life.pending.fate = fault
            self._strike_the_busy()

    def _strike_the_busy(self) -> None:
        """Let faults happen that wait for an operation to be at work."""
        fated = {
            _NAME + life.name: (life, life.pending.fate)
            for life in self._lives
            if life.pending and life.pending.fate and life.pending.fate.way == AT_WORK
        }
        if fated:
            for _, name, state in self._backends():
                if state == "active" and name in fated:
                    self._strike(*fated.pop(name))

    def _strike(self, life: WorkerLife, fault: Strike) -> None:
        """Let a fault happen to a worker."""
        pending = life.pending
        if pending is not None:
            pending.fate = None
        if fault.kind == "terminate" and _NAME + life.name not in self._names():
            return  # it hides its connections, or has none
        self.hits.append((fault.kind, pending.call.kind if pending else "", fault.way))
        match fault.kind:
            case "kill":
                self._die(life)
            case "pause":
                self._pause(life)
            case "terminate":
                self._note("terminate", life.name)
                if self._offer.tied and (life.held or pending):
                    self._die(life, cut=True)
                else:
                    self._disturb(life)
                    self._lab.execute(_TERMINATE.format(_NAME + life.name))
            case "restart":
                self._restart()
            case _:
                assert_never(fault.kind)

    def _disturb(self, life: WorkerLife) -> None:
        """Something happens to the connections of a worker."""
        life.disturbed = True
        pending = life.pending
        if pending is None or pending.hit:
            return
        pending.hit = True
        if self._hosted:
            return
        # A library may connect anew and try again; what it did at first is then never answered.
        call = pending.call
        twice = replace(
            call, index=len(self._calls), invoked=call.invoked + 1, answer="unknown", waits=()
        )
        self._calls.append(twice)
        if pending.named:
            self._named.append((twice, pending.named))
        pending.calls.append(twice)

    def _pause(self, life: WorkerLife) -> None:
        """Stop a worker's process until its jobs are somebody else's."""
        self._note("pause", life.name)
        life.process.pause()
        life.paused = True
        jobs = frozenset(one.claim.id for one in life.held)
        self._pauses.append(Pause(life, jobs, self._answered + ENOUGH))
        assert self._lease is not None
        self._advance(past(self._lease))
        self._recover_at = self._answered

    def _wake(self) -> None:
        """Resume paused workers whose time has come."""
        for pause in list(self._pauses):
            busy = any(
                life.pending or not (life.ready and life.place.finished)
                for life in self._lives
                if not life.paused
            )
            if pause.retaken or self._answered >= pause.until or not busy:
                self._resume(pause)

    def _resume(self, pause: Pause) -> None:
        life = pause.life
        self._pauses.remove(pause)
        self._note("resume", life.name)
        life.paused = False
        life.process.resume()
        self._listen()
        if life.pending is None:
            self._choose(life, late=True)

    def _restart(self) -> None:
        """Kill the server with every session, and start it again."""
        call = self._invoke("restart", "nemesis")
        vacant = []
        for life in list(self._lives):
            if self._offer.tied and (life.held or life.pending):
                self._die(life, again=False)
                vacant.append(life.place)
            else:
                self._disturb(life)
        before = self._lab.conninfo
        self._lab.restart()
        self._own = {pid for pid, name, _ in self._backends() if not _known(name)}
        if self._lab.conninfo != before:  # where its workers cannot know it
            for life in list(self._lives):
                self._die(life, again=False)
                vacant.append(life.place)
        call.answer = "accepted"
        self._return(call)
        for place in vacant:
            if not place.finished or place.role == "reaper":
                self._start_life(place)

    def _note(self, kind: CallKind, actor: str, began: float | None = None) -> None:
        """Record something that takes no time."""
        call = self._invoke(kind, actor)
        call.answer = "accepted"
        call.began = call.began if began is None else began
        self._return(call)

    # --- the end --------------------------------------------------------------------------------

    def _end_work(self) -> None:
        """Have live workers complete what they hold, and end those that cannot."""
        self._until(lambda: not self._leftovers)
        for life in list(self._lives):
            while life in self._lives and life.held and self._complete(life):
                pass
            if life in self._lives and (life.holding or life.held):
                self._die(life)
        self._until(lambda: not self._leftovers)

    def _complete(self, life: WorkerLife) -> bool:
        """Complete a job that a worker holds; whether there was an answer to rely on."""
        one = life.held[0]
        kind: OperationKind = "complete" if "complete" in self._queue.offers else "complete_many"
        for _ in range(RETRIES if kind in self._queue.offers else 0):
            call = self._perform(life.place, lambda life: self._act(life, kind, [one]))
            if call.answer in {"accepted", "rejected"}:
                return True
            if life not in self._lives:
                break
        return False

    def _drain(self) -> Mapping[str, State] | None:
        """Claim and complete until every job has come out; what is seen of them then."""
        drainer = WorkerPlace(DRAINER, random.Random(0))  # noqa: S311 - it chooses nothing
        final: Mapping[str, State] | None = None
        for seconds in moves(self._queue.lease_seconds):
            if seconds:
                self._advance(seconds)
            self._sweep(drainer)
            if "jobs" in self._queue.offers:
                call = self._perform(drainer, lambda life: self._begin(life, "jobs"))
                final = final if call.states is None else call.states
            if not self._outstanding(final):
                break
        return final

    def _sweep(self, drainer: WorkerPlace) -> None:
        """Recover and claim until nothing more comes."""
        began = self._lab.now()
        for _ in range(RETRIES if "recover" in self._queue.offers else 0):
            call = self._perform(drainer, lambda life: self._begin(life, "recover"))
            if call.answer == "accepted" and not call.ids:
                break
        for _ in range(EMPTY):  # a claim may do maintenance of its own, and answer nothing
            if "promote" in self._queue.offers:
                self._promote(drainer)
            for queue in self._queues:
                self._empty(drainer, queue)
        self._note("sweep", DRAINER, began)

    def _promote(self, drainer: WorkerPlace) -> None:
        """Make claimable what has become due, until nothing more moves."""
        for _ in range(sum(call.kind == "enqueue" for call in self._calls)):
            if not self._perform(drainer, lambda life: self._begin(life, "promote")).moved:
                break

    def _empty(self, drainer: WorkerPlace, queue: str) -> None:
        """Claim and complete until nothing more comes."""
        refused = 0
        for _ in range(CLAIMS * self._jobs + RETRIES):
            call = self._perform(drainer, lambda life: self._claim(life, DRAIN_BATCH, queue))
            if call.answer != "accepted" and refused < RETRIES:
                refused += 1
                continue
            if not call.ids:
                break
            life = drainer.life
            while life is not None and life in self._lives and life.held:
                if not self._complete(life):
                    break
            if life is not None and life.holding:  # nothing here ends its transaction
                break

    def _outstanding(self, final: Mapping[str, State] | None) -> bool:
        """Whether a job may still come out."""
        if final is not None:
            return not {"queued", "running"}.isdisjoint(final.values())
        enqueued = {job for call in self._calls if call.kind == "enqueue" for job in call.ids}
        done = {
            claimed.claim.id
            for call, named in self._named
            if call.kind in {"complete", "complete_many"} and call.answer == "accepted"
            for claimed in named
        }
        return bool(enqueued - done)


def _known(name: str) -> bool:
    return name.startswith(_NAME)
