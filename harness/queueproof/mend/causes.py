"""Remedies for what stands in a queue's SQL, where no safe form was seen to mend it."""

from __future__ import annotations

import re
from typing import NamedTuple

from queueproof.mend.draft import Draft


class Cause(NamedTuple):
    """Something in the SQL that breaks a guarantee, and the remedy for it.

    Attributes:
        guarantees: Those that break by it.
        blocks: The blocks that may have it.
        pattern: It, as a regular expression; letters of either case, across lines.
        safe: The remedy; `{1}` is what the pattern's first group found.
    """

    guarantees: str
    blocks: str
    pattern: str
    safe: str


CAUSES = (  # the first that fits is told, so that the narrower ones come first
    Cause(
        "live-lease not-early backoff stale-recovery",
        "schema",
        r"\b(\w+)\s+timestamp\w*\s*\([0-5]\)",
        "{1} is rounded, so it may be earlier than what was written: declare it `timestamptz`.",
    ),
    Cause(
        "order",
        "schema",
        r"\b(\w+)\s+(?:real|double\s+precision|float\d?)\b",
        "{1} has too few digits for what it is to order: numeric, or the columns themselves in "
        "ORDER BY.",
    ),
    Cause(
        "live-lease",
        "heartbeat",
        r"<\s*(?:now|clock_timestamp)\(\)\s*-",
        "A heartbeat that is accepted sets the lease anew. Here it leaves a lease alone that was "
        "set a moment ago, and answers as if it had been set.",
    ),
    Cause(
        "no-lost-job",
        "promote claim",
        r">\s*\(\s*SELECT\b",
        "A mark at the highest number passes over a job with a lower one that commits later. Take "
        "what nobody has taken yet: `WHERE NOT EXISTS (...)`, or a flag in the row.",
    ),
    Cause(
        "claim-limit",
        "claim",
        r"\bctid\b",
        "Choose by the key. A ctid is a place in one table: partitions have the same places, "
        "and what is updated moves.",
    ),
    Cause(
        "crash-safe",
        "schema",
        r"\bUNLOGGED\s+TABLE\s+(?:IF NOT EXISTS\s+)?([\w.]+)",
        "`CREATE TABLE {1}`: an unlogged table is empty once the server has crashed.",
    ),
    Cause(
        "claim-limit",
        "claim",
        r"\bLIMIT\b.*\bLIMIT\b",
        "One LIMIT over all that the claim takes. Here each part has its own, and what they give "
        "is added.",
    ),
    Cause(
        "claim-limit",
        "claim",
        r"\bWITH\s+TIES\b",
        "`LIMIT`, or `FETCH FIRST ... ROWS ONLY`. WITH TIES adds every job that stands in line "
        "just as the last one does.",
    ),
    Cause(
        "claim-limit",
        "claim",
        r"\bSELECT\b.*\bWHERE\b.*=\s*:worker\b",
        "Answer what this claim has taken, by RETURNING, and not all that the worker holds.",
    ),
    Cause(
        "server-clock",
        "claim",
        r":now\b",
        "`now()` instead of `:now`: the worker's clock is another one than the server's, and than "
        "other workers'.",
    ),
    Cause(
        "single-claim isolation concurrency-limit",
        "claim",
        r"SKIP\s+LOCKED.*\bINSERT\s+INTO\s+([\w.]+)",
        "The claim locks one row and writes another, so the lock tells the next worker nothing. "
        "Have a unique index on the open rows of {1} refuse the second, with ON CONFLICT DO "
        "NOTHING in the INSERT; or mark the row that is locked.",
    ),
    Cause(
        "single-claim",
        "claim",
        r"FOR\s+(?:NO\s+KEY\s+)?UPDATE\b.*SKIP\s+LOCKED",
        "The row that FOR UPDATE SKIP LOCKED locks is the one whose change marks the job as "
        "taken, and the same query asks it for all that makes a job free.",
    ),
    Cause(
        "concurrency-limit",
        "claim",
        r"\bcount\s*\(",
        "Two claims that count at once both see room. Let one count at a time, and let the others "
        "claim nothing meanwhile: `SELECT pg_try_advisory_xact_lock(...)` in a statement before "
        "the one that counts. Or let jobs be claimed with rows that stand for the room.",
    ),
    Cause(
        "retry-given no-lost-job",
        "fail",
        r"\bON\s+CONFLICT\b.*\bDO\s+NOTHING",
        "ON CONFLICT DO NOTHING drops the job that comes back where another has its key. Let the "
        "unique index hold only for jobs that were never tried.",
    ),
    Cause(
        "no-lost-job",
        "schema",
        r"\bREFERENCES\s+([\w.]+)[^,;]*\bON\s+DELETE\s+CASCADE",
        "ON DELETE CASCADE deletes jobs with the row of {1} that they refer to. Without it that "
        "row stays while it has jobs.",
    ),
)


def cause_of(guarantee: str, draft: Draft) -> str | None:
    """The remedy for what a file's SQL has, if that breaks the guarantee.

    Args:
        guarantee: The guarantee.
        draft: The file that breaks it; functions count as part of the block that calls them.
    """
    for cause in CAUSES:
        if guarantee not in cause.guarantees.split():
            continue
        for name in cause.blocks.split():
            block = draft.queue.blocks.get(name)
            texts = [statement.text for statement in block.statements] if block else []
            calls = (site for site in draft.sites if site.block == name and not site.own)
            texts += [site.parsed.text for site in calls]
            if seen := re.search(cause.pattern, "\n".join(texts), re.IGNORECASE | re.DOTALL):
                return cause.safe.format(seen[0], *seen.groups())
    return None
