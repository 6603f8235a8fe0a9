"""`check`: a queue judged by its guarantees."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from queueproof.cli import options as opt
from queueproof.cli.judging import CheckOptions, judged
from queueproof.cli.project import project
from queueproof.cli.several import each
from queueproof.errors import QueueproofError


def check(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help=f"{opt.QUEUES} With several, each gets its own report files, and the exit code is"
            " the worst. With none, those of [tool.queueproof] in pyproject.toml are checked.",
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
    """Judge a queue by its guarantees.

    Exits 0 when every guarantee holds or is accepted, 1 when one is broken, 2 when none is broken
    but one is inconclusive, 4 when the queue, the server or an option cannot be used.
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
