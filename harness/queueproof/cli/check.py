"""`check`: a queue judged by its guarantees."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from queueproof.cli.judging import CheckOptions, judged
from queueproof.cli.options import (
    QUEUES,
    AnnotateFor,
    Badge,
    Cluster,
    FailFast,
    Html,
    Jobs,
    Json,
    Junit,
    Only,
    Postgres,
    ProfileName,
    ProfileOrProjects,
    Require,
    Seed,
    Skip,
    Traceback,
    Trust,
    Where,
    With,
)
from queueproof.cli.project import project
from queueproof.cli.reports import Reports
from queueproof.cli.several import each
from queueproof.errors import QueueproofError


def check(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help=f"{QUEUES} With several, each gets its own report files, and the exit code is the"
            " worst. With none, those of [tool.queueproof] in pyproject.toml are checked.",
            show_default=False,
        ),
    ] = None,
    *,
    only: Only = None,
    skip: Skip = None,
    require: Require = None,
    new: With = None,
    profile: ProfileOrProjects = None,
    seed: Seed = 0,
    fail_fast: FailFast = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
    postgres: Postgres = None,
    trust: Trust = False,
    json: Json = None,
    html: Html = None,
    junit: Junit = None,
    badge: Badge = None,
    annotate: AnnotateFor = None,
    debug: Traceback = False,
) -> int:
    """Judge a queue by its guarantees.

    Exits 0 when every guarantee holds or is accepted, 1 when one is broken, 2 when none is broken
    but one is inconclusive, 4 when the queue, the server or an option cannot be used.
    """
    options = {name: value for name, value in locals().items() if name != "queues"}
    of_project = project()
    queues = queues or of_project.queue_names()
    profile = profile or of_project.profile or ProfileName.default
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
    return judged(
        CheckOptions(
            queues[0],
            Where(postgres, trust),
            profile.value,
            new,
            only,
            skip,
            require,
            seed,
            fail_fast,
            jobs,
            cluster,
            Reports(json, html, junit, badge, annotate),
        )
    )
