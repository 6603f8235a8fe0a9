"""Two queue files that share no table are no versions of one queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.queues.deployment import deployment
from tests.fix_commands import Command
from tests.fix_queues import TABLE, queue_file


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
