"""Conditions that fail a build: `buffers_per_claim > 1.2 * baseline.json`, on counters only."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from queueproof import waits
from queueproof.bench.counters import COUNTERS
from queueproof.bench.endure import GATES
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.errors import QueueproofError, nearest

NAMES = (*COUNTERS, *GATES)
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NUMBER = r"\d+(?:\.\d+)?"
_CONDITION = re.compile(
    rf"\s*(?P<name>\w+)\s*(?P<how>[<>]=?)\s*"
    rf"(?:(?P<factor>{_NUMBER})\s*(?:\*\s*(?P<scaled>\S.*?))?|(?P<plain>[^\s<>=].*?))\s*"
)
_TIMES = ("second", "rate", "latenc", "p50", "p95", "p99", "time", "cpu", "throughput", "ms")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, and what it is compared with."""

    text: str  # as it was written
    name: str
    how: str
    factor: float  # the number, or by what a baseline's figure is multiplied
    baseline: BenchReport | None = None  # a report of before; None where the number stands alone
    path: str = ""

    @classmethod
    def of(cls, text: str) -> Condition:
        """Read `COUNTER > NUMBER`, `COUNTER > FILE` or `COUNTER > NUMBER * FILE`; or BenchError."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise BenchError(
                f"--fail-if {text!r}: write COUNTER > NUMBER, or COUNTER > NUMBER * FILE, such as"
                " 'buffers_per_claim > 1.2 * baseline.json'"
            )
        name = found["name"]
        if name not in NAMES:
            if any(word in name for word in _TIMES):
                raise BenchError(
                    f"--fail-if {text!r}: {name} is a time, and times of two runs differ with the"
                    " machine: compare both queues in one run, with --compare; counters gate here:"
                    f" {', '.join(NAMES)}"
                )
            meant = nearest(name, NAMES) or f"; there are {', '.join(NAMES)}"
            raise BenchError(f"--fail-if {text!r}: no counter {name}{meant}")
        path = found["scaled"] or found["plain"] or ""
        factor = float(found["factor"] or 1)
        return cls(text, name, found["how"], factor, _read(path) if path else None, path)

    def judge(self, entries: Sequence[Series]) -> list[str]:
        """A sentence for each queue and batch size of whose counts, if any, it is true."""
        told = []
        counted = {(e.queue, e.shape.batch): e.counted for e in entries if self.name in e.counted}
        if not counted:
            hint = "; it takes --endure" if self.name in GATES else ""
            raise BenchError(f"--fail-if {self.text!r}: {self.name} was counted for no queue{hint}")
        for (queue, batch), counters in counted.items():
            limit = self.factor
            if self.baseline is not None:
                alone = len({q for q, _ in counted}) == 1
                limit *= self._before(self.baseline, queue, batch, alone=alone)
            if _COMPARISONS[self.how](counters[self.name], limit):
                told.append(
                    f"{queue}, batch {batch}: {self.name} is {counters[self.name]:g}, which is"
                    f" {self.how} {limit:g}, from '{self.text}'"
                )
        return told

    def _before(self, baseline: BenchReport, queue: str, batch: int, *, alone: bool) -> float:
        """The baseline's figure; a single queue may have had another name then."""
        entries = [e for e in baseline.entries if self.name in e.counted]
        renamed = alone and len({entry.queue for entry in entries}) == 1
        for entry in entries:
            if entry.shape.batch == batch and (renamed or entry.queue == queue):
                return entry.counted[self.name]
        raise BenchError(
            f"{self.path} has no {self.name} of {queue} at batch {batch}; write it anew with --json"
        )


def _read(path: str) -> BenchReport:
    try:
        return BenchReport.from_json(waits.text(Path(path)))
    except QueueproofError as error:  # one of reading names the file
        where = f"{path}: " if isinstance(error, BenchError) else ""
        raise BenchError(f"{where}{error}") from None
