"""Where temporary files may be: what works there does, and what cannot is named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from queueproof.errors import ServerUnavailableError
from queueproof.postgres import local, open_server
from queueproof.postgres.server import connected


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of some name, which everybody may enter, as the one for temporary files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        path = Path(base, os.fsdecode(request.param))
        path.mkdir(parents=True)
        for folder in (path, *path.parents):
            if folder.is_relative_to(base):
                folder.chmod(0o755)
        monkeypatch.setenv("TMPDIR", str(path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield path
    monkeypatch.undo()


WORKING = [b"a,b", b"not\xffutf-8", b"x" * 150 + b"/" + b"y" * 100, b'it\'s "quoted" $HOME %s']


@pytest.mark.parametrize("temporary", WORKING, indirect=True)
def test_a_server_works_wherever_temporary_files_may_be(temporary: Path) -> None:
    """Its sockets have a short and plain folder of their own; nothing is left in either."""
    with open_server("embedded") as server:
        assert any(temporary.iterdir())
        sockets = Path(str(conninfo_to_dict(server._admin)["host"]))
        assert sockets.is_dir()
        with connected(server._admin) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not any(temporary.iterdir())
    assert not sockets.exists()


@pytest.mark.parametrize(
    ("temporary", "why"),
    [(b"new\nline", "its path has a line break"), (b"/".join([b"z" * 240] * 4), "its path has 9")],
    indirect=["temporary"],
)
def test_what_postgresql_cannot_take_is_named(temporary: Path, why: str) -> None:
    """It is not the space that is missing."""
    with pytest.raises(ServerUnavailableError, match=why) as told, open_server("embedded"):
        pass
    assert "TMPDIR=/tmp chooses another" in str(told.value)
    assert not any(temporary.iterdir())


def test_without_any_folder_for_sockets_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a comma, and no other that can be written."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ServerUnavailableError, match=r"no folder for sockets: .*special"):
        local.for_sockets(tmp_path / "a,b")
