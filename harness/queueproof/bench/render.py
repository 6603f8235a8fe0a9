"""A benchmark as tables, in Markdown and for a page."""

from __future__ import annotations

import base64
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from queueproof.bench import costs, numbers
from queueproof.bench.decide import ERROR, LEAST, LOOKS, Finding
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.bench.table import NOTHING, TitledTable

if TYPE_CHECKING:
    from types import ModuleType

    from queueproof.bench.measured import Shape


def method(report: BenchReport) -> list[str]:
    """How the figures came about, a sentence or two each."""
    facts = report.method
    settings = ", ".join(f"{name}={value}" for name, value in facts["settings"].items())
    rounds = f"{facts['rounds']} round" + "s" * (facts["rounds"] > 1)
    durable = "" if facts["durable"] else " **These settings are not durable.**"
    compared = facts.get("comparison")
    warm = (
        "of both queues, in an order drawn by lot, after two that are not counted"
        if compared
        else "over all queues after one that is not counted"
    )
    interrupted = facts.get("interrupted")
    if interrupted:
        warm += "; **it was interrupted, and only whole rounds count**"
    pace = _pace(facts.get("pace", {}))
    exchange = ""
    if facts.get("apart") is False and not facts.get("pace", {}).get("rate"):
        exchange = (
            "Where a queue has `complete_and_claim` and holds no transaction, that statement"
            " completes a batch and claims the next one; the counters of one worker alone are of"
            " two. "
        )
    text = f"""\
{facts["server"]}. {settings}.{durable}

{_place(facts)} compare the ratios, which come from cells
next to each other in time, before the figures.

{rounds} {warm}. A figure is the median of the rounds, ± half
their range, with no more digits than that allows; in brackets the median of its ratios to the
first queue, round by round.

A cell: the queue is installed anew, without the movable clock; jobs go in through its own
`enqueue`; `VACUUM (ANALYZE)`. None of that is timed. Then each worker, with a connection and
prepared statements of its own, claims and completes until all jobs are done or the time is up; as
many processes as there are cores share the workers, as pgbench's threads share its clients. There
are jobs for {facts["seconds"]} s at the fastest queue's rate, and slower queues have half as
long again. Timed is from the common start to the answer of the last completion; the jobs themselves
take no time.{pace}

Batches are completed by `complete_many` where the queue has it; `:limit` is a literal. {exchange}A
worker that gets nothing waits for up to 2 ms and tries again. deadlock_timeout is 1 s. A cell is
shorter than autovacuum's naptime, so that it makes no difference.

Jobs/s are no verdict on a design: a queue that keeps a history, notifies or counts does more for
each job, which the counters show.

{facts["date"][:10]}."""
    told = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    if not facts["rounds"]:
        del told[2:5]  # on rounds, cells and workers, of which there were none
    if seconds := facts.get("endure"):
        told.insert(
            2,
            f"Three phases of {seconds:g} s each, in which autovacuum is on if the server is ours"
            + ("; **it was interrupted, and only whole phases count**." * bool(interrupted) or "."),
        )
    return told


def _place(facts: dict[str, Any]) -> str:
    """Where the load came from."""
    return (
        f"{facts['cores']} cores, shared by server, workers and whatever else ran (load average"
        f" {facts['load_before']} when it began). On such a machine"
    )


def _pace(facts: dict[str, float]) -> str:
    """What differs from a closed loop over small jobs."""
    told = {
        "rate": " Claims are due at {:g} jobs/s in all, whatever the answers do.",
        "backlog": " {:,} further jobs stand in the queue.",
        "payload": " A job's payload has {:,} bytes.",
        "warm_up": " The same load runs for {:g} s before.",
    }
    return "".join(text.format(facts[name]) for name, text in told.items() if facts.get(name))


