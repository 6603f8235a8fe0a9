"""Programs as data that says who does what, small enough to print, shrink and replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from queueproof.schedule.reading import read, refuse

OperationKind: TypeAlias = Literal[
    "enqueue",
    "claim",
    "complete",
    "complete_many",
    "fail",
    "heartbeat",
    "recover",
    "jobs",
    "cleanup",
    "promote",
    "start",
]
"""The operations that actors ask a queue for. `install` comes before a program begins, and so does
the `start` of a worker whose script does not say when; `complete_and_claim` counts as two
operations."""

FaultKind: TypeAlias = Literal["lose", "terminate", "restart"]
"""The faults that happen to connections, backends and the server."""

DoKind: TypeAlias = (
    OperationKind
    | FaultKind
    | Literal["complete_and_claim", "crash", "advance", "until", "align", "rewrite"]
)
"""The kinds of operations that an actor does."""

Part: TypeAlias = Literal["all", "every other", "one of each"]
"""Of a batch: its jobs, every other one of them, or one job of each of its worker's batches."""


class Do(NamedTuple):
    """One operation of an actor.

    Attributes:
        kind: An operation of a queue, `crash` (the actor's connection is closed for good),
            `advance` (the database's clock moves), `until` (it moves on to a moment before a
            limit), `align` (it moves on to a known fraction of a second), `rewrite` (the tables'
            physical order turns) or a fault.
        limit: Of a claim: how many jobs it asks for.
        job: Of a complete, fail or heartbeat: which of the worker's claimed jobs, counted from 0
            over its whole life, or from -1 back from the latest.
        batch: Of what ends a batch (`complete_and_claim` claims as many again): which of the
            worker's successful claims got it, from 0.
        part: Of what ends a batch: which of its jobs.
        worker: Of a crash or a fault: the number of the worker that it happens to; 0: the actor.
        seconds: Of an advance; of a limit after what it is counted from: the last enqueue,
            successful claim, heartbeat or fail; of a cleanup: the age of what goes.
        whole: Whether it is one step: its statements follow each other, and stop nowhere inside;
            where the clock moves, nobody promotes meanwhile.
        again: Of a promote: how often it has been done over, in a run.
    """

    kind: DoKind
    limit: int = 1
    job: int = 0
    batch: int = 0
    part: Part = "all"
    worker: int = 0
    seconds: float = 0.0
    queue: str = "default"
    whole: bool = False
    again: int = 0


PayloadKind: TypeAlias = Literal["", "same", "large"]
"""Of a job: one of its own, the same as others of this kind have, or one of many characters that no
compression makes fewer."""


class JobSpec(NamedTuple):
    """A job to enqueue.

    Attributes:
        delay: Seconds until it may run.
        bound: Its max_attempts; 0: what the queue's header says.
        payload: Empty for one that no other job has.
        joined: Whether it is enqueued in one transaction with the job before it, where that can be.
    """

    priority: int = 0
    delay: float = 0.0
    bound: int = 0
    queue: str = "default"
    payload: PayloadKind = ""
    joined: bool = False


class FaultFacts(NamedTuple):
    """A fault that may happen to a connection, a backend or the server, as a step of a program.

    Attributes:
        several: What a card calls several of it.
        told: What a story says; `{}` is the worker that it happens to.
        of_server: Whether it happens to the whole server, and so to one that is ours only.
    """

    several: str
    told: str
    of_server: bool = False


FAULTS: Mapping[FaultKind, FaultFacts] = {
    "lose": FaultFacts("lost answers", "cuts {} off from its next answer"),
    "terminate": FaultFacts("terminated backends", "ends the backend of {}"),
    "restart": FaultFacts("server kills", "kills the server, and starts it again", of_server=True),
}
"""Faults by the operation that causes one."""


Schedule: TypeAlias = tuple[int, ...]
"""The actor that goes on, choice by choice; 0 is the one that acted last, and what is left out."""

Script: TypeAlias = tuple[str, tuple[Do, ...]]
"""An actor and what it does, in this order."""

Stage: TypeAlias = tuple[Script, ...]
"""Scripts whose steps are interleaved."""


