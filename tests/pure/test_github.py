"""A card on GitHub: lines that it understands, a summary that no text breaks out of, a badge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from queueproof.report.badge import to_badge
from queueproof.report.card import Break, Card, Judgement, Place, Verdict
from queueproof.report.github import SUMMARY_BYTES, commands, to_summary


def card(*judgements: Judgement, queue: str = "q.sql") -> Card:
    """A card of some verdicts."""
    return Card(queue, "PostgreSQL 18", 0, 1.0, judgements)


def broken(reason: str = "w2 got job 1", story: str = "a story", line: int = 7) -> Judgement:
    """A break at a line of q.sql."""
    place = Place("db/q.sql", line)
    return Judgement("single-claim", "broken", reason, story, "TOKEN", place=place)


def test_each_story_is_an_error_at_its_line() -> None:
    """All stories of a guarantee are told, each where its last statement stands."""
    further = Break("w3 too", "another", None, place=Place("db/q.sql", 9))
    assert list(commands(card(replace(broken(), more=(further,))))) == [
        "::error file=db/q.sql,line=7,title=queueproof%3A single-claim::w2 got job 1",
        "::error file=db/q.sql,line=9,title=queueproof%3A single-claim::w3 too",
    ]


def test_what_holds_or_is_not_offered_is_no_annotation() -> None:
    """Accepted breaks are notices, open questions warnings, and the rest says nothing."""
    rest: tuple[Verdict, ...] = ("holds", "not-offered", "inconclusive")
    accepted = Judgement("fencing", "accepted", "late", "a story", None)
    found = commands(card(accepted, *(Judgement("order", one, "no run") for one in rest)))
    assert [line.partition(" ")[0] for line in found] == ["::notice", "::warning"]


def test_an_annotation_is_one_line_and_one_command() -> None:
    """Line breaks, percent signs, colons and commas of a reason or a file name are escaped."""
    (line,) = commands(card(broken("100%\n::error::x")))
    assert line.endswith("::100%25%0A::error::x")
    (line,) = commands(card(replace(broken(), place=Place("a,b:c.sql", 1))))
    assert "file=a%2Cb%3Ac.sql,line=1," in line


def test_files_are_named_from_the_checkout_s_root(tmp_path: Path) -> None:
    """A queue that is named from elsewhere is still found by GitHub."""
    found = replace(broken(), place=Place(str(tmp_path / "db" / "q.sql"), 3))
    (line,) = commands(card(found), str(tmp_path))
    assert line.startswith("::error file=db/q.sql,line=3,")


def test_the_summary_has_a_row_per_guarantee_and_each_story_with_its_command() -> None:
    """A table, and below it what is broken, to be unfolded and run again."""
    both = card(broken(), Judgement("order", "holds", "12 runs"))
    told = to_summary(both, "queueproof replay q.sql")
    assert "| `single-claim` | ❌ broken | w2 got job 1 |" in told
    assert "| `order` | ✅ holds | 12 runs |" in told
    assert told.count("<details>") == 1
    assert "queueproof replay q.sql TOKEN" in told


def test_no_text_of_a_queue_s_own_breaks_out_of_the_summary() -> None:
    """Pipes, tags and fences of a payload stay text."""
    told = to_summary(card(broken("a | b <img>", "```\n</details>\n````")), "")
    assert r"a \| b \<img\>" in told
    assert "`````\n```\n</details>\n````\n`````" in told


def test_a_summary_stays_below_github_s_limit() -> None:
    """What does not fit is left to the reports, and that is said."""
    told = to_summary(card(broken(), broken(story="x" * SUMMARY_BYTES)), "")
    assert told.count("<details>") == 1
    assert told.endswith("Further stories stand in the reports.\n")


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (("holds", "holds", "accepted", "not-offered"), "2 hold, 1 accepted"),
        (("holds", "broken", "inconclusive"), "1 broken, 1 inconclusive, 1 holds"),
        (("accepted", "inconclusive"), "1 inconclusive, 1 accepted"),
        (("not-offered",), "nothing judged"),
    ],
)
def test_a_badge_counts_each_verdict(verdicts: tuple[Verdict, ...], told: str) -> None:
    """An accepted break is counted beside what holds; the badge is XML and leads nowhere."""
    judgements = [Judgement(f"g{n}", verdict, "") for n, verdict in enumerate(verdicts)]
    badge = to_badge(card(*judgements, queue='<a href="x">&.sql'))
    root = ET.fromstring(badge)  # noqa: S314 - our own
    texts = [text for text in root.itertext() if text.strip()]
    assert texts == [f'<a href="x">&.sql: {told}', "queueproof", told]
    assert badge.count("http") == 1  # the namespace
