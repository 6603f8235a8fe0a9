"""The stories of the last check of a queue, so that each can be called by its name; their fixes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from queueproof.cli.files import write
from queueproof.errors import QueueproofError
from queueproof.queues.ids import IDS, unknown

_NAME = re.compile(r"([a-z][a-z-]*)(?:\.([1-9][0-9]*))?")


def remember(
    queue: str,
    tokens: Mapping[str, str],
    judged: Collection[str] = IDS,
    fixes: Mapping[str, str] | None = None,
) -> bool:
    """Keep a check's stories as tokens, and what was said to mend them; whether that was possible.

    The stories of guarantees that were not judged, from before, are kept too.
    """
    try:
        place = _place(queue)
        place.parent.mkdir(parents=True, exist_ok=True)
        kept = _kept(queue)
        parts = {"stories": tokens, "fixes": fixes or {}}
        for part, told in parts.items():
            before = kept.get(part, {}).items()  # whose names are `fencing` or `fencing.2`
            others = {name: one for name, one in before if name.partition(".")[0] not in judged}
            parts[part] = {**told, **others}
        write(place, json.dumps(parts))
    except (OSError, RuntimeError, QueueproofError):  # no home, or a full disk: tokens are shown
        return False
    return True


def fix_of(queue: str, guarantee: str) -> str | None:
    """The fix that the last check of a queue has told for a guarantee; None where it has not."""
    found: str | None = _kept(queue).get("fixes", {}).get(guarantee)
    return found


def token_of(queue: str, story: str) -> str:
    """The token of a story by its name, `fencing` or `fencing.2`; a token is its own.

    A QueueproofError says which there are, where none is named, or none of this name.
    """
    found = _NAME.fullmatch(story)
    if story and found is None:
        return story
    if found and found[1] not in IDS:
        raise QueueproofError(unknown(found[1]))
    tokens: dict[str, str] | None = _kept(queue).get("stories")
    if tokens is None:
        raise QueueproofError(
            f"{queue} has not been checked on this machine: run `queueproof check {queue}` first,"
            " or give the token that a report has (`check --json`)"
        )
    if found is None:
        again = "".join(f"\n  queueproof replay {shlex.quote(queue)} {name}" for name in tokens)
        none = f"the last check of {queue} found no break that can be replayed"
        raise QueueproofError(f"which break of {queue}?{again}" if tokens else none)
    alone = found[1] if found[2] in {None, "1"} else story
    token = tokens.get(story) or tokens.get(alone) or tokens.get(f"{alone}.1")
    if token is None:
        known = f"what can be: {', '.join(tokens)}" if tokens else "nor can any other"
        raise QueueproofError(f"{story} of {queue} cannot be replayed; {known}")
    return token


def _kept(queue: str) -> dict[str, Any]:
    """The stories and fixes of a queue's checks; none where the file is not there, or of no use."""
    from queueproof import waits

    with suppress(OSError, RuntimeError, ValueError, QueueproofError):
        found = json.loads(waits.text(_place(queue)))
        if isinstance(found, dict) and all(isinstance(part, dict) for part in found.values()):
            return found
    return {}


def _place(queue: str) -> Path:
    """The file for the stories of a queue: of a queue file by its place, else by the folder too."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(queue)
    called = path.resolve() if path.exists() else f"{Path.cwd()}\0{queue}"
    digest = hashlib.sha256(os.fsencode(str(called))).hexdigest()
    return Path(cache) / "queueproof" / "stories" / f"{digest[:16]}.json"