class Program(NamedTuple):
    """Jobs, and stages that follow one another; within a stage every interleaving is legal.

    Attributes:
        jobs: Enqueued one after the other before the first stage.
        stages: What the actors do.
        reserve: Further job specifications, for `enqueue` within a stage.
    """

    jobs: tuple[JobSpec, ...]
    stages: tuple[Stage, ...]
    reserve: tuple[JobSpec, ...] = ()

    @property
    def size(self) -> int:
        """Operations and jobs: what shrinking makes smaller."""
        return len(self.jobs) + sum(len(dos) for stage in self.stages for _, dos in stage)

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """The jobs that it begins with, and its reserve."""
        return (*self.jobs, *self.reserve)

    def having(self, specs: tuple[JobSpec, ...]) -> Program:
        """The same with other jobs.

        Args:
            specs: One for each of `specs`.
        """
        many = len(self.jobs)
        return self._replace(jobs=specs[:many], reserve=specs[many:])

    def without(self, start: int, end: int) -> Program:
        """The same without some jobs.

        Args:
            start: The first of them, among `specs`.
        """
        many = len(self.jobs)
        jobs = self.jobs[:start] + self.jobs[end:]
        reserve = self.reserve[: max(0, start - many)] + self.reserve[max(0, end - many) :]
        return self._replace(jobs=jobs, reserve=reserve)

    @property
    def batches(self) -> list[list[JobSpec]]:
        """Its jobs, those together that are enqueued in one transaction."""
        found: list[list[JobSpec]] = []
        for job in self.jobs:
            if job.joined and found:
                found[-1].append(job)
            else:
                found.append([job])
        return found

    @property
    def queues(self) -> list[str]:
        """The queues that its jobs go to."""
        return sorted({"default", *(job.queue for job in self.specs)})

    def does(self, kind: DoKind) -> bool:
        """True if some actor does an operation of a kind."""
        return any(do.kind == kind for stage in self.stages for _, dos in stage for do in dos)

    @property
    def races(self) -> bool:
        """True if anybody acts beside somebody else."""
        return any(len(stage) > 1 for stage in self.stages)

    @property
    def undisturbed(self) -> Program:
        """The same without faults."""
        stages = []
        for stage in self.stages:
            kept = [
                (actor, left)
                for actor, dos in stage
                if (left := tuple(do for do in dos if do.kind not in FAULTS))
            ]
            if kept:
                stages.append(tuple(kept))
        return self._replace(stages=tuple(stages))

    def to_data(self) -> list[Any]:
        """Nested lists, and by their names the fields that say something, for a replay token."""
        return [
            [_fields(job) for job in self.jobs],
            [[[who, [_fields(do) for do in dos]] for who, dos in stage] for stage in self.stages],
            [_fields(job) for job in self.reserve],
        ]

    @classmethod
    def from_data(cls, data: object) -> Program:
        """The program that `to_data` wrote.

        Raises:
            QueueproofError: It is none; the message has the field.
        """
        program: Program = read(cls, data, "program")
        for at, stage in enumerate(program.stages):
            for actor, dos in stage:
                for do in dos:
                    for field in ("limit", "batch", "worker"):
                        if (number := getattr(do, field)) < 0:
                            where = f"program.stages[{at}]: {field} of {actor}'s {do.kind}"
                            refuse(where, number, "from 0 on")
        return program


def _fields(one: Do | JobSpec) -> dict[str, Any]:
    """The fields that differ from the defaults."""
    plain = one._field_defaults
    return {name: value for name, value in one._asdict().items() if value != plain.get(name)}


def claim(limit: int = 1, queue: str = "default") -> Do:
    """Claim at most `limit` jobs of a queue."""
    return Do("claim", limit=limit, queue=queue)


def complete(nth: int = 0) -> Do:
    """Complete the worker's `nth` claimed job."""
    return Do("complete", job=nth)


def fail(nth: int = 0) -> Do:
    """Fail the worker's `nth` claimed job."""
    return Do("fail", job=nth)


def heartbeat(nth: int = 0) -> Do:
    """Extend the lease of the worker's `nth` claimed job."""
    return Do("heartbeat", job=nth)


def advance(seconds: float) -> Do:
    """Move the database's clock."""
    return Do("advance", seconds=seconds)


def until(seconds: float) -> Do:
    """Move the clock to a moment before something is over that lasts so long."""
    return Do("until", seconds=seconds)


def crash(worker: int = 0) -> Do:
    """Close a worker's connection for good: `w<worker>`, or the actor itself."""
    return Do("crash", worker=worker)


def terminate(worker: int) -> Do:
    """End a worker's backend; the worker sees an error and connects anew."""
    return Do("terminate", worker=worker)


def whole(do: Do) -> Do:
    """The same as one step."""
    return do._replace(whole=True)


ALIGN = Do("align")
RECOVER = Do("recover")
PROMOTE = Do("promote")
START = Do("start")
REWRITE = Do("rewrite")
HEARTBEATS = ", heartbeats"  # behind a worker's name: what it does on a connection of its own


def worker_of(actor: str) -> str:
    """The worker that acts, be it on its second connection."""
    return actor.removesuffix(HEARTBEATS)


MAINTENANCE: frozenset[DoKind] = frozenset({"recover", "promote", "cleanup"})
"""The operations that one process at a time runs, where there is a leader."""
COMPLETE_ALL = Do("complete_many")
COMPLETES = frozenset({"complete", "complete_many"})


def completing_and_claiming(program: Program) -> Program:
    """The same with each completion one operation with the claim after it.

    Where none follows it claims all the same: as many jobs as its batch had.
    """

    def joined(dos: tuple[Do, ...]) -> Iterator[Do]:
        left = deque(dos)
        while left:
            do = left.popleft()
            if do.kind not in COMPLETES:
                yield do
                continue
            if left and left[0].kind == "claim":
                do = do._replace(queue=left.popleft().queue)
            nth = max(0, do.job) if do.kind == "complete" else do.batch
            yield do._replace(kind="complete_and_claim", job=0, batch=nth)

    stages = (
        tuple((actor, tuple(joined(dos))) for actor, dos in stage) for stage in program.stages
    )
    return program._replace(stages=tuple(stages))


OBSERVE = Do("jobs")


def script(actor: str, *dos: Do) -> Script:
    """An actor's script.

    Args:
        actor: Its name: w1, reaper, producer, clock, ...
    """
    return actor, dos


def in_turn(*scripts: Script) -> tuple[Stage, ...]:
    """Scripts one after the other, as stages of one actor each."""
    return tuple((one,) for one in scripts)
