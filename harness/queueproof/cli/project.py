"""A project's settings for its checks: `[tool.queueproof]` in pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from queueproof.cli.options import ProfileName
from queueproof.errors import QueueproofError, nearest
from queueproof.queues.ids import IDS, unknown

_EXAMPLES = {
    "queues": 'queues = ["jobs.sql"]',
    "profile": 'profile = "quick"',
    "postgres": 'postgres = "container:postgres:18"',
    "skip": 'skip = ["pooler-safe"]',
    "require": 'require = ["fencing"]',
}
_TABLE = "[tool.queueproof]"


class Project(NamedTuple):
    """Settings of a project; an option of the command line wins over them."""

    queues: tuple[str, ...] = ()  # files as seen from the current folder
    profile: ProfileName | None = None
    postgres: str | None = None
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    path: str = ""  # of the file that names queues

    def queue_names(self) -> list[str]:
        """The queues of the project; QueueproofError where it names none, or a file is missing."""
        for name in self.queues:
            if name.endswith(".sql") and not Path(name).is_file():
                told = f"{self.path}: queues: there is no file {name}; name each file"
                raise QueueproofError(told)
        if not self.queues:
            raise QueueproofError(
                f"name a queue, or write {_EXAMPLES['queues']} below {_TABLE} in pyproject.toml"
            )
        return [*self.queues]


def project() -> Project:
    """The nearest pyproject.toml's, from the current folder up; nothing where there is none."""
    here = Path.cwd()
    path = next(
        (file for one in (here, *here.parents) if os.path.isfile(file := one / "pyproject.toml")),  # noqa: PTH113 - Path's raises where one may not look
        None,
    )
    return _read(path) if path else Project()


def _read(path: Path) -> Project:
    from queueproof import waits

    try:
        found: Any = tomllib.loads(waits.text(path))
    except (ValueError, RecursionError) as error:
        raise QueueproofError(f"{path}: {error}") from None
    for name in ("tool", "queueproof"):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    keys = found if isinstance(found, dict) else {}
    for key, value in keys.items():
        if key not in _EXAMPLES:
            said = f"unknown key {key!a}{nearest(key, _EXAMPLES)}"
            raise QueueproofError(f"{path}: {said} below {_TABLE}; write {_EXAMPLES['queues']}")
        if not _is_right(key, value):
            raise QueueproofError(f"{path}: write {_EXAMPLES[key]} below {_TABLE}")
        for name in value if key in {"skip", "require"} else ():
            if name not in IDS:
                raise QueueproofError(f"{path}: {key}: {unknown(name)}")
    files = {one: path.parent / one for one in keys.get("queues", ())}
    profile = keys.get("profile")
    return Project(
        tuple(os.path.relpath(file) if file.is_file() else one for one, file in files.items()),
        ProfileName(profile) if profile else None,
        keys.get("postgres"),
        tuple(keys.get("skip", ())),
        tuple(keys.get("require", ())),
        str(path) if files else "",
    )


def _is_right(key: str, value: object) -> bool:
    match key, value:
        case "profile", str():
            return value in set(ProfileName)
        case "postgres", str():
            return _is_name(value)
        case (("queues" | "skip" | "require"), [*names]):
            return bool(names) and all(map(_is_name, names))
    return False


def _is_name(one: object) -> bool:
    return isinstance(one, str) and bool(one) and "\0" not in one
