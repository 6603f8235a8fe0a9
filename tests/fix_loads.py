"""Queues under load, small and quick: the queues, the load, and where it runs."""

import sys
from collections.abc import Callable, Iterator

import pytest

from queueproof.bench.cell import Ground
from queueproof.bench.measured import Measured, Shape
from queueproof.postgres import Server
from queueproof.queues.sqlfile import SqlFileQueue, load, load_text
from queueproof.queues.worker import WorkerQueue
from tests.fix_places import STRATEGIES, WORKER
from tests.fix_programs import PATIENCE
from tests.fix_queues import CLAIM_MANY, JOBS, queue_file
from tests.fix_queues import COMPLETE as COMPLETED

BRIEF = 0.1  # seconds, for a load that never ends by itself

TABLE = "CREATE TABLE jobs (id bigserial, status text NOT NULL DEFAULT 'queued', note text);"
CALLS = "CREATE SEQUENCE calls;"
CLAIM = f"(limit)\n{CLAIM_MANY}"
COMPLETE = f"(id)!\n{COMPLETED}"
BOTH = f"""(ids, limit)
WITH done AS (UPDATE jobs SET status = 'completed' WHERE id = ANY (:ids) RETURNING id),
taken AS (
  {CLAIM_MANY[:-1]}
)
SELECT id, true AS completed FROM done UNION ALL SELECT id, false FROM taken;"""
RETRIED = 'retry_on = ["55P03"]'
SCRIPTED = """
import json, os, sys
calls = 0
for line in sys.stdin:
    asked = json.loads(line)
    calls += 1
    answer = {}
    if asked["op"] == "init":
        answer = {"operations": ["enqueue", "claim", %s]}
    elif asked["op"] == "enqueue":
        answer = {"ids": [f"{os.getpid()}-{calls}-{n}" for n in range(len(asked["jobs"]))]}
    elif asked["op"] == "claim":
        answer = {"jobs": [{"id": str(calls)}]}
        %s
    elif asked["op"] == "complete":
        answer = {"accepted": True}
    print(json.dumps(answer), flush=True)
"""


def queue(
    name: str = "q.sql", *, header: str = "", table: str = TABLE, more: str = CALLS, **blocks: str
) -> SqlFileQueue:
    """A small queue, with one of its parts replaced."""
    blocks = {"claim": CLAIM, **blocks}
    return load_text(queue_file(header=header, table=table, more=more, **blocks), name)


def strategy(name: str) -> SqlFileQueue:
    """One of the strategies."""
    return load(STRATEGIES / f"{name}.sql")


def every_second_call(sqlstate: str, block: str = CLAIM) -> str:
    """A block that raises an error at every second call; sequences survive a rollback."""
    name, _, text = block.partition("\n")
    return f"""\
{name}
BEGIN;
DO $$ BEGIN
  IF nextval('calls') % 2 = 1 THEN RAISE SQLSTATE '{sqlstate}'; END IF;
END $$;
{text.strip()}
COMMIT;
"""


@pytest.fixture(scope="module")
def ground(server: Server) -> Iterator[Ground]:
    """A database with three worker processes."""
    with Ground(server, 3) as ground:
        yield ground


def measured(
    ground: Ground,
    queue: SqlFileQueue | WorkerQueue,
    shape: Shape = Shape(1, 3),  # noqa: B008 - a tuple
    jobs: int = 60,
    seconds: float = PATIENCE,
) -> Measured:
    """Put a queue under load."""
    prepared = ground.prepare(queue, shape, jobs)
    prepared.run(seconds)
    return prepared.verdict()


def all_done(found: Measured) -> bool:
    """Whether every job was handed out once and completed."""
    return found.drained and found.exactly_once


def briefly(
    ground: Ground,
    queue: SqlFileQueue | WorkerQueue,
    shape: Shape,
    jobs: int = 60,
    enough: Callable[[Measured], int] = lambda found: found.completed,
) -> Measured:
    """Put a queue under a load that does not end by itself; longer if nothing came of it."""
    for seconds in (BRIEF, 10 * BRIEF, PATIENCE):
        found = measured(ground, queue, shape, jobs, seconds)
        if enough(found):
            break
    return found


def registered(start: str = ":worker") -> SqlFileQueue:
    """A queue whose workers register, and whose jobs somebody has to promote who sends the time."""
    of_a_worker = "EXISTS (SELECT FROM workers WHERE name = :worker AND pid = pg_backend_pid())"
    return queue(
        table=TABLE.replace("'queued'", "'new'"),
        more="CREATE TABLE workers (name text PRIMARY KEY, pid int NOT NULL);",
        start=f"(worker)!\nINSERT INTO workers VALUES ({start}, pg_backend_pid());",
        promote="""(now)
UPDATE jobs SET status = 'queued'
WHERE id IN (SELECT id FROM jobs WHERE status = 'new' AND :now <= now() LIMIT 7);""",
        jobs=f"(now)\n{JOBS[:-1]} WHERE :now <= now();",
        claim=CLAIM.replace("(limit)", "(worker, limit)").replace(
            "\nWHERE ", f"\nWHERE {of_a_worker} AND "
        ),
    )


def program() -> WorkerQueue:
    """The worker program that `queueproof init` writes."""
    return WorkerQueue("exec: it", [sys.executable, str(WORKER)])


def scripted(claim: str = "pass", operations: str = '"complete"') -> WorkerQueue:
    """A worker without tables, whose claims are as told."""
    return WorkerQueue("exec: it", [sys.executable, "-c", SCRIPTED % (operations, claim)])
