"""A limit ends every wait, and is given once more where this process could not look."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from queueproof import waits
from tests.fix_histories import each


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass of a clock that stands still otherwise."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def let_pass(seconds: float) -> None:
        clock.now += seconds

    return let_pass


def waited(limit: waits.Limit, passes: Callable[[float], None], seconds: float) -> None:
    """Wait as everybody does: as long as may be, and look again."""
    while seconds > 0:
        wanted = min(limit.left(), seconds)
        passes(wanted)
        seconds -= wanted


@each("""
    before => then
    looks that come in time find it over, and nothing is given
        looks 29.9 => looks 0.2
    what ran out while nobody looked is given once more, as after SIGSTOP and SIGCONT, and that once
        looks 10, stops 3600, looks 29.9 => stops 3600
    a stop that leaves time gives none: what is left of the limit is enough
        looks 10, stops 10 => looks 10.1
""")
def test_a_limit_is_over_when_it_says(
    passes: Callable[[float], None], before: str, then: str
) -> None:
    """By the one it is not over, by the other it is, and told so."""
    limit = waits.Limit(30.0, "an answer")
    acts: dict[str, Callable[[float], None]] = {
        "looks": partial(waited, limit, passes),
        "stops": passes,
    }

    def act(story: str) -> None:
        for what, seconds in map(str.split, story.split(", ")):
            acts[what](float(seconds))

    act(before)
    with pytest.raises(waits.LimitError, match="waited 30 s for an answer"):
        act(f"{then}, looks 1")


def test_a_look_that_is_a_little_late_or_comes_at_the_end_changes_nothing(
    passes: Callable[[float], None],
) -> None:
    """A busy machine is no stopped one, and who waits for all of it in one go is not late."""
    limit = waits.Limit(1.0, "an answer")
    limit.left()
    passes(1.0 + waits.LATE / 2)
    assert limit.is_over()
    limit = waits.Limit(30.0, "an answer")
    passes(limit.left(100.0))
    assert limit.is_over()
