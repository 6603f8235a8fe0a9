"""A remedy in the words of the queue that it is for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from queueproof.errors import QueueproofError
from queueproof.mend.draft import Columns, Draft
from queueproof.mend.search import source
from queueproof.queues.model import Queue
from queueproof.report.card import Card
from queueproof.report.text import remedy

_ENDS = re.compile(r"until|expire|expiry|deadline|\bvt\b")


def with_remedies(card: Card, queue: Queue) -> Card:
    """A card that says how each broken guarantee is kept, in the queue's own names.

    Args:
        card: Of the queue.
        queue: The queue.
    """
    judgements = [
        replace(one, remedy=in_own_names(remedy(one.id, one.told, queue.offers), queue))
        if one.stories
        else one
        for one in card.guarantees
    ]
    return replace(card, guarantees=judgements)


def in_own_names(text: str, queue: Queue) -> str:
    """A remedy with the table, columns and states of a queue, as far as its SQL tells them.

    Args:
        text: The remedy, in the names of the reference.
        queue: The queue; one that is no SQL file keeps them.
    """
    try:
        draft = Draft(source(queue), Path(queue.name))
    except (OSError, QueueproofError):
        return text
    for pattern, own in _own(draft.columns, draft.text):
        text = re.sub(pattern, own.replace("\\", r"\\"), text)
    return text


def _own(known: Columns, sql: str) -> list[tuple[str, str]]:
    """What stands for what, in this order."""
    found = [(r"\$1(?= AND)", ":id"), (r"(?<=attempts = )\$2", ":attempt")]
    if known.table:
        found.append((r"(?<=FROM )jobs\b|(?<=UPDATE )jobs\b|(?<=ON )jobs\b", known.table))
    for state, own in (("running", known.running), ("queued", known.free)):
        if known.status and own and own in sql:
            found.append((rf"status = '{state}'", f"{known.status} = {own}"))
    for state, own in (("queued", known.free), ("completed", known.done), ("failed", known.failed)):
        if own and own in sql:
            found.append((f"'{state}'", own))
    if known.status:
        found.append((r"\bstatus(?= IN)", known.status))
    if known.attempts:
        found.append((r"\battempts(?= [=<>+-])", known.attempts))
    if known.bound:
        found.append((r"\bmax_attempts\b", known.bound))
    if known.due:
        found.append((r"\brun_at\b", known.due))
    if known.priority:
        found.append((r"\bpriority(?= DESC)", known.priority))
    if known.queue:
        found.append((r"\bqueue = \$1", f"{known.queue} = :queue"))
    if known.lease:
        ends = known.until or _ENDS.search(known.lease)
        old = f"{known.lease} < now(){'' if ends else ' - lease'}"
        found.append((r"\blocked_at < now\(\) - lease", old))
    return found
