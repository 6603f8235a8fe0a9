"""SQL text: statements and parameters with their offsets, and the time that the harness moves.

PostgreSQL's lexical rules (manual, chapter 4.1) come from sqlglot's tokenizer, stripped of the
keywords and commands that it needs for parsing and that would swallow parameters here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, NamedTuple, TypeAlias

from sqlglot import TokenType
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import TokenError


class UnterminatedError(ValueError):
    """A string, quoted name, dollar quote or comment that is never closed."""

    def __init__(self, offset: int) -> None:
        super().__init__("a string, quoted name, dollar quote or comment is never closed")
        self.offset = offset  # where the line begins that opens it


class Span(NamedTuple):
    """A stretch of text: half-open, from 0."""

    start: int
    end: int


class ScriptStatement(NamedTuple):
    """One statement of a text."""

    text: str  # without its semicolon and without comments around it
    offset: int  # where it begins in the text
    tokens: Sequence[Token]  # with their offsets in the text


class Replaced(NamedTuple):
    """A stretch of the original that was replaced; offsets are half-open, from 0."""

    start: int
    end: int
    sent_start: int
    sent_end: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A statement as the server gets it."""

    sql: str  # with `$1` to `$n`
    names: tuple[str, ...]  # the parameters, `$1` first
    edits: tuple[Replaced, ...]  # in order


class Token(NamedTuple):
    """A token that is not a comment."""

    kind: TokenType  # sqlglot's; words of every sort are VAR, whatever they mean
    raw: str  # the characters as they stand in the text
    value: str  # the same without their quotes
    start: int
    end: int  # exclusive

    @property
    def word(self) -> str:
        """An unquoted word in upper case, else nothing."""
        return self.raw.upper() if self.kind is TokenType.VAR else ""

    @property
    def name(self) -> str:
        """A name as PostgreSQL folds it, quoted or not, else nothing."""
        if self.kind is TokenType.VAR:
            return self.raw.lower()
        return self.value if self.kind is TokenType.IDENTIFIER else ""


class _Lexer(Postgres.Tokenizer):
    """Strings, names, numbers and comments; no keyword, command or number base is special."""

    KEYWORDS: ClassVar = {"::": TokenType.DCOLON, ":=": TokenType.COLON_EQ}
    SINGLE_TOKENS: ClassVar = {**Postgres.Tokenizer.SINGLE_TOKENS, "\ufdd0": TokenType.PARAMETER}
    COMMANDS: ClassVar = set()
    BIT_STRINGS: ClassVar = []
    HEX_STRINGS: ClassVar = []


QUOTED = frozenset({TokenType.STRING, TokenType.BYTE_STRING, TokenType.IDENTIFIER})
"""The kinds of tokens that stand between quotes, and should rarely span lines."""

# sqlglot takes `$1,$` or `$ ;a$` for the opening of a dollar quote. A tag is a word.
_DELIMITER = re.compile(r"(?=(\$(?:[^\W\d]\w*)?\$))")
_WORD_OR_DOLLAR = re.compile(r"[^\W\d][\w$]*|\$")
_NO_QUOTE = "\ufdd0"  # no character: stands in for a dollar that neither opens nor closes a quote


def tokens(text: str) -> tuple[Token, ...]:
    """The tokens of a text, comments left out."""
    try:
        return _scan(text)
    except TokenError:
        # Of the line that opens it: every longer piece of the text fails.
        ends = [end.end() for end in re.finditer("\n", text)]
        start = next((end for end in reversed(ends) if is_closed(text[:end])), 0)
        raise UnterminatedError(start) from None


@lru_cache(maxsize=1024)
def _scan(text: str) -> tuple[Token, ...]:
    kept = {end for m in _DELIMITER.finditer(text) for end in (m.start(1), m.end(1) - 1)}
    plain = _WORD_OR_DOLLAR.sub(
        lambda m: _NO_QUOTE if m[0] == "$" and m.start() not in kept else m[0], text
    )
    # sqlglot steps back one character too few where a lone dollar ends the text.
    found = _Lexer(dialect="postgres").tokenize(plain + "\n")
    bounds = ((t, t.start, t.end + 1) for t in found)
    return tuple(
        Token(t.token_type, text[start:end], t.text.replace(_NO_QUOTE, "$"), start, end)
        for t, start, end in bounds
    )