def comparison(report: BenchReport) -> list[str]:
    """What a comparison has found, and by which rule; nothing where there was none."""
    facts = report.method.get("comparison")
    if facts is None:
        return []
    found = Finding(**facts)
    first, second = (entry.queue for entry in report.entries)
    verdict = (
        f"no difference seen between {first} and {second}"
        if found.verdict == "no difference seen"
        else f"{second} is {found.verdict} than {first}"
    )
    width = (found.high - found.low) / 10  # a digit more than it allows: ends near 1 matter
    ratio, low, high = (numbers.rounded(v, width) for v in (found.ratio, found.low, found.high))
    ended = "sure" if found.sure else "the budget ended before it was sure"
    rule = (
        f"Rule: a signed-rank test over the rounds, at most {len(LOOKS)} planned looks, all"
        f" together wrong about equal queues in less than {ERROR:.1%} of comparisons; the interval"
        " must agree."
    )
    size = (
        f"**{verdict}**: {second} does {ratio} times the jobs/s of {first}"
        f" ({low} to {high}; bootstrap, {found.level:.1%})."
    )
    took = f"{found.rounds} rounds, {found.looks} look{'s' * (found.looks > 1)}: {ended}."
    took = f"{took} {_would_have(found)}".strip()
    return [size, took, rule]


def _would_have(found: Finding) -> str:
    """What a comparison that saw nothing rules out."""
    if found.verdict != "no difference seen":
        return ""
    if found.rounds < LEAST:
        return f"With fewer than {LEAST} rounds nothing can be said: give it a larger --budget."
    most = max(1 / found.low, found.high) - 1
    return f"A difference of more than {most:.0%} is ruled out."


def answers(report: BenchReport) -> list[str]:
    """The figures in a few sentences: who does most, the others beside the first queue, and why."""
    if report.method.get("pace", {}).get("rate"):
        return []  # all of them do what they are given
    told = []
    for held in (False, True):
        entries = [e for e in report.entries if e.runs and (e.shape.hold > 0) is held]
        shapes = Counter(entry.shape for entry in entries)
        if not shapes:
            continue
        shape = max(shapes, key=lambda one: (shapes[one], one))
        base, *others = (entry for entry in entries if entry.shape == shape)
        others = [one for one in others if one.ratios(base)]
        if base.queue != report.entries[0].queue or not others:
            continue
        hold = f", each claim held open for {shape.hold * 1000:g} ms" if shape.hold else ""
        told.append(
            f"**{_count(shape.workers)}, batches of {shape.batch}{hold}:** {base.queue} does"
            f" {numbers.rounded(base.rate, base.rate * base.spread)} jobs/s. The others, as a"
            f" multiple of that: {'; '.join(_alike(others, base))}."
        )
    if any(" and " in one for one in told):
        told[-1] += " Queues joined by “and” do about the same: the rates of their rounds overlap."
    return _most(report) + told + _falls(report)


def _alike(entries: Sequence[Series], base: Series) -> list[str]:
    """Queues with their multiple of the base's rate; those whose rounds overlap stand together."""
    groups: list[list[Series]] = []
    for entry in sorted(entries, key=lambda one: -one.rate):
        if groups and _overlap(groups[-1][0], entry):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    told = []
    for group in groups:
        names = " and ".join(entry.queue for entry in group)
        same = any(_overlap(entry, base) for entry in group)
        ratios = [ratio for entry in group for ratio in entry.ratios(base)]
        told.append(f"{names} {'about the same' if same else numbers.median(ratios)}")
    return told


def _overlap(one: Series, other: Series) -> bool:
    """The slowest round of each is no faster than the fastest of the other."""
    mine, others = ([run.rate for run in entry.runs] for entry in (one, other))
    return min(mine) <= max(others) and min(others) <= max(mine)


def _falls(report: BenchReport) -> list[str]:
    """A sentence for each load of which the most workers do less than half of what fewer do."""
    loads: dict[tuple[str, int], list[Series]] = {}
    for entry in sorted(report.entries, key=lambda one: one.shape.workers):
        if entry.runs and not entry.shape.hold:
            loads.setdefault((entry.queue, entry.shape.batch), []).append(entry)
    told = []
    for (queue, batch), entries in loads.items():
        if entries[-1].rate < max(one.rate for one in entries) / 2:
            rates = (
                f"{numbers.median([run.rate for run in one.runs])} with {_count(one.shape.workers)}"
                for one in entries
            )
            told.append(
                f"**More workers do less** where {queue} claims in batches of {batch}:"
                f" {', '.join(rates)} (jobs/s)."
            )
    return told


