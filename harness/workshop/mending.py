"""What `queueproof mend` makes of every queue of strategies/broken, measured.

`python -m workshop.mending`, which is `make mend`: one queue after the other, each noted in a file
as soon as it is done, so that one that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from queueproof.advice.search import mend
from queueproof.errors import QueueproofError
from queueproof.examine.check import judge
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.machine import processors
from queueproof.postgres import open_server
from queueproof.queues.sqlfile import load

ROOT = Path(__file__).parents[2]
BROKEN = ROOT / "strategies" / "broken"
LOG = ROOT / "results" / "mend.jsonl"
PAGE = ROOT / "results" / "mend.md"
PROFILE = "quick"
INTRODUCTION = f"""\
# What `queueproof mend` makes of the broken queues

Made by `make mend`, seed 0: the guarantee that each queue breaks on purpose is judged with the \
profile {PROFILE}, and mended. A mended queue has then passed a check by everything, with the same \
profile. Seconds are of the search and of that check, on a machine that did other work as well: \
they say which queues take long, and no more.
"""


@dataclass(frozen=True)
class Row:
    """The result for one queue."""

    name: str  # its file's stem
    broken: Sequence[str]  # what a check found broken
    mended: Sequence[str]  # what holds after the change
    what: Sequence[str]  # the change, in words
    lines: int  # how many lines it changes
    tried: int  # candidates
    seconds: float  # for the search and the check of the mended queue by everything
    left: Mapping[str, str]  # what could not be mended, and why
    checked: int  # how many guarantees the mended queue was asked for; 0 where there is none


def measure(name: str, jobs: int) -> Row:
    """Check one queue by its file's stem, and mend it."""
    queue = load(BROKEN / f"{name}.sql")
    first = (BROKEN / f"{name}.sql").read_text(encoding="utf-8").partition("\n")[0]
    defect = first.removeprefix("-- breaks: ")
    with open_server(None) as server:
        card = judge(queue, [defect], server=server, seed=0, profile=PROFILE, jobs=jobs)
    broken = [one.id for one in card.guarantees if one.verdict == "broken"]
    began = time.monotonic()
    *_, found = mend(queue, card, postgres=None, profile=PROFILE, jobs=jobs)
    taken = time.monotonic() - began
    assert found is not None  # what came of it all
    checked = len(found.card.guarantees) if found.card else 0
    if found.mended and checked != len(CATALOGUE):
        raise AssertionError(f"{name}: called mended without a check by everything")
    told = (found.mended, found.what, found.lines, found.tried)
    return Row(name, broken, *told, taken, found.left, checked)


def page(rows: Sequence[Row]) -> str:
    """The table, as Markdown."""
    whole = [row for row in rows if row.mended]
    broken = sum(bool(row.broken) for row in rows)
    total = len(list(BROKEN.glob("*.sql")))
    rest = " so far (`make mend` goes on with the others)" if len(rows) < total else ""
    counts = (
        f"{len(rows)} of {total} queues were tried{rest}; {broken} of them were found broken."
        f" Mended: {len(whole)}, not mended: {broken - len(whole)}."
    )
    if whole:
        lines, seconds = sorted(row.lines for row in whole), sorted(row.seconds for row in rows)
        counts += f" Lines changed: median {lines[len(lines) // 2]}, most {lines[-1]}."
        counts += f" Seconds: median {seconds[len(seconds) // 2]:.0f}, most {seconds[-1]:.0f}."
    table = [
        "| queue | broken | mended by | lines | candidates | seconds | left |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        left = "; ".join(f"{name}: {why}" for name, why in row.left.items())
        if not row.broken:
            left = "not found broken by this profile"
        cells = [
            f"[{row.name}](../strategies/broken/{row.name}.sql)",
            ", ".join(row.broken),
            "; ".join(f"`{what.replace('`', '')}`" for what in row.what),
            str(row.lines or ""),
            str(row.tried),
            f"{row.seconds:.0f}",
            left,
        ]
        table.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([INTRODUCTION, counts, "", *table, ""])


def write(rows: Iterable[Row]) -> None:
    """Write the page, sorted by name."""
    PAGE.write_text(page(sorted(rows, key=lambda row: row.name)), encoding="utf-8")


def main() -> None:
    """Measure the queues that were named, or all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="stems of files in strategies/broken; all")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--jobs", type=int, default=processors())
    given = parser.parse_args()
    lines = given.log.read_text(encoding="utf-8").splitlines() if given.log.exists() else []
    rows = {row.name: row for row in (Row(**json.loads(line)) for line in lines)}
    for name in given.names or sorted(path.stem for path in BROKEN.glob("*.sql")):
        if name in rows:
            continue
        try:
            row = measure(name, given.jobs)
        except QueueproofError as error:
            raise SystemExit(f"{name}: {error}") from error
        rows[name] = row
        with given.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(row)) + "\n")
        outcome = f"mended by {row.lines} lines" if row.mended else "not mended"
        print(f"{name}: {outcome}, {row.tried} candidates, {row.seconds:.0f} s", flush=True)  # noqa: T201
        write(rows.values())
    write(rows.values())


if __name__ == "__main__":
    main()
