"""The charts of a benchmark, as Vega-Lite draws them: SVG without scripts, for a page and a file.

What a chart looks like stands in `charts.toml`, what it shows here: a mark is a row of its data.
Each panel is as wide as a phone, so that a page lets them flow.
"""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple, TypeVar

import vl_convert

from queueproof.bench import latency, numbers
from queueproof.bench.counters import COUNTERS
from queueproof.bench.endure import PHASES
from queueproof.bench.figures import BenchReport, Series
from queueproof.bench.measured import Shape
from queueproof.bench.numbers import workers

T = TypeVar("T")
Spec = dict[str, Any]  # of Vega-Lite
Row = dict[str, Any]  # of its data
Panel = tuple[Any, str]  # by what panels are ordered, and the title of this one

XMLNS = "http://www.w3.org/2000/svg"
VERSION = "6.4"  # of Vega-Lite: the same report is drawn the same
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
DODGE = 1.035  # by which curves are moved sideways, so that their error bars stand apart
LABELLED = (1, 2, 5)  # the ticks of a decade that have a number
SHARES = (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99)  # denser at the tail
QUANTILES = ("p50", "p95", "p99")
ENDURANCE = {
    "buffers": "shared buffers per claim",
    "p50": "ms per claim, median",
    "dead": "dead rows",
}
"""Figures of a point of endurance that are drawn, with the panel's title."""
KINDS = tomllib.loads(files(__package__).joinpath("charts.toml").read_text(encoding="utf-8"))
SIZES, COLOURS = KINDS["sizes"], KINDS["colours"]
# Solid, until the colours begin again.
DASHES = [dash for dash in ([1, 0], [5, 3], [2, 2]) for _ in COLOURS["of_queues"]]


class Chart(NamedTuple):
    """A question to a benchmark, and its answer as panels."""

    title: str
    note: str  # how to read it
    panels: Sequence[Spec]


def charts(report: BenchReport) -> list[Chart]:
    """The subjects of the figures."""
    batch, possible, convoy = throughput(report)
    cost = (_open_loop(report), _latency(report), _endurance(report), _counters(report))
    found = (batch, possible, _by("workers", report), convoy, *cost)
    return [chart for chart in found if chart.panels]


def throughput(report: BenchReport) -> list[Chart]:
    """Those of how much is done, without those of what it costs."""
    return [_by("batch", report), _possible(report), _convoy(report)]


def svg(report: BenchReport) -> str:
    """The throughput, of one figure at least, as a file; the same report gives the same bytes.

    Each panel is an `svg` of its own within it, so that a page can let them flow.
    """
    panels = [panel for chart in throughput(report) for panel in chart.panels]
    placed, filled = [], [0, 0]
    for panel in panels:
        column = filled.index(min(filled))
        place = f'<svg x="{column * (SIZES["width"] + SIZES["gap"])}" y="{filled[column]}" '
        placed.append(draw(panel).replace("<svg ", place, 1))
        filled[column] += panel["height"] + SIZES["gap"]
    across = 2 * SIZES["width"] + SIZES["gap"]
    size = f'width="{across}" height="{max(filled)}" viewBox="0 0 {across} {max(filled)}"'
    style = f"<style>\n{COLOURS['of_file']}</style>"
    return "\n".join([f'<svg xmlns="{XMLNS}" {size}>', style, *placed, "</svg>", ""])


def draw(panel: Spec) -> str:
    """A panel as SVG, whose colours are the page's; what a mark stands for is its title."""
    drawn = vl_convert.vegalite_to_svg(panel, vl_version=VERSION, allowed_base_urls=[])
    # A browser shows a title where the pointer is; a label is for screen readers alone.
    named = re.sub(
        r'<path aria-label="([^"]*)" role="graphics-symbol"([^>]*?)/>',
        r'<path role="img"\2><title>\1</title></path>',
        drawn,
    )
    # Of other marks a screen reader would only hear that they are there.
    return re.sub(r' (role="graphics-[a-z]+"|aria-roledescription="[^"]*")', "", named)


