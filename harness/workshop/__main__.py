"""`python -m workshop`, which is `make bench`: measure, and write `results/`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from queueproof.bench import numbers, render
from queueproof.bench.bench import Group, Setting, measure
from queueproof.bench.figures import BenchReport, Series
from queueproof.bench.load import Loaded, refuse
from queueproof.bench.measured import Shape
from queueproof.errors import Exit, QueueproofError
from queueproof.queues.sqlfile import load
from scenarios.matrix import NAMES, PROGRAMS, strategy

REFERENCE = "skip_locked"
LIMIT = "at_most_once"
LIBRARY = " (library)"  # behind the name of a real queue
FASTEST = (REFERENCE, "lease_table", "lease_batch", LIMIT)
ROUNDS, SECONDS = 3, 0.5  # for a run of ten minutes
CONVOY = (REFERENCE, "for_update", "nowait")
HOLD = 0.005  # seconds
INTRODUCTION = """\
**Use skip_locked** (one UPDATE with `FOR UPDATE SKIP LOCKED`). **With many workers, claim at most
10 jobs at a time. Take lease_batch only if claims are your bottleneck:** all jobs of a claim then
share one lease, so one slow job keeps the lease of all. The server and the workers shared {cores}
cores. [What each name means](#the-names) is below.
"""
NAMED = """\
## The names

- skip_locked: one UPDATE with FOR UPDATE SKIP LOCKED.
- lease_batch: one lease for all jobs of a claim.
- lease_table: a claim moves the job to another table.
- for_update: a transaction of SELECT ... FOR UPDATE and UPDATE: a job needs 5 round trips in
  batches of 1, one of skip_locked needs 2.
- nowait: the same transaction, with FOR UPDATE NOWAIT.
- in_subselect: `id IN (SELECT ... SKIP LOCKED)` instead of an array.
- advisory_lock: an advisory lock for each job instead of a row lock.
- hold_open: the transaction of the claim stays open until the job is done.
- select_then_update: two statements, without a lock.
- at_most_once: deletes a job when it is claimed, so that a crash loses it: here only as an upper
  bound.

lease_batch and lease_table complete a batch and claim the next one in one statement
(`complete_and_claim`), the other strategies in two: in batches of 1, that may be most of the
difference.
"""
WHY = {
    REFERENCE: (
        "Each claim reads the index from its beginning, past all jobs that others hold"
        " ([the counts]"
        "(../docs/about/faq.md#why-does-skip-locked-slow-down-with-more-workers-and-large-batches))."
    )
}
"""Why the figures are what they are, which figures cannot say, by queue."""
GUARANTEES = "../harness/queueproof/guarantees"
LINKS = (
    "What vacuum and an old transaction do to a queue that runs for longer:"
    " [Old snapshots](old-snapshot.md). Every number of this run, with latencies, counters and the"
    " method: [all figures](throughput-figures.md). Which of these queues is correct:"
    " [Conformance](conformance.md). How to measure your own:"
    " [Measure a queue](../docs/howto/bench.md)."
)


def plan(queues: dict[str, Loaded], others: Sequence[Loaded] = (), *, quick: bool) -> list[Group]:
    """Every queue by batch size at 4 workers, the fastest by workers too, and the convoy at 16.

    Queues are the strategies by name, the reference first, and the limit. `quick` measures little,
    to see that it works.
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
        return f"{known}{LIBRARY}" if any(run.message for run in one.runs) else one.queue

    return BenchReport(report.method, [replace(one, queue=name(one)) for one in report.entries])


def drawn(report: BenchReport) -> BenchReport:
    """The queues that a chart has room for; the tables have all of them."""
    shown = {*FASTEST, *CONVOY}
    entries = [one for one in report.entries if one.queue in shown or LIBRARY in one.queue]
    return BenchReport(report.method, entries)


def _beside(report: BenchReport) -> list[str]:
    """Sentences on the convoy and on libraries, each beside the reference."""
    known = {(one.queue, one.shape): one for one in report.entries if one.runs}
    held = Shape(1, 16, HOLD)
    told = []
    first, waiting = known.get((REFERENCE, held)), known.get((CONVOY[1], held))
    if first and waiting:
        told.append(
            "**Plain FOR UPDATE makes the workers wait for each other.** With 16 workers and"
            f" transactions of {held.held('')}, {REFERENCE} does"
            f" {numbers.median(first.ratios(waiting))} times the jobs/s of {waiting.queue}, which"
            f" breaks [`non-blocking`]({GUARANTEES}#non-blocking)."
        )
    batches = 1, 10, 100
    found = [_multiples(known, Shape(batch, 4)) for batch in batches]
    if found[0]:
        cells = {name: [one.get(name, "n/a") for one in found] for name in found[0]}
        rows = [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]
        heads = " | ".join(f"batch {batch}" for batch in batches)
        told += [
            f"**Libraries do more for each job.** 4 workers; jobs/s relative to {REFERENCE}:",
            "\n".join([f"| library | {heads} |", f"| --- |{' ---: |' * len(batches)}", *rows]),
            (
                "A library's figure includes its driver and its process. The strategies run as"
                " plain SQL. Procrastinate claims one job at a time, so larger batches hardly help"
                " it."
            ),
        ]
    return told


def _multiples(known: Mapping[tuple[str, Shape], Series], shape: Shape) -> dict[str, str]:
    """Each library beside the reference under a load, the fastest first."""
    base = known.get((REFERENCE, shape))
    libraries = [known[queue, at] for queue, at in known if at == shape and LIBRARY in queue]
    if base is None:
        return {}
    return {
        one.queue.removesuffix(LIBRARY): f"{numbers.median(one.ratios(base))}x"
        for one in sorted(libraries, key=lambda one: -one.rate)
    }


def _linked(table: str) -> str:
    """Tables whose queues lead to their files."""
    places = {name: f"{name}.sql" for name in strategies() if name != LIMIT}
    for name, program in PROGRAMS.items():
        places[NAMES[name.removeprefix("peers/")] + LIBRARY] = f"peers/{program.file}"
    for name, place in places.items():
        table = table.replace(f"| {name} |", f"| [{name}](../strategies/{place}) |")
    return table


def pages(report: BenchReport) -> dict[str, str]:
    """The page that answers, and the one with all the other figures, by their names."""
    report = named(report)
    whole = render.markdown(report, "throughput.svg", _beside(report), WHY)
    answers, mark, others = whole.partition("## Claim latency")
    title, _, answers = answers.partition("\n\n")
    first = f"{title}\n\n{INTRODUCTION.format(cores=report.method['cores'])}\n"
    answers, heading, tables = answers.partition("## ")
    answers = f"{answers}{NAMED}\n{heading}{tables}"
    rest = "# Throughput: all figures\n\nWhat they come to: [Throughput](throughput.md).\n\n"
    return {
        "throughput.md": f"{first}{_linked(answers)}{LINKS}\n",
        "throughput-figures.md": rest + mark + others,
    }


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
        else:
            written = _measured(options, errors).to_json()
            options.results.mkdir(parents=True, exist_ok=True)
        report = BenchReport.from_json(written)  # whose figures are rounded
        # The page comes last, so that it never shows a chart that is not there.
        for name, content in (
            ("throughput.json", written),
            ("throughput.svg", render.svg(drawn(named(report)))),
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
