"""What a project's pyproject.toml says of its checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queueproof.cli import check as command
from queueproof.cli.judging import CheckOptions
from queueproof.cli.options import ProfileName
from queueproof.cli.project import Project, project
from queueproof.errors import QueueproofError

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


def test_a_misspelt_key(write: Write) -> None:
    """The nearest one is named."""
    write('[tool.queueproof]\nqueue = ["a.sql"]\n')
    with pytest.raises(QueueproofError, match="unknown key 'queue'; did you mean 'queues'"):
        project()


def test_a_file_that_is_not_there(write: Write) -> None:
    """The project's file is named; a glob is none."""
    write('[tool.queueproof]\nqueues = ["a*.sql"]\n')
    told = r"pyproject\.toml: queues: there is no file a\*\.sql; name each"
    with pytest.raises(QueueproofError, match=told):
        project().queue_names()


def test_files_are_the_projects(write: Write, tmp_path: Path) -> None:
    """A file is seen from the current folder; a class or a command stays as it is."""
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