def is_closed(text: str) -> bool:
    """True if a text ends outside of every string, comment and dollar quote."""
    try:
        _scan(text)
    except TokenError:
        return False
    return True


def piece(text: str, start: int, end: int) -> tuple[Token, ...]:
    """The tokens of a piece of a text, with their offsets in the text."""
    try:
        found = tokens(text[start:end])
    except UnterminatedError as error:
        raise UnterminatedError(start + error.offset) from None
    return tuple(t._replace(start=t.start + start, end=t.end + start) for t in found)


def positional(found: Sequence[Token]) -> int | None:
    """The offset of `$1` or the like in a statement, which would be taken for its first `:name`.

    What PREPARE and CREATE name has parameters of its own.
    """
    if _first_word(found) in {"PREPARE", "CREATE"}:
        return None
    for mark, number in pairwise(found):
        if mark.raw == "$" and mark.end == number.start and number.raw.isdigit():
            return mark.start
    return None


def line_comments(text: str, found: Sequence[Token]) -> Iterator[int]:
    """The offset of each `--` comment that is not itself inside a string or a block comment."""
    ends = [0, *(token.end for token in found)]
    starts = [*(token.start for token in found), len(text)]
    for gap, end in zip(ends, starts, strict=True):
        position, depth = gap, 0
        while mark := _MARKS[depth > 0].search(text, position, end):
            position = mark.end()
            if mark[0].startswith("--"):
                yield mark.start()
            else:
                depth += 1 if mark[0] == "/*" else -1


_MARKS = {False: re.compile(r"--[^\n\r]*|/\*"), True: re.compile(r"/\*|\*/")}


def split(text: str, found: Sequence[Token] | None = None) -> list[ScriptStatement]:
    """The statements of a text, or of a piece of it whose tokens are given, as psql splits them.

    A semicolon ends a statement unless it stands in parentheses (CREATE RULE) or between BEGIN
    ATOMIC and its END. Comments around a statement are left out, but for a planner hint before it.
    """
    statements: list[ScriptStatement] = []
    pending: list[Token] = []
    previous_end = parentheses = atomic = 0
    for token in tokens(text) if found is None else found:
        if token.raw == ";" and not parentheses and not atomic:
            statements += _statement(text, pending, previous_end)
            pending, previous_end = [], token.end
            continue
        if token.raw in "()":
            parentheses = max(0, parentheses + (1 if token.raw == "(" else -1))
        elif token.word == "ATOMIC" and pending and pending[-1].word == "BEGIN":
            atomic += 1
        elif atomic and token.word in {"CASE", "END"}:
            atomic += 1 if token.word == "CASE" else -1
        pending.append(token)
    return statements + _statement(text, pending, previous_end)


# pg_hint_plan reads the comment before a statement, but none that is itself commented out.
_HINT = re.compile(r"^[ \t]*(/\*\+[^*]*\*/)\s*\Z", re.MULTILINE)


def _statement(text: str, found: Sequence[Token], previous_end: int) -> list[ScriptStatement]:
    if not found:
        return []
    hint = _HINT.search(text[previous_end : found[0].start])
    start = previous_end + hint.start(1) if hint else found[0].start
    return [ScriptStatement(text[start : found[-1].end], start, tuple(found))]


@lru_cache(maxsize=1024)  # asked of each statement that is sent
def first_keyword(sql: str) -> str:
    """The first word of a statement in upper case; empty where it has none."""
    return _first_word(tokens(sql))


def _first_word(found: Sequence[Token]) -> str:
    return next((token.word for token in found if token.word), "")


def copies(found: Sequence[Token]) -> bool:
    """True for a COPY from or to the client."""
    words = {token.word for token in found}
    return _first_word(found) == "COPY" and not words.isdisjoint({"STDIN", "STDOUT"})


def chains(found: Sequence[Token]) -> bool:
    """True for the end of a transaction that begins the next one."""
    return [token.word for token in found[-2:]] == ["AND", "CHAIN"]


BEGINS = frozenset({"BEGIN", "START"})
"""The first words of what begins a transaction."""

_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "INTO"})


