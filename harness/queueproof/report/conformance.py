"""The conformance matrix: every queue of strategies/ by every guarantee, each break with its story.

`python -m queueproof.report.conformance`, which is `make results`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Console

from queueproof.check import check_queue
from queueproof.errors import Exit, QueueproofError
from queueproof.explore.lab import open_lab
from queueproof.guarantees import CATALOGUE, select
from queueproof.postgres import Server, open_server
from queueproof.report.card import Card, Verdict
from queueproof.report.terminal import summary
from queueproof.sqlfile import load

SEED = 0
PROFILE = "quick"
AT_ONCE = 2  # checks; each waits for its server half the time
MARKS: Mapping[Verdict, str] = {
    "holds": "✓",
    "broken": "✗",
    "accepted": "(✗)",
    "inconclusive": "?",
    "not-offered": "\N{EN DASH}",
}
Recorded: TypeAlias = Mapping[str, Mapping[str, Verdict]]
"""conformance.json: queue to guarantee id to verdict."""

_FIRST = "skip_locked"
_DEFECT = re.compile(r"-- breaks: ([\w-]+)\n")


@dataclass(frozen=True)
class Row:
    """One queue of the matrix.

    Attributes:
        name: Its path in strategies/, without `.sql`.
        card: What was found.
        defect: The guarantee that was broken in it on purpose; empty in most.
    """

    name: str
    card: Card
    defect: str = ""

    @property
    def stem(self) -> str:
        """Its file's name."""
        return self.name.rpartition("/")[2]

    @property
    def link(self) -> str:
        """Its file, from the matrix."""
        return f"../strategies/{self.name}.sql"

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Guarantee id to verdict."""
        return {judgement.id: judgement.verdict for judgement in self.card.guarantees}

    def mark(self, guarantee: str) -> str:
        """The cell of a guarantee."""
        mark = MARKS[self.verdicts[guarantee]]
        return f"[{mark}]({self.story_file(guarantee)})" if self._tells(guarantee) else mark

    def story(self, guarantee: str) -> str:
        """A link to a story, in its own words."""
        reason = next(j.reason for j in self.card.guarantees if j.id == guarantee)
        if not self._tells(guarantee):
            return f"{MARKS[self.verdicts[guarantee]]} {reason}"
        return f"[{reason}]({self.story_file(guarantee)})".replace("|", "\\|")

    def rest(self) -> str:
        """What the other guarantees say."""
        return summary(j for j in self.card.guarantees if j.id != self.defect)

    def story_file(self, guarantee: str) -> str:
        """Where a story stands, from the matrix."""
        return f"stories/{self.stem}.{guarantee}.md"

    def stories(self) -> dict[str, str]:
        """Every story of this queue by its file."""
        return {
            self.story_file(j.id): _page(self, j.story, j.replay)
            for j in self.card.guarantees
            if j.story is not None
        }

    def _tells(self, guarantee: str) -> bool:
        return any(j.id == guarantee and j.story for j in self.card.guarantees)


def _page(row: Row, story: str, replay: str | None) -> str:
    """A story as Markdown: its text as it is, its diagram drawn."""
    told, _, diagram = story.partition("```mermaid")
    again = f"queueproof check strategies/{row.name}.sql --replay {replay}"
    return (
        f"# {row.stem}\n\n```text\n{told.rstrip()}\n```\n\n"
        + (f"```mermaid{diagram.rstrip()}\n\n" if diagram else "")
        + f"Once more:\n\n```sh\n{again}\n```\n"
    )


def examine(names: Sequence[str], directory: Path, server: Server) -> list[Row]:
    """Check queues by every guarantee that this version judges.

    Args:
        names: Their paths in `directory`, without `.sql`.
        directory: Where strategies/ is.
        server: Where they are checked.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(partial(_examine, directory=directory, server=server), names))


def _examine(name: str, directory: Path, server: Server) -> Row:
    path = directory / f"{name}.sql"
    match = _DEFECT.match(path.read_text(encoding="utf-8"))
    with open_lab(load(path), server) as lab:
        card = check_queue(lab, select(None), seed=SEED, profile=PROFILE)
    return Row(name, card, match[1] if match else "")


def names(directory: Path) -> list[str]:
    """Every queue of strategies/, the reference first."""
    found = [
        path.relative_to(directory).with_suffix("").as_posix()
        for folder in ("", "sound", "broken")
        for path in sorted((directory / folder).glob("*.sql"))
    ]
    return sorted(found, key=lambda name: name != _FIRST)


def render(rows: Iterable[Row]) -> str:
    """The matrix as Markdown."""
    rows = list(rows)
    environment = Environment(
        loader=PackageLoader("queueproof.report", "."),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - Markdown
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    sound = [row for row in rows if row.name.startswith("sound/")]
    tables = [
        (
            "Strategies",
            "The reference, and queues that differ from it in one idea.",
            [row for row in rows if "/" not in row.name],
        ),
        ("Sound designs", "Quite different ones, so that a false alarm would show.", sound),
    ]
    return environment.get_template("conformance.md.j2").render(
        seed=SEED,
        postgres=rows[0].card.postgres,
        tables=tables,
        guarantees=[id_ for id_, guarantee in CATALOGUE.items() if guarantee.judged],
        planted=[row for row in rows if row.defect],
    )


def write(rows: Sequence[Row], results: Path) -> None:
    """Write the matrix, its data and the stories; stories of what no longer breaks go."""
    stories = results / "stories"
    stories.mkdir(parents=True, exist_ok=True)
    for old in stories.glob("*.md"):
        old.unlink()
    for row in rows:
        for file, text in row.stories().items():
            (results / file).write_text(text, encoding="utf-8")
    data = {row.name: row.verdicts for row in rows}
    (results / "conformance.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (results / "conformance.md").write_text(render(rows), encoding="utf-8")


def drift(recorded: Recorded, name: str, card: Card) -> dict[str, tuple[str, str]]:
    """Where a card says something else than the matrix: guarantee id to (recorded, found)."""
    known = recorded.get(name, {})
    return {
        judgement.id: (known.get(judgement.id, "nothing: run `make results`"), judgement.verdict)
        for judgement in card.guarantees
        if known.get(judgement.id) != judgement.verdict
    }


def main(arguments: list[str] | None = None) -> int:
    """Check every queue and write the matrix; the exit code."""
    parser = argparse.ArgumentParser("python -m queueproof.report.conformance", description=__doc__)
    parser.add_argument("--postgres", help="embedded, local, container or a DSN")
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory")
    options = parser.parse_args(arguments)
    console = Console(stderr=True, highlight=False)
    try:
        with (
            as_file(files("queueproof.strategies")) as directory,
            open_server(options.postgres) as server,
        ):
            rows = examine(names(directory), directory, server)
        write(rows, options.results)
    except QueueproofError as error:
        console.print(str(error), markup=False)
        return Exit.UNUSABLE
    found = Counter(verdict for row in rows for verdict in row.verdicts.values())
    told = ", ".join(f"{n} {verdict}" for verdict, n in found.most_common())
    console.print(f"{len(rows)} queues: {told}; see {options.results / 'conformance.md'}")
    return Exit.HOLDS


if __name__ == "__main__":
    sys.exit(main())
