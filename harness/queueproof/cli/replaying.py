"""`replay`: one story again, and as a file."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queueproof.cli import options as opt
from queueproof.cli.ends import on_behalf_of
from queueproof.cli.files import refuse_outputs, write
from queueproof.cli.known import fix_of, token_of
from queueproof.cli.talk import now_and_then, progress_bar
from queueproof.errors import Exit, QueueproofError

if TYPE_CHECKING:
    from queueproof.examine.replay import Replayed
    from queueproof.queues.model import Queue
    from queueproof.run.lab import Lab


def replay(
    queue: opt.QueueName,
    story: Annotated[
        str,
        typer.Argument(
            metavar="NAME|TOKEN",
            help="The break: its name in the last check (fencing.2), or its token from a report."
            " Without it the names are listed.",
        ),
    ] = "",
    *,
    new: opt.With = None,
    export: opt.Export = None,
    postgres: opt.Postgres = None,
    trust: opt.Trust = False,
    debug: opt.Traceback = False,  # noqa: ARG001 - `run` looks for it
) -> int:
    """Run a break again, step by step.

    Exits 1 when it happens again, 0 when it does not, 4 when the queue lacks what it needs.
    """
    from queueproof.queues.resolve import files_of

    if export is not None and export.suffix not in {".spec", ".py", ".mmd"}:
        raise QueueproofError(
            f"--export {export}: the file's name says what it becomes; end it in .spec"
            " (isolationtester), .py (pytest) or .mmd (Mermaid)"
        )
    if new is not None and export is not None:
        raise QueueproofError("--with makes one queue of two, and --export is about one")
    target = target_of(queue, new)
    refuse_outputs([export], files_of(target))
    with on_behalf_of(target):
        return _replayed(target, token_of(target.name, story), opt.Where(postgres, trust), export)


def _replayed(target: Queue, token: str, where: opt.Where, export: Path | None) -> int:
    """Run a story again, tell it, and write it where that is asked."""
    from queueproof.advice.remedies import remedy_of
    from queueproof.examine import replay as examined
    from queueproof.queues.sqlfile import SqlFileQueue
    from queueproof.queues.worker import WorkerQueue
    from queueproof.report.terminal import Output, print_next, print_remedy, print_story
    from queueproof.report.text import TRIED, WIDTH, to_text

    digest, guarantee, _, _ = examined.told_by(token)
    own = next((way for way in target.ways if way.digest == digest), target.ways[0])
    edited = own.digest != digest
    text = ""
    with open_target(own, where) as lab:
        out = Output()
        again = command_of(target.name, None, lab, where)
        out.prose(f"{target.name} on {lab.server.label}; replaying {guarantee}")
        if edited:
            out.prose("The queue has changed since: the story's program is run under every order.")
        out.say()
        with now_and_then("running the story again"):
            replayed = examined.replay(lab, token)
        if export is not None and replayed is not None:
            text = _exported(lab, replayed, token, export)
    if replayed is None:
        anywhere = ", in any order" if edited or isinstance(own, WorkerQueue) else ""
        nothing = "" if export is None else f" {export} was not written."
        again[1:2] = ["check"]
        out.prose(f"It does not happen any more{anywhere}.{nothing}")
        out.say(f"{'Check everything:':<22}{shlex.join(again)}")
        return Exit.HOLDS
    out.say(f"It happens again: {guarantee} is broken.")
    out.say()
    print_story(out, to_text(replayed.told, out.width if out.is_terminal else WIDTH))
    out.say()
    if replayed.accepted:
        out.prose(f"It is accepted, because the queue declares it as known: {replayed.accepted}")
    else:
        told = None if edited else fix_of(target.name, guarantee)
        print_remedy(out, told or remedy_of(guarantee, replayed.told, replayed.story, target))
        again[1:2] = ["mend"]
        mend = shlex.join(again) if isinstance(target, SqlFileQueue) else ""
        files = target.files if isinstance(target, SqlFileQueue) else ()
        print_next(out, guarantee, mend, fixed=TRIED in (told or ""), files=files)
    if export is not None:
        write(export, text)
        out.say(f"Wrote {export}")
    return Exit.BROKEN


def _exported(lab: Lab, replayed: Replayed, token: str, export: Path) -> str:
    """A story as the file that was asked for."""
    from queueproof.examine import replay as examined
    from queueproof.report.as_test import to_test
    from queueproof.report.export import refuse_varying, to_spec
    from queueproof.report.mermaid import to_mermaid
    from queueproof.report.story import Story

    name = lab.queue.name
    command = shlex.join(["queueproof", "replay", name, token])
    told = {"guarantee": replayed.guarantee, "command": command}
    if export.suffix == ".py":
        return to_test(replayed.story, replayed.data, **told, queue=_from(export, name))
    if export.suffix == ".mmd" and isinstance(replayed.told, Story):
        return to_mermaid(replayed.told) + "\n"
    why = ""
    if export.suffix == ".mmd":
        why = f"this story of {replayed.guarantee} has no steps to be drawn; export it"
    elif lab.remembers:
        why = "what a worker prepares and keeps stands in no spec; export the story"
    elif replayed.failure is None:
        why = f"no order of statements tells this story of {replayed.guarantee}; export it"
    if why or replayed.failure is None:
        raise QueueproofError(f"--export {export}: {why} as a test, FILE.py")
    again = examined.replay(lab, token)
    if again is None or again.failure is None:
        raise QueueproofError(f"--export {export}: the story does not happen each time")
    refuse_varying(replayed.failure, again.failure)
    return to_spec(replayed.failure, lab, **told, name=export.name)


def _from(export: Path, queue: str) -> str:
    """A queue as Python, a file by its place beside the one that is written."""
    if not Path(queue).exists():
        return jsonlib.dumps(queue)
    way = os.path.relpath(queue, export.resolve().parent)
    return f"Path(__file__).parent / {jsonlib.dumps(way)}"


def target_of(queue: str, new: str | None) -> Queue:
    """A queue by its name, with the version that is deployed beside it where there is one."""
    from queueproof.queues.deployment import deployment
    from queueproof.queues.resolve import resolve

    return resolve(queue) if new is None else deployment(queue, new)


@contextmanager
def open_target(target: Queue, where: opt.Where, later: Sequence[str] = ()) -> Iterator[Lab]:
    """A queue installed on a server; while that begins, modules are imported that are used then."""
    from queueproof.postgres import open_server
    from queueproof.run.open import open_lab

    threading.Thread(target=lambda: [*map(import_module, later)], daemon=True).start()
    with ExitStack() as stack:
        with progress_bar("starting PostgreSQL, installing the queue"):
            server = stack.enter_context(open_server(where.postgres, trust=where.trust))
            lab = stack.enter_context(open_lab(target, server))
        yield lab


def command_of(queue: str, new: str | None, lab: Lab, where: opt.Where) -> list[str]:
    """The command that replays a story of this check, but for its token."""
    server = [] if where.postgres is None else ["--postgres", lab.server.source]
    trust = ["--trust"] if where.trust else []
    other = [] if new is None else ["--with", new]
    return ["queueproof", "replay", queue, *other, *server, *trust]
