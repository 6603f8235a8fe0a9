"""What the conformance matrix is about: the queues of strategies/, and what is said of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from queueproof.errors import QueueproofError, nearest, to_install
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues.model import Queue
from queueproof.queues.resolve import resolve
from queueproof.report.card import Card, Verdict

SEED = 0
PROFILE = "quick"
UNEXPLAINED = frozenset({"broken", "accepted", "inconclusive"})
"""Verdicts on somebody else's queue that want a remark."""
Recorded: TypeAlias = Mapping[str, Mapping[str, Verdict]]
"""conformance.json: queue to guarantee id to verdict."""
Replays: TypeAlias = Mapping[str, Mapping[str, str]]
"""Queue to guarantee id to the token of its first story."""
STORIES = "stories.jsonl"
"""In results/: where all were judged on its first line, and then a `StoryLine` a line."""
REMARKS = "peers/remarks.toml"
MARKS: Mapping[Verdict, str] = {  # in a cell of the matrix
    "holds": "✓",
    "broken": "✗",
    "accepted": "(✗)",
    "inconclusive": "?",
    "not-offered": "\N{EN DASH}",
}
DOCUMENTED = ("by design", "reported", "no", "model only")


@dataclass(frozen=True)
class Program:
    """How a real queue is driven through its own code.

    Attributes:
        file: Its worker, in strategies/peers.
        command: What a command line names; `{}` stands for the worker's path.
        packages: What is judged, by its name in the registry, and then the drivers beneath it.
        only: The guarantees that it is asked for; all where there are none.
    """

    file: str
    command: str
    packages: Sequence[str]
    only: Sequence[str] = ()

    def versions(self, directory: Path) -> list[str]:
        """The versions of its packages that are installed, each with its name.

        Args:
            directory: Where strategies/ is.

        Raises:
            QueueproofError: One is not installed.
        """
        found = _version_in_node if self.file.endswith(".mjs") else _version_in_python
        return [f"{name} {found(name, directory / 'peers')}" for name in self.packages]


def _version_in_python(package: str, _: Path) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        message = f"{package} is not installed: {to_install('peers')}"
        raise QueueproofError(message) from None


def _version_in_node(package: str, folder: Path) -> str:
    try:
        text = (folder / "node_modules" / package / "package.json").read_text(encoding="utf-8")
    except OSError:
        raise QueueproofError(f"{package} is not installed: npm ci --prefix {folder}") from None
    return str(json.loads(text)["version"])


_PEERS = "queueproof.strategies.peers"
PROGRAMS: Mapping[str, Program] = {
    "peers/pgqueuer": Program(
        "pgqueuer_worker.py", f"{_PEERS}.pgqueuer_worker:PgQueuer", ("pgqueuer", "asyncpg")
    ),
    "peers/pgqueuer_patient": Program(
        "pgqueuer_worker.py",
        f"{_PEERS}.pgqueuer_worker:PatientPgQueuer",
        ("pgqueuer", "asyncpg"),
        ("backoff",),
    ),
    "peers/procrastinate": Program(
        "procrastinate_worker.py",
        f"{_PEERS}.procrastinate_worker:Procrastinate",
        ("procrastinate", "psycopg"),
    ),
    "peers/pg_boss": Program("pg_boss_worker.mjs", "exec: node {}", ("pg-boss", "pg")),
    "peers/graphile_worker": Program(
        "graphile_worker.mjs", "exec: node {}", ("graphile-worker", "pg")
    ),
}
"""Real queues; a patient one has many retries, for what their number does to the backoff."""
NAMES: Mapping[str, str] = {
    "graphile_worker": "graphile-worker",
    "inferable": "Inferable",
    "oban": "Oban",
    "pg_boss": "pg-boss",
    "pgmq": "PGMQ",
    "pgqueuer": "PgQueuer",
    "pgqueuer_patient": "PgQueuer, 60 retries",
    "procrastinate": "Procrastinate",
    "production_jobs": "Code Notes, an article",
    "river": "River",
    "solid_queue": "Solid Queue",
}
"""Somebody else's queues as their makers write them, by their files' names."""
_FIRST = "skip_locked"


class StoryLine(NamedTuple):
    """A story that `make results` has recorded.

    Attributes:
        queue: Its path in strategies/, without `.sql`, or a key of `PROGRAMS`.
        guarantee: The id of the one that is broken.
        reason: One sentence.
        replay: Its token; None where it cannot be repeated at will.
        told: The story, as `to_data` has it.
    """

    queue: str
    guarantee: str
    reason: str
    replay: str | None
    told: Any


@dataclass(frozen=True)
class Remark:
    """What a verdict on somebody else's queue means.

    Attributes:
        means: One sentence, for the queue's user.
        documented: `by design`: its documentation says so. `reported`: its tracker does. `no`:
            neither does. `model only`: the verdict is of our file and says nothing of the original.
        source: Where that is to be read.
    """

    means: str
    documented: str
    source: str


