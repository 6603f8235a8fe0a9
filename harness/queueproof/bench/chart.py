"""The charts of a benchmark, as Vega-Lite draws them: SVG without scripts, for a page and a file.

Axes begin at zero or say "log". Each panel is as wide as a phone, so that a page lets them flow.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import vl_convert

from queueproof.bench import latency, numbers
from queueproof.bench.counters import COUNTERS
from queueproof.bench.endure import PHASES
from queueproof.bench.figures import BenchReport, Series
from queueproof.bench.measured import Shape

Spec = dict[str, Any]  # of Vega-Lite
Row = dict[str, Any]  # of its data

XMLNS = "http://www.w3.org/2000/svg"
VERSION = "6.4"  # of Vega-Lite: the same report is drawn the same
INK, FAINT, LINE = "var(--ink)", "var(--faint)", "var(--line)"
# Okabe and Ito's colours: told apart by colour-blind readers too, on white and on black.
COLOURS = ("#0083c9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
STYLE = """
svg:root { background: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d0d7de; }
@media (prefers-color-scheme: dark) {
  svg:root { background: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d; }
}
"""
"""The colours of a file by itself: a page that its panels are put into has its own."""
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"  # of one width, by which Vega measures
LETTER = 12  # pixels in height
GLYPH = 6.6  # and in width at most, so that one that is wider has room too
EXTENT = 50  # pixels of an axis of numbers
LIMIT = 130  # pixels of a name
WIDTH, HEIGHT = 340, 350
GAP = 24  # pixels between the panels of a file
ROW = 13  # pixels; what a queue's batch size takes in height
DODGE = 1.035  # by which curves are moved sideways, so that their error bars stand apart
LABELLED = (1, 2, 5)  # the ticks of a decade that have a number
SHARES = (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99)
QUANTILES = {"p50": "circle", "p95": "diamond", "p99": "triangle-right"}
CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": FAINT,
        "titleColor": FAINT,
        "titleFontWeight": "normal",
        "gridColor": LINE,
        "gridOpacity": 0.6,
        "domainColor": LINE,
        "tickColor": LINE,
        "labelFontSize": LETTER,
        "titleFontSize": LETTER,
        "labelLimit": LIMIT,
        "labelOverlap": True,
    },
    "text": {"fontSize": LETTER},
    "title": {"color": INK, "anchor": "start", "fontSize": LETTER + 1},
    "legend": {
        "labelColor": INK,
        "titleColor": FAINT,
        "titleFontWeight": "normal",
        "labelFontSize": LETTER,
        "titleFontSize": LETTER,
        "labelLimit": LIMIT,
        "orient": "top",
        "columns": 2,
        "symbolOpacity": 1,
    },
}


class Chart(NamedTuple):
    """A question to a benchmark, and its answer as panels.

    Attributes:
        title: What is shown.
        note: How to read it.
        panels: One SVG each.
    """

    title: str
    note: str
    panels: Sequence[Spec]


def charts(report: BenchReport) -> list[Chart]:
    """What there are figures for.

    Args:
        report: The report.
    """
    found = (
        _possible(report),
        _by(report, "batch", "workers"),
        _by(report, "workers", "batch"),
        _convoy(report),
        _open_loop(report),
        _latency(report),
        _endurance(report),
        _counters(report),
        _yardstick(report),
    )
    return [chart for chart in found if chart.panels]


def throughput(report: BenchReport) -> list[Chart]:
    """Those of how much is done, without those of what it costs."""
    return [_possible(report), _by(report, "batch", "workers"), _convoy(report)]


def svg(report: BenchReport) -> str:
    """The throughput as a file by itself; the same report gives the same bytes.

    Each panel is an `svg` of its own within it, so that a page can let them flow.

    Args:
        report: With at least one figure.
    """
    panels = [panel for chart in throughput(report) for panel in chart.panels]
    placed, filled = [], [0, 0]
    for panel in panels:
        column = filled.index(min(filled))
        place = f'<svg x="{column * (WIDTH + GAP)}" y="{filled[column]}" '
        placed.append(draw(panel).replace("<svg ", place, 1))
        filled[column] += panel["height"] + GAP
    across = 2 * WIDTH + GAP
    size = f'width="{across}" height="{max(filled)}" viewBox="0 0 {across} {max(filled)}"'
    inside = "\n".join(placed)
    return f'<svg xmlns="{XMLNS}" {size}>\n<style>{STYLE}</style>\n{inside}\n</svg>\n'


def draw(panel: Spec) -> str:
    """A panel as SVG, whose colours are the page's; what a mark stands for is its title.

    Args:
        panel: Of a chart.
    """
    drawn = vl_convert.vegalite_to_svg(
        {"config": CONFIG, "padding": {"left": 2, "top": 2, "bottom": 2, "right": 12}, **panel},
        vl_version=VERSION,
        allowed_base_urls=[],
    )
    # A browser shows a title where the pointer is; a label is for screen readers alone.
    named = re.sub(
        r'<path aria-label="([^"]*)" role="graphics-symbol"([^>]*?)/>',
        r'<path role="img"\2><title>\1</title></path>',
        drawn,
    )
    # Of other marks a screen reader would only hear that they are there.
    return re.sub(r' (role="graphics-[a-z]+"|aria-roledescription="[^"]*")', "", named)


def _possible(report: BenchReport) -> Chart:
    """Each queue's share of what is possible."""
    note = (
        "1 is a claim that takes its jobs out for good, and loses them where a worker dies. Lines"
        " go from the slowest round to the fastest."
    )
    return _shares("Of what is possible", note, "of what is possible", report, report.possible())