def _most(report: BenchReport) -> list[str]:
    """The queue that comes nearest to what is possible, whatever the batch size."""
    shares: dict[str, list[tuple[Series, list[float]]]] = {}
    for entry, share in report.possible():
        shares.setdefault(entry.queue, []).append((entry, share))
    if not shares:
        return []
    widest = max(map(len, shares.values()))
    everywhere = (found for found in shares.values() if len(found) == widest)
    best = max(everywhere, key=lambda found: min(statistics.median(share) for _, share in found))
    entries, first = [entry for entry, _ in best], report.entries[0].queue
    bases = {entry.shape: entry for entry in report.entries if entry.queue == first}
    times = (
        f"{numbers.median(e.ratios(bases[e.shape]))} times in batches of {e.shape.batch}"
        for e in entries
        if e.queue != first and e.shape in bases
    )
    beside = f", compared with {first}: {', '.join(each)}" if (each := list(times)) else ""
    told = (
        f"**{entries[0].queue} does most** with {_count(entries[0].shape.workers)}{beside}. That"
        f" is {', '.join(numbers.median(share) for _, share in best)} of what is possible:"
        f" {report.method['limit']} takes its jobs out for good, and loses them where a worker"
        " dies, so that no queue that keeps its jobs does more."
    )
    return [told]


def tables(report: BenchReport) -> list[TitledTable]:
    """Every table of a report."""
    plain = [entry for entry in report.entries if not entry.shape.hold]
    held = [entry for entry in report.entries if entry.shape.hold]
    compared = {(e.shape.workers, e.shape.batch) for e in held}
    both = [e for e in report.entries if (e.shape.workers, e.shape.batch) in compared]
    # A row of a matrix is a queue that was measured with all of its batch sizes.
    plain = [entry for entry in plain if entry.runs or entry.reason]
    matrix = [e for e in plain if (e.shape.workers, e.shape.batch) not in compared]
    found: list[TitledTable] = []
    if possible := report.possible():
        found.append(_possible(possible, report.method["limit"]))
    for workers in _distinct(e.shape.workers for e in matrix):
        part = [e for e in matrix if e.shape.workers == workers]
        found.append(_throughput(f"Jobs/s, {_count(workers)}", part))
    if both:
        found.append(_comparison(both))
    for workers in _distinct(e.shape.workers for e in matrix):
        part = [e for e in matrix if e.shape.workers == workers]
        if any(run.histogram for entry in part for run in entry.runs):
            continue  # an open loop has a table of its own
        found.append(_latency(f"Claim latency, {_count(workers)}", part))
    found += costs.tables(report.entries, report.method.get("pace", {}).get("rate", 0.0))
    if any(entry.runs for entry in report.entries):
        found.append(_correctness(report.entries))
    return found


def _count(workers: int) -> str:
    return f"{workers} worker" if workers == 1 else f"{workers} workers"


def _distinct(values: Iterable[int]) -> list[int]:
    return sorted(set(values))


def _queues(entries: Sequence[Series]) -> list[str]:
    return list(dict.fromkeys(entry.queue for entry in entries))


def _by_key(entries: Sequence[Series]) -> dict[tuple[str, Shape], Series]:
    return {(entry.queue, entry.shape): entry for entry in entries}


def _throughput(title: str, entries: list[Series]) -> TitledTable:
    shapes = sorted({entry.shape for entry in entries})
    found = _by_key(entries)
    base = entries[0].queue
    rows = [
        (queue, *(_figure(found.get((queue, s)), found.get((base, s))) for s in shapes))
        for queue in _queues(entries)
    ]
    return TitledTable(title, ("strategy", *(f"batch {s.batch}" for s in shapes)), rows)


