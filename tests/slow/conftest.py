"""What the slow tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queueproof.postgres import open_server


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """A server as somebody else's would be given: on it are only databases of commands."""
    with open_server("embedded") as server:
        yield str(server._admin)
