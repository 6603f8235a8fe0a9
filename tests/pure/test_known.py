"""Stories by their names: what a check keeps, and what a replay finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.cli import run
from queueproof.cli.judging import _tell_todos, _telling
from queueproof.cli.known import remember, token_of
from queueproof.errors import Exit, QueueproofError
from queueproof.queues.sqlfile import load_text
from queueproof.report.card import Break, Card, Judgement
from queueproof.report.terminal import Output
from tests.fix_histories import each
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


def test_the_next_check_forgets_the_last() -> None:
    """Its stories alone have names."""
    assert remember("q.sql", {"order": "A"})
    assert remember("q.sql", {"fencing": "B"})
    with pytest.raises(QueueproofError, match=r"has no story order: its stories are fencing$"):
        token_of("q.sql", "order")
    with pytest.raises(QueueproofError, match=r"no guarantee is named 'fencin'; did you mean"):
        token_of("q.sql", "fencin.2")
    assert remember("q.sql", {})
    with pytest.raises(QueueproofError, match=r"has no story order: it found nothing broken$"):
        token_of("q.sql", "order")
    with pytest.raises(QueueproofError, match=r"no check of other.sql is remembered here: check"):
        token_of("other.sql", "order")


@pytest.mark.parametrize("written", ["[]", "3", "null", "{", "[1]", "\udcff"])
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
    """One of a guarantee has its id; of several each has a number; an accepted break has none."""
    more = (Break("b", "told", None),)
    found = [
        Judgement("order", "broken", "a", "story", "T"),
        Judgement("fencing", "broken", "a", "story", "T", more=more),
        Judgement("backoff", "accepted", "a", "story", "T"),
    ]
    assert [*Card("q", "p", 0, 1.0, found).breaks] == ["order", "fencing.1", "fencing.2"]


@each("""
    because => told
    w3 got a job that w2 already holds => a worker got a job that another already holds
    w3 got job 1, and w3 has it => a worker got job 1, and a worker has it
    w1, w2 and w3 waited => a worker, another and a third waited
""")
def test_a_break_is_told_at_once_without_the_workers_numbers(
    because: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its story is another run's, and an interrupt says how it is had; one worker has one name."""

    def check() -> None:
        with _telling(load_text(SKIP_LOCKED, "q.sql")) as tell:
            tell("single-claim", because)
            raise KeyboardInterrupt

    sooner = "^interrupted; --fail-fast --only single-claim ends with the first story$"
    with pytest.raises(KeyboardInterrupt, match=sooner):
        check()
    assert capsys.readouterr().err.endswith(f" s: single-claim: {told}\n")


@pytest.mark.parametrize(
    ("todos", "told"),
    [
        (0, ""),
        (1, "q.sql:1: a line still says TODO: what was judged is the proposal,"),
        (2, "q.sql:1: 2 lines still say TODO: what was judged"),
    ],
)
def test_a_proposal_says_so(todos: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What `init` could not know stands there as long as nobody has looked at it."""
    _tell_todos(Output(), load_text("-- TODO: this\n" * todos + SKIP_LOCKED, "q.sql"))
    said = capsys.readouterr().out
    assert (said.startswith(told), bool(said)) == (True, bool(todos))