def _possible(report: BenchReport) -> Chart:
    """Each queue's share of what is possible, a panel for each number of workers."""
    heading = KINDS["possible"]["heading"]
    rows = []
    for entry, found in report.possible():
        panel = (entry.shape.workers, f"{heading}, {workers(entry.shape.workers)}")
        rows.append(_row(entry, panel, found, f"{statistics.median(found):.2f}"))
    return _chart("possible", rows, report.names(), _height)


def _by(kind: str, report: BenchReport) -> Chart:
    """Jobs/s by one of batch size and workers, a panel for each of the other."""
    shown = [e for e in report.entries if e.runs and e.shape[:2] not in report.held]
    if kind == "workers" and len({e.shape.workers for e in shown}) < 2:  # noqa: PLR2004
        shown = []
    apart, words = ("workers", workers) if kind == "batch" else ("batch", _batch)
    rows = []
    for entry in shown:
        number = getattr(entry.shape, apart)
        # Real queues have a panel of their own: they do more for a job, and curves stay apart.
        real = any(run.message for run in entry.runs)
        panel = ((number, real), words(number) + ", libraries" * real)
        rows.append(_rate(entry, panel, x=getattr(entry.shape, kind)))
    points = Counter((row["panel"], row["queue"]) for row in rows)
    curved = {panel for (panel, _), number in points.items() if number > 1}
    # Beside curves a point alone, and its name, would stand among those of others.
    alone = {one for one, number in points.items() if number == 1 and one[0] in curved}
    rows = [row for row in rows if (row["panel"], row["queue"]) not in alone]
    # The load that most queues have had comes first, as among the tables.
    often = Counter(row["panel"] for row in rows)
    for row in rows:
        order, title = row["panel"]
        row["panel"] = ((-often[order, title], order), title)
    return _curves(kind, rows, report.names())


def _convoy(report: BenchReport) -> Chart:
    """Jobs/s without a hold and with it."""
    shown = [e for e in report.entries if e.runs and e.shape[:2] in report.held]
    base = {e.shape: e for e in reversed(shown)}
    rows = []
    for entry in shown:
        ratios = entry.ratios(base[entry.shape]) if entry is not base[entry.shape] else []
        factor = f"{numbers.median(ratios)}x" if ratios else ""
        rows.append(_rate(entry, (entry.shape, _shape(entry.shape)), factor=factor))
    return _chart(
        "convoy",
        rows,
        report.names(),
        lambda mine: {
            "measure": f"jobs/s (2x: twice {shown[0].queue})",
            "most": 1.3 * max(row["high"] for row in mine),  # room for what stands beside a bar
            "height": SIZES["around_bars"] + SIZES["bar"] * len(mine),
        },
    )


def _latency(report: BenchReport) -> Chart:
    """Claim latency in a closed loop."""
    rows: list[Row] = []
    for entry in report.entries:
        shape = entry.shape
        words = f"{workers(shape.workers)}{shape.held(', hold ')}"
        panel = ((shape.workers, shape.hold), words)
        runs = [run for run in entry.runs if not run.histogram]
        for share in QUANTILES if runs else ():
            values = [1000 * getattr(run, share) for run in runs]
            told = f"{share} {statistics.median(values):.3g} ms"
            rows.append(_row(entry, panel, values, told, share=share))
    return _chart("latency", rows, report.names(), lambda mine: _height(mine) | _limits(rows))