def _by(report: BenchReport, across: str, apart: str) -> Chart:
    """Jobs/s by one of batch size and workers, a panel for each of the other."""
    held = {(e.shape.workers, e.shape.batch) for e in report.entries if e.shape.hold}
    shown = [e for e in report.entries if e.runs and (e.shape.workers, e.shape.batch) not in held]
    if across == "workers" and len({e.shape.workers for e in shown}) < 2:  # noqa: PLR2004
        shown = []
    names = _names(report)
    rows = [
        {
            "queue": e.queue,
            "panel": getattr(e.shape, apart),
            "x": getattr(e.shape, across),
            **_spread([run.rate for run in e.runs]),
            "told": f"{e.queue}, {_load(e)}: {_told(e)} jobs/s",
        }
        for e in shown
    ]
    panels = [
        _curves(
            _only(rows, one),
            names,
            title=_count(one, apart),
            x="batch size (log)" if across == "batch" else "workers (log)",
            y="jobs/s (log)",
            limits=_limits(rows),
        )
        for one in _distinct(row["panel"] for row in rows)
    ]
    what = "batch size" if across == "batch" else "workers"
    note = "A point is the median of the rounds, its bar goes from the slowest to the fastest."
    return Chart(f"Throughput by {what}", note, panels)


def _convoy(report: BenchReport) -> Chart:
    """Jobs/s without a hold and with it."""
    held = {(e.shape.workers, e.shape.batch) for e in report.entries if e.shape.hold}
    shown = [e for e in report.entries if e.runs and (e.shape.workers, e.shape.batch) in held]
    base = {e.shape: e for e in reversed(shown)}
    rows = [
        {
            "queue": e.queue,
            "panel": e.shape,
            **_spread([run.rate for run in e.runs]),
            "factor": _factor(e, base[e.shape]),
            "told": f"{e.queue}, {_load(e)}: {_told(e)} jobs/s",
        }
        for e in shown
    ]
    panels = [
        _bars(_only(rows, shape), _names(report), title=_shape(shape), x="jobs/s")
        for shape in _distinct(row["panel"] for row in rows)
    ]
    note = (
        "A hold keeps a claim's transaction open before its COMMIT. 0.5x: half of what the"
        " first queue does. Bars end at the median; the lines go from the slowest round to the"
        " fastest."
    )
    return Chart("The convoy: what a held transaction costs", note, panels)


