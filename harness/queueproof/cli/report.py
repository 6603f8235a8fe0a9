"""`report`: cards, benchmarks and the matrix on one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from queueproof.cli.bench import bench_extra
from queueproof.cli.files import refuse_outputs, write
from queueproof.cli.talk import output
from queueproof.errors import QueueError, QueueproofError

_FOREIGN = (
    "this is no card (check --json), no benchmark (bench --json) and no matrix (make results);"
    " leave it out"
)


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="What check and bench wrote with --json, and results/conformance.json.",
        ),
    ],
    *,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
) -> None:
    """Join JSON results of check and bench in one self-contained HTML page."""
    from queueproof import waits
    from queueproof.report.page import read_card, read_matrix, to_page

    refuse_outputs([html], results)
    cards, benches, matrices = [], [], []
    for path in results:
        text = waits.text(path).removeprefix("\ufeff")  # which an editor may have put there
        try:
            found = json.loads(text)
            content = found if isinstance(found, dict) else {}
            if "guarantees" in content:
                cards.append(read_card(text))
            elif "queueproof" in content:
                with bench_extra():
                    from queueproof.bench import render

                    benches.append(render.section(text, path.name))
            else:
                matrices.append((path.name, read_matrix(content)))
        except (ValueError, RecursionError):
            raise QueueError(f"{path}: {_FOREIGN}") from None
        except QueueproofError as error:
            raise QueueError(f"{path}: {error}") from error
    write(html, to_page(cards, benches=benches, matrices=matrices))
    output(html).say(f"Wrote {html}")
