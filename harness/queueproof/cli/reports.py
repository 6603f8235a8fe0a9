"""Reports that a check writes beside its output."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from queueproof.cli.ends import beside_the_verdict
from queueproof.cli.files import append, write
from queueproof.cli.options import Annotate

if TYPE_CHECKING:
    from queueproof.report.card import Card
    from queueproof.report.terminal import Output


class Reports:
    """The reports that a check writes beside its output.

    Args:
        annotate: Where it is shown as well; None: on GitHub, where that runs us.
    """

    def __init__(
        self,
        json: Path | None = None,
        html: Path | None = None,
        junit: Path | None = None,
        badge: Path | None = None,
        annotate: Annotate | None = None,
    ) -> None:
        self._json, self._html, self._junit, self._badge = json, html, junit, badge
        self.files = [path for path in (json, html, junit, badge) if path is not None]
        here = Annotate.github if os.environ.get("GITHUB_ACTIONS") == "true" else Annotate.none
        self._github = (annotate or here) is Annotate.github
        summary = os.environ.get("GITHUB_STEP_SUMMARY") if self._github else None
        self._summary = Path(summary) if summary else None

    @property
    def outputs(self) -> tuple[Path | None, ...]:
        """All that is written."""
        return *self.files, self._summary

    def annotate(self, out: Output, card: Card) -> None:
        """Say to whoever runs us at which lines of the queue it breaks."""
        from queueproof.report.github import commands

        if self._github:
            with beside_the_verdict("the rest of the lines for GitHub"):
                for line in commands(card, os.environ.get("GITHUB_WORKSPACE", "")):
                    out.say(line)

    def write(self, card: Card, replay: str) -> None:
        """Write them all.

        Args:
            replay: The command that replays a story, up to its token.
        """
        from queueproof.report.forms import to_badge, to_junit
        from queueproof.report.github import to_summary
        from queueproof.report.page import to_page

        forms: list[tuple[Path | None, Callable[[], str], Callable[[Path, str], None]]] = [
            (self._json, lambda: card.to_json() + "\n", write),
            (self._html, lambda: to_page([card], replay), write),
            (self._junit, lambda: to_junit(card), write),
            (self._badge, lambda: to_badge(card), write),
            (self._summary, lambda: to_summary(card, replay), append),
        ]
        for path, made, put in forms:
            if path is not None:
                text = None
                with beside_the_verdict(f"{path} is not written"):
                    text = made()
                if text is not None:
                    put(path, text)
