"""A card where GitHub shows it: annotations at a file's lines, and the summary of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from queueproof.report.card import Card, Place
from queueproof.report.forms import filled_in

SUMMARY_BYTES = 900_000  # GitHub drops a step's summary of more than a megabyte
_ENDS = "%\r\n"  # which would end a command, or mean another sign
_KINDS = {"broken": "error", "inconclusive": "warning", "accepted": "notice"}
_MARKS = {
    "holds": "✅",
    "broken": "❌",
    "inconclusive": "❔",
    "accepted": "⚠️",
    "not-offered": "\N{EN DASH}",
}


def commands(card: Card, root: str = "") -> Iterator[str]:
    """The workflow commands that put each break at its line, in files below the checkout's root."""
    file = Place(card.queue, 1) if Path(card.queue).is_file() else None
    for judgement in card.guarantees:
        kind = _KINDS.get(judgement.verdict)
        if kind is None:
            continue
        if judgement.verdict == "inconclusive":
            yield _command(kind, judgement.id, judgement.reason, file, root)
        for found in judgement.stories:
            yield _command(kind, judgement.id, found.reason, found.place or file, root)


def _command(kind: str, name: str, reason: str, place: Place | None, root: str) -> str:
    facts = {"title": f"queueproof: {name}"}
    if place is not None:
        real, base = Path(place.file).resolve(), Path(root).resolve()
        below = root and real.is_relative_to(base)
        file = os.fspath(real.relative_to(base)) if below else place.file
        facts = {"file": file, "line": str(place.line), **facts}
    told = ",".join(f"{key}={_encoded(value, _ENDS + ':,')}" for key, value in facts.items())
    return f"::{kind} {told}::{_encoded(reason)}"


def _encoded(text: str, signs: str = _ENDS) -> str:
    return "".join(f"%{ord(one):02X}" if one in signs else one for one in text)


def to_summary(card: Card, replay: str) -> str:
    """The card as Markdown, with its stories; `replay` is the command of one, up to its token."""
    broken = [one for one in card.guarantees if one.verdict == "broken"]
    stories = [(one.id, story) for one in broken for story in one.stories]
    for many in range(len(stories), -1, -1):
        text = filled_in(
            "summary.md.j2",
            card=card,
            stories=stories[:many],
            cut=many < len(stories),
            replay=replay,
            marks=_MARKS,
            cell=_cell,
            fenced=_fenced,
        )
        if len(text.encode()) <= SUMMARY_BYTES:
            break
    return text


def _cell(text: str) -> str:
    """Text that is no Markup, whatever a queue's own words are."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!&@])", r"\\\1", " ".join(text.split()))


def _fenced(text: str, language: str = "") -> str:
    """A block that its text cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
