"""`report`: cards, benchmarks and the matrix on one page; and the reports of a check."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queueproof.cli.bench import bench_extra
from queueproof.cli.ends import beside_the_verdict
from queueproof.cli.files import append, refuse_outputs, write
from queueproof.cli.options import Annotate
from queueproof.cli.talk import output
from queueproof.errors import QueueError, QueueproofError

if TYPE_CHECKING:
    from queueproof.report.card import Card
    from queueproof.report.terminal import Output

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


class Reports:
    """The reports that a check writes: JSON, page, JUnit XML and badge, and what GitHub shows."""

    def __init__(self, files: Sequence[Path | None], annotate: Annotate | None) -> None:
        here = Annotate.github if os.environ.get("GITHUB_ACTIONS") == "true" else Annotate.none
        self._github = (annotate or here) is Annotate.github
        summary = os.environ.get("GITHUB_STEP_SUMMARY") if self._github else None
        self.outputs = (*files, Path(summary) if summary else None)

    def annotate(self, out: Output, card: Card) -> None:
        """Say to whoever runs us at which lines of the queue it breaks."""
        from queueproof.report.github import commands

        if self._github:
            with beside_the_verdict("the rest of the lines for GitHub"):
                for line in commands(card, os.environ.get("GITHUB_WORKSPACE", "")):
                    out.say(line)

    def write(self, card: Card, replay: str) -> None:
        """Write them all; `replay` replays a story, but for its token."""
        from queueproof.report.forms import to_badge, to_junit
        from queueproof.report.github import to_summary
        from queueproof.report.page import to_page

        forms: list[tuple[Callable[[], str], Callable[[Path, str], None]]] = [
            (lambda: card.to_json() + "\n", write),
            (lambda: to_page([card], replay), write),
            (lambda: to_junit(card), write),
            (lambda: to_badge(card), write),
            (lambda: to_summary(card, replay), append),
        ]
        for path, (made, put) in zip(self.outputs, forms, strict=True):
            if path is not None:
                text = None
                with beside_the_verdict(f"{path} is not written"):
                    text = made()
                if text is not None:
                    put(path, text)
