"""One server for the whole session, and labs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from queueproof.explore.lab import Lab, open_lab
from queueproof.postgres import Server, open_server
from queueproof.sqlfile import load_text


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that is there for all tests: $QUEUEPROOF_POSTGRES, or the embedded one."""
    with open_server() as opened:
        yield opened


@pytest.fixture
def lab_of(server: Server) -> Iterator[Callable[[str], Lab]]:
    """Installs a queue file's text in a database of its own."""
    with ExitStack() as stack:
        yield lambda text: stack.enter_context(open_lab(load_text(text, "queue.sql"), server))
