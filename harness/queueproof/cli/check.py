"""`check`: a queue judged by its guarantees, or several, one after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from queueproof.cli import options as opt
from queueproof.cli.ends import exit_code_of
from queueproof.cli.files import STDOUT, streams
from queueproof.cli.judging import CheckOptions, judged
from queueproof.cli.project import project
from queueproof.errors import Exit, QueueproofError

_WORST = (Exit.UNUSABLE, Exit.BROKEN, Exit.INCONCLUSIVE, Exit.HOLDS)


def check(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help=f"{opt.QUEUES} With several queues, each gets its own report files. The exit code"
            " is the first of 4, 1, 2, 0 that one of them has. Without a QUEUE, the queues that"
            " [tool.queueproof] in pyproject.toml lists are checked.",
            show_default=False,
        ),
    ] = None,
    *,
    only: opt.Only = None,
    skip: opt.Skip = None,
    require: opt.Require = None,
    new: opt.With = None,
    profile: opt.ProfileOrProjects = None,
    seed: opt.Seed = 0,
    fail_fast: opt.FailFast = False,
    jobs: opt.Jobs = None,
    cluster: opt.Cluster = None,
    postgres: opt.Postgres = None,
    trust: opt.Trust = False,
    json: opt.Json = None,
    html: opt.Html = None,
    junit: opt.Junit = None,
    badge: opt.Badge = None,
    annotate: opt.AnnotateFor = None,
    debug: opt.Traceback = False,
) -> int:
    """Find out which guarantees a queue breaks, and how.

    For daily work: `queueproof check jobs.sql --profile quick`. Before a merge: without
    `--profile`.

    Exit codes:

    - 0: every guarantee holds, or its break is known (`queueproof accept`)

    - 1: a guarantee is broken

    - 2: none is broken, but one is inconclusive: too little was seen to decide

    - 4: the queue, the server or an option cannot be used
    """
    options = {name: value for name, value in locals().items() if name != "queues"}
    of_project = project()
    queues = queues or of_project.queue_names()
    profile = profile or of_project.profile or opt.ProfileName.default
    if postgres is None and "QUEUEPROOF_POSTGRES" not in os.environ:
        postgres = of_project.postgres
    if only is None:  # whoever names guarantees has chosen
        skip, require = skip or [*of_project.skip], require or [*of_project.require]
    if len(queues) > 1:
        if new is not None:
            raise QueueproofError("--with is about one queue: name one")
        return each(queues, check, options)
    if cluster is not None and jobs is not None:
        raise QueueproofError("--cluster has others do a check: --jobs is about this machine")
    return judged(CheckOptions.of({"queue": queues[0], **locals()}))


def each(queues: Sequence[str], check: Callable[..., int], options: Mapping[str, Any]) -> int:
    """Check each of several queues; what one of them lacks keeps nobody from the others.

    The options are the same for all, but that each queue has reports of its own. The worst exit
    code counts: 4, then 1, then 2, then 0.
    """
    from queueproof.waits import StoppedError

    if "exec:" in queues:
        raise typer.BadParameter("a command stands in quotes")
    names = [_name(queue) for queue in queues]
    if again := next((n for n, name in enumerate(names) if name in names[:n]), None):
        both = f"{queues[names.index(names[again])]} and {queues[again]}"
        raise QueueproofError(f"{both} are named: their reports would have the same names")
    if STDOUT in options.values():
        raise QueueproofError(
            "stdout has room for one report, and each queue has its own: name a file"
        )
    codes = set[int]()
    for queue in queues:
        own = {name: _own(value, queue) for name, value in options.items()}
        try:
            codes.add(check([queue], **own))
        except StoppedError:
            raise
        except QueueproofError as error:
            codes.add(exit_code_of(error, ()))
    return next(code for code in _WORST if code in codes)


def _own(value: object, queue: str) -> object:
    """A report's name with the queue's in it; any other option as it is."""
    if not isinstance(value, Path) or streams(value):
        return value
    return value.with_stem(f"{value.stem}-{_name(queue)}")


def _name(queue: str) -> str:
    return re.sub(r"[^\w.-]+", "-", queue.removesuffix(".sql")).strip("-.")
