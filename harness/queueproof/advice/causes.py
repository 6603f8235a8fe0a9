"""Remedies for what stands in a queue's SQL, where no safe form was seen to mend it."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files

from queueproof.advice.reading import Draft

_CAUSES = tomllib.loads(files(__package__).joinpath("causes.toml").read_text(encoding="utf-8"))


def cause_of(guarantee: str, draft: Draft) -> str | None:
    """The remedy for what a file's SQL has, if that breaks the guarantee.

    Args:
        guarantee: The guarantee.
        draft: The file that breaks it; functions count as part of the block that calls them.
    """
    for cause in _CAUSES["cause"]:
        if guarantee not in cause["guarantees"].split():
            continue
        for name in cause["blocks"].split():
            block = draft.queue.blocks.get(name)
            texts = [statement.text for statement in block.statements] if block else []
            calls = (site for site in draft.sites if site.block == name and not site.own)
            texts += [site.parsed.text for site in calls]
            if seen := re.search(cause["pattern"], "\n".join(texts), re.IGNORECASE | re.DOTALL):
                return str(cause["safe"].format(seen[0], *seen.groups()))
    return None
