"""libpq's environment variables, which lead nowhere but to a server that a DSN names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

# Those that stand for no parameter of a connection string (manual, 34.15).
_OTHERS = frozenset({"PGDATESTYLE", "PGTZ", "PGGEQO", "PGSERVICEFILE", "PGSYSCONFDIR"})


class _Kept:
    """Variables that were taken out of the environment, for as long as anybody wants them out."""

    lock = threading.Lock()
    users = 0
    values: ClassVar[dict[str, str]] = {}


def without_libpq(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for somebody who is told by a connection string where to connect to."""
    from psycopg import pq  # noqa: PLC0415 - costs time where no server is wanted yet

    variables = {option.envvar for option in pq.Conninfo.get_defaults() if option.envvar}
    known = _OTHERS | {variable.decode() for variable in variables}
    return {name: value for name, value in environment.items() if name not in known}


@contextmanager
def no_libpq_variables() -> Iterator[None]:
    """Keep them out of this process, and of those that it starts, until the end of the block.

    A connection string can name all that PGHOST and its like fill in; but PGTZ, PGDATESTYLE, PGGEQO
    and a PGSERVICE that is not defined come through whatever it says.
    """
    with _Kept.lock:
        _Kept.users += 1
        for name in os.environ.keys() - without_libpq(os.environ).keys():
            _Kept.values[name] = os.environ.pop(name)
    try:
        yield
    finally:
        with _Kept.lock:
            _Kept.users -= 1
            if not _Kept.users:
                for name, value in _Kept.values.items():
                    os.environ.setdefault(name, value)
                _Kept.values.clear()
