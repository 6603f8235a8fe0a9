"""The smallest queue that tests need, with one of its parts replaced; a queue in a module."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queueproof.queues.worker import WorkerProcess, WorkerQueue

Write = Callable[[str], str]

TABLE = "CREATE TABLE jobs (id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'queued');"
ENQUEUE = "INSERT INTO jobs DEFAULT VALUES RETURNING id;"
FREE = "SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT 1"
CLAIM = f"""\
UPDATE jobs SET status = 'running'
WHERE id = ANY (ARRAY({FREE} FOR UPDATE SKIP LOCKED)) RETURNING id;"""
RACES = CLAIM.replace(" FOR UPDATE SKIP LOCKED", "")  # two claims at once take one job
CLAIM_MANY = CLAIM.replace("LIMIT 1", "LIMIT :limit")
COMPLETE = "UPDATE jobs SET status = 'completed' WHERE id = :id AND status = 'running';"
JOBS = "SELECT id, status AS state FROM jobs;"
# What claims in a transaction that its completion ends.
HOLDS = {
    "claim": f"BEGIN;\n{FREE} FOR UPDATE SKIP LOCKED;",
    "complete": "(id)!\nUPDATE jobs SET status = 'completed' WHERE id = :id;\nCOMMIT;",
}
# The smallest that is a class, in a module.
SOUND = """
from queueproof import Claim, Queue, Step

class Mine(Queue):
    def install(self):
        yield Step("CREATE TABLE jobs (id bigserial PRIMARY KEY)")

    def enqueue(self):
        result = yield Step("INSERT INTO jobs DEFAULT VALUES RETURNING id")
        return [str(row["id"]) for row in result.rows]

    def claim(self, worker):
        result = yield Step("DELETE FROM jobs RETURNING id")
        return [Claim(str(row["id"]), row) for row in result.rows]
"""


def queue_file(*, header: str = "", table: str = TABLE, more: str = "", **blocks: str) -> str:
    r"""A queue file: one table, and the blocks enqueue, claim, complete and jobs.

    Args:
        header: The lines of its header, without their marks.
        table: What its schema begins with.
        more: What is added to its schema.
        blocks: Others than these, each with what follows its name where that is not SQL, as in
            `complete="(id)\n…"`; empty for none.
    """
    said = "".join(f"-- {line}\n" for line in ["/// queue", *header.split("\n"), "///"])
    written = {
        "schema#": f"{table}\n{more}",
        "enqueue": ENQUEUE,
        "claim": CLAIM,
        "complete": f"(id)!\n{COMPLETE}",
        "jobs": JOBS,
        **blocks,
    }
    return (said if header else "") + "".join(
        f"\n-- name: {name}{'' if text[0] in '(!' else chr(10)}{text.rstrip()}\n"
        for name, text in written.items()
        if text
    )


def answered(
    queue: WorkerQueue, process: WorkerProcess, operation: str, **arguments: object
) -> Any:  # noqa: ANN401
    """One operation of a worker process, from its arguments to its result."""
    request = queue.request(operation, **arguments)
    return queue.read(operation, request, process.ask(request))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module into the working directory; its name, a new one each time."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    def write(code: str) -> str:
        name = f"written_{tmp_path.name.replace('-', '_')}_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(code)
        return name

    yield write
    sys.path[:] = before