def only_selects(sql: str) -> bool:
    """True if a statement is a query that changes nothing by itself: DECLARE CURSOR takes it.

    A query that names a column `insert` or the like without quotes passes for one that does.
    """
    if first_keyword(sql) not in {"SELECT", "WITH", "VALUES"}:
        return False
    words = pairwise(["", *(token.word for token in tokens(sql))])
    locks = {("FOR", "UPDATE"), ("KEY", "UPDATE")}  # FOR UPDATE, FOR NO KEY UPDATE
    return not any(pair[1] in _CHANGES and pair not in locks for pair in words)


def changes_rows(sql: str) -> bool:
    """True if a statement inserts, updates or deletes, itself or in a WITH query of its own."""
    words = [token.word for token in tokens(sql)]
    changes = {("INSERT", "INTO"), ("MERGE", "INTO"), ("DELETE", "FROM")}
    return words[:1] == ["UPDATE"] or any(pair in changes for pair in pairwise(words))


Replacement: TypeAlias = tuple[int, int, str]


@lru_cache(maxsize=1024)
def compile_statement(sql: str, *, move_clock: bool = True) -> Compiled:
    """Turn `:name` into `$1` to `$n`, and the keyword forms of the time into the clock's functions.

    The clock is a schema `clock` ahead of `pg_catalog` in the search_path: it catches `now()`,
    but neither `CURRENT_TIMESTAMP` nor `pg_catalog.now()` nor `'now'::timestamptz`. These are
    rewritten, in the bodies of functions too, and so is a search_path without the clock.
    """
    found = tokens(sql)
    first_use = parameters(found)
    number = {name: n for n, name in enumerate(first_use, 1)}
    replacements: list[Replacement] = [
        (colon.start, name.end, f"${number[name.raw]}") for colon, name in _parameters(found)
    ]
    if move_clock:
        replacements += _all_times(found, found[:1])
    sent, edits = _replace(sql, replacements)
    return Compiled(sent, tuple(first_use), edits)


def _all_times(found: Sequence[Token], first: Sequence[Token]) -> Iterator[Replacement]:
    """All that a clock has to be put into; `first` may be the first of a statement."""
    # PostgreSQL freezes 'now' in a DEFAULT or a view when it is created: a queue that relies on it
    # is broken, and a rewrite would excuse it.
    frozen = any(token.word in {"CREATE", "ALTER"} for token in first)
    yield from _times(found, literals=not frozen)
    yield from _times_in_body(found)
    if not frozen:
        yield from _paths(found)


_SOME_TIME = re.compile(
    r"current_(?:timestamp|date|time)|localtime|pg_catalog\.|'\s*now\s*'|search_path", re.IGNORECASE
)


@lru_cache(maxsize=1024)
def move_times(sql: str) -> str:
    """A client's statements with the forms of the time turned into the clock's functions.

    Their parameters are `$1` and so on. What cannot be read as such is left as it is.
    """
    if not _SOME_TIME.search(sql):
        return sql
    try:
        found = tokens(sql)
    except UnterminatedError:
        return sql
    return _replace(sql, _all_times(found, found))[0]


def _replace(sql: str, replacements: Iterable[Replacement]) -> tuple[str, tuple[Replaced, ...]]:
    sent, position, edits = "", 0, list[Replaced]()
    for start, end, new in sorted(replacements):
        sent += sql[position:start]
        edits.append(Replaced(start, end, len(sent), len(sent) + len(new)))
        sent, position = sent + new, end
    return sent + sql[position:], tuple(edits)


def position_in(compiled: Compiled, server_position: int) -> int:
    """The offset in the original that PostgreSQL's error points at, as a character from 1 on.

    It is the start of what was replaced, if it points inside.
    """
    sent = max(0, server_position - 1)
    before = [edit for edit in compiled.edits if edit.sent_start <= sent]
    if not before:
        return sent
    _, end, _, sent_end = before[-1]
    return before[-1].start if sent < sent_end else end + sent - sent_end


_OPERANDS = frozenset(
    {TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.STRING}
    | {TokenType.R_PAREN, TokenType.R_BRACKET}
)


def parameters(found: Sequence[Token]) -> dict[str, int]:
    """The parameters of a statement, and where the colon stands at which each is first used."""
    uses: dict[str, int] = {}
    for colon, name in _parameters(found):
        uses.setdefault(name.raw, colon.start)
    return uses


