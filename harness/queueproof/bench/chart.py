"""The chart of a benchmark: jobs/s against the batch size, and what a held transaction costs."""

from __future__ import annotations

import io
import statistics
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from queueproof.bench import numbers

if TYPE_CHECKING:
    from queueproof.bench.figures import BenchReport, Series

# Okabe and Ito's colours: told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
MARKERS = "osD^vP*X"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "queueproof",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
GAP = 0.065  # least distance of two labels, as a share of the axis


def svg(report: BenchReport) -> str:
    """Draw a report; the same report gives the same bytes.

    Args:
        report: With at least one figure.
    """
    shown = [entry for entry in report.entries if entry.runs]
    held = {(e.shape.workers, e.shape.batch) for e in shown if e.shape.hold}
    curves = [e for e in shown if (e.shape.workers, e.shape.batch) not in held]
    convoy = [e for e in shown if (e.shape.workers, e.shape.batch) in held]
    workers = sorted({entry.shape.workers for entry in curves})
    names = list(dict.fromkeys(entry.queue for entry in shown))
    looks = {n: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, n in enumerate(names)}
    panels = len(workers) + bool(convoy)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6 * panels, 4.4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        ends: list[list[End]] = []
        for number, count in enumerate(workers):
            entries = [entry for entry in curves if entry.shape.workers == count]
            ends.append(_curves(axes[number], entries, looks))
            axes[number].set_title(f"{count} worker{'s' * (count > 1)}", loc="left")
        _same_scale(list(axes[: len(workers)]))
        for number, found in enumerate(ends):
            _label(axes[number], found, looks)
        if convoy:
            _convoy(axes[-1], convoy, looks)
        axes[0].set_ylabel("jobs/s, claim to completion")
        facts = report.method
        title = f"{facts['server']}; {facts['cores']} cores; median of {facts['rounds']} rounds"
        figure.suptitle(title, x=0.01, ha="left", fontsize=8, color="#555555")
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    # Without XML declaration and DOCTYPE it is still a file, and may stand in an HTML page.
    drawn = target.getvalue()
    lines = drawn[drawn.index("<svg") :].splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


Looks = dict[str, tuple[str, str]]
End = tuple[float, float, str]  # where a curve ends, and its name


def _curves(axes: Axes, entries: list[Series], looks: Looks) -> list[End]:
    axes.set_xscale("log")
    axes.set_yscale("log")
    batches = sorted({entry.shape.batch for entry in entries})
    ends: list[End] = []
    for queue, (colour, marker) in looks.items():
        mine = sorted((e for e in entries if e.queue == queue), key=lambda e: e.shape.batch)
        if not mine:
            continue
        x = [entry.shape.batch for entry in mine]
        y = [entry.rate for entry in mine]
        axes.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.4)
        ends.append((x[-1], y[-1], queue))
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("batch size")
    # Room for the labels: at the right end, and at the left for a curve that ends at once.
    axes.set_xlim(batches[0] * 0.08, max(batches[-1] * 14.0, batches[0] * 3.0))
    _rate_axis(axes)
    return ends


def _same_scale(axes: list[Axes]) -> None:
    """Panels side by side are read as one."""
    limits = [limit for one in axes for limit in one.get_ylim()]
    for one in axes:
        one.set_ylim(min(limits), max(limits))


def _rate_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _label(axes: Axes, ends: list[End], looks: Looks) -> None:
    """Each curve's name at its end; names that would overlap are moved apart."""
    to_share = axes.transData + axes.transAxes.inverted()
    right = max(x for x, _, _ in ends)
    named = sorted((to_share.transform((x, y))[1], x, y, queue) for x, y, queue in ends)
    late = [end for end in named if end[1] == right]
    places = apart([end[0] for end in late])
    for place, (_, x, y, queue) in zip(places, late, strict=True):
        across = to_share.transform((x, y))[0]
        axes.annotate(
            queue,
            (x, y),
            xytext=(across + 0.06, place),
            textcoords="axes fraction",
            va="center",
            color=looks[queue][0],
            arrowprops={"arrowstyle": "-", "color": looks[queue][0], "linewidth": 0.5},
        )
    for _, x, y, queue in named:
        if x != right:
            axes.annotate(
                queue,
                (x, y),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                color=looks[queue][0],
            )


def apart(places: list[float]) -> list[float]:
    """Move labels apart until none overlaps, no further than needed.

    Args:
        places: Where they would stand, ascending, as shares of the axis.
    """
    blocks: list[tuple[float, int]] = []  # the middle of labels that touch, and how many they are
    for place in places:
        middle, count = place, 1
        while blocks and middle - blocks[-1][0] < GAP * (count + blocks[-1][1]) / 2:
            other, size = blocks.pop()
            middle = (middle * count + other * size) / (count + size)
            count += size
        blocks.append((middle, count))
    return [
        middle + (number - (count - 1) / 2) * GAP
        for middle, count in blocks
        for number in range(count)
    ]


def _convoy(axes: Axes, entries: list[Series], looks: Looks) -> None:
    """Bars in pairs: without a hold and with it."""
    shapes = sorted({entry.shape for entry in entries})
    queues = [queue for queue in looks if any(entry.queue == queue for entry in entries)]
    found = {(entry.queue, entry.shape): entry for entry in entries}
    axes.set_yscale("log")
    width = 0.8 / len(queues)
    for number, queue in enumerate(queues):
        for place, shape in enumerate(shapes):
            entry, base = found.get((queue, shape)), found.get((queues[0], shape))
            if entry is None:
                continue
            x = place + (number - (len(queues) - 1) / 2) * width
            axes.bar(x, entry.rate, width * 0.9, color=looks[queue][0])
            shown = numbers.median([run.rate for run in entry.runs])
            if base is not None and base is not entry:
                slower = 1 / statistics.median(entry.ratios(base))
                shown = f"÷{slower:.0f}" if slower >= 10 else f"÷{slower:.1f}"  # noqa: PLR2004
            axes.annotate(
                shown,
                (x, entry.rate),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    ticks = [
        f"batch {shape.batch}\n{f'{shape.hold * 1000:g} ms hold' if shape.hold else 'no hold'}"
        for shape in shapes
    ]
    axes.set_xticks(range(len(shapes)), ticks)
    _rate_axis(axes)
    workers = sorted({entry.shape.workers for entry in entries})
    axes.set_title(f"{', '.join(map(str, workers))} workers", loc="left")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 3)
    for number, queue in enumerate(queues):
        axes.text(
            0.02,
            0.98 - number * GAP,
            queue,
            transform=axes.transAxes,
            va="top",
            color=looks[queue][0],
        )
