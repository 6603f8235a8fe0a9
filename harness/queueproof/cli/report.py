"""`report`: cards and benchmarks on one page."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from queueproof.cli.bench import bench_extra
from queueproof.cli.files import refuse_unwritable, write
from queueproof.errors import QueueError, QueueproofError


def report(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="What check and bench wrote with --json."),
    ],
    *,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
) -> None:
    """Put cards and benchmarks on one page, without scripts, which needs no network."""
    from queueproof.report.page import read_card, to_page

    refuse_unwritable(html)
    cards, benches = [], []
    for path in results:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise QueueproofError(f"cannot read {path}: {error}") from error
        try:
            kind = _kind(text)
            if kind == "card":
                cards.append(read_card(text))
                continue
            with bench_extra():
                from queueproof.bench import render

                benches.append(render.section(text, path.name))
        except QueueproofError as error:
            raise QueueError(f"{path}: {error}") from error
    write(html, to_page(cards, benches=benches))
    typer.echo(f"Wrote {html}")


def _kind(text: str) -> str:
    """What a file holds: a `card`, or a `benchmark`."""
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        if isinstance(content, dict):
            if "guarantees" in content:
                return "card"
            if "queueproof" in content:
                return "benchmark"
    raise QueueproofError(
        "this is no card (check --json) and no benchmark (bench --json); leave it out"
    )