def _open_loop(report: BenchReport) -> Chart:
    """Latency by percentile where claims were due at a rate."""
    rows: list[Row] = []
    for entry in report.entries:
        paced = [run.histogram for run in entry.runs if run.histogram]
        each = [latency.at(of, SHARES) for of in (paced, *([one] for one in paced)) if of]
        if not each:
            continue
        for share, *seconds in zip(SHARES, *each, strict=True):
            merged, *rounds = (1000 * one for one in seconds)
            told = f"p{share:g} {merged:.3g} ms"
            panel = (entry.shape, _shape(entry.shape))
            mark = _row(entry, panel, [merged, *rounds], told, x=100 / (100 - share))
            rows.append(mark | {"y": merged})
    return _curves("open_loop", rows, report.names())


def _endurance(report: BenchReport) -> Chart:
    """The cost of claims before, under and after an old snapshot."""
    points = [(e, point) for e in report.entries for point in e.endured]
    rows: list[Row] = []
    for number, (what, title) in enumerate(ENDURANCE.items()):
        for entry, point in points:
            value = getattr(point, what) * (1000 if what == "p50" else 1)
            row = _row(entry, (number, title), [value], "", x=point.seconds)
            queue = f"{entry.queue}, batch {entry.shape.batch}"
            rows.append(row | {"queue": queue, "told": f"{queue}, {point.phase}: {value:,.4g}"})
    held = [point.seconds for _, point in points if point.phase == PHASES[1]]
    shade = [{"from": min(held), "to": max(held)}] if held else []
    names = list(dict.fromkeys(row["queue"] for row in rows))
    return _chart("endurance", rows, names, lambda _: {"held": shade})


def _counters(report: BenchReport) -> Chart:
    """The cost of a job for one worker alone."""
    rows = [
        _row(entry, (number, name.replace("_", " ")), [entry.counted[name]], "")
        | {"told": f"{entry.queue}, batch {entry.shape.batch}: {entry.counted[name]:,.4g}"}
        for entry in {(e.queue, e.shape.batch): e for e in report.entries}.values()
        for number, name in enumerate(COUNTERS)
        if name in entry.counted
    ]
    return _chart("counted", rows, report.names(), _height)


def _curves(kind: str, rows: list[Row], names: list[str]) -> Chart:
    """Curves, moved sideways by a little, so that their error bars stand apart; as `_chart`."""
    limits = _limits(rows)

    def special(mine: list[Row]) -> Spec:
        places = _distinct(row["x"] for row in mine)
        middle = (len(names) - 1) / 2
        for row in mine:
            row["at"] = row["x"] * DODGE ** (names.index(row["queue"]) - middle)
        widest = DODGE ** (middle + 1)
        least, most = places[0] / widest, places[-1] * widest
        named = SIZES["glyph"] * max(len(row["queue"]) for row in mine) + 16
        wide = SIZES["width"] - SIZES["numbers"]
        end = least * (most / least) ** (1 / (1 - named / wide))
        ends = _ends(mine, limits["limits"], (end / least) ** (8 / wide))
        return limits | {"across": [least, end], "places": places, "ends": ends}

    return _chart(kind, rows, names, special)


def _ends(rows: list[Row], limits: tuple[float, float], away: float) -> list[Row]:
    """The last point of each curve, with a place for its name that no other name takes.

    A name stands so many times farther than its point; the limits are of the axis upwards.
    """
    last = {row["queue"]: row for row in sorted(rows, key=lambda row: float(row["x"]))}
    apart = (limits[1] / limits[0]) ** ((SIZES["letter"] + 1) / (SIZES["height"] - 90))
    found: list[Row] = []
    for x in _distinct(row["x"] for row in last.values()):
        ending = sorted((r for r in last.values() if r["x"] == x), key=lambda row: -float(row["y"]))
        beside = away * max(row["at"] for row in ending)
        above = math.inf
        for below, row in zip(range(len(ending) - 1, -1, -1), ending, strict=True):
            above = max(min(row["y"], above / apart), limits[0] * apart**below)
            found.append(row | {"beside": beside, "name": above})
    return found


