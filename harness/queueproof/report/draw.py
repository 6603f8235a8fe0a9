"""A story as a drawn sequence diagram: SVG with a column per actor, without a script."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import NamedTuple
from xml.etree import ElementTree as ET

from queueproof.report.story import Answered, Asked, Event, Fact, Moment, Passed, Sent, Story
from queueproof.report.text import bound, letter, lines_of, passages, worded

STYLE = files(__package__).joinpath("drawn.css").read_text(encoding="utf-8")
"""The CSS that a page with drawings needs once; its colours may be set as variables."""

LINE = 17  # pixels; so are the others
CHAR = 7.3  # of a monospace font of 12 px, the widest of the usual ones
MARGIN = 46  # for the numbers
WIDE = 940  # of all columns, where they do not need more
NARROWEST, WIDEST = 190, 330  # of one column
BAR = 7  # of what a worker holds
PAD = 8  # between a box and its words
_KINDS: Mapping[type, str] = {Asked: "asked", Sent: "sent", Passed: "faint"}


class _Line(NamedTuple):
    """A line of text in a column."""

    text: str
    kind: str = ""
    statement: int | None = None
    about: str = ""  # who is waited for


@dataclass(slots=True)
class _Drawing:
    """A drawing in the making."""

    columns: Sequence[str]
    width: float
    link: str  # what the addresses of statements begin with; nothing where they have none
    y: float = 40  # how far it has come
    below: list[ET.Element] = field(default_factory=list)  # what is covered by the rest
    above: list[ET.Element] = field(default_factory=list)
    # The operations that are open, or stretches of them: each one's top and kind
    bars: dict[str, tuple[float, str]] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)  # since when an actor's worker is no more

    @property
    def across(self) -> float:
        """The width of all columns."""
        return self.width * len(self.columns)

    def x(self, actor: str) -> float:
        """The place of an actor's line."""
        return MARGIN + self.columns.index(actor) * self.width + 6

    def text(self, x: float, y: float, line: _Line) -> None:
        """Write a line."""
        written = _element("text", {"x": x, "y": y, "class": line.kind}, line.text)
        if self.link and line.statement is not None:
            link = _element("a", {"href": f"#{self.link}{letter(line.statement)}"})
            link.append(written)
            written = link
        self.above.append(written)

    def close(self, actor: str, y: float) -> None:
        """End a stretch of an operation, if one is open."""
        if actor in self.bars:
            top, kind = self.bars.pop(actor)
            place = {"x": self.x(actor) - BAR / 2, "y": top, "width": BAR, "rx": 2}
            size = {"height": max(y - top, 2), "class": kind}
            self.below.append(_element("rect", place | size))

    def open(self, actor: str, y: float, kind: str) -> None:
        """Begin a stretch, where the one before ends: `busy`, `open` while others act, `wait`."""
        self.close(actor, y)
        self.bars[actor] = y, kind

    def rule(self, kind: str, *ends: float) -> None:
        """Draw a straight line."""
        names = zip(("x1", "y1", "x2", "y2"), ends, strict=True)
        self.below.append(_element("line", {**dict(names), "class": kind}))


def draw(story: Story, link: str = "") -> str:
    """A story as an SVG element, to stand in a page with `STYLE`.

    Its statements are links to `#`, `link` and the letter; without a `link` they are none.
    """
    found = list(passages(story))
    single = {m.actor for one in found if one.times == 1 for m in one.moments}
    columns = [actor for actor in story.actors if actor in single]
    width = min(max(WIDE / max(len(columns), 1), NARROWEST), WIDEST)
    drawing = _Drawing(columns, width, link)
    for actor in columns:
        drawing.text(drawing.x(actor) - 4, 20, _Line(actor, "who"))
    for passage in found:
        last = passage is found[-1]
        drawing.text(2, drawing.y + LINE - 4, _Line(passage.number, "n"))
        moment = passage.moments[0]
        if passage.times == 1 and moment.actor:
            _moment(drawing, moment, last=last)
        else:
            _across(drawing, lines_of(passage), clock=not moment.actor and passage.times == 1)
    for actor in columns:
        drawing.close(actor, drawing.y)
        end = drawing.gone.get(actor, drawing.y)
        drawing.rule("life", drawing.x(actor), 28, drawing.x(actor), end)
        drawing.rule("life gone", drawing.x(actor), end, drawing.x(actor), drawing.y)
    full, high = MARGIN + max(drawing.across, WIDEST), drawing.y + 6
    size = {"viewBox": f"0 0 {full:g} {high:g}", "width": full, "height": high}
    # What a picture holds is not read out, nor are links in it found.
    svg = _element("svg", {**size, "class": "drawn", "role": "group" if link else "img"})
    svg.append(_element("title", {}, f"{story.guarantee}: {story.broken}"))
    lives = [one for one in drawing.below if "life" in one.get("class", "")]
    svg.extend([*lives, *(one for one in drawing.below if one not in lives), *drawing.above])
    return ET.tostring(svg, encoding="unicode")


