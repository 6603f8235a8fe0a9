"""Commands that do one thing more than a check, or run one story again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from queueproof.cli.check import check
from queueproof.cli.options import (
    Export,
    Jobs,
    Only,
    Postgres,
    ProfileName,
    QueueName,
    Seed,
    Traceback,
    Trust,
)

_Profile = Annotated[ProfileName, typer.Option(help="How thorough: see `queueproof check --help`.")]


def replay(
    queue: QueueName,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="Of a story, as a check prints it.")
    ],
    *,
    export: Export = None,
    postgres: Postgres = None,
    trust: Trust = False,
    debug: Traceback = False,  # noqa: ARG001 - `run` looks for it
) -> int:
    """Run one story again.

    Exits 1 when it happens again, 0 when it does not, 4 when its program does not fit the queue.
    """
    return check([queue], replay=token, export=export, postgres=postgres, trust=trust)


def _checking(what: str, profile: ProfileName, told: str) -> Callable[..., int]:
    """A command that does one thing more than a check.

    Args:
        what: The parameter of `check` that asks for it.
        profile: How thoroughly it checks, unless that is given.
        told: The command's help.
    """
    more: dict[str, Any] = {what: True}
    asked: Callable[..., int] = partial(check, **more)

    def command(
        queue: QueueName,
        *,
        only: Only = None,
        profile: _Profile = profile,
        seed: Seed = 0,
        jobs: Jobs = None,
        postgres: Postgres = None,
        trust: Trust = False,
        debug: Traceback = False,  # noqa: ARG001 - `run` looks for it
    ) -> int:
        return asked(
            [queue],
            only=only,
            profile=profile,
            seed=seed,
            jobs=jobs,
            postgres=postgres,
            trust=trust,
        )

    command.__doc__ = told
    return command


CHECKING: Mapping[str, Callable[..., int]] = {
    "mend": _checking(
        "mend",
        ProfileName.quick,
        """Look for a small change that mends a queue.

        After a check the change is printed as a diff, and the mended queue is checked by
        everything; the file stays as it is. It takes minutes for each broken guarantee; Ctrl-C
        prints what is mended so far. Exits as `check` does.
        """,
    ),
    "mutate": _checking(
        "mutate",
        ProfileName.quick,
        """Plant defects in a queue, and see which are found.

        A check goes first. Exits as `check` does: a defect that nothing finds changes no exit code.
        """,
    ),
    "accept": _checking(
        "write_breaks",
        ProfileName.default,
        """Accept what is broken today, for a reason.

        Later only what is new fails: each break that a check finds is written into the file's
        [breaks], with a reason to be filled in. Exits as `check` does.
        """,
    ),
    "watch": _checking(
        "watch",
        ProfileName.quick,
        """Check a queue whenever its file changes.

        So does a file that it includes. The story that broke last goes first. Ctrl-C ends it.
        """,
    ),
}
"""By their names."""
