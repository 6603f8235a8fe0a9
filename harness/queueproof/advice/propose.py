"""From a schema to a queue file that was tried."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from queueproof.advice.file import Proposal
from queueproof.advice.roles import choose
from queueproof.advice.schema import constraint_of, tables_of
from queueproof.errors import FormatError, QueueError, QueueproofError
from queueproof.examine.calibrate import calibrate
from queueproof.postgres import open_server
from queueproof.queues.sqlfile import load_text
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab

_STUB = """\
-- /// queue
-- include = {include}
-- ///
-- name: enqueue
SELECT 1 AS id;
-- name: claim
SELECT 1 AS id;
"""


class Proposed(NamedTuple):
    """A queue file for somebody's tables."""

    text: str
    table: str  # whose jobs it is about
    rejected: QueueError | None  # what the server says, so that it cannot be judged; None: it can
    asks: str = ""  # what the CHECK asks that was violated, where one was


def propose(
    path: Path, schema: Sequence[Path], *, table: str | None, postgres: str | None, trust: bool
) -> Proposed:
    """Write a queue file for a schema's files, and use every operation of it once.

    Without a table it is the one that looks like jobs'; the server is as `open_server` takes it.

    Raises:
        QueueproofError: The schema cannot be installed, or no table in it is one of jobs.
    """
    files = [Path(os.path.relpath(one, path.parent)).as_posix() for one in schema]
    include = json.dumps(files)
    try:
        stub = load_text(_STUB.format(include=include), path)
    except FormatError as error:
        if error.source and error.source.path == path:  # which nobody has written yet
            message = "there is no statement in it; give pg_dump's output, a migration or a DSN"
            raise QueueproofError(f"{schema[0]}: {message}") from error
        raise
    with open_server(postgres, trust=trust) as server:
        with open_lab(stub, server) as lab:
            tables = tables_of(lab)
        chosen, others = choose(tables.values(), table)
        text = Proposal(chosen, tables, others, include).text
        try:
            with open_lab(load_text(text, path), server) as lab:
                return _tried(lab, text, chosen.sql)
        except QueueError as error:
            return Proposed(text, chosen.sql, error)


def _tried(lab: Lab, text: str, table: str) -> Proposed:
    """A proposal, once every operation of it was used."""
    try:
        calibrate(lab)
    except QueueError as error:
        violated = re.search(r'violates check constraint "([^"]+)"', str(error))
        return Proposed(text, table, error, constraint_of(lab, violated[1]) if violated else "")
    return Proposed(text, table, None)
