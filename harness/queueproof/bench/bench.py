"""Throughput by strategy, batch size and workers: rounds over all queues, medians over rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

from queueproof.bench.cell import CLOSED, Ground
from queueproof.bench.endure import POINTS, gates
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.bench.load import Loaded, refuse, why_not
from queueproof.bench.measured import Pace, Shape
from queueproof.errors import QueueError
from queueproof.machine import processors
from queueproof.postgres import open_server
from queueproof.postgres.server import spoken
from queueproof.queues.model import Queue
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.queues.worker import WorkerQueue
from queueproof.waits import StoppedError

ROUNDS = 5  # each of all cells in turn: what slows the machine for a while slows all of them
SECONDS = 0.7  # of measured work in a cell of the fastest queue
OPEN_SECONDS = 5.0  # the same at a given rate
PILOT_JOBS = 500  # at least, in the round that is not counted
MOST_JOBS = 250_000  # of a cell: they are enqueued before it begins
MOST_BACKLOG = 2_000_000  # they go in through the queue's own enqueue
MOST_PAYLOAD = 1_000_000  # bytes
MOST_WORKERS = 64  # a server takes a hundred connections, and some are the harness's
LONGEST = 60  # seconds of a cell, and of its warm-up
NAME = 255  # characters of a file's name that is looked for
SPARE = 2.0  # times the jobs that a worker program will do
SLACK = 1.5  # a cell's time limit, in SECONDS: what slower queues have
SETTINGS = (
    *("fsync", "synchronous_commit", "full_page_writes", "wal_level"),
    *("autovacuum", "shared_buffers", "max_wal_size"),
)

Keep = Callable[[BenchReport], None]
Progress = Callable[[str, float], None]  # what is measured now, and which share of all is done
Side = tuple[Loaded, Series]  # a queue with its entry in the report


class Group(NamedTuple):
    """Queues that are compared under the same load, next to each other in time."""

    shape: Shape
    queues: tuple[Loaded, ...]  # the first one is what the others are compared with


class Setting(NamedTuple):
    """The place and the manner of a measurement, whatever is measured."""

    seconds: float = SECONDS  # of measured work of the fastest queue in a cell
    pace: Pace = CLOSED  # an open loop's rate, and what all loads have in common
    postgres: str | None = None  # as `open_server` takes it; what is started here is durable
    trust: bool = False  # the same
    progress: Progress = lambda _what, _share: None
    keep: Keep = lambda _report: None  # given the rounds that are whole when a signal ends the run

    @contextmanager
    def ground(self, sides: Sequence[Side], report: BenchReport) -> Iterator[Ground]:
        """The place where queues are measured, once counters have been read there.

        What is to be told beside the figures goes into the report, which is kept if a signal comes.
        """
        with (
            open_server(self.postgres, durable=True, trust=self.trust) as server,
            Ground(server, max(one.shape.workers for _, one in sides), self.pace) as ground,
            keeping_whole_rounds(report, self.keep),
        ):
            # A DSN or a path would name somebody's machine.
            kind = server.source.partition(":")[0] if server.ours else "a server given by its DSN"
            report.method |= {
                "server": f"PostgreSQL {spoken(server.version)}, {kind}",
                "settings": {name: ground.setting(name) for name in SETTINGS},
                "durable": server.durable,
                "cores": processors(),
                "load_before": round(os.getloadavg()[0], 2),
                "seconds": self.seconds,
                "apart": ground.apart,
                "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "pace": self.pace._asdict(),
                "queues": {entry.queue: queue.digest for queue, entry in sides},
            }
            for queue, entry in sides:
                self.progress(f"counting: {entry.queue}, batch {entry.shape.batch}", 0.0)
                count_once(ground, queue, entry, report)
            yield ground


def groups(
    queues: Sequence[Queue],
    batches: Sequence[int] = (1, 10, 100),
    workers: Sequence[int] = (1, 4),
    holds: Sequence[float] = (0.0,),
) -> list[Group]:
    """Every queue that `refuse` lets pass with each batch size, number of workers and hold (s)."""
    checked = tuple(refuse(queue) for queue in queues)
    return [Group(Shape(b, w, h), checked) for w, b, h in product(workers, batches, holds)]


def measure(
    plan: Sequence[Group],
    setting: Setting = Setting(),  # noqa: B008 - a tuple
    *,
    endure: float = 0.0,
    rounds: int = ROUNDS,
) -> BenchReport:
    """Measure a plan: a round that is not counted and sets the number of jobs, then the rounds.

    Within a round the queues of a group follow each other under the same load, each time
    beginning with another one, so that a machine that slows down slows all of them. With 0 rounds
    only counters are read; `endure` is seconds of each phase of endurance, without rounds.
    A QueueError says why a queue cannot be measured, a BenchError which number is out of range.
    """
    rounds = 0 if endure else rounds
    refuse_plan(plan, setting, rounds=rounds, endure=endure)
    names = names_of([queue for group in plan for queue in group.queues])
    cells = [
        Compared(shape, [(queue, Series(names[queue.name], shape)) for queue in queues])
        for shape, queues in plan
    ]
    sides = [side for cell in cells for side in cell.sides]
    report = BenchReport({}, [entry for _, entry in sides])
    told = count()
    with setting.ground(sides, report) as ground:
        report.method["rounds"] = rounds
        if endure:
            report.method["endure"] = endure
            for queue, entry in sides:
                setting.progress(f"enduring: {entry.queue}", next(told) / len(sides))
                if isinstance(queue, SqlFileQueue) and not entry.reason:
                    ground.endure(queue, entry.shape.batch, endure, entry.endured)
                    entry.counted = {**entry.counted, **gates(entry.endured)}
        for number, cell in product(range(rounds + 1 if rounds else 0), cells):
            turn = number % len(cell.sides)

            def tell(what: str, number: int = number) -> None:
                share = next(told) / len(sides) / (rounds + 1)
                setting.progress(f"round {number}/{rounds}: {what}", share)

            order = [*cell.sides[turn:], *cell.sides[:turn]]
            best = cell.measure(ground, setting, order, counted=number > 0, tell=tell)
            cell.jobs = needed(setting, best, cell.shape)
    failures = [entry for entry in report.entries if entry.failed]
    if failures and not any(entry.runs for entry in report.entries):
        raise QueueError(f"{failures[0].queue}: {failures[0].reason}")
    return report


class Compared:
    """Queues under the same load, as they are measured round by round."""

    def __init__(self, shape: Shape, sides: Sequence[Side]) -> None:
        self.shape, self.sides = shape, sides
        self.jobs = enough(PILOT_JOBS, shape)  # how many to put in
        self.own: dict[str, float] = {}  # each queue's own jobs/s, by its name

    def measure(
        self,
        ground: Ground,
        setting: Setting,
        order: Sequence[Side],
        *,
        counted: bool,
        tell: Callable[[str], None] = lambda _: None,
    ) -> float:
        """Measure a round, in an order; jobs/s of the fastest. One not counted is a warm-up."""
        pace = ground.pace = setting.pace if counted else setting.pace._replace(rate=0, warm_up=0)
        best = 0.0
        for queue, entry in order:
            tell(f"{entry.queue}, {spoken_shape(self.shape)}")
            if entry.reason:
                continue
            jobs = self.jobs
            if isinstance(queue, WorkerQueue):  # whose own enqueue takes its time
                rate = self.own.get(entry.queue, PILOT_JOBS / setting.seconds)
                jobs = min(jobs, enough(SPARE * rate * setting.seconds, self.shape))
            prepared = ground.prepare(queue, self.shape, jobs)
            try:
                prepared.run(setting.seconds * (1 if pace.rate else SLACK))
                measured = prepared.verdict()
            except QueueError as error:
                # Hours of other queues' figures are not thrown away for it.
                entry.reason, entry.failed = str(error), True
                entry.runs.clear()
                continue
            self.own[entry.queue] = measured.rate
            best = max(best, measured.rate)
            if counted:
                entry.runs.append(measured)
        return best


@contextmanager
def keeping_whole_rounds(report: BenchReport, keep: Keep) -> Iterator[None]:
    """Hand over the rounds, or phases, that are whole before anything closes, if a signal comes."""
    try:
        yield
    except (KeyboardInterrupt, StoppedError):
        for entry in report.entries:
            del entry.endured[len(entry.endured) // POINTS * POINTS :]
            entry.counted = {**entry.counted, **gates(entry.endured)}
        whole = min((len(entry.runs) for entry in report.entries if not entry.reason), default=0)
        if any(entry.endured for entry in report.entries):
            report.method["interrupted"] = True
            keep(report)
        elif whole:
            for entry in report.entries:
                del entry.runs[whole:]
            report.method |= {"rounds": whole, "interrupted": True}
            keep(report)
        raise


def count_once(ground: Ground, queue: Loaded, entry: Series, report: BenchReport) -> None:
    """Count what a queue costs one worker alone, once for all loads of a batch size."""
    entry.reason = why_not(queue, entry.shape) or ""
    for other in report.entries:
        if (other.queue, other.shape.batch) == (entry.queue, entry.shape.batch) and other.counted:
            entry.counted = other.counted
            return
    if not entry.reason:
        try:
            entry.counted = ground.count(queue, entry.shape.batch)
        except QueueError as error:
            entry.reason, entry.failed = str(error), True


def needed(setting: Setting, rate: float, shape: Shape) -> int:
    """Jobs for a load, its warm-up included, where the fastest queue does `rate` jobs/s."""
    pace, seconds = setting.pace, setting.seconds
    warm = rate * pace.warm_up
    if pace.rate:  # as many as may be due, by chance, and some
        return enough(1.5 * pace.rate * seconds + warm, shape) + 10 * shape.batch * shape.workers
    return enough(rate * seconds + warm, shape)


def enough(jobs: float, shape: Shape) -> int:
    """Jobs for a cell, rounded up to whole claims of all workers."""
    step = shape.batch * shape.workers
    return min(MOST_JOBS // step * step or step, step * max(4, round(jobs / step)))


def refuse_plan(
    plan: Sequence[Group], setting: Setting, *, rounds: int = 1, endure: float = 0.0
) -> None:
    """Raise BenchError for numbers out of range, and for what the loop of programs has not."""
    pace, seconds = setting.pace, setting.seconds
    if not any(group.queues for group in plan):
        raise BenchError("there is nothing to measure: name a queue file")
    if rounds < 0 or not 0 < seconds <= LONGEST:
        raise BenchError(f"rounds: 0 or more; seconds: more than 0, at most {LONGEST}")
    for shape, _ in plan:
        fits = 1 <= shape.batch <= MOST_JOBS and 1 <= shape.workers <= MOST_WORKERS
        if not fits or not 0 <= shape.hold <= 1:
            raise BenchError(
                f"{spoken_shape(shape)}: a batch has 1 to {MOST_JOBS:,} jobs, there are 1 to"
                f" {MOST_WORKERS} workers, and a hold is at most 1 s"
            )
    most = Pace(MOST_JOBS / seconds, MOST_BACKLOG, MOST_PAYLOAD, LONGEST)
    if not all(0 <= asked <= limit for asked, limit in zip(pace, most, strict=True)):
        raise BenchError(
            f"a rate times the seconds is at most {MOST_JOBS:,} jobs, a backlog {MOST_BACKLOG:,}"
            f" jobs, a payload {MOST_PAYLOAD:,} bytes, a warm-up {LONGEST} s"
        )
    programs = [q.name for group in plan for q in group.queues if isinstance(q, WorkerQueue)]
    if programs and (pace.rate or pace.backlog or pace.warm_up or endure):
        raise BenchError(
            f"{programs[0]}: worker programs are measured in a closed loop; --rate, --backlog,"
            " --warm-up and --endure are for queue files"
        )


def spoken_shape(shape: Shape) -> str:
    """A load in words."""
    return f"batch {shape.batch}, workers {shape.workers}{shape.held(', hold ')}"


def names_of(queues: Sequence[Loaded]) -> dict[str, str]:
    """Short names: files' and classes' own, or all that was typed where two have the same."""
    short = {queue.name: _short(queue) for queue in queues}
    names = list(short.values())
    return {name: own if names.count(own) == 1 else name for name, own in short.items()}


def _short(queue: Loaded) -> str:
    if isinstance(queue, SqlFileQueue):
        return Path(queue.name).stem
    if not queue.name.startswith("exec:"):
        return queue.name.rpartition(":")[2]
    files = [word for word in queue.argv[1:] if len(word) < NAME and Path(word).is_file()]
    return Path(files[-1]).stem if files else queue.name
