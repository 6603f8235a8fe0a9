"""The card as JUnit XML, which CI servers show: one test case per guarantee."""

from __future__ import annotations

import re

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.card import Card, Judgement
from queueproof.report.forms import filled_in

_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


def to_junit(card: Card) -> str:
    """The card in the dialect that Jenkins, GitLab and GitHub's reporters read."""
    written = filled_in("junit.xml", card=card, told=_told)
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", written)


def _told(judgement: Judgement) -> str:
    """The text of a case: its stories, or else the guarantee and its verdict."""
    said = f"{judgement.verdict}: {judgement.reason}\n"
    if not judgement.stories:
        return f"{CATALOGUE[judgement.id].sentence}\n{said}"
    stories = [
        f"{found.story}\n" + (f"\nReplay token: {found.replay}\n" if found.replay else "")
        for found in judgement.stories
    ]
    accepted = [said] if judgement.verdict == "accepted" else []  # with why it is
    return "\n".join([*accepted, *stories])
