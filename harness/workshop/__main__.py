"""`python -m workshop`, which is `make bench`: measure, and write `results/`."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from queueproof.bench import render
from queueproof.bench.bench import ROUNDS, SECONDS, Group, measure
from queueproof.bench.load import refuse
from queueproof.bench.measured import Shape
from queueproof.errors import Exit, QueueproofError
from queueproof.queues.sqlfile import SqlFileQueue, load

REFERENCE = "skip_locked"
CONVOY = (REFERENCE, "for_update", "nowait")
HOLD = 0.005  # seconds


def plan(queues: dict[str, SqlFileQueue], *, quick: bool) -> list[Group]:
    """Every strategy by batch size and workers, and the convoy at 16 workers.

    Args:
        queues: The strategies by name, the reference first.
        quick: Whether to measure little, to see that it works.
    """
    matrix = [Shape(10, 4)] if quick else [Shape(b, w) for w in (1, 4) for b in (1, 10, 100, 1000)]
    batches = (1,) if quick else (1, 10)
    convoy = [Shape(batch, 16, hold) for batch in batches for hold in (0.0, HOLD)]
    waiting = tuple(queues[name] for name in CONVOY)
    return [
        *(Group(shape, tuple(queues.values())) for shape in matrix),
        *(Group(shape, waiting) for shape in convoy),
    ]


def strategies() -> dict[str, SqlFileQueue]:
    """The strategies that the package brings, the reference first."""
    found: dict[str, SqlFileQueue] = {}
    with as_file(files("queueproof.strategies")) as directory:
        paths = sorted(directory.glob("*.sql"), key=lambda p: (p.stem != REFERENCE, p.stem))
        for path in paths:
            queue = load(path)
            refuse(queue)
            found[path.stem] = queue
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser("python -m workshop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little, in under 20 seconds")
    parser.add_argument("--postgres", help="as `queueproof check` takes it")
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory")
    options = parser.parse_args(arguments)

    errors = Console(stderr=True, highlight=False)
    try:
        with errors.status("starting the server and the workers") as status:
            report = measure(
                plan(strategies(), quick=options.quick),
                rounds=1 if options.quick else ROUNDS,
                seconds=0.2 if options.quick else SECONDS,
                postgres=options.postgres,
                progress=lambda what, share: status.update(f"{what} ({share:.0%})"),
            )
        options.results.mkdir(parents=True, exist_ok=True)
        # The page comes last, so that it never shows a chart that is not there.
        for name, content in (
            ("throughput.json", report.to_json()),
            ("throughput.svg", render.svg(report)),
            ("throughput.md", render.markdown(report, "throughput.svg")),
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