def _latency(report: BenchReport) -> Chart:
    """Claim latency in a closed loop."""
    rows: list[Row] = []
    for entry in report.entries:
        runs = [run for run in entry.runs if not run.histogram]
        for share in QUANTILES if runs else ():
            found = _spread([1000 * getattr(run, share) for run in runs])
            rows.append(
                {
                    "queue": entry.queue,
                    "panel": (entry.shape.workers, entry.shape.hold),
                    "batch": entry.shape.batch,
                    "share": share,
                    **found,
                    "told": f"{entry.queue}, {_load(entry)}: {share} {found['y']:.3g} ms",
                }
            )
    limits = _limits(rows)
    panels = []
    for workers, hold in _distinct(row["panel"] for row in rows):
        mine = _only(rows, (workers, hold))
        place = _rows(mine, _names(report))
        x = {"type": "quantitative", "scale": {"type": "log", "domain": limits}}
        x |= {"axis": {"title": "ms (log)", "values": _ticks(limits), "format": "~g"}}
        held = f", hold {hold * 1000:g} ms" if hold else ""
        panels.append(
            _panel(
                mine,
                _count(workers, "workers") + held,
                [
                    {
                        "mark": {"type": "rule", "opacity": 0.5},
                        "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
                    },
                    {
                        "mark": {"type": "point", "filled": True, "size": 45, "aria": True},
                        "encoding": {
                            "x": {"field": "y", **x},
                            "shape": {
                                "field": "share",
                                "scale": {
                                    "domain": list(QUANTILES),
                                    "range": list(QUANTILES.values()),
                                },
                                "legend": None,
                            },
                            "description": {"field": "told"},
                        },
                    },
                ],
                encoding=place,
                height=_height(mine),
            )
        )
    note = (
        "From wanting jobs to having them, retries and pauses included: p50 (circle), p95 (diamond)"
        " and p99 (triangle), medians over the rounds, with the lowest and the highest round."
    )
    return Chart("Latency of a claim", note, panels)


def _open_loop(report: BenchReport) -> Chart:
    """Latency by percentile where claims were due at a rate."""
    rows: list[Row] = []
    for entry in report.entries:
        each = [latency.at([run.histogram], SHARES) for run in entry.runs if run.histogram]
        if not each:
            continue
        merged = latency.at([run.histogram for run in entry.runs if run.histogram], SHARES)
        for number, share in enumerate(SHARES):
            values = [1000 * one[number] for one in each]
            value = 1000 * merged[number]
            rows.append(
                {
                    "queue": entry.queue,
                    "panel": entry.shape,
                    "x": 100 / (100 - share),
                    "y": value,
                    "low": min(*values, value),
                    "high": max(*values, value),
                    "told": f"{entry.queue}, {_load(entry)}: p{share:g} {value:.3g} ms",
                }
            )
    panels = [
        _curves(
            _only(rows, shape),
            _names(report),
            title=_shape(shape),
            x="percentile",
            y="ms (log)",
            limits=_limits(rows),
            percentiles=True,
        )
        for shape in _distinct(row["panel"] for row in rows)
    ]
    note = (
        "From when a claim was due. HdrHistograms of all rounds, merged; bars go from the lowest"
        " round to the highest."
    )
    return Chart("Latency under a given rate", note, panels)