def _moment(drawing: _Drawing, moment: Moment, *, last: bool) -> None:
    """Draw what an actor does, in its column."""
    actor, x, top = moment.actor, drawing.x(moment.actor), drawing.y
    drawing.gone.pop(actor, None)
    room = int((drawing.width - 28) / CHAR)
    lines = [line for fact in moment.facts for line in _lines(fact, room)]
    if last:
        box = {"x": MARGIN - 8, "y": top - 2, "width": drawing.across + 8, "rx": 4}
        high = LINE * (len(lines) + sum(bool(line.about) for line in lines)) + PAD
        drawing.below.insert(0, _element("rect", {**box, "height": high, "class": "breach"}))
    answers = [n for n, line in enumerate(lines) if line.kind == "answer"]
    if last and answers:
        lines[answers[-1] :] = [line._replace(kind="bad") for line in lines[answers[-1] :]]
    first = moment.facts[0]
    if isinstance(first, Event) and first.kind == "crash":
        drawing.close(actor, top)
        middle = top + LINE / 2
        drawing.rule("cross", x - 5, middle - 5, x + 5, middle + 5)
        drawing.rule("cross", x - 5, middle + 5, x + 5, middle - 5)
        drawing.gone[actor] = top + LINE
    else:
        drawing.open(actor, top, "busy")
    y = top
    for line in lines:
        y += LINE
        drawing.text(x + 12, y - 4, line)
        if line.kind == "waits":
            drawing.open(actor, y - LINE + 2, "wait")
            if line.about in drawing.columns and line.about != actor:
                y += LINE
                _arrow(drawing, x, drawing.x(line.about), y - LINE / 2)
        elif actor in drawing.bars and drawing.bars[actor][1] == "wait":
            drawing.open(actor, y - LINE + 2, "busy")
    drawing.y = y + PAD
    if moment.ends:
        drawing.close(actor, y)
    elif drawing.bars[actor][1] != "wait":
        drawing.open(actor, y, "open")


def _across(drawing: _Drawing, lines: Sequence[str], *, clock: bool) -> None:
    """Draw what concerns everybody, or is told together: across all columns."""
    wide = max(drawing.across, WIDEST)
    room = int((wide - 24) / CHAR)
    wrapped = [piece for one in lines for piece in textwrap.wrap(one, room, subsequent_indent="  ")]
    long = max(map(len, wrapped)) * CHAR + 20
    x = MARGIN + (wide - long) / 2 if clock else MARGIN - 4
    high = LINE * len(wrapped) + 6
    if clock:
        y = drawing.y + high / 2
        drawing.rule("clock", MARGIN - 6, y, MARGIN + wide, y)
    size = {"x": x, "y": drawing.y, "width": min(long, wide), "height": high, "rx": 8}
    drawing.below.append(_element("rect", {**size, "class": "pill"}))
    for n, piece in enumerate(wrapped):
        drawing.text(x + 10, drawing.y + LINE * (n + 1) - 1, _Line(piece, "faint"))
    drawing.y += high + PAD


def _lines(fact: Fact, room: int) -> list[_Line]:
    """A fact as lines of a column, of at most so many characters."""
    text, kind = worded(fact), _KINDS.get(type(fact), "")
    if isinstance(fact, Answered):
        text, kind = f"→ {text}", "answer" if fact.kind == "answer" else "bad"
    elif isinstance(fact, Event):
        kind = {"waits": "waits", "crash": "bad"}.get(fact.kind, "faint")
    statement = fact.statement if isinstance(fact, Sent) else None
    pieces = textwrap.wrap(text, room, subsequent_indent="  ") or [""]
    lines = [_Line(piece, kind, statement) for piece in pieces]
    if isinstance(fact, Event) and kind == "waits":
        lines[-1] = lines[-1]._replace(about=fact.about)
    if isinstance(fact, Sent):
        params = textwrap.wrap(bound(fact), room, subsequent_indent=" ")
        lines += [_Line(piece, "faint") for piece in params]
    return lines


def _arrow(drawing: _Drawing, start: float, end: float, y: float) -> None:
    """From who waits to whom it waits for."""
    way = 1 if end > start else -1
    drawing.rule("arrow", start + way * BAR / 2, y, end - way * 10, y)
    tip = [(end - way * 4, y), (end - way * 12, y - 4), (end - way * 12, y + 4)]
    points = " ".join(f"{x:g},{height:g}" for x, height in tip)
    drawing.below.append(_element("polygon", {"points": points, "class": "head"}))


def _element(tag: str, facts: Mapping[str, object], text: str | None = None) -> ET.Element:
    """An element; XML escapes whatever stands in it."""
    told = ((k, f"{v:g}" if isinstance(v, int | float) else str(v)) for k, v in facts.items())
    element = ET.Element(tag, {k: v for k, v in told if v})
    element.text = text
    return element
