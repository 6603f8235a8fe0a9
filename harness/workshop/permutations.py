"""Permutations per second: the step scheduler and PostgreSQL's isolationtester, side by side.

Method: two sessions of three steps each (a claim as SELECT ... FOR UPDATE SKIP LOCKED, UPDATE,
COMMIT), once without and once with a row that both update, so that one waits. Every permutation
that can happen is run; the scheduler finds them, isolationtester is given the same list, several
times over, so that its connecting weighs little. Its setup empties the tables and enqueues two
jobs. The scheduler is measured twice: by the same work, and as it is used, where it also drains the
queue after each permutation and judges the history. All run in turn against one server, and the
best round of each counts.

Run with `python -m workshop.permutations`; it prints a table.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from timeit import timeit
from typing import NamedTuple

from queueproof.errors import ServerUnavailableError
from queueproof.examine.calibrate import calibrate
from queueproof.judge.checker import check, declare
from queueproof.judge.spec import Declared
from queueproof.postgres import Server, open_server
from queueproof.postgres.local import find_embedded
from queueproof.queues.sqlfile import load_text
from queueproof.run.execution import Execution
from queueproof.run.open import open_lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.programs import Do, JobSpec, Program, script
from queueproof.search.explore import explore

ROUNDS = 20
TIMES = 5  # that one round runs each permutation
STEPS = 6

_QUEUE = """
-- name: schema#
{schema};
-- name: enqueue(queue)
INSERT INTO jobs (queue) VALUES (:queue) RETURNING id;
-- name: claim(worker, queue)
BEGIN;
SELECT id FROM jobs WHERE queue = :queue AND worker IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED;
{update} UPDATE jobs SET worker = :worker WHERE queue = :queue RETURNING id;
COMMIT;
-- name: complete(id)!
UPDATE jobs SET done = true WHERE id = :id AND NOT done;
"""
_SCHEMA = """
CREATE TABLE jobs
  (id bigserial PRIMARY KEY, queue text NOT NULL, worker text, done bool NOT NULL DEFAULT false);
CREATE TABLE counter (claims bigint NOT NULL);
INSERT INTO counter VALUES (0)
"""
_COUNT = "WITH counted AS (UPDATE counter SET claims = claims + 1)"
_SPEC_SETUP = """
setup { DELETE FROM jobs; UPDATE counter SET claims = 0; }
setup { INSERT INTO jobs (queue) VALUES ('w1'); }
setup { INSERT INTO jobs (queue) VALUES ('w2'); }
"""
_SPEC_SESSION = """
session {name}
step {name}_1 {{
BEGIN;
SELECT id FROM jobs WHERE queue = '{name}' AND worker IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED;
}}
step {name}_2 {{ {update} UPDATE jobs SET worker = 'me' WHERE queue = '{name}' RETURNING id; }}
step {name}_3 {{ COMMIT; }}
"""
_PROGRAM = Program(
    (JobSpec(queue="w1"), JobSpec(queue="w2")),
    (tuple(script(name, Do("claim", 1, queue=name)) for name in ("w1", "w2")),),
)


class Speed(NamedTuple):
    """The measured speed of one program."""

    permutations: int  # how many it has
    waits: int  # in how many of them a session waits
    steps: float  # permutations per second by the scheduler, the best round, the same work
    whole: float  # the same, the queue drained and the history judged after each
    isolationtester: float  # permutations per second, the best round


class _StepsOnly(Runner):
    """A runner that leaves the queue as the permutation has left it."""

    def _drain(self, execution: Execution) -> None:
        pass


def find_isolationtester() -> Path:
    """The isolationtester that comes with the embedded server."""
    folder = find_embedded("").directory.parent / "lib/postgresql/pgxs/src/test/isolation"
    program = folder / "isolationtester"
    if not program.exists():
        raise ServerUnavailableError(f"there is no {program}")
    return program


def measure(server: Server, *, blocking: bool, rounds: int = ROUNDS, times: int = TIMES) -> Speed:
    """Run every permutation with both, in turn; `blocking`: the sessions update one shared row."""
    update = _COUNT if blocking else ""
    queue = load_text(_QUEUE.format(schema=_SCHEMA, update=update), "permutations.sql")
    with open_lab(queue, server) as lab, server.database() as conninfo:
        declared = declare(calibrate(lab))
        runs = _explored(Runner(lab), declared)
        permutations = [_steps(run) for run in runs]
        listed = "\n".join(f"permutation {' '.join(steps)}" for steps in permutations * times)
        sessions = (_SPEC_SESSION.format(name=name, update=update) for name in ("w1", "w2"))
        spec = "".join([_SPEC_SETUP, *sessions, listed, "\n"])
        _isolationtester(
            conninfo, f"setup {{{_SCHEMA};}}\nsession one\nstep nothing {{ SELECT; }}\n"
        )
        spent = [
            (
                timeit(lambda: _explored(_StepsOnly(lab)), number=times),
                timeit(lambda: _explored(Runner(lab), declared), number=times),
                timeit(lambda: _isolationtester(conninfo, spec), number=1),
            )
            for _ in range(rounds)
        ]
        best = map(min, zip(*spent, strict=True))
    waits = sum(any(beat.event == "waits" for beat in run.trace) for run in runs)
    count = len(permutations) * times
    return Speed(len(permutations), waits, *(count / seconds for seconds in best))


def _explored(runner: Runner, declared: Declared | None = None) -> list[Run]:
    """Every permutation once, each history judged where it is said what was declared."""
    runs = [tried.run for tried in explore(runner, _PROGRAM, budget=1000)]
    if declared is not None:
        for run in runs:
            check(run.history, declared)
    return runs


def _steps(run: Run) -> list[str]:
    """A run's permutation, as the spec names its steps; BEGIN goes with what follows it."""
    taken: list[str] = []
    for beat in run.trace:
        if beat.event == "sql" and beat.actor in {"w1", "w2"} and beat.text != "BEGIN":
            taken.append(f"{beat.actor}_{sum(beat.actor in step for step in taken) + 1}")
            if len(taken) == STEPS:
                break  # the rest drains the queue
    return taken


def _isolationtester(conninfo: str, spec: str) -> None:
    done = subprocess.run(  # noqa: S603 - PostgreSQL's own program
        [find_isolationtester(), conninfo], input=spec, capture_output=True, text=True, check=False
    )
    if done.returncode or "ERROR" in done.stdout:
        raise ServerUnavailableError(f"isolationtester failed: {done.stderr or done.stdout}")


def main() -> None:
    """Measure and print a table."""
    with open_server("embedded") as server:
        print(server.label)  # noqa: T201 - its whole purpose
        print(  # noqa: T201 - its output
            "| program | permutations | scheduler, same work | ratio "
            "| drained and judged | ratio | isolationtester |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|")  # noqa: T201 - its output
        for blocking in (False, True):
            found = measure(server, blocking=blocking)
            program = "two sessions of three steps" + (", one row shared" if blocking else "")
            print(  # noqa: T201 - its output
                f"| {program} | {found.permutations} ({found.waits} with a wait) "
                f"| {found.steps:.0f}/s | {found.steps / found.isolationtester:.1f} "
                f"| {found.whole:.0f}/s | {found.whole / found.isolationtester:.1f} "
                f"| {found.isolationtester:.0f}/s |"
            )


if __name__ == "__main__":
    main()
