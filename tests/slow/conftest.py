"""Which of these tests `make test` runs too, and what they share."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.slow.fix_cluster", "tests.slow.fix_commands")

from tests.slow.fix_commands import (  # noqa: E402 - after what rewrites it
    begin_command,
    command,
    dsn,
    worker_program,
)

__all__ = ["begin_command", "command", "dsn", "worker_program"]

SLOW = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` all but one test of each kind."""
    for item in items:
        if SLOW in item.path.parents and not item.get_closest_marker("sample"):
            item.add_marker("slow")
