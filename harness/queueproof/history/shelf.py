"""A mapping that holds some values in memory and lays the others aside in a temporary file."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", str, int)
V = TypeVar("V")

_CACHE = 500  # KiB, of SQLite's pages


class Shelf(Generic[K, V]):
    """A mapping that keeps in memory what was used last, and the rest in a file.

    A value that was taken from it may be changed until the next one is taken.

    Args:
        room: Most values in memory, None for all.
        pack: Writes a value down.
        unpack: Reads it again.
    """

    def __init__(
        self, room: int | None, pack: Callable[[V], bytes], unpack: Callable[[bytes], V]
    ) -> None:
        self._room = room
        self._pack = pack
        self._unpack = unpack
        self._near: OrderedDict[K, V] = OrderedDict()
        self._far: sqlite3.Connection | None = None

    def __setitem__(self, key: K, value: V) -> None:
        self._near[key] = value
        if self._room is not None:
            self._near.move_to_end(key)
            if len(self._near) > self._room:
                self._lay_aside(self._room // 4 + 1)

    def __getitem__(self, key: K) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: K) -> V | None:
        """The value under a key, None where there is none."""
        found = self._near.get(key)
        if found is not None:
            if self._room is not None:
                self._near.move_to_end(key)
            return found
        if self._far is None:
            return None
        row = self._far.execute("SELECT value FROM shelf WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        found = self._unpack(row[0])
        self[key] = found
        return found

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys with their values; while it is read nothing may be put in or taken out."""
        yield from self._near.items()
        if self._far is not None:
            for key, value in self._far.execute("SELECT key, value FROM shelf"):
                if key not in self._near:
                    yield key, self._unpack(value)

    def _lay_aside(self, count: int) -> None:
        if self._far is None:
            # A database without a name is a file that is gone when it is closed.
            self._far = sqlite3.connect("", isolation_level=None)
            self._far.execute(f"PRAGMA cache_size = -{_CACHE}")
            self._far.execute("PRAGMA journal_mode = OFF")
            self._far.execute("CREATE TABLE shelf (key PRIMARY KEY, value) WITHOUT ROWID")
            self._far.execute("BEGIN")
        oldest = [self._near.popitem(last=False) for _ in range(count)]
        rows: list[tuple[Any, bytes]] = [(key, self._pack(value)) for key, value in oldest]
        self._far.executemany("INSERT OR REPLACE INTO shelf VALUES (?, ?)", rows)

    def close(self) -> None:
        """Forget everything."""
        self._near.clear()
        if self._far is not None:
            self._far.close()
            self._far = None