def _endurance(report: BenchReport) -> Chart:
    """What claims cost before, under and after an old snapshot."""
    rows: list[Row] = [
        {
            "queue": f"{entry.queue}, batch {entry.shape.batch}",
            "x": point.seconds,
            "phase": point.phase,
            "buffers": point.buffers,
            "ms": 1000 * point.p50,
            "dead": point.dead,
        }
        for entry in report.entries
        for point in entry.endured
    ]
    names = list(dict.fromkeys(row["queue"] for row in rows))
    queue = {"field": "queue", "sort": None, "legend": {"title": None, "columns": 1}}
    shape = queue | {"scale": {"domain": names, "range": _cycled(SHAPES, names)}}
    x: Spec = {"field": "x", "type": "quantitative", "title": "seconds", "scale": {"zero": True}}
    titles = {
        "buffers": "shared buffers per claim",
        "ms": "ms per claim, median",
        "dead": "dead rows",
    }
    panels = []
    for what, title in titles.items() if rows else ():
        told = [
            row | {"y": row[what], "told": f"{row['queue']}, {row['phase']}: {row[what]:,.4g}"}
            for row in rows
        ]
        y: Spec = {"field": "y", "type": "quantitative", "scale": {"zero": True}}
        y |= {"axis": {"title": None, "minExtent": EXTENT, "format": ",~r"}}
        held = [row["x"] for row in rows if row["phase"] == PHASES[1]]
        shade = {"x": x | {"field": "from"}, "x2": {"field": "to"}, "color": None}
        layers: list[Spec] = [
            {
                "data": {"values": [{"from": min(held), "to": max(held)}] if held else []},
                "mark": {"type": "rect", "color": FAINT, "opacity": 0.15},
                "encoding": shade,
            },
            {"mark": {"type": "line", "strokeWidth": 1.4}, "encoding": {"y": y}},
            {
                "mark": {"type": "point", "filled": True, "size": 38, "opacity": 1, "aria": True},
                "encoding": {"y": y, "shape": shape, "description": {"field": "told"}},
            },
        ]
        panels.append(_panel(told, title, layers, {"x": x, "color": _colour(names) | queue}))
    note = (
        "The shaded time is that in which the old snapshot is held. One worker; each claimed job is"
        " replaced by a new one. Buffers are counted; the time is this machine's."
    )
    return Chart("Endurance: an old snapshot, and after it", note, panels)


def _counters(report: BenchReport) -> Chart:
    """What a job costs one worker alone."""
    rows = [
        {
            "queue": entry.queue,
            "panel": name,
            "batch": entry.shape.batch,
            "y": figure,
            "told": f"{entry.queue}, batch {entry.shape.batch}: {figure:,.4g}",
        }
        for entry in {(e.queue, e.shape.batch): e for e in report.entries}.values()
        for name, figure in entry.counted.items()
        if name in COUNTERS
    ]
    panels = []
    for name in (name for name in COUNTERS if any(row["panel"] == name for row in rows)):
        mine = _only(rows, name)
        mark = {"type": "bar", "aria": True}
        x: Spec = {"field": "y", "type": "quantitative", "title": None}
        x |= {"axis": {"tickCount": 5, "format": ",~r"}}
        encoding = {"x": x, "description": {"field": "told"}, **_rows(mine, _names(report))}
        panels.append(
            _panel(mine, name.replace("_", " "), [{"mark": mark}], encoding, height=_height(mine))
        )
    note = "One worker alone on a vacuumed queue; none of it depends on how fast the machine is."
    return Chart("Counted", note, panels)


def _yardstick(report: BenchReport) -> Chart:
    """The harness beside pgbench."""
    found = [
        (one, [run.rate / beside for run, beside in zip(one.runs, one.yardstick, strict=True)])
        for one in report.entries
        if one.yardstick and len(one.yardstick) == len(one.runs)
    ]
    note = "Jobs/s of the load divided by pgbench's on the same SQL, in the same round."
    return _shares("The harness beside pgbench", note, "harness ÷ pgbench", report, found)


def _shares(
    title: str,
    note: str,
    what: str,
    report: BenchReport,
    shares: Iterable[tuple[Series, Sequence[float]]],
) -> Chart:
    """Each queue's rate divided by another's, a panel for each number of workers."""
    rows = [
        {
            "queue": entry.queue,
            "panel": entry.shape.workers,
            "batch": entry.shape.batch,
            **_spread(found),
            "told": f"{entry.queue}, {_load(entry)}: {statistics.median(found):.2f}",
        }
        for entry, found in shares
    ]
    panels = []
    for workers in _distinct(row["panel"] for row in rows):
        mine = _only(rows, workers)
        x = {"type": "quantitative", "scale": {"zero": True}, "title": what}
        layers: list[Spec] = [
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": FAINT},
                "encoding": {"x": {"datum": 1}, "y": None, "yOffset": None, "color": None},
            },
            {
                "mark": "rule",
                "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 45, "aria": True},
                "encoding": {"x": {"field": "y", **x}, "description": {"field": "told"}},
            },
        ]
        told = f"{title}, {_count(workers, 'workers')}"
        panels.append(_panel(mine, told, layers, _rows(mine, _names(report)), height=_height(mine)))
    return Chart(title, note, panels)


