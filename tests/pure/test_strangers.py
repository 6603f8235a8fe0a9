"""Two queue files that share no table are no versions of one queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.cli import run
from queueproof.queues.deployment import deployment

STRATEGIES = Path(__file__).parents[2] / "strategies"
SOUND = (STRATEGIES / "skip_locked.sql").read_text()


def test_a_file_of_another_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 4 before anything starts: of the two together nothing can be judged."""
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "a mistake came through to the server")
    old, new = tmp_path / "old.sql", tmp_path / "new.sql"
    old.write_text(SOUND)
    new.write_text(SOUND.replace("jobs", "tasks").replace("-- name: tasks", "-- name: jobs"))
    for one, other in ((old, new), (new, old)):
        assert run(["check", str(one), "--with", str(other)]) == 4
        said = capsys.readouterr().err
        assert f"--with {other}: its tables are not those of {one}" in said


def test_a_migration_and_the_same_schema_are_taken(tmp_path: Path) -> None:
    """What names the other's table, by whatever spelling, is a version of it."""
    old, new = tmp_path / "old.sql", tmp_path / "new.sql"
    old.write_text(SOUND)
    new.write_text(SOUND)
    deployment(str(old), str(new))
    head, mark, rest = SOUND.partition("-- name: enqueue")
    schema = "-- name: schema#\n"
    migrated = 'CREATE TABLE more (id int);\nALTER TABLE "jobs" ADD COLUMN note text;\n\n'
    new.write_text(head.partition(schema)[0] + schema + migrated + mark + rest)
    deployment(str(old), str(new))
