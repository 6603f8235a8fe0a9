"""What the slow tests share."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from queueproof.postgres import open_server


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """A server as somebody else's would be given: on it are only databases of commands."""
    with open_server("embedded") as server:
        yield str(server._admin)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder, of some name, for temporary files; as /tmp, everybody may enter it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="qp") as base:
        path = Path(base, os.fsdecode(getattr(request, "param", b"")))
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path, *path.parents):
            if folder.is_relative_to(base):
                folder.chmod(0o755)
        monkeypatch.setenv("TMPDIR", str(path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield path
    monkeypatch.undo()
