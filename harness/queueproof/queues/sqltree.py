"""A queue's SQL as a tree, and where its parts stand in the text: for whoever edits them there.

sqlglot's parser says what stands where; a change is made in the text itself, so that all else,
the formatting included, stays what the author wrote and the server has proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from typing import NamedTuple, TypeVar

from sqlglot import TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from queueproof.queues import sqltext
from queueproof.queues.block import Block
from queueproof.queues.sqltext import Span

R = TypeVar("R")


class Edit(NamedTuple):
    """A stretch of text and what stands there instead."""

    span: Span
    new: str = ""

    @classmethod
    def at(cls, offset: int, new: str) -> Edit:
        """The edit that puts a text in."""
        return cls(Span(offset, offset), new)

    def moved(self, by: int) -> Edit:
        """The edit of a piece of a text as one of the text, which the piece begins so far in."""
        return Edit(Span(self.span.start + by, self.span.end + by), self.new)


def applied(text: str, edits: Iterable[Edit]) -> str:
    """A text with some edits made, which stand apart from each other."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.span.start] + edit.new + text[edit.span.end :]
    return text


_READ = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH"})


def sites(block: Block, text: str) -> Iterator[tuple[str, int, str]]:
    """The queries and changes in a statement: itself, or those in the body of a function.

    Each with what it is in, where in the statement it begins, and its text.
    """
    found = sqltext.tokens(text)
    if block.name != "schema":
        if sqltext.first_keyword(text) in _READ:
            yield block.name, found[0].start, text[found[0].start :]
        return
    words = [token.word for token in found]
    kind = next((n for n, word in enumerate(words) if word in {"FUNCTION", "PROCEDURE"}), -1)
    if words[:1] != ["CREATE"] or words[kind - 1] not in {"CREATE", "REPLACE"}:
        return
    label = f"{text[found[kind + 1].start :].partition('(')[0].strip()}()"
    bodies = [found[words.index("ATOMIC") :]] if "ATOMIC" in words else []
    for token in found:
        if token.kind is TokenType.HEREDOC_STRING:
            tag = token.raw.index("$", 1) + 1
            bodies.append(sqltext.piece(text, token.start + tag, token.end - tag))
    for start, end in (query for body in bodies for query in _queries(body)):
        yield label, start, text[start:end]


def _queries(body: Sequence[sqltext.Token]) -> Iterator[Span]:
    """Stretches between semicolons, from the first word of SQL's own on, or before a LOOP."""
    start: sqltext.Token | None = None
    for before, token in zip((None, *body), (*body, None), strict=False):
        if token is None or token.raw == ";" or token.word == "LOOP":
            if start is not None and before is not None:
                yield Span(start.start, before.end)
            start = None
        elif start is None and token.word in _READ | {"PERFORM", "EXECUTE"}:
            start = token


class _Parser(PostgresParser):
    """sqlglot's own notes the positions of names alone."""

    def _parse_locks(self) -> list[exp.Lock]:
        first = self._index
        locks: list[exp.Lock] = super()._parse_locks()
        found = self._tokens[first : self._index]
        starts = [n for n, token in enumerate(found) if token.text.upper() == "FOR"]
        for lock, (start, end) in zip(locks, pairwise([*starts, len(found)]), strict=True):
            lock.meta["span"] = Span(found[start].start, found[end - 1].end + 1)
        return locks


def _spanned(parse: Callable[..., R]) -> Callable[..., R]:
    """Make a method of the parser note on the node that it returns where in the text it stands."""

    @wraps(parse)
    def spanned(self: _Parser, *args: object, **kwargs: object) -> R:
        first = self._curr
        node = parse(self, *args, **kwargs)
        # Who is handed the left side of a condition begins in the middle of it.
        begun = isinstance(node, exp.Condition) and any(isinstance(a, exp.Expr) for a in args)
        if isinstance(node, exp.Expr) and first and self._prev and not begun:
            # The innermost method has made it; those around it hand it on.
            node.meta.setdefault("span", Span(first.start, self._prev.end + 1))
        return node

    return spanned


for _method in (
    "_parse_with",
    "_parse_cte",
    "_parse_from",
    "_parse_where",
    "_parse_order",
    "_parse_ordered",
    "_parse_limit",
    "_parse_conjunction",
    "_parse_equality",
    "_parse_comparison",
    "_parse_update_assignment",
):
    setattr(_Parser, _method, _spanned(getattr(PostgresParser, _method)))


class Parsed:
    """A statement, its tree, and where its parts stand; SqlglotError where it is not understood."""

    def __init__(self, text: str) -> None:
        self.text = text
        dialect = Postgres()
        tokens = dialect.tokenize(text)
        trees = _Parser(dialect=dialect).parse(tokens, text)
        if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Command):
            raise SqlglotError("not one statement")
        self.tree: exp.Expr = trees[0]
        self._tokens = [Span(token.start, token.end + 1) for token in tokens]

    def span(self, node: exp.Expr) -> Span:
        """The span of a node in the text; SqlglotError where the parser noted nothing of it."""
        span = node.meta.get("span")
        if not isinstance(span, Span):
            raise SqlglotError(f"no position: {node.sql('postgres')}")
        return span

    def source(self, span: Span) -> str:
        """The text of a stretch."""
        return self.text[span.start : span.end]

    def indent(self, offset: int) -> str:
        """The white space with which the line of an offset begins."""
        line = self.text[self.text.rfind("\n", 0, offset) + 1 :]
        return line[: len(line) - len(line.lstrip())]

    def tokens(self, span: Span) -> list[Span]:
        """The tokens of a stretch."""
        return [one for one in self._tokens if span.start <= one.start and one.end <= span.end]

    def words(self, span: Span) -> list[str]:
        """The tokens' text, in upper case."""
        return [self.source(token).upper() for token in self.tokens(span)]

    def outermost(self, span: Span, words: frozenset[str]) -> Span | None:
        """The first token of these that stands in no parentheses of the stretch."""
        depth = 0
        for token in self.tokens(span):
            word = self.source(token).upper()
            depth += (word in {"(", "["}) - (word in {")", "]"})
            if not depth and word in words:
                return token
        return None

    def without(self, parts: Sequence[exp.Expr], index: int) -> Edit:
        """The edit that takes one of two parts or more away, with the AND or comma beside it."""
        one = self.span(parts[index])
        if index == 0:
            return Edit(Span(one.start, self.span(parts[1]).start))
        return Edit(Span(self.span(parts[index - 1]).end, one.end))

    def clause(self, span: Span) -> Edit:
        """The edit that takes a clause away, with the space and the comments before it."""
        ends = (token.end for token in self._tokens if token.end <= span.start)
        return Edit(Span(max(ends, default=0), span.end))


SHOWN = 60  # characters of SQL in a mutant's name


def quoted(text: str) -> str:
    """SQL in a mutant's name: on one line, without comments, cut where it is long."""
    pieces: list[str] = []
    end = 0
    for token in sqltext.tokens(text):
        pieces += [" " if pieces and token.start > end else "", token.raw]
        end = token.end
    line = "".join(pieces)
    # Backticks, as SQL has none: a name is a key in a TOML file.
    return f"`{line}`" if len(line) <= SHOWN else f"`{line[:SHOWN].rstrip()} …`"
