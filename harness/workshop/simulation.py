"""The history of a sound queue in memory, whose workers' operations overlap: none is accused."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from queueproof.history.calls import Answer, Call, CallKind, History, Ref
from queueproof.judge.checker import Declared
from queueproof.queues.model import State

WORKERS = 8
PRODUCERS = 4
BACKLOG = 30  # jobs, beyond which nothing is enqueued
LEASE = 5.0  # seconds
TICK = 0.01  # seconds between two events
BOUND = 3  # attempts
CRASHES = 0.004  # of a worker's turns
PAUSES = 0.003  # of a worker's turns: it stands still for longer than its lease

DECLARED = Declared(
    lease=LEASE,
    held=False,
    worker_heartbeat=False,
    recovers=True,
    observable=True,
    order="priority, fifo",
)


@dataclass(slots=True)
class _Row:
    """A job in the queue's table."""

    priority: int
    state: State = "queued"
    attempts: int = 0
    holder: Ref | None = None
    until: float = 0.0  # the end of its lease


class _Simulation:
    """A sound queue and its workers; every operation takes effect when it is answered.

    Args:
        seed: Makes every choice.
    """

    def __init__(self, seed: int) -> None:
        self.moment = 0
        self._calls = 0
        self._told: deque[Call] = deque()  # calls that were not handed out yet
        self._rng = random.Random(seed)  # noqa: S311 - a reproducible history, no secret
        self._now = 0.0
        self._rows: dict[str, _Row] = {}
        self._free: list[tuple[int, float, int, str]] = []  # a heap in the order of claims
        self._delayed: list[tuple[float, str]] = []  # a heap
        self._leases: list[tuple[float, str]] = []  # a heap; rows know which entries are old
        self._open: dict[str, Call] = {}
        self._held: dict[str, list[Ref]] = {}
        self._paused: dict[str, float] = {}  # until when
        self._born = WORKERS
        self._workers = [f"w{n + 1}" for n in range(WORKERS)]
        self._others = [f"producer{n + 1}" for n in range(PRODUCERS)] + ["reaper"]

    @property
    def outcome(self) -> Iterator[tuple[str, State]]:
        """What has become of the jobs when somebody asks."""
        for job, row in self._rows.items():
            yield job, row.state

    def calls(self, events: int) -> Iterator[Call]:
        """Run until there are as many events, then drain the queue.

        Yields:
            Each call, in the order of invocation, once it has its answer.
        """
        while self.moment < events:
            yield from self._answered()
            actor = self._rng.choice(self._workers + self._others)
            luck = self._rng.random() if actor in self._workers else 1.0
            if luck < CRASHES:
                self._crash(actor)
            elif luck < CRASHES + PAUSES:
                self._paused[actor] = self._now + 2 * LEASE
            elif self._now < self._paused.get(actor, 0.0):
                continue
            elif actor in self._open:
                self._answer(self._open.pop(actor))
            else:
                self._choose(actor)
        self._drain()
        yield from self._answered()

    def _answered(self) -> Iterator[Call]:
        while self._told and self._told[0].returned is not None:
            yield self._told.popleft()

    def _choose(self, actor: str) -> None:
        """An idle actor begins something, or lets its turn pass."""
        held = self._held.get(actor)
        if actor == "reaper":
            if self._rng.random() < 1 / WORKERS:
                self._invoke("recover", actor)
        elif actor in self._others:
            if len(self._free) + len(self._delayed) < BACKLOG:
                call = self._invoke("enqueue", actor)
                call.priority = self._rng.choice((0, 0, 0, 1))
                call.delay = self._rng.uniform(0.1, 3.0) if self._rng.random() < 1 / 20 else 0.0
                call.bound = BOUND
        elif held:
            kinds: tuple[CallKind, ...] = ("complete", "fail", "heartbeat")
            kind = self._rng.choices(kinds, (16, 1, 3))[0]
            self._invoke(kind, actor).refs = (held[0],)
        else:
            self._invoke("claim", actor).limit = self._rng.choice((1, 1, 5))

    def _tick(self) -> None:
        self.moment += 1
        self._now += TICK

    def _invoke(self, kind: CallKind, actor: str) -> Call:
        self._tick()
        call = Call(self._calls, kind, actor, self.moment, self._now)
        self._calls += 1
        self._told.append(call)
        self._open[actor] = call
        return call

    def _answer(self, call: Call, answer: Answer | None = None) -> None:
        """An operation takes effect, and is answered; or its answer is lost on the way."""
        self._tick()
        call.returned, call.ended = self.moment, self._now
        self._wake()
        ids, call.answer = self._act(call)
        if answer is not None:
            call.answer = answer
        else:
            call.ids = ids

    def _act(self, call: Call) -> tuple[tuple[str, ...], Answer]:
        match call.kind:
            case "enqueue":
                job = str(len(self._rows))
                self._rows[job] = _Row(call.priority)
                heappush(self._delayed, (call.began + call.delay, job))
                return (job,), "accepted"
            case "claim":
                return self._claim(call), "accepted"
            case "recover":
                return self._recover(), "accepted"
            case "complete" | "fail" | "heartbeat":
                (ref,) = call.refs
                held = self._rows[ref.job].holder == ref
                if held:
                    self._act_on(call, ref)
                if call.kind != "heartbeat":
                    self._held[call.actor].remove(ref)
                return (), "accepted" if held else "rejected"
            case _:
                return (), "accepted"

    def _wake(self) -> None:
        while self._delayed and self._delayed[0][0] <= self._now:
            due, job = heappop(self._delayed)
            heappush(self._free, (-self._rows[job].priority, due, int(job), job))

    def _claim(self, call: Call) -> tuple[str, ...]:
        taken = [heappop(self._free)[-1] for _ in range(min(call.limit, len(self._free)))]
        for job in taken:
            row = self._rows[job]
            row.state, row.holder = "running", Ref(call.index, job)
            row.attempts += 1
            self._extend(job)
        self._held.setdefault(call.actor, []).extend(Ref(call.index, job) for job in taken)
        return tuple(taken)

    def _extend(self, job: str) -> None:
        self._rows[job].until = self._now + LEASE
        heappush(self._leases, (self._now + LEASE, job))

    def _act_on(self, call: Call, ref: Ref) -> None:
        match call.kind:
            case "heartbeat":
                self._extend(ref.job)
            case "fail":
                self._give_back(ref.job)
            case _:
                self._rows[ref.job].state, self._rows[ref.job].holder = "completed", None

    def _give_back(self, job: str) -> None:
        row = self._rows[job]
        row.holder = None
        row.state = "queued" if row.attempts < BOUND else "failed"
        if row.state == "queued":
            heappush(self._free, (-row.priority, self._now, int(job), job))

    def _recover(self) -> tuple[str, ...]:
        found = []
        while self._leases and self._leases[0][0] < self._now:
            until, job = heappop(self._leases)
            row = self._rows[job]
            if row.state == "running" and row.until == until:
                self._give_back(job)
                found.append(job)
        return tuple(found)

    def _crash(self, worker: str) -> None:
        """A worker dies, if need be in the middle of an operation, and another comes."""
        lost = self._open.pop(worker, None)
        self._answer(self._invoke("crash", worker))
        del self._open[worker]
        if lost is not None:
            self._answer(lost, "unknown")
        self._born += 1
        self._workers[self._workers.index(worker)] = f"w{self._born}"

    def _drain(self) -> None:
        for call in list(self._open.values()):
            self._answer(call)
        self._open.clear()
        for worker in self._workers:
            self._complete_all(worker)
        self._now += 2 * LEASE
        began = self._now
        self._answer(self._invoke("recover", "drainer"))
        while self._free or self._delayed:
            call = self._invoke("claim", "drainer")
            call.limit = BACKLOG
            self._answer(call)
            self._complete_all("drainer")
        sweep = self._invoke("sweep", "drainer")
        self._answer(sweep)
        sweep.began = began

    def _complete_all(self, worker: str) -> None:
        for ref in list(self._held.get(worker, ())):
            call = self._invoke("complete", worker)
            call.refs = (ref,)
            self._answer(call)


def simulate(events: int, seed: int = 0) -> History:
    """The history of a sound queue: 8 workers that overlap, fail, pause, crash and lose answers.

    Args:
        events: Invocations and answers before the drain, which adds some.
        seed: The same seed gives the same history.
    """
    simulation = _Simulation(seed)
    return History(list(simulation.calls(events)), dict(simulation.outcome))