@dataclass(frozen=True)
class Peer:
    """What somebody else's queue says of itself.

    Attributes:
        version: Which one is judged; of a real queue it begins with its package's version.
        promise: What its documentation promises, in one sentence.
        source: Where that is to be read.
        rests_on: The guarantees that the promise comes down to.
        remarks: What verdicts mean, by guarantee.
    """

    version: str
    promise: str
    source: str
    rests_on: Sequence[str]
    remarks: Mapping[str, Remark] = field(default_factory=dict)


def names(directory: Path) -> list[str]:
    """Every queue of strategies/ that is ours, the reference first."""
    found = [
        path.relative_to(directory).with_suffix("").as_posix()
        for folder in ("", "sound", "broken")
        for path in sorted((directory / folder).glob("*.sql"))
    ]
    return sorted(found, key=lambda name: name != _FIRST)


def stories(results: Path) -> list[StoryLine]:
    """What has been recorded; nothing where there are no results, as in a wheel.

    Args:
        results: Where results/ is.
    """
    path = results / STORIES
    lines = path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []
    return [StoryLine(**json.loads(line)) for line in lines]


def replays(results: Path) -> Replays:
    """The tokens of all recorded stories, of several on one guarantee the first one's.

    Args:
        results: Where results/ is.
    """
    found: dict[str, dict[str, str]] = {}
    for line in stories(results):
        if line.replay:
            found.setdefault(line.queue, {}).setdefault(line.guarantee, line.replay)
    return found


def peers(directory: Path) -> list[str]:
    """Every design of somebody else's queue in strategies/."""
    return [f"peers/{path.stem}" for path in sorted((directory / "peers").glob("*.sql"))]


def strategy(name: str, directory: Path) -> Queue:
    """A queue of strategies/.

    Args:
        name: Its path there without `.sql`, or a key of `PROGRAMS`.
        directory: Where strategies/ is.
    """
    return resolve(typed(name, _from_here(directory)))


def typed(name: str, directory: Path) -> str:
    """What a command line names a queue of strategies/.

    Args:
        name: Its path there without `.sql`, or a key of `PROGRAMS`.
        directory: Where strategies/ is.
    """
    if name not in PROGRAMS:
        return str(directory / f"{name}.sql")
    program = PROGRAMS[name]
    return program.command.format(directory / "peers" / program.file)


def _from_here(path: Path) -> Path:
    """A path as somebody would type it: a story's command is the same wherever the checkout is."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def drift(recorded: Recorded, name: str, card: Card) -> dict[str, tuple[str, str]]:
    """Where a card says something else than the matrix: guarantee id to (recorded, found)."""
    known = recorded.get(name, {})
    return {
        judgement.id: (known.get(judgement.id, "nothing: run `make results`"), judgement.verdict)
        for judgement in card.guarantees
        if known.get(judgement.id) != judgement.verdict
    }


def read_remarks(path: Path) -> dict[str, Peer]:
    """What is said of somebody else's queues, by their files' names.

    Args:
        path: A TOML file: `[river]` with `version`, `promise`, `source` and `rests_on`, and
            `[river.remarks.fencing]` with `means`, `documented` and `source`.

    Raises:
        QueueproofError: It is not of that form; the message says where.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: _peer(name, table) for name, table in tables.items()}
    except ValueError as error:  # tomllib's is one
        raise QueueproofError(f"{path}: {error}") from None


def _peer(name: str, table: Mapping[str, Any]) -> Peer:
    rests_on, remarks = table.get("rests_on", []), table.get("remarks", {})
    for guarantee in (*rests_on, *remarks):
        if guarantee not in CATALOGUE:
            close = nearest(guarantee, CATALOGUE)
            raise ValueError(f"[{name}]: unknown guarantee {guarantee!r}{close}")
    known = {id_: _remark(f"[{name}.remarks.{id_}]", found) for id_, found in remarks.items()}
    own = {key: value for key, value in table.items() if key not in {"rests_on", "remarks"}}
    return Peer(**_texts(f"[{name}]", own, Peer), rests_on=rests_on, remarks=known)


def _remark(where: str, table: Mapping[str, Any]) -> Remark:
    remark = Remark(**_texts(where, table, Remark))
    if remark.documented not in DOCUMENTED:
        raise ValueError(f"{where}: `documented` is one of: {', '.join(DOCUMENTED)}")
    return remark


def _texts(where: str, table: Mapping[str, Any], kind: type[Peer | Remark]) -> dict[str, str]:
    """A table whose keys are those of a class that are texts."""
    keys = [one.name for one in fields(kind) if one.type == "str"]
    if sorted(table) != sorted(keys) or not all(isinstance(text, str) for text in table.values()):
        raise ValueError(f"{where}: write {', '.join(keys)}, each with a text")
    return dict(table)
