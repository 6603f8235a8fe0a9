"""The figures of a benchmark as tables, before anybody says how they look."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from queueproof.bench import latency, numbers
from queueproof.bench.counters import COUNTED, COUNTERS
from queueproof.bench.endure import NAPS, PHASES, slope
from queueproof.bench.figures import BenchReport, Series
from queueproof.bench.hosted import MOST_JOBS
from queueproof.bench.measured import Measured, Shape

NOTHING = "n/a"
SHOWN = 3  # of what was waited for
LEAST = 0.02  # share of samples; less is left out

UNDER_LOAD: dict[str, Callable[[Measured], float]] = {
    "buffers": lambda run: run.buffers,
    "WAL bytes": lambda run: run.wal_bytes,
    "round trips": lambda run: run.round_trips,
    "rows changed": lambda run: run.rows_changed,
    "dead rows": lambda run: run.dead_rows,
    "server CPU, µs": lambda run: 1e6 * (run.server_cpu or 0.0),
    "worker CPU, µs": lambda run: 1e6 * run.worker_cpu,
}
CORRECTNESS: dict[str, Callable[[Measured], int]] = {
    "completions rejected": lambda run: run.rejected,
    "claimed, not completed": lambda run: run.unfinished,
    "lost": lambda run: run.lost,
    "empty claims": lambda run: run.empty,
    "retries": lambda run: run.retries,
    "deadlocks": lambda run: run.deadlocks,
}
LOAD = ("strategy", "workers", "batch")
NAMES = frozenset({*LOAD, "hold", "phase"})
"""Headings of the first columns of a table, which say what a row is about."""


class TitledTable(NamedTuple):
    """A table with its title and what there is to say about it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables(report: BenchReport) -> list[TitledTable]:
    """Every table of a report that has a row."""
    place = {name: number for number, name in enumerate(report.names())}
    first = report.entries[0].queue if report.entries else ""
    entries = sorted(report.entries, key=lambda one: place[one.queue])
    both = [e for e in entries if e.shape[:2] in report.held]
    # A row of a matrix is a queue that was measured with all of its batch sizes.
    matrix = [e for e in entries if e.shape[:2] not in report.held and (e.runs or e.reason)]
    parts = [
        (numbers.workers(workers), [e for e in matrix if e.shape.workers == workers])
        for workers in sorted({e.shape.workers for e in matrix})
    ]
    parts.sort(key=lambda part: -len(part[1]))  # the load that most queues have had comes first
    # An open loop has a table of its own.
    closed = [part for part in parts if not any(_having(part[1], lambda run: run.histogram))]
    rates = [_throughput(*part, first) for part in parts]
    found = [
        *(one._replace(note=reading(report)) for one in rates[:1]),
        *rates[1:],
        _comparison(both, first),
        _possible(report),
        *(_latency(*part) for part in closed),
        _open_loop(entries, report.method.get("pace", {}).get("rate", 0.0)),
        _endurance(entries),
        _alone(entries),
        _under_load(entries),
        _programs(entries),
        _correctness(entries),
    ]
    return [table for table in found if table.rows]


def _by_batch(title: str, shown: Iterable[tuple[Series, str]], note: str = "") -> TitledTable:
    """A table with a row for each queue and a column for each batch size."""
    cells = {(entry.queue, entry.shape): text for entry, text in shown}
    shapes = sorted({shape for _, shape in cells})
    rows = [
        (queue, *(cells.get((queue, shape), NOTHING) for shape in shapes))
        for queue in dict.fromkeys(queue for queue, _ in cells)
    ]
    return TitledTable(title, ("strategy", *(f"batch {s.batch}" for s in shapes)), rows, note)


def _where(entry: Series) -> tuple[str, str, str]:
    """A row's beginning, under the words of `LOAD`."""
    return entry.queue, str(entry.shape.workers), str(entry.shape.batch)


def _having(
    entries: Iterable[Series], wanted: Callable[[Measured], object]
) -> Iterator[tuple[Series, list[Measured]]]:
    """The queues some of whose runs have something, with these runs."""
    for entry in entries:
        if runs := [run for run in entry.runs if wanted(run)]:
            yield entry, runs


def _bases(entries: Sequence[Series], first: str) -> Mapping[Shape, Series]:
    """The first queue under each load, with which the others are compared."""
    return {e.shape: e for e in entries if e.queue == first and e.runs}


def _possible(report: BenchReport) -> TitledTable:
    shares = sorted(report.possible(), key=lambda one: report.names().index(one[0].queue))
    limit = report.method.get("limit")
    return _by_batch(
        f"Share of the upper bound, {numbers.workers(shares[0][0].shape.workers if shares else 0)}",
        [(entry, numbers.with_spread(share)) for entry, share in shares],
        f"The upper bound is {limit} = 1. It deletes a job when it is claimed, and so loses it if"
        " the worker dies. A queue that keeps its jobs through a crash has to write more.",
    )


