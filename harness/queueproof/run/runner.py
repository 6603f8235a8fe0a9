"""Programs are run under schedules, each from a fresh start."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from queueproof.errors import QueueError
from queueproof.history.calls import Call, History
from queueproof.judge.answers import contradiction, is_raced
from queueproof.run.answers import FAULT_STATES
from queueproof.run.drain import Drain
from queueproof.run.execution import Execution
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.state import Terms
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import Program

SURE = 3  # runs without a pooler that all differ from the one with it
LOTS = 8  # the same, and with it, where a queue draws lots: each time others


class Runner:
    """Runs programs under schedules, on what `Terms` describes.

    Args:
        anew: Whether worker processes begin their lives anew in each run, which is slow.
        known: What came of programs in turn, plainly, before: other runners know it too.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        split: bool = True,
        held: bool = False,
        tied: bool = False,
        passes: int = 0,
        anew: bool = False,
        conditions: Conditions = PLAIN,
        known: dict[Program, History] | None = None,
    ) -> None:
        self._lab = lab
        self._known = {} if known is None else known
        self._anew = anew and lab.remembers
        self.conditions = conditions
        queue = lab.queue
        # At a stricter level than its own a queue's workers try again (rule 8).
        stricter = {"40001", "40P01"} if conditions.isolation else set()
        self._terms = Terms(
            split=split,
            tied=tied,
            one_each=queue.jobs_per_worker is not None,
            held=held,
            passes=passes,
            beats_idle=queue.beats_by_worker,
            retryable=(queue.retry_on - FAULT_STATES) | stricter,
            conditions=conditions,
        )

    @property
    def again(self) -> range:
        """The lots under which what a pooler seems to do must come again."""
        return range(1, LOTS if self._lab.queue.draws_lots else 2)

    def run(self, program: Program, schedule: Sequence[int] = (), ahead: float = 0.0) -> Run:
        """One run from a fresh start.

        Args:
            schedule: The option taken at each choice; 0, go on, where it has ended.
            ahead: Seconds by which the clock is moved before anything else happens.

        Raises:
            QueueError: An operation did something that no queue may, or its answers contradict each
                other.
        """
        run = self._run_once(program, schedule, ahead)
        wrong = contradiction(run.history.calls, by_worker=self._terms.beats_idle)
        if wrong is not None and self._lab.remembers:
            # What a worker keeps from one run to the next is judged with workers started anew.
            self._lab.forget_sessions()
            run = self._run_once(program, schedule, ahead)
            wrong = contradiction(run.history.calls, by_worker=self._terms.beats_idle)
        if wrong is not None and is_raced(run.history.calls, wrong):
            run.history.contradiction, wrong = wrong, None
        if wrong is not None:
            raise QueueError(wrong.because, self._lab.queue.source_of(wrong.operation))
        if self.conditions.pooled and not program.races:
            run.short = self.short(program, run)
            # One that stood still for a moment was late where it was to be in time.
            for other in self.again if run.short else ():
                if not self.short(program, self._run_once(program, schedule, lot=other)):
                    run.short = None
                    break
        return run

    def short(self, program: Program, run: Run) -> Call | None:
        """The first claim that got less than it gets without a pooler, every time.

        By itself a claim that came back empty proves nothing: only the queue knows when a failed
        job is due. But what it gives workers who act in turn does not depend on connections.

        Raises:
            QueueError: Without a pooler an operation did something that no queue may.
        """
        plain = Runner(self._lab, split=self._terms.split, held=self._terms.held)
        for attempt in range(max(SURE, 1 + len(self.again))):
            known = None if attempt else self._known.get(program)
            own = known or plain._run_once(program, lot=attempt).history
            self._known.setdefault(program, own)
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

    def _run_once(
        self, program: Program, schedule: Sequence[int] = (), ahead: float = 0.0, lot: int = 0
    ) -> Run:
        if self._anew:
            self._lab.forget_sessions()
        seed = crc32(repr(program).encode(), lot) if self._lab.queue.draws_lots else 0
        self._lab.reset(self.conditions, seed=seed)
        if ahead:
            self._lab.advance(ahead)
        execution = Execution(self._lab, self._terms, program, schedule)
        execution.go_through()
        execution.state.record.staged = len(execution.state.record.history.calls)
        self._drain(execution)
        return execution.state.record

    def _drain(self, execution: Execution) -> None:
        Drain(execution).run()
