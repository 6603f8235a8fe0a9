"""The guarantees as one page, for who reads the repository: `python -m workshop.guarantees`."""

from __future__ import annotations

import re
from pathlib import Path

from queueproof.explain import facts
from queueproof.guarantees.catalogue import CATALOGUE

PAGE = Path(__file__).parents[1] / "queueproof" / "guarantees" / "README.md"
HEAD = (
    "queueproof checks a queue against these {} guarantees. `queueproof explain ID` says more. A"
    " guarantee *holds* if no run broke it, and it is *broken* if one did. It is *inconclusive* if"
    " too little was seen to decide, and *not offered* if the queue lacks the operation or the"
    " promise that it is about."
)


def readme() -> str:
    """A list, and a heading for each that links lead to."""
    parts = [
        "# Guarantees",
        "<!-- Made by `make docs`. -->",
        HEAD.format(len(CATALOGUE)),
        "\n".join(f"- [`{one.id}`](#{one.id}): {one.sentence}" for one in CATALOGUE.values()),
    ]
    for one in CATALOGUE.values():
        told = facts(one)
        del told["Why it matters"]
        parts += [f"## {one.id}", f"**{one.sentence}** Otherwise {one.why}."]
        parts += [f"*{heading}:* {_escaped(words)}" for heading, words in told.items()]
    return "\n\n".join(parts) + "\n"


def _escaped(words: str) -> str:
    """Words with the signs that are Markdown's, but for the code between backticks."""
    return re.sub(r"(`[^`]+`)|([*<_])", lambda found: found[1] or f"\\{found[2]}", words)


if __name__ == "__main__":
    PAGE.write_text(readme(), encoding="utf-8")
