"""The worker processes of a benchmark: started once, given one load after another."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TypeAlias

from queueproof import ending, waits
from queueproof.bench import worker
from queueproof.bench.session import LoadSession, values
from queueproof.bench.worker import PATIENCE, TICK, Load, Order, Tally
from queueproof.ending import in_one_piece
from queueproof.errors import QueueError, QueueproofError
from queueproof.machine import processors

START_SECONDS = 60.0  # for a process to start and prepare; far more than a loaded machine needs
GRACE = PATIENCE + 20.0  # seconds after the end of a load in which every process has answered
CLOSE_SECONDS = 2.0  # in which idle processes end by themselves
DIED = "a worker process died"

Answer: TypeAlias = list[Tally] | str | None  # what its workers did, what went wrong, or "ready"


class WorkerLostError(QueueproofError):
    """A worker process died or did not answer in time; whatever asks one raises it."""


class Pool:
    """Worker processes; whoever makes them closes them.

    They are new Python processes, not forks: each imports little and shares nothing but a count.
    """

    def __init__(self, size: int) -> None:
        """Start one for each processor, or for each of at most `size` workers if that is fewer."""
        context = multiprocessing.get_context("spawn")
        self._accepted = context.RawArray("q", size)
        self._busy: Sequence[Connection] = ()
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._working = False  # whether one of them still owes an answer
        try:
            for _ in range(min(size, processors())):
                ours, theirs = context.Pipe()
                self._pipes.append(ours)
                process = context.Process(
                    target=worker.main, args=(theirs, self._accepted), daemon=True
                )
                with in_one_piece():
                    process.start()
                    self._processes.append(process)
                theirs.close()  # so that its death is the end of the pipe
        except BaseException:
            self.close()
            raise

    def prepare(self, conninfo: str, load: Load, workers: int) -> None:
        """Let so many workers connect and prepare their statements; they then wait for `work`."""
        self._conninfo, self._load = conninfo, load
        self._accepted[:] = [0] * len(self._accepted)
        pipes = self._busy = self._pipes[:workers]
        for place, pipe in enumerate(pipes):
            _tell([pipe], Order(conninfo, load, range(place, workers, len(pipes))))
        answers = self._answers(pipes, START_SECONDS)
        ready = [p for p, answer in zip(pipes, answers, strict=True) if answer is None]
        if len(ready) < len(pipes):
            _tell(ready, (0.0, 0.0))
            self._answers(ready, GRACE)
            _raise_first(answers)

    def work(self, seconds: float, tick: Callable[[], None]) -> tuple[float, list[Tally]]:
        """Let the prepared workers go, and wait until all have ended; `tick` is called meanwhile.

        They claim no more after so many seconds, and end before if the jobs are done. Returned is
        when the measurement began, by `time.monotonic`, and what each did.
        """
        warm_up = self._load.warm_up
        began = time.monotonic() + warm_up
        _tell(self._busy, (began, began + seconds))
        answers = self._answers(self._busy, warm_up + seconds + GRACE, tick)
        _raise_first(answers)
        return began, [t for answer in answers if isinstance(answer, list) for t in answer]

    def states(self) -> dict[bytes, bytes] | None:
        """The state of each job; None where the queue cannot say."""
        load = self._load
        if not load.observed.commands:
            return None
        with closing(LoadSession(self._conninfo, load.setup)) as session:
            session.prepare(load.observed)
            answer, _ = session.run(load.observed, dict(load.constants))
        if answer is None:
            return {}
        job, state = (values(answer, column) for column in load.observed_columns)
        named = load.states
        return {j or b"": named.get(s or b"", s or b"") for j, s in zip(job, state, strict=True)}

    def _answers(
        self, pipes: Sequence[Connection], seconds: float, tick: Callable[[], None] = lambda: None
    ) -> list[Answer]:
        """One answer of each; all are waited for, so that the next load finds all idle."""
        answers: dict[Connection, Answer] = {}
        self._working = True
        give_up = time.monotonic() + seconds
        while len(answers) < len(pipes):
            if time.monotonic() > give_up:
                missing = len(pipes) - len(answers)
                raise WorkerLostError(f"{missing} workers did not answer in {seconds:.0f} s")
            for pipe in pipes:
                if pipe not in answers and pipe.poll():
                    try:
                        answers[pipe] = pipe.recv()
                    except (EOFError, OSError):
                        raise WorkerLostError(DIED) from None
            tick()
            wait([pipe for pipe in pipes if pipe not in answers], timeout=TICK)
        self._working = False
        return [answers[pipe] for pipe in pipes]

    def close(self) -> None:
        """End the processes, at once if they are at work or do not end by themselves."""
        for process in self._processes if self._working else ():
            process.kill()  # it hears nothing before its time is up
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.close()
        give_up = min(time.monotonic() + CLOSE_SECONDS, ending.at() - ending.GRACE)
        for process in self._processes:
            process.join(timeout=max(0.0, give_up - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(waits.GONE)
            process.close()
        self._pipes.clear()
        self._processes.clear()


def _tell(pipes: Sequence[Connection], what: Order | tuple[float, float]) -> None:
    for pipe in pipes:
        try:
            pipe.send(what)
        except OSError:
            raise WorkerLostError(DIED) from None


def _raise_first(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if isinstance(answer, str):
            raise QueueError(answer)
