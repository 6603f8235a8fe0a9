"""What was counted, as tables: by one worker alone, and under load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from queueproof.bench import latency, numbers
from queueproof.bench.counters import COUNTED, COUNTERS
from queueproof.bench.endure import NAPS, PHASES, slope
from queueproof.bench.figures import Series
from queueproof.bench.hosted import MOST_JOBS
from queueproof.bench.measured import Measured
from queueproof.bench.table import NOTHING, TitledTable

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


def tables(entries: Sequence[Series], rate: float) -> list[TitledTable]:
    """The tables of which there are figures.

    Args:
        entries: Of the report.
        rate: Jobs per second that were due in an open loop.
    """
    first = _open_loop(entries, rate)
    every = (first, _endurance(entries), _alone(entries), _under_load(entries), _programs(entries))
    return [table for table in (*every, _yardstick(entries)) if table.rows]


def _open_loop(entries: Sequence[Series], rate: float) -> TitledTable:
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        runs = [run for run in entry.runs if run.histogram]
        if not runs:
            continue
        found = latency.percentiles([run.histogram for run in runs])
        shape = entry.shape
        times = (numbers.rounded(1000 * seconds, None) for seconds in found.values())
        late, skipped = sum(run.late for run in runs), sum(run.skipped for run in runs)
        done = numbers.with_spread([run.rate for run in runs])
        where = (entry.queue, str(shape.workers), str(shape.batch), f"{rate:g}", done)
        rows.append((*where, *times, f"{late:,}", f"{skipped:,}"))
    times_of = (f"p{share:g}, ms" for share in latency.SHARES)
    return TitledTable(
        "Latency under a given rate",
        ("strategy", "workers", "batch", "jobs/s due", "done", *times_of, "max", "late", "skipped"),
        rows,
        "An open loop: claims are due at random times (Poisson), whatever the answers do, and a"
        " latency counts from when its claim was due: no coordinated omission. HdrHistograms of all"
        " rounds, merged. late: began more than a millisecond after it was due. skipped: did not"
        " begin, or got nothing, before the time was up; where there are many the queue cannot keep"
        " up with the rate, and the true latencies have no bound.",
    )


def _endurance(entries: Sequence[Series]) -> TitledTable:
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        for phase in PHASES if entry.endured else ():
            points = [point for point in entry.endured if point.phase == phase]
            if not points:  # it was interrupted
                continue
            first, last = points[0], points[-1]
            before = entry.endured[max(0, entry.endured.index(first) - 1)]
            rows.append(
                (
                    entry.queue,
                    str(entry.shape.batch),
                    phase,
                    f"{last.claims:,}",
                    f"{first.buffers:,.4g} → {last.buffers:,.4g}",
                    _signed(slope(points, lambda p: p.buffers)),
                    numbers.rounded(1000 * last.p50, None),
                    _signed(slope(points, lambda p: 1000 * p.p50)),
                    f"{last.dead:,}",
                    f"{last.size / 2**20:,.3g}",
                    f"{last.autovacuums - before.autovacuums:,}",
                )
            )
    header = (
        *("strategy", "batch", "phase", "claims so far"),
        *("buffers per claim", "per 1,000 claims", "p50, ms", "per 1,000 claims, ms"),
        *("dead rows", "MB", "autovacuum ran"),
    )
    return TitledTable(
        "Endurance: an old snapshot, and after it",
        header,
        rows,
        "One worker; a job goes in for each that is claimed, of three priorities in turn, so that"
        " the queue keeps its depth. The snapshot is a REPEATABLE READ transaction of another"
        " session. Per 1,000 claims: the slope of the line that fits best. Buffers are counted and"
        " decide; times are this machine's. On a server that was started for this, autovacuum"
        f" looks {NAPS} times in a phase, at most once a second.",
    )


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "") + numbers.rounded(value, None)


def _programs(entries: Sequence[Series]) -> TitledTable:
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        runs = [run for run in entry.runs if run.message]
        if runs:
            where = (entry.queue, str(entry.shape.workers), str(entry.shape.batch))
            rows.append((*where, numbers.median([1e6 * run.message for run in runs])))
    return TitledTable(
        "Through their own worker programs",
        ("strategy", "workers", "batch", "a message, µs"),
        rows,
        "Each worker is a process of the queue's own program, which claims and completes through"
        " its own client when a JSON line asks for it: what such a message costs while nothing else"
        " runs, and a claim with its completion are two (one more for each further job that is"
        " completed alone). What these queues do beside that for each job (log rows, notifications,"
        " rows that are kept) shows in rows changed and WAL per job. A cell has at most"
        f" {MOST_JOBS:,} jobs, put in through their own enqueue.",
    )


def _yardstick(entries: Sequence[Series]) -> TitledTable:
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        if entry.yardstick and len(entry.yardstick) == len(entry.runs):
            pairs = zip(entry.runs, entry.yardstick, strict=True)
            ratios = [run.rate / beside for run, beside in pairs]
            spread = numbers.half_range(ratios)
            low, high = (numbers.rounded(f(ratios), spread) for f in (min, max))
            shown = numbers.with_spread(entry.yardstick)
            ratio = f"{numbers.median(ratios)} ({low} to {high})"
            shape = entry.shape
            rows.append((entry.queue, str(shape.workers), str(shape.batch), shown, ratio))
    return TitledTable(
        "The harness beside pgbench",
        ("strategy", "workers", "batch", "pgbench, jobs/s", "harness ÷ pgbench"),
        rows,
        "pgbench -M prepared on the queue's own SQL, in the same rounds, every other time first: a"
        " claim and the completion of what it got are one of its transactions. It takes a single"
        " row from an answer, so that its claim of a batch gathers the rows in arrays.",
    )


def _alone(entries: Sequence[Series]) -> TitledTable:
    rows: dict[tuple[str, int], tuple[str, ...]] = {}
    for entry in entries:
        if entry.counted:
            figures = (entry.counted.get(name) for name in COUNTERS)
            shown = (NOTHING if figure is None else f"{figure:,.4g}" for figure in figures)
            rows[entry.queue, entry.shape.batch] = (entry.queue, str(entry.shape.batch), *shown)
    names = (name.replace("_", " ") for name in COUNTERS)
    return TitledTable(
        "Counted, one worker alone",
        ("strategy", "batch", *names),
        list(rows.values()),
        f"{COUNTED} claims and their completions on a vacuumed queue; nothing here depends on how"
        " fast the machine is, so `--fail-if` asks for these. "
        + "; ".join(f"{name.replace('_', ' ')}: {what}" for name, what in COUNTERS.items())
        + ".",
    )


def _under_load(entries: Sequence[Series]) -> TitledTable:
    rows = []
    for entry in entries:
        runs = [run for run in entry.runs if run.round_trips or run.rows_changed]
        if not runs:
            continue
        hold = f"{entry.shape.hold * 1000:g} ms" if entry.shape.hold else "none"
        shown = [
            NOTHING
            if ("server" in name and any(run.server_cpu is None for run in runs))
            or not any(figure(run) for run in runs)
            else numbers.median([figure(run) / run.completed for run in runs])
            for name, figure in UNDER_LOAD.items()
        ]
        where = (entry.queue, str(entry.shape.workers), str(entry.shape.batch), hold)
        rows.append((*where, *shown, _waits(runs)))
    header = ("strategy", "workers", "batch", "hold", *UNDER_LOAD, "the backends were")
    return TitledTable(
        "Counted under load, per job",
        header,
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