def reading(report: BenchReport) -> str:
    """The note on reading a cell of the tables of rates, and its ratio where there are any."""
    first = report.entries[0].queue if report.entries else ""
    told = "± is half of the difference between the slowest round and the fastest."
    if len(report.entries) > len(_bases(report.entries, first)):
        rounds = report.method.get("rounds", 0)
        told += (
            f" In parentheses: relative to {first}. The ratio was computed for each"
            f"{f' of the {rounds} rounds' if rounds > 1 else ' round'}; this is the median. If you"
            " divide the two figures yourself, you may get a slightly different ratio, because both"
            " are rounded."
        )
    return told


def _throughput(workers: str, entries: Sequence[Series], first: str) -> TitledTable:
    bases = _bases(entries, first)

    def figure(entry: Series) -> str:
        base = bases.get(entry.shape)
        if base is None or base is entry or not entry.runs:
            return _rate(entry)
        return f"{_rate(entry)} ({numbers.median(entry.ratios(base))}x)"

    return _by_batch(f"Jobs/s, {workers}", [(entry, figure(entry)) for entry in entries])


def _rate(entry: Series) -> str:
    if not entry.runs:
        return "failed" if entry.failed else NOTHING
    return numbers.with_spread(entry.rates)


def _comparison(entries: Sequence[Series], base: str) -> TitledTable:
    bases = _bases(entries, base)
    measured = {(entry.shape, entry.queue): entry for entry in entries}
    queues = dict.fromkeys(entry.queue for entry in entries)
    rows = []
    for where in product(sorted({entry.shape for entry in entries}), queues):
        if (entry := measured.get(where)) is None:
            continue  # it was not asked: there is no transaction to hold open
        times = waits = NOTHING
        if entry.runs and (first := bases.get(entry.shape)):
            times = numbers.with_range(entry.ratios(first), "x")
            found = [run.lock_waits for run in entry.runs if run.lock_waits is not None]
            waits = f"{statistics.median(found):.0%}" if found else NOTHING
        queue, *load = _where(entry)
        times = "1" if queue == base else times
        rows.append((*load, entry.shape.held("") or "none", queue, _rate(entry), times, waits))
    return TitledTable(
        "The convoy: waiting for locks, with and without a held transaction",
        ("workers", "batch", "hold", "strategy", "jobs/s", f"relative to {base}", "waiting"),
        rows,
        "hold: how long a claim's transaction stays open before its COMMIT, as with an ORM."
        f" 0.5x: half as many jobs/s as {base} (median of the rounds; in parentheses the lowest and"
        " the highest)."
        " waiting: share of samples in which a worker's backend waited for a lock.",
    )


def _latency(workers: str, entries: Sequence[Series]) -> TitledTable:
    def percentiles(entry: Series) -> str:
        columns = zip(*((run.p50, run.p95, run.p99) for run in entry.runs), strict=True)
        return " / ".join(numbers.median([1000 * value for value in each]) for each in columns)

    return _by_batch(
        f"Claim latency, {workers}",
        [(entry, percentiles(entry) or NOTHING) for entry in entries],
        "p50 / p95 / p99 in ms, from wanting jobs to having them: retries, pauses between them and"
        " empty answers included. Medians over the rounds; every sample was kept.",
    )


def _open_loop(entries: Sequence[Series], rate: float) -> TitledTable:
    rows = []
    for entry, runs in _having(entries, lambda run: run.histogram):
        found = latency.at([run.histogram for run in runs], latency.SHARES.values())
        times = (numbers.rounded(1000 * seconds, None) for seconds in found)
        late, skipped = sum(run.late for run in runs), sum(run.skipped for run in runs)
        done = numbers.with_spread([run.rate for run in runs])
        rows.append((*_where(entry), f"{rate:g}", done, *times, f"{late:,}", f"{skipped:,}"))
    *times_of, most = latency.SHARES
    shares = (*(f"{name}, ms" for name in times_of), most)
    return TitledTable(
        "Latency under a given rate",
        (*LOAD, "jobs/s due", "done", *shares, "late", "skipped"),
        rows,
        "An open loop: claims are due at random times (Poisson), whatever the answers do, and a"
        " latency counts from when its claim was due: no coordinated omission. HdrHistograms of all"
        " rounds, merged. late: began more than a millisecond after it was due. skipped: did not"
        " begin, or got nothing, before the time was up; where there are many the queue cannot keep"
        " up with the rate, and the true latencies have no bound.",
    )


