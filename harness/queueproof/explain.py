"""A guarantee explained: its record, and a defect that breaks it."""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee
from queueproof.queues.filetext import QueueText, read
from queueproof.queues.header import whole
from queueproof.schedule.programs import FAULTS

WIDTH = 100  # characters of a line of prose
_HEAD = re.compile(
    r"-- breaks: (?P<breaks>\S+)\n(?P<why>(?:--.*\n)+)\n"
    r'-- /// queue\n-- extends = "(?P<parent>\S+)"'
)
_MEASURED: Mapping[str, str] = {
    "behind more urgent": "A job is claimed behind more than a page of others that cannot run now.",
    "behind ordinary": "An urgent job is claimed behind more than a page of others.",
    "plans": "Claims are counted under many fillings of the table and settings of the planner.",
    "waits": "A job is failed again and again, and each of its waits is measured.",
    "pgbouncer": "Where PgBouncer is installed, transactions go through it as well.",
    "growth": "Buffers per claim are counted as finished jobs and a backlog fill the table.",
    "growth under a snapshot": "Buffers per claim are counted while an old snapshot is held open.",
}
"""The work of each probe, in a sentence."""
# A line that is not empty, and no comment but one of the header's.
_CHANGED = re.compile(r"[+-]\s*(?:-- \w+ = |(?!--)\S)")


class Defect(NamedTuple):
    """A queue with one defect, beside the sound one that it differs from.

    Attributes:
        name: Its place among the strategies.
        why: What it does wrong, and who did.
        diff: From this queue to the sound one, unified: what mends it.
        size: How many lines differ, comments aside.
    """

    name: str
    why: str
    diff: str
    size: int


def defects(guarantee: str) -> list[Defect]:
    """The broken queues that come with the package and break a guarantee.

    The one that its record names as an example comes first, and then those with the fewest changed
    lines.
    """
    folder = Path(str(files("queueproof.strategies")))
    found = []
    for path in sorted((folder / "broken").glob("*.sql")):
        head = _HEAD.match(path.read_text("utf-8"))
        if head and head["breaks"] == guarantee:
            parent = posixpath.normpath(f"broken/{head['parent']}")
            names = (f"strategies/broken/{path.name}", f"strategies/{parent}")
            broken, sound = map(_body, (path, folder / parent))
            lines = list(unified_diff(broken, sound, *names, lineterm=""))
            changed = [line for line in lines[2:] if _CHANGED.match(line)]
            why = " ".join(line.removeprefix("--").strip() for line in head["why"].splitlines())
            found.append(Defect(names[0], why, "\n".join(lines), len(changed)))
    example = f"strategies/broken/{CATALOGUE[guarantee].example}.sql"
    return sorted(found, key=lambda one: (one.name != example, one.size, one.name))


def _body(path: Path) -> list[str]:
    """A queue's lines, with what its file extends, without what is said above its header."""
    text = whole(QueueText(read(path), path)).text
    return text[text.index("-- ///") :].splitlines()


def facts(guarantee: Guarantee) -> dict[str, str]:
    """The facts about a guarantee beside its sentence, each under its heading."""
    asks = f"enqueue and claim; {guarantee.asks}" if guarantee.asks else "enqueue and claim"
    return {
        "Why it matters": f"{guarantee.why[0].upper()}{guarantee.why[1:]}.",
        "Also called": f"{guarantee.called}.",
        "How it breaks": guarantee.wild,
        "How to fix it": guarantee.safe,
        "See": guarantee.source,
        "How it is checked": " ".join(_checked(guarantee)),
        "What a queue must offer": f"{asks}.",
    }


def _checked(guarantee: Guarantee) -> Iterator[str]:
    """The ways in which it is checked, as its record has them."""
    if guarantee.programs:
        yield (
            "queueproof runs short programs written for this guarantee, and random ones. Where"
            " workers race, it runs each in many orders."
        )
    if guarantee.faults:
        kinds = ", ".join(fault.several for fault in FAULTS.values())
        yield f"Every operation is run with faults at its steps: {kinds}."
    elif guarantee.variations:
        told = " ".join(dict.fromkeys(one.conditions.told() for one in guarantee.variations))
        yield (
            "What the programs of other guarantees keep must hold under other conditions, too."
            f" {told}"
        )
    if guarantee.probe:
        yield _MEASURED[guarantee.probe]
    if guarantee.lacking:
        yield (
            f'The verdict is "holds" only if this was seen: {guarantee.lacking}. Otherwise it is'
            ' "inconclusive".'
        )


def explain(guarantee: Guarantee, width: int = WIDTH) -> str:
    """All that there is to say of a guarantee, for a terminal.

    Args:
        width: Characters of a line of prose; SQL and names keep their lines.
    """
    told = [f"{guarantee.id}: {guarantee.sentence}"]
    told += [f"{heading}: {text}" for heading, text in facts(guarantee).items()]
    first, *others = defects(guarantee.id)
    told.append(f"A queue that breaks it, and what mends it: {first.why}")
    parts = [*(filled(one, width) for one in told), first.diff]
    if others:
        names = f"strategies/broken/{guarantee.id.replace('-', '_')}_*.sql"
        more = (
            f"{len(others)} more queues break it, each in its own way; in the repository: {names}"
        )
        parts.append(filled(more, width))
    return "\n\n".join(parts)


def filled(text: str, width: int, indent: int = 0) -> str:
    """Prose in lines that end at words.

    Args:
        indent: By how many the lines after the first are indented.
    """
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
