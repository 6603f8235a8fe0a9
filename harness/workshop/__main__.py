"""`python -m workshop`, which is `make bench`: measure, and write `results/`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from queueproof.bench import render
from queueproof.bench.bench import Group, Setting, measure
from queueproof.bench.figures import BenchReport, Series
from queueproof.bench.load import Loaded, refuse
from queueproof.bench.measured import Shape
from queueproof.errors import Exit, QueueproofError
from queueproof.queues.sqlfile import load
from scenarios.matrix import NAMES, PROGRAMS, strategy

REFERENCE = "skip_locked"
LIMIT = "at_most_once"
FASTEST = (REFERENCE, "lease_table", "lease_batch", LIMIT)
ROUNDS, SECONDS = 3, 0.5  # for a run of ten minutes
CONVOY = (REFERENCE, "for_update", "nowait")
HOLD = 0.005  # seconds
REMARKS = (
    (
        "Libraries run through their own code, in Python or Node, and do more for a job; strategies"
        " run as SQL through the harness. So a library's figure also has its driver's and process's"
        " time in it."
    ),
    (
        "skip_locked does less with more workers and large batches, on two cores: each claim "
        "reads the index from its front, past the jobs that others hold or have just claimed, and"
        " tries the lock of each. [The FAQ](../docs/about/faq.md) counts them, and says what to "
        "do about it."
    ),
    (
        "lease_batch and lease_table have `complete_and_claim`: one statement completes a batch and"
        " claims the next one. The other strategies send two. That saves a round trip for each"
        " batch, which counts most where a batch is one job."
    ),
)
"""Why the figures are what they are, which figures cannot say."""


def plan(queues: dict[str, Loaded], others: Sequence[Loaded] = (), *, quick: bool) -> list[Group]:
    """Every queue by batch size at 4 workers, the fastest by workers too, and the convoy at 16.

    Args:
        queues: The strategies by name, the reference first, and the limit.
        others: Real queues, through their own programs.
        quick: Whether to measure little, to see that it works.
    """
    batches = (10,) if quick else (1, 10, 100)
    fastest = tuple(queues[name] for name in FASTEST)
    waiting = tuple(queues[name] for name in CONVOY)
    both = (*waiting, *(queue for queue in fastest if queue not in waiting))
    return [
        *(Group(Shape(b, 4), (*queues.values(), *others)) for b in batches),
        *(
            Group(Shape(b, w), fastest)
            for w in (1, 16)
            for b in batches
            if not quick and (b, w) != (1, 16)  # which stands beside the convoy
        ),
        Group(Shape(1, 16), both),
        Group(Shape(1, 16, HOLD), waiting),
    ]


def peers() -> list[Loaded]:
    """The real queues of strategies/peers, each once."""
    with as_file(files("queueproof.strategies")) as directory:
        names = [name for name in PROGRAMS if not name.endswith("_patient")]
        return [refuse(strategy(name, directory)) for name in names]


def strategies() -> dict[str, Loaded]:
    """The strategies that the package brings, the reference first, and what none can outrun."""
    found: dict[str, Loaded] = {}
    with as_file(files("queueproof.strategies")) as directory:
        paths = sorted(directory.glob("*.sql"), key=lambda p: (p.stem != REFERENCE, p.stem))
        for path in paths:
            found[path.stem] = refuse(load(path))
    return found | {LIMIT: refuse(load(Path(__file__).parent / f"{LIMIT}.sql"))}


def _measured(options: argparse.Namespace, errors: Console) -> BenchReport:
    with errors.status("starting the server and the workers") as status:
        report = measure(
            plan(strategies(), () if options.quick else peers(), quick=options.quick),
            Setting(
                seconds=0.2 if options.quick else SECONDS,
                postgres=options.postgres,
                progress=lambda what, share: status.update(f"{what} ({share:.0%})"),
            ),
            rounds=1 if options.quick else ROUNDS,
        )
    report.method["limit"] = LIMIT
    return report


def named(report: BenchReport) -> BenchReport:
    """The report with libraries marked, under the names that their projects write."""

    def name(one: Series) -> str:
        known = NAMES.get(one.queue, NAMES.get(one.queue.removesuffix("_worker"), one.queue))
        return f"{known} (library)" if any(run.message for run in one.runs) else one.queue

    entries = [replace(one, queue=name(one)) for one in report.entries]
    return BenchReport(report.method, entries)


def pages(report: BenchReport) -> dict[str, str]:
    """The page that answers, and the one with all the other figures, by their names."""
    report = named(report)
    whole = render.markdown(report, "throughput.svg", REMARKS)
    answers, mark, others = whole.partition("## Claim latency")
    more = "Latencies, counters and the method: [all figures](throughput-figures.md).\n"
    first = "# Throughput: all figures\n\nWhat they come to: [Throughput](throughput.md).\n\n"
    return {"throughput.md": answers + more, "throughput-figures.md": first + mark + others}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser("python -m workshop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little, in under 20 seconds")
    parser.add_argument("--postgres", help="as `queueproof check` takes it")
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory")
    parser.add_argument(
        "--redraw", action="store_true", help="measure nothing: page and chart of throughput.json"
    )
    options = parser.parse_args(arguments)

    errors = Console(stderr=True, highlight=False)
    try:
        if options.redraw:
            written = (options.results / "throughput.json").read_text(encoding="utf-8")
            report = BenchReport.from_json(written)
        else:
            report = _measured(options, errors)
            options.results.mkdir(parents=True, exist_ok=True)
        # The page comes last, so that it never shows a chart that is not there.
        for name, content in (
            *(() if options.redraw else [("throughput.json", report.to_json())]),
            ("throughput.svg", render.svg(named(report))),
            *pages(report).items(),
        ):
            path = options.results / name
            path.write_text(content)
            errors.print(f"wrote {path}")
    except QueueproofError as error:
        errors.print(error, markup=False)
        return Exit.UNUSABLE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
