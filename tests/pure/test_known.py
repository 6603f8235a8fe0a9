"""Stories by their names: what a check keeps, and what a replay finds."""

import re
import sys
from io import StringIO
from pathlib import Path

import pytest

from queueproof.advice.file import OURS
from queueproof.advice.remedies import with_remedies
from queueproof.advice.search import Advice
from queueproof.cli import run
from queueproof.cli.judging import _tell_todos, _telling
from queueproof.cli.known import fix_of, remember, token_of
from queueproof.errors import Exit, QueueproofError, Source
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues.sqlfile import load_text
from queueproof.report.card import Break, Card, Judgement, Place
from queueproof.report.story import Account, Part
from queueproof.report.terminal import Output, print_breaks, print_story, print_whole, summary
from queueproof.report.text import TRIED
from tests.fix_places import SKIP_LOCKED


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of the test's own, and a folder that holds a queue."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.sql").write_text("a queue")
    return tmp_path / "cache"


def test_a_story_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere, for a file; the first of several needs no number, and a token is its own."""
    assert remember("q.sql", {"order": "A", "fencing.1": "B", "fencing.2": "C"})
    named = ("order", "order.1", "fencing", "fencing.1", "fencing.2", "eNqrVkpT")
    assert [token_of("q.sql", name) for name in named] == ["A", "A", "B", "B", "C", "eNqrVkpT"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert token_of("../q.sql", "fencing.2") == "C"
    with pytest.raises(
        QueueproofError, match=r"break of ../q.sql\?\n.* replay ../q.sql order\n.* fencing.1"
    ):
        token_of("../q.sql", "")


def test_the_next_check_forgets_what_it_judged_anew() -> None:
    """A check of some guarantees leaves the stories of the others their names."""
    assert remember("q.sql", {"order": "A", "fencing": "B"}, fixes={"order": "a", "fencing": "b"})
    assert remember("q.sql", {"backoff": "C"}, {"backoff", "fencing"}, {"backoff": "c"})
    fixes = ["a", None, "c"]
    assert [fix_of("q.sql", name) for name in ("order", "fencing", "backoff")] == fixes
    assert [token_of("q.sql", name) for name in ("order", "backoff")] == ["A", "C"]
    with pytest.raises(QueueproofError, match=r"cannot be replayed; what can be: backoff, order$"):
        token_of("q.sql", "fencing")
    assert remember("q.sql", {"fencing": "B"})
    with pytest.raises(QueueproofError, match=r"cannot be replayed; what can be: fencing$"):
        token_of("q.sql", "order")
    with pytest.raises(QueueproofError, match=r"unknown guarantee 'fencin'; did you mean"):
        token_of("q.sql", "fencin.2")
    assert remember("q.sql", {})
    with pytest.raises(QueueproofError, match=r"cannot be replayed; nor can any other$"):
        token_of("q.sql", "order")
    with pytest.raises(QueueproofError, match=r"other.sql has not been checked on this machine"):
        token_of("other.sql", "order")


@pytest.mark.parametrize("written", ["[]", "3", "null", "{", "[1]", '{"order": "A"}', "\udcff"])
def test_what_is_no_file_of_stories_is_none(cache: Path, written: str) -> None:
    """Somebody else wrote it: the check is made again."""
    assert remember("q.sql", {"order": "A"})
    (kept,) = cache.rglob("*.json")
    kept.write_text(written, errors="surrogateescape")
    with pytest.raises(QueueproofError):
        token_of("q.sql", "order")


def test_without_a_cache_tokens_are_told(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file stands where the folder would be."""
    cache.write_text("")
    assert not remember("q.sql", {"order": "A"})
    assert run(["replay", "q.sql", "order"]) == Exit.UNUSABLE
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_a_card_names_the_stories_of_what_is_broken() -> None:
    """One has its id, of several each a number; what is accepted is apart, and can be seen."""
    more = (Break("b", "told", None),)
    found = [
        Judgement("order", "broken", "a", "story", "T"),
        Judgement("fencing", "broken", "a", "story", "T", more=more),
        Judgement("backoff", "accepted", "a", "story", "T"),
    ]
    card = Card("q", "p", 0, 1.0, found)
    assert [*card.breaks] == ["order", "fencing.1", "fencing.2"]
    assert [*card.accepted] == ["backoff"]
    known = [Judgement("backoff", "accepted", "a", "story", "T")]
    out = Output(written := StringIO())
    print_breaks(out, Card("q", "p", 0, 1.0, known), "queueproof replay q.sql", named=True)
    assert written.getvalue() == "See what is accepted: queueproof replay q.sql backoff\n\n"