def _parameters(found: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """Each colon and the name that follows it, without the colons of array slices."""
    slices = _slice_colons(found)
    for colon, name in pairwise(found):
        if (
            colon.kind is TokenType.COLON
            and name.kind is TokenType.VAR
            and name.start == colon.end
            and colon.start not in slices
        ):
            yield colon, name


def _slice_colons(found: Sequence[Token]) -> set[int]:
    """Offsets of the colons that belong to `a[1:n]`.

    `a[:n]` is a slice, as PostgreSQL reads it: a subscript by a parameter is `a[(:n)]`. With a
    second colon after an operand, `a[:m : n]`, that one is the slice's and the first a parameter's.
    """
    slices: set[int] = set()
    opened: list[tuple[bool, list[int]]] = []  # in a subscript?, its candidates
    before: Token | None = None
    for token in found:
        if token.raw in {"[", "("}:
            # `ARRAY[:a, :b]` lists elements; it has no slice.
            operand = before and before.kind in _OPERANDS and before.word != "ARRAY"
            opened.append((token.raw == "[" and bool(operand), []))
        elif token.raw in {"]", ")"} and opened:
            subscript, candidates = opened.pop()
            if subscript and candidates:
                slices.add(candidates[-1])
        elif token.raw == ":" and opened and before is not None:
            candidates = opened[-1][1]
            if before.kind in _OPERANDS or (before.raw == "[" and not candidates):
                candidates.append(token.start)
        before = token
    return slices


_KEYWORDS_OF_TIME = {
    "CURRENT_TIMESTAMP": ("clock.now", ""),
    "LOCALTIMESTAMP": ("clock.local_now", ""),
    "CURRENT_DATE": ("clock.now", "date"),
    "CURRENT_TIME": ("clock.now", "timetz"),
    "LOCALTIME": ("clock.local_now", "time"),
}
_SETS = frozenset({"LOCAL", "SESSION"})
# Forms of the time in tokens as `_shape` writes them.
_PRECISION = r"(?: \( 0 \))?"
_TYPE = r' (?:"?pg_catalog"? \. )?"?(?:timestamptz|timestamp|timetz|time|date)"?(?= )'
_ZONED = rf"{_TYPE}{_PRECISION}(?: with(?:out)? time zone)?"
_CLOCKS = r"(?:now|(?:clock|statement|transaction)_timestamp|timeofday)"
_RUNNING = (
    # Reserved words may still be labels (AS), attributes (.) and parameters (:).
    r"(?<! as)(?<! \.)(?<! :)",
    rf"(?P<keyword> (?:{'|'.join(_KEYWORDS_OF_TIME).lower()})(?= ){_PRECISION})",
    rf'|(?P<schema> "?pg_catalog"?)(?= \. "?{_CLOCKS}"? \()',
    # `('now'::text)::timestamptz` is read when it runs, in a DEFAULT as well.
    rf"""| 'now' :: "?(?:text|varchar)"?(?=(?: \))* (?:::|as){_TYPE})""",
)
_LITERAL = (
    rf"| 'now'(?= ::{_TYPE})|(?<= cast \() 'now'(?= as{_TYPE})",
    rf"|(?P<typed>{_ZONED} 'now')",
)
_TIMES = {
    literals: re.compile("".join((*_RUNNING, *_LITERAL) if literals else _RUNNING))
    for literals in (False, True)
}


def _shape(token: Token) -> str:
    """A token as one word behind a space: a name in small letters, of other values the kind."""
    match token.kind:
        case TokenType.STRING:
            return " 'now'" if token.value.strip().lower() == "now" else " ''"
        case TokenType.IDENTIFIER:
            return f' "{token.value.replace(" ", "_")}"'
        case TokenType.NUMBER:
            return " 0"
    return f" {token.raw.lower().replace(' ', '_')}"


def _times(found: Sequence[Token], *, literals: bool) -> Iterator[Replacement]:
    """The forms of the time that a function in the search_path cannot shadow."""
    shape = "".join(map(_shape, found)) + " "
    for form in _TIMES[literals].finditer(shape):
        first, behind = (shape.count(" ", 0, at) for at in form.span())
        start, *more = raws = [token.raw for token in found[first:behind]]
        new = "clock.now()"
        if form["keyword"]:
            function, cast = _KEYWORDS_OF_TIME[start.upper()]
            precision = "".join(more)
            new = f"({function}()::{cast}{precision})" if cast else function + (precision or "()")
        elif form["schema"]:
            new = "clock"
        elif literals and form["typed"]:
            new += f"::{' '.join(raws[:-1])}"
        yield found[first].start, found[behind - 1].end, new


def _paths(found: Sequence[Token]) -> Iterator[Replacement]:
    """Search paths that a statement sets, with the clock ahead of `pg_catalog`.

    Behind what it names: the first schema is where tables are created.
    """
    for index, token in enumerate(found):
        if token.word == "SET":
            start = index + 1 + any(one.word in _SETS for one in found[index + 1 : index + 2])
            match found[start : start + 2]:
                case [Token(word="SEARCH_PATH"), Token() as to] if to.raw == "=" or to.word == "TO":
                    yield from _with_clock(_until(found, start + 2, {";"}))
        if token.name != "set_config":
            continue
        match found[index + 1 : index + 4]:
            case [Token(raw="("), Token(value="search_path"), Token(raw=",")]:
                path = _until(found, index + 4, {","})
                if [one.kind for one in path] == [TokenType.STRING]:
                    named, own = path[0].raw[1:-1], "clock, pg_catalog"
                    if "pg_catalog" in named:
                        named = named.replace("pg_catalog", own, 1)
                    else:
                        named = f"{named}, {own}" if named else own
                    yield path[0].start, path[0].end, f"'{named}'"
                elif path:
                    yield path[-1].end, path[-1].end, " || ', clock, pg_catalog'"


def _with_clock(path: Sequence[Token]) -> Iterator[Replacement]:
    names = [one.name or one.value for one in path]
    if "pg_catalog" in names:
        first = path[names.index("pg_catalog")].start
        yield first, first, "clock, "
    elif path and path[0].word != "DEFAULT":
        yield path[-1].end, path[-1].end, ", clock, pg_catalog"


def _until(found: Sequence[Token], start: int, ends: Container[str]) -> Sequence[Token]:
    """The tokens up to one of some, outside of all brackets."""
    depth = 0
    for index in range(start, len(found)):
        depth += found[index].raw == "("
        depth -= found[index].raw == ")"
        if depth < 0 or (not depth and found[index].raw in ends):
            return found[start:index]
    return found[start:]


def _times_in_body(found: Sequence[Token]) -> Iterator[Replacement]:
    """The same inside the quoted body of a function, a procedure or a DO block."""
    words = [token.word for token in found[:4]]
    anonymous = words[:1] == ["DO"]
    routine = words[:1] == ["CREATE"] and not {"FUNCTION", "PROCEDURE"}.isdisjoint(words)
    named = (name.value.lower() for word, name in pairwise(found) if word.word == "LANGUAGE")
    language = next(named, "plpgsql")  # what DO takes; a routine must say
    if not (anonymous or routine) or language not in {"sql", "plpgsql"}:
        return
    for before, token in pairwise(found):
        if anonymous or before.word == "AS":
            yield from _times_quoted(token, strings=language == "plpgsql")


def _times_quoted(token: Token, *, strings: bool) -> Iterator[Replacement]:
    """The forms of the time in SQL between quotes; its strings may be SQL as well, for EXECUTE."""
    if token.kind is TokenType.HEREDOC_STRING:
        quote = token.raw.index("$", 1) + 1
    elif token.kind is TokenType.STRING and token.raw.startswith("'"):
        quote = 1
    else:
        return
    try:
        body = tokens(token.raw[quote:-quote])
    except UnterminatedError:
        return  # PostgreSQL will say what is wrong with it
    if len(body) == 1:
        return  # a word alone is a value
    # Between single quotes others are doubled, and no literal reads as one.
    inner = [*_times(body, literals=quote > 1), *_paths(body)]
    if strings:
        inner += [one for quoted in body for one in _times_quoted(quoted, strings=True)]
    taken = -1
    for start, end, new in sorted(inner):
        if start >= taken:  # 'now' is a form of the time, and a string
            yield token.start + quote + start, token.start + quote + end, new
            taken = end
