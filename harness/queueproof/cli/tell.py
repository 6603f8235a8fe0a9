"""Commands that only tell: `guarantees`, `help`, `show`, `schema`, `doctor`, `explain`."""

from __future__ import annotations

import json as jsonlib
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from queueproof.cli.files import refuse_outputs, write
from queueproof.cli.options import QueueFile
from queueproof.cli.talk import columns, output
from queueproof.errors import QueueproofError, nearest


def guarantees() -> None:
    """List all guarantees."""
    from queueproof.explain import filled
    from queueproof.guarantees.catalogue import CATALOGUE

    for guarantee in CATALOGUE.values():
        line = f"{guarantee.id:<18} {guarantee.sentence}"
        typer.echo(filled(line, columns(len(line)), indent=19))
    typer.echo("\nExplain one: queueproof explain fencing")


_STRATEGIES = "queueproof.strategies"
_TOPICS = {  # what each is about, and in which package's file it stands
    "file-format": ("a queue in one SQL file", _STRATEGIES, "README.md"),
    "program": ("a worker in any language", "queueproof.queues", "templates/README.md"),
    "class": ("a queue in Python", "", ""),  # in docstrings
    "rules": ("what counts as sound and what as broken", _STRATEGIES, "RULES.md"),
}


def tell(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC|COMMAND]",
            help="; ".join(f"{topic}: {what}" for topic, (what, *_) in _TOPICS.items())
            + ". Or a command, for its options. Without either, both are listed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a topic of the reference (file-format, program ...), or a command's options."""
    commands = context.find_root().command.commands  # type: ignore[attr-defined]
    if topic in commands:
        with commands[topic].make_context(topic, ["--help"], parent=context.find_root()):
            return
    if topic is not None and topic not in _TOPICS:
        known = nearest(topic, [*_TOPICS, *commands]) or f"; topics: {', '.join(_TOPICS)}"
        raise QueueproofError(f"no part of the reference, and no command: {topic}{known}")
    if topic is None:
        from queueproof.explain import filled

        typer.echo("Parts of the reference, each printed by queueproof help TOPIC:")
        for known, (what, *_) in _TOPICS.items():
            typer.echo(f"{known:<12} {what}")
        listed = f"The options of a command: queueproof help COMMAND, one of {', '.join(commands)}"
        typer.echo(f"\n{filled(listed, columns(len(listed)))}")
        return
    _, package, path = _TOPICS[topic]
    if not package:
        from inspect import getdoc

        from queueproof.queues.model import Claim, Facts, JobRow, Queue, Result, Step

        parts = [getdoc(Queue), getdoc(Facts)]
        parts += [f"{one.__name__}: {getdoc(one)}" for one in (Step, Result, Claim, JobRow)]
        text = "\n\n".join(str(part) for part in parts)
    else:
        text = files(package).joinpath(path).read_text(encoding="utf-8")
    typer.echo(text)


def show(queue: QueueFile) -> None:
    """Print a queue file together with what it inherits from the file that it `extends`."""
    from queueproof.queues.resolve import sql_file

    typer.echo(sql_file(queue, "show").whole.rstrip())


def schema() -> None:
    """Print the JSON Schema of the report (`check --json`)."""
    typer.echo(files("queueproof.report").joinpath("card.schema.json").read_text("utf-8").rstrip())


def doctor(
    *,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as JSON; - is stdout.")
    ] = None,
) -> None:
    """Show which optional tools (PgBouncer, Docker, Node.js) are here, and what each adds."""
    from dataclasses import asdict

    from queueproof.doctor import look
    from queueproof.explain import filled

    refuse_outputs([json], ())
    out = output(json)
    findings = []
    for found in look():
        findings.append(found)
        told = [f"{found.state:<8} {found.name:<20} {found.found}".rstrip()]
        if found.state != "here":
            told += [f"{'':<29} for {found.adds}"]
            told += [f"{'':<29} {'get' if found.state == 'missing' else 'fix'} it: {found.get}"]
        for line in told:
            out.say(filled(line, columns(len(line)), indent=30))
    if json is not None:
        write(json, jsonlib.dumps([asdict(found) for found in findings], indent=2) + "\n")


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A guarantee, such as fencing. Without one, all are listed."
        ),
    ] = None,
) -> None:
    """Explain a guarantee: how it is broken, how it is kept, and a queue that breaks it."""
    if name is None:
        guarantees()
        return
    from queueproof.explain import WIDTH
    from queueproof.explain import explain as explained
    from queueproof.guarantees.catalogue import select

    typer.echo(explained(select([name])[0], columns(WIDTH)))