def _curves(
    rows: list[Row],
    names: list[str],
    *,
    title: str,
    x: str,
    y: str,
    limits: tuple[float, float],
    percentiles: bool = False,
) -> Spec:
    """Curves with error bars, a colour and a shape for each queue, on logarithmic axes."""
    places = _distinct(row["x"] for row in rows)
    middle = (len(names) - 1) / 2
    moved = [row | {"at": row["x"] * DODGE ** (names.index(row["queue"]) - middle)} for row in rows]
    widest = DODGE ** (middle + 1)
    least, most = places[0] / widest, places[-1] * widest
    named = GLYPH * max(len(row["queue"]) for row in rows) + 16
    end = least * (most / least) ** (1 / (1 - named / (WIDTH - EXTENT)))
    axis: Spec = {"title": x, "values": places, "format": ",", "grid": False}
    if percentiles:
        axis["values"] = [100 / (100 - share) for share in (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)]
        axis["labelExpr"] = "format(100 - 100 / datum.value, '.4~r') + ' %'"
        del axis["format"]
    across = {
        "field": "at",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [least, end]},
        "axis": axis,
    }
    up = {
        "type": "quantitative",
        "scale": {"type": "log", "domain": limits},
        "axis": {
            "values": _ticks(limits),
            "format": ",~r",
            # Above its axis, where it needs no room beside the numbers.
            "title": y,
            "titleAngle": 0,
            "titleAlign": "left",
            "titleAnchor": "end",
            "titleX": -EXTENT,
            "titleY": -8,
            "minExtent": EXTENT,
        },
    }
    queue = {"field": "queue", "sort": None, "legend": None}
    shape = queue | {"scale": {"domain": names, "range": _cycled(SHAPES, names)}}
    labels = {"values": _ends(moved, limits, (end / least) ** (8 / (WIDTH - EXTENT)))}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 1.4}, "encoding": {"y": {"field": "y", **up}}},
        {
            "data": labels,
            "mark": {"type": "rule", "opacity": 0.5},
            "encoding": {
                "y": {"field": "y", **up},
                "x2": {"field": "beside"},
                "y2": {"field": "name"},
            },
        },
        {
            "data": labels,
            "mark": {"type": "text", "align": "left", "dx": 2},
            "encoding": {
                "x": across | {"field": "beside"},
                "y": {"field": "name", **up},
                "text": {"field": "queue"},
            },
        },
        {
            "mark": {"type": "rule", "opacity": 0.6},
            "encoding": {"y": {"field": "low", **up}, "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 38, "opacity": 1, "aria": True},
            "encoding": {
                "y": {"field": "y", **up},
                "shape": shape,
                "description": {"field": "told"},
            },
        },
    ]
    return _panel(moved, title, layers, {"x": across, "color": _colour(names) | queue})


def _ends(rows: list[Row], limits: tuple[float, float], away: float) -> list[Row]:
    """The last point of each curve, with a place for its name that no other name takes.

    Args:
        rows: The points.
        limits: Of the axis upwards.
        away: How many times farther than its point a name stands.
    """
    last = {row["queue"]: row for row in sorted(rows, key=lambda row: float(row["x"]))}
    apart = (limits[1] / limits[0]) ** ((LETTER + 1) / (HEIGHT - 90))
    found: list[Row] = []
    for x in _distinct(row["x"] for row in last.values()):
        ending = sorted((r for r in last.values() if r["x"] == x), key=lambda row: -float(row["y"]))
        beside = away * max(row["at"] for row in ending)
        above = math.inf
        for below, row in zip(range(len(ending) - 1, -1, -1), ending, strict=True):
            above = max(min(row["y"], above / apart), limits[0] * apart**below)
            found.append(row | {"beside": beside, "name": above})
    return found


