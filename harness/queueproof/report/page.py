"""Cards and benchmarks as one self-contained page."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial

from markupsafe import Markup, escape
from pygments.lexers.sql import PostgresLexer
from pygments.token import Token

from queueproof import __version__
from queueproof.bench.render import Section
from queueproof.errors import QueueproofError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report import terminal, text
from queueproof.report.card import SCHEMA, Card, Verdict, worst_first
from queueproof.report.data import read
from queueproof.report.draw import STYLE, draw
from queueproof.report.forms import filled_in
from queueproof.report.story import Asked, Sent, Story

_PAINTED = (
    (Token.Comment, "c"),
    (Token.Keyword, "k"),
    (Token.Name.Builtin, "t"),
    (Token.Name.Variable, "v"),
    (Token.String, "s"),
    (Token.Number, "m"),
)
_MARKS: Mapping[str, str] = {
    "holds": "✓",
    "broken": "✗",
    "accepted": "≈",
    "inconclusive": "?",
    "not-offered": "·",
}

Matrix = Mapping[str, Mapping[str, Verdict]]
"""Verdicts by queue and guarantee, as `make results` writes them."""


def to_page(
    cards: Sequence[Card],
    replay: str | None = None,
    benches: Sequence[Section] = (),
    matrices: Sequence[tuple[str, Matrix]] = (),
) -> str:
    """A page without scripts, that takes nothing from the network.

    `replay` is the command that replays a story, up to its token; None: told by the card's queue.
    Matrices are verdicts without their stories, each with the name of its file.
    """
    return filled_in(
        "page.html",
        cards=cards,
        benches=benches,
        matrices=[(name, [(*row, {}) for row in matrix.items()]) for name, matrix in matrices],
        catalogue=CATALOGUE,
        replay=replay,
        indexed=[_indexed(card, number) for number, card in enumerate(cards, start=1)],
        judged=[id_ for id_ in CATALOGUE if any(id_ == j.id for c in cards for j in c.guarantees)],
        by_severity=partial(sorted, key=worst_first),
        marks=_MARKS,
        style=Markup(STYLE),  # noqa: S704 - a constant of ours
        drawn=lambda story, link: Markup(draw(story, link)),  # noqa: S704 - XML, escaped
        statements=statements,
        terminal=terminal,
        text=text,
        coded=_coded,
        painted=painted,
        quoted=shlex.quote,
        version=__version__,
    )


def _indexed(card: Card, number: int) -> tuple[Markup, dict[str, Verdict], dict[str, str]]:
    """A row of the index: the link to a card, its verdicts, and the links to its stories."""
    name = Markup('<a href="#card-{}">{}</a>').format(number, card.queue)
    verdicts = {one.id: one.verdict for one in card.guarantees}
    return name, verdicts, {one.id: f"#{one.id}-{number}" for one in card.guarantees if one.stories}


def read_matrix(content: object) -> Matrix:
    """Verdicts by queue and guarantee."""
    matrix: Matrix = read(Matrix, content)
    if not matrix or not all(v and v.keys() <= CATALOGUE.keys() for v in matrix.values()):
        raise ValueError("no queue, or a guarantee that nobody knows")
    return matrix


def _coded(words: str) -> Markup:
    """Prose with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(words))))  # noqa: S704 - escaped


def painted(sql: str) -> Markup:
    """SQL as HTML, its keywords, strings, parameters and comments marked."""
    found = PostgresLexer(stripnl=False, ensurenl=False).get_tokens(sql)
    told = Markup()
    for name, tokens in itertools.groupby(
        found, lambda token: next((name for wide, name in _PAINTED if token[0] in wide), "")
    ):
        value = "".join(value for _, value in tokens)
        told += Markup('<span class="{}">{}</span>').format(name, value) if name else value
    return told


def statements(story: Story) -> list[tuple[str, str, str]]:
    """The SQL of a story: its letter, which operations send it, and the text."""
    used: dict[int, dict[str, dict[str, None]]] = {}  # by statement, by who sends it: the steps
    asked: dict[str, str] = {}
    for number, moment in enumerate(story.moments, 1):
        for fact in moment.facts:
            if isinstance(fact, Asked):
                asked[moment.actor] = fact.operation
            elif isinstance(fact, Sent):
                by = f"{asked.get(moment.actor, '')} by {moment.actor}".strip()
                used.setdefault(fact.statement, {}).setdefault(by, {})[str(number)] = None
    told = {
        statement: "; ".join(
            f"{by}, step{'s' * (len(steps) > 1)} {', '.join(steps)}" for by, steps in sent.items()
        )
        for statement, sent in used.items()
    }
    return [(text.letter(n), told.get(n, ""), sql) for n, sql in enumerate(story.statements)]


def read_card(written: str) -> Card:
    """Read a card.json; QueueproofError: it is none, or was written by a version that knew more."""
    try:
        found = json.loads(written)
        if found.get("schema", SCHEMA) > SCHEMA:
            raise QueueproofError(f"this card is of a newer queueproof (schema {found['schema']})")
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair cannot be written
        card: Card = read(Card, found)
        unknown = [judgement.id for judgement in card.guarantees if judgement.id not in CATALOGUE]
        stories = (story.told for judgement in card.guarantees for story in judgement.stories)
        for told in stories if not unknown else ():
            if told is not None:
                text.to_text(told)  # refuses words that are not known here
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else error
        if isinstance(error, TypeError | AttributeError):  # in Python's words
            said = "a part of it is of another type"
        raise QueueproofError(f"this is no card of queueproof: {said}") from None
    if unknown:
        raise QueueproofError(f"this card has guarantees unknown here: {', '.join(unknown)}")
    return card
