"""Tests of what comes with an extra that `make test` does not install: not collected without it."""

from importlib.util import find_spec

import pytest

pytest.register_assert_rewrite("tests.extras.fix_cluster")

collect_ignore_glob = [
    pattern
    for extra, pattern in (("distributed", "test_cluster*"), ("asyncpg", "test_wire*"))
    if find_spec(extra) is None
]
