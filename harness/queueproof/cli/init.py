"""`init`: a queue file or a worker to start from."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from queueproof.cli.files import refuse_existing, write_new
from queueproof.cli.options import Postgres, Trust, Where
from queueproof.cli.talk import columns, now_and_then
from queueproof.errors import QueueproofError

_TEMPLATES = {
    ".sql": ("queue.sql", "{}"),
    ".py": ("worker.py", "exec: python {}"),
    ".mjs": ("worker.mjs", "exec: node {}"),
}


def init(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Where to write it: a queue file, or a worker (.py, .mjs)."
        ),
    ],
    *,
    from_schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER|DSN",
            help="Propose a queue file for the tables that you have. They are read from pg_dump's"
            " output, a migration, a folder of them, or a running database, in which nothing is"
            " changed.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --from-schema: the name of the jobs table."),
    ] = None,
    postgres: Postgres = None,
    trust: Trust = False,
) -> None:
    """Write a commented queue file, or a worker, to start from.

    With `--from-schema`, your schema is installed on a server (`--postgres`), in a new database,
    and the proposal is tried there.
    """
    if from_schema is not None:
        _init_from(path, from_schema, table, Where(postgres, trust))
        return
    if table is not None:
        raise QueueproofError("--table goes with --from-schema FILE|DSN")
    if path.suffix not in _TEMPLATES:
        endings = ", ".join(_TEMPLATES)
        raise QueueproofError(f"{path}: its ending says what to write; end it in one of {endings}")
    source, name = _TEMPLATES[path.suffix]
    template = files("queueproof.queues").joinpath("templates", source).read_text(encoding="utf-8")
    write_new(path, template)
    queue = name.format(path if path.suffix == ".sql" else shlex.quote(str(path)))
    what = "a queue that works. Replace its SQL with yours"
    if path.suffix != ".sql":
        what = "a worker that works. Replace its SQL with calls of your library"
    typer.echo(f"Wrote {path}: {what}, and check it:")
    if path.suffix == ".mjs":
        typer.echo("  npm install pg")
    typer.echo(f"  queueproof check {shlex.quote(queue)} --profile quick")


def _init_from(path: Path, source: str, table: str | None, where: Where) -> None:
    """Write a queue file for somebody's tables; and their schema beside it, if it has no file."""
    from queueproof.advice.propose import dump, propose
    from queueproof.explain import filled

    if path.suffix != ".sql":
        raise QueueproofError(f"{path}: what --from-schema writes is a queue file; end it in .sql")
    refuse_existing(path)
    schema = Path(source)
    is_dsn = not schema.exists() and ("=" in source or "://" in source)
    if is_dsn:
        schema = path.with_suffix(".schema.sql")
        write_new(schema, dump(source))
    files = [schema] if is_dsn else _files(schema, source)
    try:
        with now_and_then("reading the schema"):
            proposed = propose(path, files, table=table, postgres=where.postgres, trust=where.trust)
        write_new(path, proposed.text)
    except BaseException:
        if is_dsn:
            schema.unlink(missing_ok=True)
        raise
    todos = proposed.text.count("TODO")
    if is_dsn:
        typer.echo(f"Wrote {schema}: the schema, as pg_dump tells it.")
    typer.echo(f"Wrote {path}: a queue in {proposed.table}, with {todos} TODOs to look at.")
    if proposed.rejected is not None:
        typer.echo(f"The server does not take it yet. {proposed.rejected}")
        if proposed.asks:
            typer.echo(f"That constraint is: {proposed.asks}")
    first = "" if proposed.rejected is None else "Fix that line first. "
    then = f"{first}The SQL in its blocks is ours: replace it with what your workers send."
    then += " Then check it:"
    typer.echo(filled(then, columns(len(then))))
    typer.echo(f"  queueproof check {shlex.quote(str(path))} --profile quick")


def _files(schema: Path, source: str) -> list[Path]:
    """The file of a schema, or the migrations of a folder in their order."""
    files = [schema]
    if schema.is_dir():
        files = sorted(schema.glob("**/*.sql"), key=_in_order)
        files = [one for one in files if not _DOWN.search(one.name)]
        if not files:
            raise QueueproofError(f"--from-schema {source}: there is no .sql file in it")
    for file in files:
        if not file.is_file():
            what = "no such file, and no DSN; write a path, or postgresql://user@host/db"
            if file.exists():
                what = "a pipe or a device, which is read once: write the schema into a file"
            raise QueueproofError(f"--from-schema {file}: {what}")
        if "-- /// queue\n" in file.read_text("utf-8", "replace"):
            how = f"queueproof check {shlex.quote(str(file))}"
            raise QueueproofError(f"--from-schema {file}: it is a queue file already: {how}")
    return files


_DOWN = re.compile(r"\bdown\b|^U\d|rollback|revert", re.IGNORECASE)  # what takes one back


def _in_order(file: Path) -> list[object]:
    """By the numbers in its name: V2 comes before V10."""
    return [part.zfill(20) for part in re.split(r"(\d+)", str(file))]
