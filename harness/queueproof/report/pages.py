"""Markdown on a terminal: a table that is wider goes on below itself, so that no name is cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.markdown import Markdown, TableElement
from rich.table import Table
from rich.text import Text

_GAP = 2  # characters between two columns


class _Columns(TableElement):
    """A table in as many parts as the width asks for; each begins with the columns that name rows.

    What is too long for a line even so is folded.
    """

    names: Collection[str] = ()

    @classmethod
    def create(cls, markdown: Markdown, token: object) -> _Columns:  # noqa: ARG003 - rich's signature
        made = cls()
        made.names = markdown.names if isinstance(markdown, Page) else ()
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        assert self.header
        assert self.header.row
        rows = [self.header.row, *(self.body.rows if self.body else ())]
        columns = [*zip(*([cell.content for cell in row.cells] for row in rows), strict=True)]
        naming = [*takewhile(lambda one: one[0].plain in self.names, columns)]
        part = [*naming]
        for column in columns[len(naming) :]:
            wider = _total(map(_width, [*part, column])) > options.max_width
            if wider and len(part) > len(naming):
                yield _table(part, options.max_width)
                yield Text()
                part = [*naming]
            part.append(column)
        yield _table(part, options.max_width)


class Page(Markdown):
    """A page of Markdown; `names` are headings of columns that say what a row is about."""

    elements = {**Markdown.elements, "table_open": _Columns}  # noqa: RUF012 - as rich has it

    def __init__(self, text: str, names: Collection[str]) -> None:
        super().__init__(text)
        self.names = names


def _width(column: Sequence[Text]) -> int:
    """The characters that a column needs: its heading is broken at spaces, and no cell is."""
    heading, *cells = column
    return max([*map(len, heading.plain.split()), *map(len, cells)])


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def _table(columns: Sequence[Sequence[Text]], most: int) -> Table:
    widths = [max(map(len, column)) for column in columns]
    if _total(widths) > most:
        widths = [*map(_width, columns)]
    widest = widths.index(max(widths))
    widths[widest] -= max(0, _total(widths) - most)  # and is folded
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for (heading, *_), width in zip(columns, widths, strict=True):
        table.add_column(heading, width=width, overflow="fold")
    for row in [*zip(*columns, strict=True)][1:]:
        table.add_row(*row)
    return table
