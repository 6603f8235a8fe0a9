"""Which queues are checked: those of a project's pyproject.toml, several, or versions of one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queueproof.cli import check as command
from queueproof.cli.check import each
from queueproof.cli.judging import CheckOptions
from queueproof.cli.options import ProfileName
from queueproof.cli.project import Project, project
from queueproof.errors import Exit, QueueproofError
from queueproof.queues.deployment import deployment
from queueproof.waits import StoppedError
from tests.fix_commands import Command
from tests.fix_queues import TABLE, queue_file

Write = Callable[[str], int]
Q = "../../q.sql"  # of the project, as seen from the current folder


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the pyproject.toml of a project; the current folder is deep within it."""
    inner = tmp_path / "src" / "app"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.delenv("QUEUEPROOF_POSTGRES", raising=False)
    return (tmp_path / "pyproject.toml").write_text


@pytest.mark.parametrize("text", ["", "[tool.other]\n", "tool = 5", "[tool]\nqueueproof = 3"])
def test_a_project_that_says_nothing(text: str, write: Write) -> None:
    """Without a queue it is said where to write one; other people's tables are not ours."""
    write(text)
    assert project() == Project()
    with pytest.raises(QueueproofError, match=r"write queues = .* in pyproject\.toml"):
        project().queue_names()


@pytest.mark.parametrize(
    "text",
    [
        *("queues = []", 'queues = "a.sql"', "queues = [1]", 'queues = ["a\\u0000.sql"]'),
        *("x = [", "x = " + "[" * 5_000, 'profile = "fast"', "profile = 3", "postgres = ''"),
        *("skip = 'isolation'", "require = [3]", 'skip = ["odrer"]'),
    ],
)
def test_a_table_that_is_wrong(text: str, write: Write) -> None:
    """Each is told with the file's name; nothing is taken for a queue."""
    write(f"[tool.queueproof]\n{text}\n")
    with pytest.raises(QueueproofError, match=r"pyproject\.toml: "):
        project()


def test_a_projects_files_are_seen_from_the_current_folder(write: Write, tmp_path: Path) -> None:
    """A misspelt key or file is told; a file is seen from the current folder, a class stays so."""
    write('[tool.queueproof]\nqueue = ["a.sql"]\n')
    with pytest.raises(QueueproofError, match="unknown key 'queue'; did you mean 'queues'"):
        project()
    write('[tool.queueproof]\nqueues = ["a*.sql"]\n')
    told = r"pyproject\.toml: queues: there is no file a\*\.sql; name each"
    with pytest.raises(QueueproofError, match=told):
        project().queue_names()
    write('[tool.queueproof]\nqueues = ["a.sql", "mine:Queue"]\n')
    (tmp_path / "a.sql").touch()
    assert project().queue_names() == ["../../a.sql", "mine:Queue"]


def test_options_win_over_the_project(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does the environment's server; who names guarantees is not held to the project's."""
    write("""[tool.queueproof]
        queues = ["q.sql"]
        profile = "quick"
        postgres = "local"
        skip = ["isolation"]
        require = ["fencing"]
    """)
    Path(Q).touch()
    asked: list[CheckOptions] = []
    monkeypatch.setattr(command, "judged", asked.append)

    def options(**given: Any) -> CheckOptions:  # noqa: ANN401 - of the command
        command.check(**given)
        return asked[-1]

    alone = options()
    assert (alone.queue, alone.profile, alone.where.postgres) == (Q, "quick", "local")
    assert (alone.skip, alone.require) == (["isolation"], ["fencing"])
    given = {"only": ["order"], "profile": ProfileName.deep, "postgres": "embedded"}
    told = options(queues=["other.sql"], **given)
    assert (told.queue, told.profile, told.where.postgres) == ("other.sql", "deep", "embedded")
    assert (told.skip, told.require) == (None, None)
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "postgresql://somewhere")
    assert options().where.postgres is None  # as ever: whoever opens the server looks there


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
    """Named after the queue; a pipe has one after the other, and stdout room for one alone."""
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
    with pytest.raises(QueueproofError, match="stdout has room for one report"):
        each(["a.sql", "b.sql"], lambda _queues, **_options: 0, {"json": Path("-")})


@pytest.mark.usefixtures("no_server")
def test_a_file_of_another_schema_is_refused(tmp_path: Path, command: Command) -> None:
    """Before anything starts; a migration that names its table, however spelt, is a version."""
    old, new = tmp_path / "old.sql", tmp_path / "new.sql"
    old.write_text(queue_file())
    new.write_text(queue_file().replace("jobs", "tasks").replace("-- name: tasks", "-- name: jobs"))
    for one, other in ((old, new), (new, old)):
        ran = command("check", one, "--with", other)
        told = f"--with {other}: its tables are not those of {one}"
        assert (ran.code, told in ran.err) == (4, True)
    migration = 'CREATE TABLE more (id int);\nALTER TABLE "jobs" ADD COLUMN note text;'
    for schema in (TABLE, migration):
        new.write_text(queue_file(table=schema))
        deployment(str(old), str(new))
