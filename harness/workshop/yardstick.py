r"""pgbench on a queue's own SQL: how much of the figures the harness itself costs.

Each of its transactions is a claim and the completion of what that got. Its `\gset` takes a single
row, so that what a claim of several jobs returns is gathered in arrays, as `complete_many` takes
them; beyond that it sends the same text, prepared. Both run in the same rounds, every other time
pgbench first.

Run with `python -m workshop.yardstick`; it prints a table.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from rich.table import Table

from queueproof.bench import numbers
from queueproof.bench.cell import Ground
from queueproof.bench.load import literal_limit
from queueproof.bench.measured import Shape
from queueproof.bench.worker import Load
from queueproof.errors import QueueError
from queueproof.machine import processors
from queueproof.postgres import Server, open_server
from queueproof.postgres.local import find_embedded
from queueproof.queues.sqlfile import SqlFileQueue, load
from queueproof.queues.sqltext import first_keyword, tokens

WORKER = "00000000-0000-4000-8000-000000000000"
ROUNDS, JOBS = 5, 2_000
SHAPES = tuple(Shape(batch, workers) for workers in (1, 4) for batch in (1, 10))
SPARE = 1.25  # jobs put in for each one claimed, so that no claim comes back empty
PATIENCE = 60.0  # seconds in which it has ended, beyond what the harness took
# Parts of a DSN that a pgbench of any age takes; the rest have defaults in ours alone.
_UNDERSTOOD = frozenset(
    {"host", "hostaddr", "port", "user", "dbname", "passfile", "connect_timeout"}
    | {"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "gssencmode", "krbsrvname"}
)
_VERBS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"})
_TPS = re.compile(r"^tps = ([0-9.]+) \(without", re.MULTILINE)
_DONE = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)


def compared(
    ground: Ground, queue: SqlFileQueue, shape: Shape, *, rounds: int = ROUNDS, jobs: int = JOBS
) -> list[tuple[float, float]]:
    """Jobs/s of the harness and of pgbench, round by round; QueueError: pgbench cannot run it."""
    ground.apart = True  # as pgbench, which cannot hand a batch on
    found = []
    for number in range(rounds):
        before = pgbench(ground, queue, shape, jobs) if number % 2 else None
        prepared = ground.prepare(queue, shape, jobs)
        prepared.run(PATIENCE)
        beside = before or pgbench(ground, queue, shape, jobs)
        if beside is None:
            raise QueueError(f"{queue.name}: pgbench cannot run it")
        found.append((prepared.verdict().rate, beside))
    return found


def pgbench(ground: Ground, queue: SqlFileQueue, shape: Shape, jobs: int) -> float | None:
    """Jobs/s of pgbench on the queue's own SQL; None where it cannot run that."""
    spare = shape.batch * shape.workers
    claims = max(1, jobs // spare)
    compiled, _ = ground.install(queue, shape, int(claims * spare * SPARE) + spare)
    text = _script(queue, compiled, shape.batch)
    if text is None:
        return None
    known = {
        name: value.decode()
        for name, value in {**compiled.constants, "worker": WORKER.encode()}.items()
        if value is not None and re.search(rf":{name}\b", text)
    }
    where, environment = _connection(ground.conninfo, queue.isolation)
    arguments = [
        str(_pgbench_of(ground.server)),
        *("--no-vacuum", "--protocol=prepared", "--file=-"),
        *(f"--client={shape.workers}", f"--jobs={min(shape.workers, processors())}"),
        f"--transactions={claims}",
        *(f"--define={name}={value}" for name, value in known.items()),
        where,
    ]
    said = subprocess.run(  # noqa: S603 - PostgreSQL's own program
        arguments,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=PATIENCE,
        check=False,
    ).stdout
    done, tps = _DONE.search(said), _TPS.search(said)
    if not done or not tps or int(done[1]) < claims * shape.workers:
        failure = next((s for s in said.splitlines() if "error" in s.lower()), said.strip()[-200:])
        raise QueueError(f"pgbench could not run it: {failure}")
    return shape.batch * float(tps[1])


def _pgbench_of(server: Server) -> Path:
    """The server's own pgbench, the one on PATH, or the embedded server's."""
    if server.bin_directory is not None and (server.bin_directory / "pgbench").exists():
        return server.bin_directory / "pgbench"
    if found := shutil.which("pgbench"):
        return Path(found)
    return find_embedded("").directory / "pgbench"


def _script(queue: SqlFileQueue, compiled: Load, batch: int) -> str | None:
    """A pgbench script; None where a start, several statements or an endless batch forbid it."""
    if not compiled.complete.commands or compiled.start.commands:
        return None
    claims = queue.blocks["claim"].statements
    ends = queue.blocks["complete_many" if compiled.many else "complete"].statements
    if len(claims) + len(ends) > 2 or (batch > 1 and not compiled.many):  # noqa: PLR2004
        return None
    claim = literal_limit(claims[0].text, batch).strip().rstrip(";")
    if compiled.many:
        names = [column.name for column in compiled.token]
        gathered = ", ".join(f"array_agg({name.removesuffix('s')}) AS {name}" for name in names)
        claim = f"{_as_with(claim, 'claimed')}\nSELECT {gathered} FROM claimed"
    return f"{claim}\n\\gset\n{ends[0].text.strip().rstrip(';')};\n"


def _as_with(text: str, name: str) -> str:
    """A statement as the last part of a WITH: what changes data may stand nowhere else."""
    start = depth = 0
    for token in tokens(text):
        depth += (token.raw == "(") - (token.raw == ")")
        if not depth and token.word in _VERBS:
            start = token.start
            break
    opening = ", " if first_keyword(text) == "WITH" else "WITH "
    return f"{text[:start]}{opening}{name} AS (\n{text[start:]}\n)"


def _connection(conninfo: str, isolation: str) -> tuple[str, Mapping[str, str]]:
    """The connection of pgbench; a password is for its environment, where nobody else reads it."""
    known = conninfo_to_dict(conninfo)
    level = isolation.replace(" ", r"\ ")
    settings = f"-c search_path=public -c default_transaction_isolation={level}"
    options = f"{known.pop('options', None) or ''} {settings}".strip()
    password = known.pop("password", None)
    known = {name: value for name, value in known.items() if name in _UNDERSTOOD}
    where = make_conninfo("", options=options, **known)
    return where, {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}


def main() -> int:
    """Measure the reference queue and print a table; the exit code."""
    with as_file(files("queueproof.strategies") / "skip_locked.sql") as path:
        queue = load(path)
    table = Table("workers", "batch", "pgbench, jobs/s", "harness ÷ pgbench")
    most = max(shape.workers for shape in SHAPES)
    with open_server(None, durable=True) as server, Ground(server, most) as ground:
        for shape in SHAPES:
            found = compared(ground, queue, shape)
            table.add_row(
                str(shape.workers),
                str(shape.batch),
                numbers.with_spread([beside for _, beside in found]),
                numbers.with_range([own / beside for own, beside in found]),
            )
        label = server.label
    console = Console()
    console.print(label, style="bold")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