def test_a_break_is_told_at_once_and_shown_soon(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt says how to see the steps that a terminal showed, or how they are had sooner."""

    def check() -> None:
        queue = load_text(SKIP_LOCKED, "q.sql")
        with _telling(queue, ("queueproof", "replay", "q.sql"), fail_fast=False) as (told, shown):
            told("single-claim")
            told("fencing")
            if shown is not None:
                account = Account("fencing", (Part("prose", "lead"),))
                shown("fencing", Break("why", "text", "TOKEN", account))
            raise KeyboardInterrupt

    sooner = "^interrupted; --fail-fast --only single-claim ends with the first story$"
    with pytest.raises(KeyboardInterrupt, match=sooner):
        check()
    first, second = capsys.readouterr().err.splitlines()
    assert " s: single-claim. The steps follow when the check ends; with --fail-fast" in first
    assert second.endswith(" s: fencing")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    found = r"see what was found: queueproof replay q\.sql fencing"
    with pytest.raises(KeyboardInterrupt, match=found):
        check()
    assert token_of("q.sql", "fencing") == "TOKEN"
    seen = capsys.readouterr().err
    assert "The steps follow" not in seen
    assert ": fencing\n\nThe first steps seen of fencing; the shortest" in seen
    assert seen.endswith(":\n\nlead\n\n")


def test_the_line_of_a_break_is_the_one_to_change() -> None:
    """The summary names the line that its remedy names, and wraps without blanks at the ends."""
    more = (Break("b", "told", None, place=Place("q.sql", 9)),)
    one = Judgement("order", "broken", "a " * 60, "story", "T", more=more, place=Place("q.sql", 8))
    told = "Add it. With this change at q.sql:7 it is gone."
    advice = {"order": Advice(told, Source(Path("q.sql"), 7))}
    queue = load_text(SKIP_LOCKED, "q.sql")
    card = with_remedies(Card("q.sql", "p", 0, 1.0, [one]), queue, advice=advice)
    assert [found.place for found in card.guarantees[0].stories] == [Place("q.sql", 7)] * 2
    out = Output(written := StringIO())
    out._force_terminal, out.width = True, 60
    print_breaks(out, card, "queueproof replay q.sql", named=True)
    told = written.getvalue()
    assert "order.1  q.sql:7" in re.sub(r"\x1b\[[\d;]*m", "", told)
    assert not re.search(r" \n", told)
    assert "queueproof replay q.sql order.1" in told


def test_the_last_screen_explains_what_is_inconclusive_and_fits() -> None:
    """A reason stands beside its guarantee; many of one verdict are only counted."""
    doubt = Judgement("retry-bound", "inconclusive", "follows from single-claim", explained=True)
    other = Judgement("pooler-safe", "inconclusive", "PgBouncer is missing")
    found = [Judgement("single-claim", "broken", "a", "story", "T"), doubt, other]
    card = Card("jobs.sql", "p", 0, 1.0, [*found, Judgement("order", "holds", "")])
    out = Output(written := StringIO())
    out._force_terminal, out.width = True, 60
    print_breaks(out, card, "queueproof replay jobs.sql", named=True)
    print_whole(out, card, 53)
    told = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue())
    first = "Fix what is broken first, then check again."
    assert f"retry-bound  inconclusive\n  {doubt.reason}\n  {first}\n" in told
    assert other.reason not in told
    ends = "single-claim broken; retry-bound, pooler-safe inconclusive; "
    assert told.endswith(f"\nbroken: jobs.sql\n{ends}\n1 holds; 19 not asked; 53 s\n")
    names = ["fencing", "order", "backoff", "routing", "isolation", "claim-limit"]
    rest = [Judgement(name, "inconclusive", "") for name in names]
    assert summary([Judgement("single-claim", "broken", ""), *rest]) == (
        "single-claim broken; 6 inconclusive"
    )


def test_a_heading_ends_at_words_and_sql_stays_as_it_is() -> None:
    """On a terminal that is narrower than both: SQL is copied."""
    out = Output(written := StringIO())
    out._force_terminal, out.width = True, 20
    print_story(out, "order: The most urgent job comes first.\n\nSELECT id FROM jobs WHERE ready")
    lines = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue()).splitlines()
    assert [line.rstrip() for line in lines] == [
        *("order: The most", "urgent job comes", "first.", ""),
        "SELECT id FROM jobs WHERE ready",
    ]


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_line_of_a_fix_is_a_whole_sentence(name: str) -> None:
    """Its code is not cut at the dots that stand for a part of it."""
    out = Output(written := StringIO())
    out._force_terminal, out.width = True, 100
    found = [Judgement(name, "broken", "a", "story", more=(Break("b", "told", None),))]
    print_breaks(out, Card("q.sql", "p", 0, 1.0, found), "queueproof replay q.sql", named=True)
    fix = written.getvalue().partition("Fix: ")[2].partition("\x1b")[0]
    assert fix
    assert fix.count("`") % 2 == 0


def test_a_fix_that_stands_directly_above_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands below it say how to apply it, where git takes the diff."""
    out = Output(written := StringIO())
    monkeypatch.setattr(out, "_force_terminal", True)
    told = f"Add it. {TRIED}"
    for name in ("q.sql", "../q.sql"):
        found = [Judgement("order", "broken", "a", "story", "T", remedy=told)]
        card = Card(name, "p", 0, 1.0, found)
        print_breaks(out, card, "queueproof replay", named=True, mend=f"queueproof mend {name}")
    assert "Fix: " not in written.getvalue()
    here, above = written.getvalue().split("Explain a guarantee:")[:2]
    assert here.endswith(
        " queueproof mend q.sql > fix.diff\nApply it:             git apply fix.diff\n"
    )
    assert above.endswith(" queueproof mend ../q.sql > fix.diff\n")


UNJUDGED = "If the claim is still the proposal's, yours was not judged."


@pytest.mark.parametrize(
    ("todos", "told"),
    [
        ("", ""),
        ("-- TODO: this\n", "q.sql: line 1 still says TODO.\n\n"),
        ("-- TODO: this\n\n" * 2, "q.sql: lines 1, 3 still say TODO.\n\n"),
        (f"-- {OURS}\n", f"q.sql: line 1 still says TODO. {UNJUDGED}\n\n"),
    ],
)
def test_a_proposal_says_so(todos: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A TODO of `init` is told until somebody has looked at it, and so is its claim."""
    # Somebody's own claim is not called the proposal's.
    _tell_todos(Output(), load_text(todos + SKIP_LOCKED, "q.sql"))
    assert capsys.readouterr().out == told
