"""`report`: cards, benchmarks and the matrix on one page."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queueproof.cli.bench import bench_extra
from queueproof.cli.files import refuse_outputs, write
from queueproof.cli.talk import output
from queueproof.errors import QueueError, QueueproofError

if TYPE_CHECKING:
    from queueproof.bench.render import Section
    from queueproof.report.page import Matrix

_FOREIGN = (
    "this is no card (check --json), no benchmark (bench --json) and no matrix (make results);"
    " leave it out"
)


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="What check and bench wrote with --json, and results/conformance.json.",
        ),
    ],
    *,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
) -> None:
    """Make one HTML page of cards, benchmarks and the matrix; it needs no network."""
    from queueproof import waits
    from queueproof.report.page import read_card, to_page

    refuse_outputs([html], results)
    cards, benches, matrices = [], [], []
    for path in results:
        text = waits.text(path)
        try:
            content = _read(text)
            if "guarantees" in content:
                cards.append(read_card(text))
            elif "queueproof" in content:
                benches.append(_benchmark(text, path.name))
            else:
                matrices.append((path.name, _matrix(content)))
        except QueueproofError as error:
            raise QueueError(f"{path}: {error}") from error
    write(html, to_page(cards, benches=benches, matrices=matrices))
    output(html).say(f"Wrote {html}")


def _read(text: str) -> dict[str, object]:
    """What a file holds."""
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        if isinstance(content, dict):
            return content
    raise QueueproofError(_FOREIGN)


def _benchmark(text: str, name: str) -> Section:
    with bench_extra():
        from queueproof.bench import render

        return render.section(text, name)


def _matrix(content: object) -> Matrix:
    from queueproof.report.page import read_matrix

    found = read_matrix(content)
    if found is None:
        raise QueueproofError(_FOREIGN)
    return found