def _endurance(entries: Sequence[Series]) -> TitledTable:
    rows = []
    for entry, phase in product(entries, PHASES):
        points = [point for point in entry.endured if point.phase == phase]
        if not points:  # it was interrupted, or nothing was endured
            continue
        first, last = points[0], points[-1]
        before = entry.endured[max(0, entry.endured.index(first) - 1)]
        told = {
            "strategy": entry.queue,
            "batch": str(entry.shape.batch),
            "phase": phase,
            "claims so far": f"{last.claims:,}",
            "buffers per claim": f"{first.buffers:,.4g} → {last.buffers:,.4g}",
            "per 1,000 claims": _signed(slope(points, lambda p: p.buffers)),
            "p50, ms": numbers.rounded(1000 * last.p50, None),
            "per 1,000 claims, ms": _signed(slope(points, lambda p: 1000 * p.p50)),
            "dead rows": f"{last.dead:,}",
            "MB": f"{last.size / 2**20:,.3g}",
            "autovacuum ran": f"{last.autovacuums - before.autovacuums:,}",
        }
        rows.append(told)
    return TitledTable(
        "Endurance: an old snapshot, and after it",
        list(rows[0]) if rows else (),
        [list(row.values()) for row in rows],
        "One worker; a job goes in for each that is claimed, of three priorities in turn, so that"
        " the queue keeps its depth. The snapshot is a REPEATABLE READ transaction of another"
        " session. Per 1,000 claims: the slope of the line that fits best. Buffers are counted and"
        " decide; times are this machine's. On a server that was started for this, autovacuum"
        f" looks {NAPS} times in a phase, at most once a second.",
    )


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "") + numbers.rounded(value, None)


def _alone(entries: Sequence[Series]) -> TitledTable:
    counts = {(e.queue, str(e.shape.batch)): e.counted for e in entries if e.counted}
    rows = [
        (*of, *(f"{counted[n]:,.4g}" if n in counted else NOTHING for n in COUNTERS))
        for of, counted in counts.items()
    ]
    names = {name: name.replace("_", " ") for name in COUNTERS}
    told = "; ".join(f"{names[name]}: {what}" for name, what in COUNTERS.items())
    return TitledTable(
        "Counted, one worker alone",
        ("strategy", "batch", *names.values()),
        rows,
        f"{COUNTED} claims and their completions on a vacuumed queue; nothing here depends on how"
        f" fast the machine is, so `--fail-if` asks for these. {told}.",
    )


def _under_load(entries: Sequence[Series]) -> TitledTable:
    rows = []
    for entry, runs in _having(entries, lambda run: run.round_trips or run.rows_changed):
        shown = [
            NOTHING
            if ("server" in name and any(run.server_cpu is None for run in runs))
            or not any(figure(run) for run in runs)
            else numbers.median([figure(run) / run.completed for run in runs])
            for name, figure in UNDER_LOAD.items()
        ]
        rows.append((*_where(entry), entry.shape.held("") or "none", *shown, _waits(runs)))
    return TitledTable(
        "Counted under load, per job",
        (*LOAD, "hold", *UNDER_LOAD, "the backends were"),
        rows,
        "Empty claims and retries included. WAL is the whole server's, CPU that of the backends and"
        " of the worker processes. The last column: shares of samples, as pg_stat_activity names"
        " what a backend waits for; `Client:ClientRead` is its worker's turn, and idle workers'.",
    )


def _waits(runs: Sequence[Measured]) -> str:
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.waits)
    shares = {name: share / len(runs) for name, share in total.most_common(SHOWN)}
    said = {name: "working" if name == "none" else name for name in shares}
    return ", ".join(f"{said[n]} {share:.0%}" for n, share in shares.items() if share >= LEAST)


def _programs(entries: Sequence[Series]) -> TitledTable:
    rows = [
        (*_where(entry), numbers.median([1e6 * run.message for run in runs]))
        for entry, runs in _having(entries, lambda run: run.message)
    ]
    return TitledTable(
        "Through their own worker programs",
        (*LOAD, "a message, µs"),
        rows,
        "Each worker is a process of the queue's own program, which claims and completes through"
        " its own client when a JSON line asks for it: what such a message costs while nothing else"
        " runs, and a claim with its completion are two (one more for each further job that is"
        " completed alone). What these queues do beside that for each job (log rows, notifications,"
        " rows that are kept) shows in rows changed and WAL per job. A cell has at most"
        f" {MOST_JOBS:,} jobs, put in through their own enqueue.",
    )


def _correctness(entries: Sequence[Series]) -> TitledTable:
    ran: dict[str, list[Measured]] = {}
    for entry in entries:
        ran.setdefault(entry.queue, []).extend(entry.runs)
    rows = []
    for queue, runs in ran.items():
        claimed, double = sum(r.claimed for r in runs), sum(r.double_claims for r in runs)
        share = f"{double:,} (**{double / claimed:.0%}**)" if double else "0"
        counts = (sum(map(count, runs)) for count in CORRECTNESS.values())
        if runs:
            rows.append((queue, f"{claimed:,}", share, *(f"{count:,}" for count in counts)))
    return TitledTable(
        "Was every job handed out once and completed?",
        ("strategy", "claimed", "claimed twice", *CORRECTNESS),
        rows,
        "Counted after every cell from the workers' own records and the queue's `jobs`. Jobs/s"
        " counts a job once however often it ran.",
    )