def _possible(shares: Sequence[tuple[Series, list[float]]], limit: str) -> TitledTable:
    shapes = sorted({entry.shape for entry, _ in shares})
    found = {(entry.queue, entry.shape): numbers.with_spread(share) for entry, share in shares}
    rows = [
        (queue, *(found.get((queue, shape), NOTHING) for shape in shapes))
        for queue in _queues([entry for entry, _ in shares])
    ]
    note = (
        f"{limit} = 1: a claim that takes its jobs out for good, which loses them where a worker"
        " dies. No queue that keeps its jobs does more."
    )
    title = f"Of what is possible, {_count(shapes[0].workers)}"
    return TitledTable(title, ("strategy", *(f"batch {s.batch}" for s in shapes)), rows, note)


def _figure(entry: Series | None, base: Series | None) -> str:
    if entry is None or not entry.runs:
        return "failed" if entry and entry.failed else NOTHING
    shown = numbers.with_spread([run.rate for run in entry.runs])
    if base is None or base is entry or not base.runs:
        return shown
    return f"{shown} ({numbers.median(entry.ratios(base))}x)"


def _comparison(entries: list[Series]) -> TitledTable:
    found = _by_key(entries)
    base = entries[0].queue
    rows: list[tuple[str, ...]] = []
    for shape in sorted({entry.shape for entry in entries}):
        for queue in _queues(entries):
            entry, first = found.get((queue, shape)), found.get((base, shape))
            times = NOTHING
            waits = NOTHING
            if entry and entry.runs and first and first.runs:
                ratios = entry.ratios(first)
                spread = numbers.half_range(ratios)
                low, high = (numbers.rounded(f(ratios), spread) for f in (min, max))
                times = f"{numbers.median(ratios)}x ({low} to {high})"
                waits = _share([r.lock_waits for r in entry.runs if r.lock_waits is not None])
            hold = f"{shape.hold * 1000:g} ms" if shape.hold else "none"
            where = (str(shape.workers), str(shape.batch), hold)
            shown = _figure(entry, None)
            rows.append((*where, queue, shown, "1" if queue == base else times, waits))
    header = ("workers", "batch", "hold", "strategy", "jobs/s", f"of what {base} does", "waiting")
    note = (
        "hold: how long a claim's transaction is kept open before its COMMIT, as by an ORM or a"
        f" worker that does something else in it. 0.5x: half of what {base} does, round by round;"
        " in brackets the least and the most. waiting: share of samples in which a worker's backend"
        " waited for a lock."
    )
    return TitledTable(
        "The convoy: waiting for locks, with and without a held transaction", header, rows, note
    )


def _share(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0%}" if values else NOTHING


def _latency(title: str, entries: list[Series]) -> TitledTable:
    shapes = sorted({entry.shape for entry in entries})
    found = _by_key(entries)
    rows = [
        (queue, *(_percentiles(found.get((queue, shape))) for shape in shapes))
        for queue in _queues(entries)
    ]
    note = (
        "p50 / p95 / p99 in ms, from wanting jobs to having them: retries, pauses between them and"
        " empty answers included. Medians over the rounds; every sample was kept."
    )
    return TitledTable(
        title, ("strategy", *(f"batch {shape.batch}" for shape in shapes)), rows, note
    )


def _percentiles(entry: Series | None) -> str:
    if entry is None or not entry.runs:
        return NOTHING
    columns = zip(*((run.p50, run.p95, run.p99) for run in entry.runs), strict=True)
    return " / ".join(numbers.median([1000 * value for value in column]) for column in columns)


def _correctness(entries: Sequence[Series]) -> TitledTable:
    rows: list[tuple[str, ...]] = []
    for queue in _queues(entries):
        runs = [run for entry in entries if entry.queue == queue for run in entry.runs]
        if not runs:
            continue
        claimed = sum(run.claimed for run in runs)
        double = sum(run.double_claims for run in runs)
        counts = (
            sum(run.rejected for run in runs),
            sum(run.unfinished for run in runs),
            sum(run.lost for run in runs),
            sum(run.empty for run in runs),
            sum(run.retries for run in runs),
            sum(run.deadlocks for run in runs),
        )
        share = f"{double:,} (**{double / claimed:.0%}**)" if double else "0"
        rows.append((queue, f"{claimed:,}", share, *(f"{count:,}" for count in counts)))
    header = (
        "strategy",
        "claimed",
        "claimed twice",
        "completions rejected",
        "claimed, not completed",
        "lost",
        "empty claims",
        "retries",
        "deadlocks",
    )
    note = (
        "Counted after every cell from the workers' own records and the queue's `jobs`. Jobs/s"
        " counts a job once however often it ran."
    )
    return TitledTable("Was every job handed out once and completed?", header, rows, note)


