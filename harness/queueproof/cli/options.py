"""Options of several commands, and how lists of names and numbers are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from queueproof.errors import SERVERS, QueueproofError, to_install

QUEUES = 'A queue file (jobs.sql), package.module:Class, or "exec: command".'
QueueName: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help=QUEUES)]
QueueFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A queue file (jobs.sql).")
]
# Groups of options.
ASKED, HOW, SERVER, REPORTS = "What is judged", "How thoroughly", "Server", "Reports"


class ProfileName(StrEnum):
    """The profiles of a check, the quickest first."""

    quick = "quick"
    default = "default"
    deep = "deep"


class Annotate(StrEnum):
    """The places that show a check's verdicts beside its output."""

    github = "github"
    none = "none"


def _option(panel: str | None, told: str, *names: str, **more: Any) -> object:  # noqa: ANN401 - typer's
    """An option of a group, with its help."""
    return typer.Option(*names, help=told, rich_help_panel=panel, **more)


Only: TypeAlias = Annotated[
    list[str] | None,
    _option(
        ASKED,
        "Check only these guarantees (list: `queueproof guarantees`).",
        metavar="ID,...",
    ),
]
Skip: TypeAlias = Annotated[
    list[str] | None, _option(ASKED, "Check all guarantees except these.", metavar="ID,...")
]
_REQUIRE = "Exit with 2 if one of these cannot be judged, for example because PgBouncer is missing."
Require: TypeAlias = Annotated[list[str] | None, _option(ASKED, _REQUIRE, metavar="ID,...")]
_WITH = (
    "A second version of QUEUE: workers of both run at the same time, as in a rolling deploy. Its"
    " `schema` block must be that of QUEUE, or a migration of QUEUE's tables."
)
With: TypeAlias = Annotated[str | None, _option(ASKED, _WITH, "--with", metavar="FILE")]
_PROFILE = (
    "How thorough. For an SQL file, on two idle cores, quick takes 10 to 20 s, default 30 to 120 s,"
    " deep many minutes. With quick, a broken queue takes one to four minutes, because a fix is"
    " looked for. Worker programs take longer."
)
Profile: TypeAlias = Annotated[ProfileName, _option(HOW, _PROFILE)]
ProfileOrProjects: TypeAlias = Annotated[
    ProfileName | None,
    _option(HOW, f"{_PROFILE} Without this option: the profile in pyproject.toml, or default."),
]
_SEED = "Random seed. The same seed and profile give the same verdict."
Seed: TypeAlias = Annotated[int, _option(HOW, _SEED)]
_FAIL_FAST = (
    "Stop as soon as something breaks. The other guarantees are not judged, and no fix is tried."
)
FailFast: TypeAlias = Annotated[bool, _option(HOW, _FAIL_FAST, "--fail-fast", metavar="")]
_JOBS = "Divide the work among N processes. The result does not depend on it."
Jobs: TypeAlias = Annotated[
    int | None, _option(HOW, _JOBS, metavar="N", min=1, show_default="number of CPUs")
]
_CLUSTER = (
    "Address of a dask scheduler. Its workers do the checks, each with a PostgreSQL server of its"
    " own. The result does not depend on it."
)
Cluster: TypeAlias = Annotated[str | None, _option(HOW, _CLUSTER, metavar="tcp://HOST:PORT")]
_FORMS = ", ".join(f"{form} ({what})" for form, what in SERVERS.items())
_POSTGRES = (
    f"Which PostgreSQL: {_FORMS}, or a DSN (the address of your server,"
    " `postgresql://user@host/db`)."
)
_EMBEDDED = "$QUEUEPROOF_POSTGRES, or embedded"
Postgres: TypeAlias = Annotated[
    str | None, _option(SERVER, _POSTGRES, metavar="SOURCE", show_default=_EMBEDDED)
]
_TRUST = (
    "Allow a DSN of a superuser on a server that has other people's databases too. Dangerous: the"
    " queue's SQL can then do anything on that machine."
)
Trust: TypeAlias = Annotated[bool, _option(SERVER, _TRUST, "--trust", metavar="")]


def _report(what: str) -> object:
    return _option(REPORTS, f"Write {what}.", metavar="FILE")


Json: TypeAlias = Annotated[Path | None, _report("the report as JSON; - is stdout")]
Html: TypeAlias = Annotated[Path | None, _report("the report as an HTML page")]
Junit: TypeAlias = Annotated[Path | None, _report("the report as JUnit XML")]
Badge: TypeAlias = Annotated[Path | None, _report("a badge, as SVG")]
_ANNOTATE = (
    "For GitHub Actions: show each break at its line, and write the job's summary"
    " ($GITHUB_STEP_SUMMARY)."
)
_ON_GITHUB = "github if $GITHUB_ACTIONS is true"
AnnotateFor: TypeAlias = Annotated[
    Annotate | None, _option(REPORTS, _ANNOTATE, show_default=_ON_GITHUB)
]
_EXPORT = (
    "Write the story as a spec for PostgreSQL's isolationtester (FILE.spec), as a pytest test that"
    " passes once the queue is fixed (FILE.py), or as a Mermaid diagram (FILE.mmd)."
)
Export: TypeAlias = Annotated[Path | None, _option(None, _EXPORT, metavar="FILE")]


DEBUG_OPTION = "--traceback"
_TRACEBACK = "Show the traceback of an internal error."
Traceback: TypeAlias = Annotated[bool, _option(None, _TRACEBACK, DEBUG_OPTION, metavar="")]


class Where(NamedTuple):
    """A server, and whether the queue is trusted with a superuser's rights there."""

    postgres: str | None
    trust: bool


def ids(texts: list[str] | None, option: str) -> list[str] | None:
    """The names of an option that may be given several times, if it is given."""
    return [name for text in texts for name in listed(text, option)] if texts else None


def listed(text: str, option: str) -> list[str]:
    """Names with commas between them."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise QueueproofError(f"{option} {text!r}: one is missing; write them with commas between")
    return names


def counts(text: str, option: str) -> list[int]:
    """Whole numbers from 1 on, with commas between them."""
    names = listed(text, option)
    if not all(name.isascii() and name.isdigit() and int(name) for name in names):
        raise QueueproofError(f"{option} {text!r}: write whole numbers from 1 on, such as 1,10")
    return [int(name) for name in names]


@contextmanager
def cluster_extra() -> Iterator[None]:
    """Say how to get what a cluster needs, where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise QueueproofError(f"--cluster needs {error.name}: {to_install('cluster')}") from None
