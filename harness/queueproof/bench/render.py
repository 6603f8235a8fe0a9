"""A benchmark as tables, in Markdown and for a page."""

from __future__ import annotations

import base64
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, StrictUndefined, UndefinedError

from queueproof.bench import numbers
from queueproof.bench.decide import ERROR, LEAST, LOOKS, Finding
from queueproof.bench.figures import BenchError, BenchReport, Series
from queueproof.bench.measured import Pace
from queueproof.bench.tables import NOTHING, TitledTable, tables
from queueproof.errors import to_install

if TYPE_CHECKING:
    from types import ModuleType

_DAMAGED = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, UndefinedError)
WORDS = frozenset({"strategy", "phase", "the backends were"})  # columns that are no numbers
SAID = ("fsync", "autovacuum")  # settings that stand at the top
LACKING = {"comparison": None, "interrupted": False, "endure": 0.0, "apart": True}
"""Defaults of facts that a report's method lacks: they did not apply, or were not known yet."""


def method(report: BenchReport) -> list[str]:
    """The conditions behind the figures, a sentence or two each."""
    environment = Environment(  # noqa: S701 - of a page in Markdown
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files(__package__).joinpath("method.md.j2").read_text(encoding="utf-8")
    pace = Pace(**report.method.get("pace", {}))
    text = environment.from_string(template).render(LACKING | report.method, pace=pace)
    return [" ".join(paragraph.split()) for paragraph in re.split("\n{2,}", text.strip())]


def comparison(report: BenchReport) -> list[str]:
    """The finding of a comparison, and by which rule; nothing where there was none."""
    facts = report.method.get("comparison")
    if facts is None:
        return []
    found = Finding(**facts)
    first, second = (entry.queue for entry in report.entries)
    verdict = f"{second} is {found.verdict} than {first}"
    width = (found.high - found.low) / 10  # a digit more than it allows: ends near 1 matter
    ratio, low, high = (numbers.rounded(v, width, 3) for v in (found.ratio, found.low, found.high))
    ended = "sure" if found.sure else "the budget ended before it was sure"
    took = f"{found.rounds} rounds, {found.looks} look{'s' * (found.looks > 1)}: {ended}."
    if found.verdict == "no difference seen":
        verdict = f"no difference seen between {first} and {second}"
        most = max(1 / found.low, found.high) - 1
        took += (
            f" With fewer than {LEAST} rounds nothing can be said: give it a larger --budget."
            if found.rounds < LEAST
            else f" A difference of more than {most:.0%} is ruled out."
        )
    return [
        (
            f"**{verdict}**: {second} does {ratio} times the jobs/s of {first}"
            f" ({low} to {high}; bootstrap, {found.level:.1%})."
        ),
        took,
        (
            f"Rule: a signed-rank test over the rounds, at most {len(LOOKS)} planned looks, all"
            f" together wrong about equal queues in less than {ERROR:.1%} of comparisons; the"
            " interval must agree."
        ),
    ]


def environment(report: BenchReport) -> str:
    """The server, the settings and the machine that the figures are from, in a line."""
    method = report.method
    settings = (f"{name} {method['settings'][name]}" for name in SAID if name in method["settings"])
    parts = [method["server"], *settings]
    parts += [f"{rounds} round{'s' * (rounds > 1)}"] if (rounds := method.get("rounds")) else []
    measured = (
        f"Measured on {', '.join(parts)}, {method['date'][:10]}. The {method['cores']} cores were"
        " shared by the server, the workers and whatever else ran."
    )
    vacuum = (
        " Each measurement ends before autovacuum would run for the first time: the figures do not"
        " show what hours of dead rows cost."
        if method["settings"].get("autovacuum") == "off"
        else ""
    )
    return f"{measured} Another machine has other figures: compare the ratios.{vacuum}"


def answers(report: BenchReport, why: Mapping[str, str] | None = None) -> list[str]:
    """The figures in a few sentences: who does most, or the others beside the first queue.

    `why` has, by queue, the reason that stands behind the sentence on it.
    """
    if report.method.get("pace", {}).get("rate"):
        return []  # all of them do what they are given
    return (_most(report) or _beside(report)) + _falls(report, why or {})


def _beside(report: BenchReport) -> list[str]:
    """A sentence on what the others do beside the first queue, under the load that most have."""
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
        hold = shape.held(", each claim held open for ")
        told.append(
            f"**{numbers.workers(shape.workers)}, batches of {shape.batch}{hold}:** {base.queue}"
            f" does {numbers.median(base.rates)} jobs/s. The others, as a multiple of that:"
            f" {'; '.join(_alike(others, base))}."
        )
    if any(" and " in one for one in told):
        told[-1] += " Queues joined by “and” do about the same: the rates of their rounds overlap."
    return told


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
    return min(one.rates) <= max(other.rates) and min(other.rates) <= max(one.rates)


def _falls(report: BenchReport, why: Mapping[str, str]) -> list[str]:
    """A sentence for each load of which the most workers do less than half of what fewer do."""
    loads: dict[tuple[str, int], list[Series]] = {}
    for entry in sorted(report.plain, key=lambda one: one.shape.workers):
        loads.setdefault((entry.queue, entry.shape.batch), []).append(entry)
    told = []
    for (queue, batch), entries in loads.items():
        if entries[-1].rate < max(one.rate for one in entries) / 2:
            rates = (
                f"{numbers.median(one.rates)} with {numbers.workers(one.shape.workers)}"
                for one in entries
            )
            most = entries[-1].shape.workers
            smaller = [
                found[-1]
                for (other, size), found in loads.items()
                if other == queue and size < batch and found[-1].shape.workers == most
            ]
            best = max(smaller, key=lambda one: one.rate, default=entries[-1])
            sentence = (
                f"**In batches of {batch}, {queue} gets slower with more workers**:"
                f" {', '.join(rates)} (jobs/s)."
            )
            if best.rate > entries[-1].rate:
                sentence += (
                    f" With {numbers.workers(most)}, claim at most {best.shape.batch} jobs at a"
                    f" time: that gives {numbers.median(best.rates)}."
                )
            told.append(f"{sentence} {why.get(queue, '')}".rstrip())
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
    fastest = entries[0].queue
    bases = {entry.shape: entry for entry in report.entries if entry.queue == first}
    times = [
        f"{numbers.median(e.ratios(bases[e.shape]))} times in batches of {e.shape.batch}"
        for e in entries
        if e.queue != first and e.shape in bases
    ]
    limit = report.method["limit"]
    alike = "".join(
        f" In batches of {one.shape.batch}, {other.queue} is about as fast as {fastest}."
        for one in entries
        for other in report.entries
        if other.queue not in {one.queue, limit} and other.shape == one.shape
        if other.runs and _overlap(one, other)
    )
    beside = f": {', '.join(times)}." if times else ""
    beside = beside.replace(" times ", f" times the jobs/s of {first} ", 1)
    return [
        (
            f"**With {numbers.workers(entries[0].shape.workers)}, {fastest} is the fastest queue"
            f" that loses no job**{beside or '.'}{alike}"
        )
    ]


def doubled(report: BenchReport) -> list[str]:
    """A sentence on each queue of which two workers got one job: what its figures are worth."""
    told = []
    for queue in dict.fromkeys(entry.queue for entry in report.entries):
        runs = [run for entry in report.entries if entry.queue == queue for run in entry.runs]
        twice = sum(run.double_claims for run in runs)
        if twice:
            share = twice / sum(run.claimed for run in runs)
            told.append(
                f"**In {queue} {share:.0%} of the claims took a job that another worker had:** its"
                " jobs/s mean nothing until `queueproof check` says that `single-claim` holds."
            )
    return told


def notes(report: BenchReport) -> list[str]:
    """Why some figures are missing."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for entry in report.entries:
        if entry.reason:
            load = f"{numbers.workers(entry.shape.workers)}{entry.shape.held(', hold ')}"
            reasons.setdefault((entry.queue, entry.reason, load), []).append(f"{entry.shape.batch}")
    return [
        f"{queue} in batches of {' and '.join(at)}, {load}: {why}."
        for (queue, why, load), at in reasons.items()
    ]


def markdown(
    report: BenchReport,
    chart: str | None = None,
    more: Sequence[str] = (),
    why: Mapping[str, str] | None = None,
) -> str:
    """The report as a Markdown page; `why` is as for `answers`."""
    parts = ["# Throughput: claim to completion"]
    found = comparison(report) or answers(report, why)
    parts += [*found, *doubled(report), *more, environment(report)]
    if chart:
        parts.append(f"![Jobs per second by batch size, workers and strategy]({chart})")
    unmeasured, missing = f"Not measured ({NOTHING} in the tables):", notes(report)
    if len(missing) == 1:
        parts.append(f"{unmeasured} {missing[0]}")
    elif missing:
        parts += [unmeasured, "\n".join(f"- {reason}" for reason in missing)]
    for table in tables(report):
        parts.append(f"## {table.title}")
        rule = ["---" if word in WORDS else "---:" for word in table.header]
        lines = [table.header, rule, *table.rows]
        if table.note:
            parts.append(table.note)
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts.append("## Method")
    parts.append("\n".join(f"- {sentence}" for sentence in method(report)))
    return "\n\n".join(parts) + "\n"


class Section(NamedTuple):
    """A benchmark as a page shows it."""

    name: str
    data: str  # the file's own text, base64
    method: Sequence[str]  # how the figures came about, a sentence or two each
    comparison: Sequence[str]  # what a comparison has found, or what the figures say
    charts: Sequence[tuple[str, str, Sequence[str]]]  # their titles, notes and SVGs
    tables: Sequence[TitledTable]
    notes: Sequence[str]  # why some are missing


def section(written: str, name: str) -> Section:
    """The contents of a benchmark's page, from what `to_json` wrote, and its file's name.

    A BenchError says that it is something else, or that the extra that draws is not installed.
    """
    report = BenchReport.from_json(written)
    try:
        said = method(report)
        found = [*(comparison(report) or answers(report)), *doubled(report)]
        figures, missing = tables(report), notes(report)
        charts = _charts()
        drawn = [
            (chart.title, chart.note, [charts.draw(panel) for panel in chart.panels])
            for chart in charts.charts(report)
        ]
    except _DAMAGED as error:
        raise BenchError(f"this is no benchmark of queueproof: {error!r}") from None
    data = base64.b64encode(written.encode()).decode()
    return Section(name, data, _plain(said), _plain(found), drawn, figures, _plain(missing))


def svg(report: BenchReport) -> str:
    """The chart."""
    return str(_charts().svg(report))


def _charts() -> ModuleType:
    try:
        from queueproof.bench import chart  # noqa: PLC0415 - vl-convert is an extra
    except ImportError:
        raise BenchError(f"charts need vl-convert: {to_install('bench')}") from None
    return chart


def _plain(texts: Sequence[str]) -> list[str]:
    """Without Markdown's marks, of which there are two here."""
    return [text.replace("**", "").replace("`", "") for text in texts]
