"""Several queues: checked one after the other, or as versions of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from queueproof.cli.check import each
from queueproof.errors import Exit, QueueproofError
from queueproof.queues.deployment import deployment
from queueproof.waits import StoppedError
from tests.fix_commands import Command
from tests.fix_queues import TABLE, queue_file


@pytest.mark.parametrize(
    ("codes", "worst"), [([0, 1, 2], 1), ([0, 2, 0], 2), ([1, 4, 2], 4), ([0, 0], 0)]
)
def test_the_exit_code_is_the_worst(codes: list[int], worst: int) -> None:
    """What cannot be used goes before what is broken, that before what is unknown."""
    left = iter(codes)
    queues = [f"{n}.sql" for n, _ in enumerate(codes)]
    assert each(queues, lambda _queues, **_options: next(left), {}) == worst


def test_a_queue_that_cannot_be_used_keeps_nobody_from_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is told, and the next one is checked; who asks for an end gets it."""
    asked = []

    def check(queues: list[str], **_options: object) -> int:
        asked.extend(queues)
        if queues == ["a.sql"]:
            raise QueueproofError("a.sql is no queue")
        return Exit.HOLDS

    assert each(["a.sql", "b.sql"], check, {}) == Exit.UNUSABLE
    assert asked == ["a.sql", "b.sql"]
    assert "a.sql is no queue" in capsys.readouterr().err

    def stopped(_queues: list[str], **_options: object) -> int:
        raise StoppedError

    with pytest.raises(StoppedError):
        each(["a.sql", "b.sql"], stopped, {})


def test_a_queue_is_named_once() -> None:
    """The reports of the second would replace those of the first."""
    for again in ("a.sql", "./a.sql"):
        with pytest.raises(QueueproofError, match=rf"a\.sql and {again} are named: their reports"):
            each(["a.sql", "b.sql", again], lambda _queues, **_options: 0, {})


def test_each_has_reports_of_its_own(tmp_path: Path) -> None:
    """Named after the queue; a pipe has one after the other, and its reader keeps them apart."""
    given: list[dict[str, Any]] = []

    def check(_queues: list[str], **options: object) -> int:
        given.append(options)
        return 0

    reports = {"json": Path("out/card.json"), "junit": tmp_path / "pipe"}
    os.mkfifo(tmp_path / "pipe")
    each(["jobs/a.sql", "mine:Queue"], check, reports)
    names = [str(one["json"]) for one in given]
    assert names == ["out/card-jobs-a.json", "out/card-mine-Queue.json"]
    assert {one["junit"] for one in given} == {tmp_path / "pipe"}


def test_stdout_is_no_place_for_several_reports() -> None:
    """Two cards in a row are no JSON: that is refused before anything is checked."""
    with pytest.raises(QueueproofError, match="stdout has room for one report"):
        each(["a.sql", "b.sql"], lambda _queues, **_options: 0, {"json": Path("-")})


@pytest.mark.usefixtures("no_server")
def test_a_file_of_another_schema_is_refused(tmp_path: Path, command: Command) -> None:
    """Exit 4 before anything starts: of the two together nothing can be judged."""
    old, new = tmp_path / "old.sql", tmp_path / "new.sql"
    old.write_text(queue_file())
    new.write_text(queue_file().replace("jobs", "tasks").replace("-- name: tasks", "-- name: jobs"))
    for one, other in ((old, new), (new, old)):
        ran = command("check", one, "--with", other)
        told = f"--with {other}: its tables are not those of {one}"
        assert (ran.code, told in ran.err) == (4, True)


def test_a_migration_and_the_same_schema_are_taken(tmp_path: Path) -> None:
    """What names the other's table, by whatever spelling, is a version of it."""
    old, new = tmp_path / "old.sql", tmp_path / "new.sql"
    migration = 'CREATE TABLE more (id int);\nALTER TABLE "jobs" ADD COLUMN note text;'
    old.write_text(queue_file())
    for schema in (TABLE, migration):
        new.write_text(queue_file(table=schema))
        deployment(str(old), str(new))
