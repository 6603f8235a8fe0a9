"""A table of a report, before anybody says how it looks."""

from __future__ import annotations

from typing import NamedTuple

NOTHING = "n/a"


class TitledTable(NamedTuple):
    """A table with its title and what there is to say about it."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""