def notes(report: BenchReport) -> list[str]:
    """Why some figures are missing."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in report.entries:
        if entry.reason:
            hold = f" hold {entry.shape.hold * 1000:g} ms" if entry.shape.hold else ""
            cell = f"{entry.shape.batch}/{entry.shape.workers}{hold}"
            reasons.setdefault((entry.queue, entry.reason), []).append(cell)
    return [f"{q} at batch/workers {', '.join(at)}: {why}." for (q, why), at in reasons.items()]


def markdown(report: BenchReport, chart: str | None = None, remarks: Sequence[str] = ()) -> str:
    """The report as a Markdown page.

    Args:
        report: The report.
        chart: Address of the chart to show in it.
        remarks: What else there is to say of these queues.
    """
    parts = ["# Throughput: claim to completion"]
    parts += [*(comparison(report) or answers(report)), *remarks]
    if chart:
        parts.append(f"![Jobs per second by batch size, workers and strategy]({chart})")
    for table in tables(report):
        parts.append(f"## {table.title}")
        rule = ["---", *["---:"] * (len(table.header) - 1)]
        lines = [table.header, rule, *table.rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        if table.note:
            parts.append(table.note)
    if missing := notes(report):
        parts.append(f"## Not measured ({NOTHING})")
        parts.append("\n".join(f"- {reason}" for reason in missing))
    parts.append("## Method")
    parts.append("\n".join(f"- {sentence}" for sentence in method(report)))
    return "\n\n".join(parts) + "\n"


class Section(NamedTuple):
    """A benchmark as a page shows it.

    Attributes:
        name: Of its file.
        data: The file's own text, base64.
        method: How the figures came about, a sentence or two each.
        comparison: What a comparison has found, or what the figures say.
        charts: Their titles, notes and SVGs.
        tables: All figures.
        notes: Why some are missing.
    """

    name: str
    data: str
    method: Sequence[str]
    comparison: Sequence[str]
    charts: Sequence[tuple[str, str, Sequence[str]]]
    tables: Sequence[TitledTable]
    notes: Sequence[str]


def section(written: str, name: str) -> Section:
    """What a page shows of a benchmark.

    Args:
        written: What `to_json` wrote.
        name: Of its file.

    Raises:
        BenchError: It is something else, or an extra that draws is not installed.
    """
    report = BenchReport.from_json(written)
    try:
        said, found = method(report), comparison(report) or answers(report)
        figures, missing = tables(report), notes(report)
        charts = _charts()
        drawn = [
            (chart.title, chart.note, [charts.draw(panel) for panel in chart.panels])
            for chart in charts.charts(report)
        ]
    except (ValueError, KeyError, TypeError, ArithmeticError, AttributeError) as error:
        raise BenchError(f"this is no benchmark of queueproof: {error!r}") from None
    data = base64.b64encode(written.encode()).decode()
    return Section(name, data, _plain(said), _plain(found), drawn, figures, _plain(missing))


def svg(report: BenchReport) -> str:
    """The chart.

    Raises:
        BenchError: vl-convert is not installed.
    """
    return str(_charts().svg(report))


def _charts() -> ModuleType:
    try:
        from queueproof.bench import chart  # noqa: PLC0415 - vl-convert is an extra
    except ImportError:
        raise BenchError("charts need vl-convert: pip install 'queueproof[bench]'") from None
    return chart


def _plain(texts: Sequence[str]) -> list[str]:
    """Without Markdown's marks, of which there are two here."""
    return [text.replace("**", "").replace("`", "") for text in texts]