def _bars(rows: list[Row], names: list[str], *, title: str, x: str) -> Spec:
    """A bar for each queue, with its error bar and how many times slower it is."""
    most = 1.3 * max(row["high"] for row in rows)  # with room for what stands beside a bar
    across = {"type": "quantitative", "scale": {"zero": True, "domainMax": most}}
    across |= {"axis": {"title": x, "tickCount": 4, "format": ",~r"}}
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "aria": True, "opacity": 0.75},
            "encoding": {"x": {"field": "y", **across}, "description": {"field": "told"}},
        },
        {
            "mark": {"type": "rule", "color": INK},
            "encoding": {"x": {"field": "low", **across}, "x2": {"field": "high"}, "color": None},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 4, "color": INK},
            "encoding": {
                "x": {"field": "high", **across},
                "text": {"field": "factor"},
                "color": None,
            },
        },
    ]
    place = {"y": _queues(rows, names)}
    colour = {"field": "queue", "legend": None, **_colour(names)}
    return _panel(rows, title, layers, place | {"color": colour}, height=70 + 24 * len(rows))


def _panel(
    rows: list[Row], title: str, layers: list[Spec], encoding: Spec, *, height: int = HEIGHT
) -> Spec:
    for row in rows:
        row.pop("panel", None)
    return {
        "title": {"text": title, "limit": WIDTH},
        "width": WIDTH,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "data": {"values": rows},
        "encoding": encoding,
        "layer": layers,
    }


def _rows(rows: list[Row], names: list[str]) -> Spec:
    """A place for each queue, in it one for each batch size, which is told by the colour."""
    batches = _distinct(row["batch"] for row in rows)
    colour: Spec = {"field": "batch", "type": "ordinal"}
    colour |= {"scale": {"domain": batches, "range": _cycled(COLOURS, batches)}}
    colour |= {"legend": {"title": None, "columns": 3, "labelExpr": "'batch ' + datum.label"}}
    return {
        "y": _queues(rows, names),
        "yOffset": {"field": "batch", "type": "ordinal", "sort": batches},
        "color": colour,
    }


def _queues(rows: list[Row], names: list[str]) -> Spec:
    """The axis of queues, with room for their names."""
    extent = min(LIMIT, GLYPH * max(len(row["queue"]) for row in rows))
    axis = {"title": None, "minExtent": extent, "ticks": False, "labelPadding": 4}
    return {"field": "queue", "type": "nominal", "sort": names, "axis": axis}


def _height(rows: list[Row]) -> int:
    return 110 + ROW * len({(row["queue"], row["batch"]) for row in rows})


def _colour(names: list[str]) -> Spec:
    return {"scale": {"domain": names, "range": _cycled(COLOURS, names)}}


def _cycled(range_: Sequence[str], domain: Sequence[object]) -> list[str]:
    return [range_[number % len(range_)] for number in range(len(domain))]


def _spread(values: Sequence[float]) -> Row:
    return {"y": statistics.median(values), "low": min(values), "high": max(values)}


def _limits(rows: Iterable[Row]) -> tuple[float, float]:
    """From the lowest to the highest, with some room; panels side by side share them."""
    ends = [row[end] for row in rows for end in ("low", "high") if row[end] > 0]
    return (min(ends) / 1.2, max(ends) * 1.2) if ends else (1.0, 10.0)


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Round numbers, where an axis has its lines: of each decade as many as there is room for."""
    low, high = limits
    of_decade = LABELLED if high < 1000 * low else LABELLED[:1]
    every = (float(f"{n}e{power}") for power, n in product(range(-6, 12), of_decade))
    return [tick for tick in every if low <= tick <= high]


def _only(rows: list[Row], panel: object) -> list[Row]:
    return [dict(row) for row in rows if row["panel"] == panel]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))


def _names(report: BenchReport) -> list[str]:
    return list(dict.fromkeys(entry.queue for entry in report.entries))


def _count(number: int, what: str) -> str:
    if what == "batch":
        return f"batch size {number:,}"
    return f"{number} worker{'s' * (number > 1)}"


def _shape(shape: Shape) -> str:
    hold = f", hold {shape.hold * 1000:g} ms" if shape.hold else ""
    return f"{_count(shape.workers, 'workers')}, batch size {shape.batch:,}{hold}"


def _load(entry: Series) -> str:
    return _shape(entry.shape)


def _told(entry: Series) -> str:
    return numbers.with_spread([run.rate for run in entry.runs])


def _factor(entry: Series, base: Series) -> str:
    if entry is base or not entry.ratios(base):
        return ""
    return f"{numbers.median(entry.ratios(base))}x"
