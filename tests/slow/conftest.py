"""What the slow tests share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.slow.fix_commands")

from tests.slow.fix_commands import (  # noqa: E402 - after what rewrites it
    begin_command,
    command,
    dsn,
    worker_program,
)

__all__ = ["begin_command", "command", "dsn", "worker_program"]
