"""The stories of the last check of a queue, so that each can be called by its name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from queueproof.cli.files import write
from queueproof.errors import QueueproofError
from queueproof.queues.ids import IDS, unknown

_NAME = re.compile(r"([a-z][a-z-]*)(?:\.([1-9][0-9]*))?")


def remember(queue: str, tokens: Mapping[str, str], judged: Collection[str] = IDS) -> bool:
    """Keep the tokens of a check's stories; whether that could be done.

    Args:
        judged: The guarantees that were judged; the stories of others, from before, are kept too.
    """
    from queueproof import waits

    try:
        place = _place(queue)
        place.parent.mkdir(parents=True, exist_ok=True)
        kept: dict[str, str] = {}
        with suppress(
            OSError, ValueError, TypeError, QueueproofError
        ):  # there is none, or it is of no use
            kept |= json.loads(waits.text(place))
        others = {name: kept[name] for name in kept if name.partition(".")[0] not in judged}
        write(place, json.dumps({**tokens, **others}))
    except (OSError, RuntimeError, QueueproofError):  # no home, or a full disk: tokens are shown
        return False
    return True


def token_of(queue: str, story: str) -> str:
    """The token of a story that is named; a token is its own.

    Args:
        story: Its name, `fencing` or `fencing.2`, or its token.

    Raises:
        QueueproofError: The last check of the queue has told no story of this name.
    """
    from queueproof import waits

    found = _NAME.fullmatch(story)
    if found is None:
        return story
    if found[1] not in IDS:
        raise QueueproofError(unknown(found[1]))
    try:
        tokens: dict[str, str] = dict(json.loads(waits.text(_place(queue))))
    except (OSError, RuntimeError, ValueError, TypeError, QueueproofError):
        raise QueueproofError(
            f"no check of {queue} is remembered here: check it first, or name the story by its"
            " token (`check --json`)"
        ) from None
    alone = found[1] if found[2] in {None, "1"} else story
    token = tokens.get(story) or tokens.get(alone) or tokens.get(f"{alone}.1")
    if token is None:
        known = (
            f"its stories are {', '.join(tokens)}"
            if tokens
            else "it told none that can be replayed"
        )
        raise QueueproofError(f"no check of {queue} has told a story named {story}: {known}")
    return token


def _place(queue: str) -> Path:
    """The file for the stories of a queue: of a queue file by its place, else by the folder too."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(queue)
    called = path.resolve() if path.exists() else f"{Path.cwd()}\0{queue}"
    digest = hashlib.sha256(os.fsencode(str(called))).hexdigest()
    return Path(cache) / "queueproof" / "stories" / f"{digest[:16]}.json"
