"""The findings of a benchmark: figures by queue and load, and their file."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from queueproof.bench.endure import Point
from queueproof.bench.measured import Measured, Shape
from queueproof.errors import QueueproofError

FORMAT = 1  # of the file; a benchmark of another one is refused, never misread


class BenchError(QueueproofError):
    """A benchmark that cannot be run as asked, or a file that holds none."""


@dataclass(slots=True)
class Series:
    """One queue under one load."""

    queue: str
    shape: Shape
    runs: list[Measured] = field(default_factory=list)  # one per round
    reason: str = ""  # why there is no figure: not applicable by contract, or it failed; else empty
    failed: bool = False  # whether the reason is a failure
    counted: dict[str, float] = field(default_factory=dict)  # of one worker alone: `COUNTERS`
    endured: list[Point] = field(default_factory=list)  # before, under and after an old snapshot

    @property
    def rates(self) -> list[float]:
        """Jobs per second, round by round."""
        return [run.rate for run in self.runs]

    @property
    def rate(self) -> float:
        """Jobs per second: the median over the rounds."""
        return statistics.median(self.rates)

    def ratios(self, base: Series) -> list[float]:
        """Its rate divided by the base's, round by round."""
        return [mine.rate / other.rate for mine, other in zip(self.runs, base.runs, strict=False)]


@dataclass(slots=True)
class BenchReport:
    """The findings of a benchmark, and its method."""

    method: dict[str, Any]  # what the figures depend on: server, settings, cores, rounds, date
    entries: list[Series]  # every queue under every load, in the order of the plan

    @property
    def plain(self) -> list[Series]:
        """Those that were measured without a held transaction."""
        return [e for e in self.entries if e.runs and not e.shape.hold]

    @property
    def held(self) -> set[tuple[float, ...]]:
        """Batch sizes and workers with which a transaction was held."""
        return {e.shape[:2] for e in self.entries if e.shape.hold}

    def names(self) -> list[str]:
        """The queues, the fastest first: under the smallest of the loads that most have."""
        shapes = Counter(e.shape for e in self.plain)
        shape = min(shapes, key=lambda one: (-shapes[one], one), default=None)
        speed = {e.queue: e.rate for e in self.plain if e.shape == shape}
        return sorted({e.queue: e for e in self.entries}, key=lambda name: -speed.get(name, 0))

    def possible(self) -> list[tuple[Series, list[float]]]:
        """Every queue's share of what is possible, round by round.

        That is the rate of `method["limit"]`, which takes its jobs out for good and keeps none of
        them. The workers are so many as most queues were measured with; empty without a limit.
        """
        limit = self.method.get("limit")
        bases = {e.shape: e for e in self.plain if e.queue == limit}
        shown = [e for e in self.plain if e.shape in bases and e.queue != limit]
        workers = Counter(e.shape.workers for e in shown)
        most = max(workers, key=lambda count: (workers[count], -count), default=0)
        return [(e, e.ratios(bases[e.shape])) for e in shown if e.shape.workers == most]

    def to_json(self) -> str:
        """The report in the shape of pytest-benchmark's JSON; `pytest-benchmark compare` reads it.

        A benchmark there is an entry here; its times are seconds per job, one for each round, so
        that `ops` is jobs per second. `extra_info.runs` holds every field of `Measured`, `params`
        the shape. `queueproof` holds the method, and the entries without a figure.
        """
        missing = [
            {"queue": e.queue, **e.shape._asdict(), "reason": e.reason, "failed": e.failed}
            | {"counted": e.counted, "endured": [point._asdict() for point in e.endured]}
            for e in self.entries
            if not e.runs
        ]
        content = {
            "machine_info": {"cpu": {"count": self.method["cores"]}},
            "commit_info": {},
            "benchmarks": [_benchmark(entry) for entry in self.entries if entry.runs],
            "datetime": self.method["date"],
            "version": "5.1.0",
            "queueproof": {"format": FORMAT, "method": self.method, "missing": missing},
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """Read what `to_json` wrote."""
        try:
            content = json.loads(text)
            own = content["queueproof"]
            if own["format"] != FORMAT:
                raise BenchError(f"format {own['format']} of a benchmark; this reads {FORMAT}")
            told = [(found["params"], found["extra_info"]) for found in content["benchmarks"]]
            told += [(found, found) for found in own["missing"]]
            return cls(own["method"], [_entry(*found) for found in told])
        except (ValueError, KeyError, TypeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            what = "this is no benchmark, as `queueproof bench --json` writes one"
            raise BenchError(f"{what}: {why}") from None


def _benchmark(entry: Series) -> dict[str, Any]:
    shape = entry.shape
    group = f"batch{shape.batch}-workers{shape.workers}{shape.held('-hold').replace(' ', '')}"
    times = [1 / run.rate for run in entry.runs]
    several = len(times) > 1
    low, middle, high = statistics.quantiles(times, method="inclusive") if several else times * 3
    stats = {
        "min": min(times),
        "max": max(times),
        "mean": statistics.fmean(times),
        "stddev": statistics.stdev(times) if several else 0.0,
        "median": middle,
        "q1": low,
        "q3": high,
        "iqr": high - low,
        "outliers": "0;0",
        "ops": 1 / statistics.fmean(times),
        "total": sum(times),
        "rounds": len(times),
        "iterations": 1,
    }
    return {
        "group": group,
        "name": f"{entry.queue}[{group}]",
        "fullname": f"queueproof.bench::{entry.queue}[{group}]",
        "param": group,
        "params": {"queue": entry.queue, **shape._asdict()},
        "extra_info": {
            "jobs_per_second": round(entry.rate, 1),
            "counted": entry.counted,
            "runs": [{k: _rounded(v) for k, v in asdict(run).items()} for run in entry.runs],
        },
        "options": {"timer": "monotonic", "warmup": False},
        "stats": {k: _rounded(v) for k, v in stats.items()},
    }


def _rounded(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _entry(params: dict[str, Any], content: dict[str, Any]) -> Series:
    names = [f.name for f in fields(Measured)]
    runs = content.get("runs", ())
    return Series(
        params["queue"],
        Shape(params["batch"], params["workers"], params["hold"]),
        # What a file of before lacks has not been counted.
        [Measured(**{name: run[name] for name in names if name in run}) for run in runs],
        content.get("reason", ""),
        content.get("failed", False),
        content.get("counted", {}),
        [Point(**point) for point in content.get("endured", ())],
    )