def _chart(
    kind: str, rows: list[Row], names: list[str], special: Callable[[list[Row]], Spec]
) -> Chart:
    """A chart of a kind in `charts.toml`, with a panel for each that its rows, its marks, name.

    A queue's colour and shape, by its name, are the same in all panels; `special` says what else
    the kind wants, from the rows of a panel.
    """
    template, panels = _kind(kind), []
    for panel in _distinct(row["panel"] for row in rows):
        mine = [row for row in rows if row["panel"] == panel]
        batches = _distinct(row["batch"] for row in mine)
        longest = max(len(row["queue"]) for row in mine)
        values = {
            "rows": mine,
            "title": panel[1],
            "queues": names,
            "colours": {"domain": names, "range": _cycled(COLOURS["of_queues"], names)},
            "shapes": {"domain": names, "range": _cycled(SHAPES, names)},
            "dashes": {"domain": names, "range": _cycled(DASHES, names)},
            "batches": batches,
            "colours_of_batches": _cycled(COLOURS["of_queues"], batches),
            "extent": min(SIZES["limit"], SIZES["glyph"] * longest),
            "none": None,
            **SIZES,
            **special(mine),
        }
        panels.append(_filled(template, values))
    return Chart(template["heading"], template["note"], panels)


def _kind(name: str) -> Spec:
    """A kind of chart as `charts.toml` has it, with all that it has of others."""
    own = KINDS[name]
    return own if name == "panel" else _merged(_kind(own.get("like", "panel")), own)


def _merged(like: Spec, own: Spec) -> Spec:
    """A table, and what it does not say itself of another one."""
    both = {name for name in like.keys() & own.keys() if isinstance(own[name], dict)}
    return {**like, **own, **{name: _merged(like[name], own[name]) for name in both}}


def _filled(template: Any, values: Spec) -> Any:  # noqa: ANN401 - JSON
    """A template whose words that begin with `$` have become values."""
    if isinstance(template, dict):
        return {name: _filled(part, values) for name, part in template.items()}
    if isinstance(template, list):
        return [_filled(part, values) for part in template]
    if isinstance(template, str) and template.startswith("$"):
        return values[template[1:]]
    return template


def _row(entry: Series, panel: Panel, values: Sequence[float], told: str, **more: object) -> Row:
    """A mark: the median of some values, from the lowest to the highest."""
    return {
        "queue": entry.queue,
        "panel": panel,
        "batch": entry.shape.batch,
        "y": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "told": f"{entry.queue}, {_shape(entry.shape)}: {told}",
        **more,
    }


def _rate(entry: Series, panel: Panel, **more: object) -> Row:
    """A mark that is jobs/s."""
    return _row(entry, panel, entry.rates, f"{numbers.with_spread(entry.rates)} jobs/s", **more)


def _height(rows: list[Row]) -> Spec:
    """So much that each batch size of each queue has its place."""
    places = {(row["queue"], row["batch"]) for row in rows}
    return {"height": SIZES["around_rows"] + SIZES["row"] * len(places)}


def _limits(rows: Iterable[Row]) -> Spec:
    """From the lowest to the highest, with some room; panels side by side share them.

    The lines of the axis are at round numbers: of each decade as many as there is room for.
    """
    ends = [row[end] for row in rows for end in ("low", "high") if row[end] > 0]
    low, high = (min(ends) / 1.2, max(ends) * 1.2) if ends else (1.0, 10.0)
    of_decade = LABELLED if high < 1000 * low else LABELLED[:1]
    every = (float(f"{n}e{power}") for power, n in product(range(-6, 12), of_decade))
    return {"limits": (low, high), "ticks": [tick for tick in every if low <= tick <= high]}


def _cycled(range_: Sequence[T], domain: Sequence[object]) -> list[T]:
    return [range_[number % len(range_)] for number in range(len(domain))]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))


def _batch(number: int) -> str:
    return f"batch size {number:,}"


def _shape(shape: Shape) -> str:
    return f"{workers(shape.workers)}, {_batch(shape.batch)}{shape.held(', hold ')}"
