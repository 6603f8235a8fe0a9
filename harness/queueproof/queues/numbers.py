"""Numbers that stand in a queue file's SQL, where its header says others."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from queueproof.queues import sqltext
from queueproof.queues.facts import HEADER_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queueproof.queues.sqlfile import SqlFileQueue

_AGE = re.compile(r"- (?:interval )?'([^']+)'(?! \*)", re.IGNORECASE)
_COUNT = re.compile(r"\b(?!max)\w*attempts?(?: \+ 1)? [<>]=? (\d+)\b", re.IGNORECASE)


def others_than_declared(queue: SqlFileQueue) -> Iterator[str]:
    """Say where a block has a lease or a number of attempts of its own that is not the header's.

    Such a file breaks `stale-recovery` or `retry-bound` though its queue may keep both.

    Args:
        queue: From an SQL file.
    """
    for name, block in queue.blocks.items():
        for statement in block.statements if name in {"claim", "fail", "recover"} else ():
            text = " ".join(token.raw for token in sqltext.tokens(statement.text))
            text = re.sub(r"([<>]) =", r"\1=", text)
            if name == "recover" and "lease" not in block.used and queue.lease != "session":
                for age in _AGE.findall(text):
                    if _duration(age) not in {None, queue.lease}:
                        yield (
                            f"{statement.source}: recover waits '{age}', and the header's lease is"
                            f" {_told(queue.lease)}: let both say the same, or write :lease here"
                        )
            most = queue.max_attempts
            counts = {int(count) for count in _COUNT.findall(text)}
            if most is not None and any(n > 1 and n not in {most - 1, most} for n in counts):
                yield (
                    f"{statement.source}: {name} counts attempts up to {max(counts)}, and the"
                    f" header's max_attempts is {most}: let both say the same"
                )


def _duration(text: str) -> object:
    try:
        return HEADER_KEYS["lease"](text)
    except ValueError:
        return None


def _told(lease: object) -> str:
    return f"{lease.total_seconds():g} s" if isinstance(lease, timedelta) else "not declared"
