"""`bench`: what a queue costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queueproof.cli.files import refuse_outputs, write
from queueproof.cli.options import Postgres, Trust, counts
from queueproof.cli.talk import output, progress_bar, say
from queueproof.errors import Exit, QueueproofError, to_install

if TYPE_CHECKING:
    from queueproof.bench.bench import Group
    from queueproof.bench.figures import BenchReport
    from queueproof.report.terminal import Output


def bench(
    queues: Annotated[
        list[str],
        typer.Argument(
            metavar="QUEUE", help="Queues, as for check. The first one is the baseline."
        ),
    ],
    *,
    batch: Annotated[
        str | None, typer.Option(metavar="N,...", show_default="1,10,100", help="Jobs per claim.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N,...", show_default="1,4,16", help="Workers, each with its own connection."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            metavar="",
            help="Say whether the second of two queues is faster or slower than the first. Both are"
            " measured alternately until that is sure, or --budget ends. Uses 4 workers, batch 10"
            " (1 if a claim takes one job) unless --workers and --batch say otherwise.",
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS|'N rounds'",
            show_default="180",
            help="How long --compare may take at most.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=100,
            show_default="5",
            help="Measurements per queue. 0: read only the counters, no timing.",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            metavar="JOBS/S",
            min=0,
            help="Send claims at this rate, whether or not earlier ones have ended (an open loop)."
            " Latency counts from when a claim was due. Uses 4 workers, batch 1 and 5 s unless"
            " other options say otherwise.",
            show_default=False,
        ),
    ] = 0.0,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", show_default="0.7", help="How long the fastest queue works in a round."
        ),
    ] = None,
    backlog: Annotated[
        int, typer.Option(metavar="N", min=0, help="Further jobs that wait in the queue.")
    ] = 0,
    payload: Annotated[
        int, typer.Option(metavar="BYTES", min=0, help="The least size of a job's payload.")
    ] = 0,
    hold: Annotated[
        float,
        typer.Option(
            metavar="MS", min=0, help="Keep a claim's transaction open for MS milliseconds."
        ),
    ] = 0.0,
    warm_up: Annotated[
        float, typer.Option(metavar="S", min=0, help="Run the load S seconds before measuring.")
    ] = 0.0,
    endure: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0,
            max=3600,
            help="Measure endurance instead: S seconds without an old snapshot, S while one is"
            " held, S after it. One worker. Shows buffers per claim and autovacuum's work.",
            show_default=False,
        ),
    ] = 0.0,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit 1 where this is true: 'buffers_per_claim > 1.2 * baseline.json' or"
            " '... > 9'. The file is an earlier run's --json. The option may be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed: who goes first, and the intervals.")] = 0,
    postgres: Postgres = None,
    trust: Trust = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - is stdout.")
    ] = None,
) -> int:
    """Measure jobs/s, the latency of a claim, and buffers, WAL and round trips per job.

    Ctrl-C ends it; the completed rounds are shown. Exits 1 when a condition of --fail-if is true.
    """
    from queueproof.queues.resolve import files_of, resolve

    many = "10" if compare else "1" if rate or endure else "1,10,100"
    batches = counts(batch or many, "--batch")
    if endure and (compare or rate or hold or rounds or workers):
        raise QueueproofError(
            "--endure is one worker and three phases: of --compare, --rate, --hold, --rounds and"
            " --workers none goes with it"
        )
    processes = counts(
        workers or ("1" if endure else "4" if compare or rate else "1,4,16"), "--workers"
    )
    if compare and rate:
        raise QueueproofError("--compare compares capacity: --rate does not go with it")
    if compare and len(batches) * len(processes) > 1:
        raise QueueproofError("--compare is under one load: name one --batch and one --workers")
    if budget is not None and not compare:
        raise QueueproofError("--budget is a comparison's: it goes with --compare")
    if rounds is not None and compare:
        raise QueueproofError("--compare takes the rounds that it needs: limit it by --budget")
    found = [resolve(queue) for queue in queues]
    with bench_extra():
        from queueproof.bench import compare as pairs
        from queueproof.bench import render
        from queueproof.bench.bench import OPEN_SECONDS, ROUNDS, SECONDS, Setting, groups, measure
        from queueproof.bench.gate import Condition
        from queueproof.bench.measured import Pace
        from queueproof.bench.tables import NAMES

        conditions = [Condition.of(text) for text in fail_if or ()]
        before = [Path(one.path) for one in conditions if one.path]
        refuse_outputs([json], [*before, *(file for queue in found for file in files_of(queue))])
        limits = pairs.Budget() if budget is None else pairs.Budget.of(budget)

        out = output(json)  # whose imports take time, which there is not once a signal has come

        def show(report: BenchReport) -> None:
            if json is not None:
                write(json, report.to_json())
            out.markdown(render.markdown(report), NAMES)
            sys.stdout.flush()

        plan = groups(found, batches, processes, [hold / 1000])
        pair = _fitting(out, plan[0]) if compare and batch is None else plan[0]
        usual = pairs.SECONDS if compare else OPEN_SECONDS if rate else SECONDS
        pace = Pace(rate, backlog, payload, warm_up)
        with progress_bar("starting PostgreSQL and the workers") as progress:
            setting = Setting(
                usual if seconds is None else seconds, pace, postgres, trust, progress, show
            )
            if compare:
                report = pairs.compare(pair, setting, budget=limits, seed=seed)
            else:
                report = measure(
                    plan, setting, endure=endure, rounds=ROUNDS if rounds is None else rounds
                )
        show(report)
    failing = [told for condition in conditions for told in condition.judge(report.entries)]
    for told in failing:
        say(f"--fail-if: {told}", Exit.BROKEN)
    return Exit.BROKEN if failing else Exit.HOLDS


def _fitting(out: Output, pair: Group) -> Group:
    """A comparison whose batch nobody has chosen: of 1 where a claim takes one job."""
    from queueproof.bench.compare import unfit

    why, single = unfit(pair), pair._replace(shape=pair.shape._replace(batch=1))
    if not why or unfit(single):
        return pair
    out.prose(f"{why}; so batch 1 is compared.\n")
    return single


@contextmanager
def bench_extra() -> Iterator[None]:
    """Say how to get what benchmarks need, where it is missing."""
    try:
        yield
    except ImportError as error:
        message = f"{error}: install what benchmarks need with {to_install('bench')}"
        raise QueueproofError(message) from error
